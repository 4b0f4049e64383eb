"""Which profile of its framework each strategy takes."""

from __future__ import annotations

import re

from simcore.batch import Batch
from simcore.inputs.fields import FRAMEWORKS, UNSET
from simcore.inputs.framework import FrameworkSpec, Profile
from simcore.inputs.load import load_framework
from simcore.typing import IntArray


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version in order, ``core_r0.14.1`` -> (0, 14, 1), for comparison."""
    return tuple(int(part[:9]) for part in re.findall(r"\d+", version))


def select_profile(framework: FrameworkSpec, version: str | None) -> Profile:
    """Choose a framework's profile for a version.

    Parameters
    ----------
    framework : FrameworkSpec
        The profiles, oldest first.
    version : str or None
        None: the newest.

    Returns
    -------
    Profile
        The exact one, else the nearest earlier one, else the oldest.
    """
    wanted = framework.newest if version is None else version
    for profile in framework.profiles:
        if profile.version == wanted:
            return profile
    earlier = [p for p in framework.profiles if version_key(p.version) <= version_key(wanted)]
    return max(earlier, key=lambda p: version_key(p.version), default=framework.profiles[0])


def profile_codes(batch: Batch) -> tuple[tuple[Profile, ...], IntArray]:
    """Find the profile of every row.

    Returns
    -------
    profiles : tuple of Profile
        The distinct ones.
    index : ndarray, shape (n,)
        Which of them each row takes.
    """
    first, index = batch.group(("framework", "framework_version"))
    profiles = []
    for row in first:
        number, text = int(batch["framework"][row]), int(batch["framework_version"][row])
        name = FRAMEWORKS[max(number, 0)]
        version = None if text == UNSET else batch.texts[text]
        profiles.append(select_profile(load_framework(name), version))
    return tuple(profiles), index
