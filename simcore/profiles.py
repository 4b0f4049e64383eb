"""Which profile of its framework each strategy takes."""

from __future__ import annotations

import re

from simcore.batch import Batch
from simcore.inputs.fields import FRAMEWORKS, UNSET
from simcore.inputs.framework import FrameworkSpec, Profile
from simcore.inputs.load import load_framework
from simcore.inputs.strategy import Strategy
from simcore.typing import IntArray


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version in order, ``core_r0.14.1`` -> (0, 14, 1), for comparison."""
    return tuple(int(part[:9]) for part in re.findall(r"\d+", version))


def same_version(one: str, two: str) -> bool:
    """Tell whether two spellings name one version: 0.16, v0.16.0 and core_r0.16.0 do."""
    if one == two:
        return True
    keys = [version_key(text) for text in (one, two)]
    longest = max(map(len, keys))
    first, second = (key + (0,) * (longest - len(key)) for key in keys)
    return longest > 0 and first == second


def missing_version(strategy: Strategy) -> str:
    """Say which profile stands in for a version that has none; empty where it has its own."""
    asked, name = strategy.framework_version, strategy.framework or FRAMEWORKS[0]
    if asked is None or name not in FRAMEWORKS:
        return ""
    framework = load_framework(name)
    used = select_profile(framework, asked).version
    if same_version(asked, used):
        return ""
    which = "oldest" if version_key(used) > version_key(asked) else "nearest earlier"
    return (f"framework_version: {name} {asked} has no profile; that of {used}, the {which}, "
            "is used, and the interval is wider")


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
