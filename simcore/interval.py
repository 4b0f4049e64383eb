"""How sure a step time is: the spread of errors on measured runs like it.

A class of runs shares framework, system, whether the model has experts, and whether products run
in 8 or 4 bits. ``simcore/data/intervals.yaml`` holds, for every class with measured runs, the
10th and 90th percentile of ln(measured / predicted); a class without its own takes the nearest
wider one, and the interval grows with what is not known. `benchmarks/derive/intervals.py` makes
the file and measures on rows left out how often the interval holds.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from simcore.batch import Batch
from simcore.inputs.fields import FRAMEWORKS, UNSET
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.inputs.yaml_io import parse_yaml, require_mapping
from simcore.profiles import same_version
from simcore.resolve import is_fp8
from simcore.typing import BoolArray, FloatArray

FILE = "intervals.yaml"
WIDER_LEVELS = (1.0, 1.15, 1.3, 1.5)
"""Factors on the interval's ends by how many of system, framework and precision no measured run
shares (a judgement: one class of runs says little of another)."""
WIDER_PROFILE = 1.25
"""Factor where the framework's version has no profile of its own: releases of one layout differ
by 0.7 to 11 % (NVIDIA's Megatron-Bridge tables), about as much again as the error itself."""


class RunClass(NamedTuple):
    """Runs whose errors are alike; None stands for all values."""

    framework: str | None
    system: str | None
    experts: bool | None
    low_precision: bool | None


class Spread(NamedTuple):
    """Percentiles of ln(measured / predicted) over the runs of a class."""

    low: float
    high: float
    runs: int
    pair: float
    """60th percentile of the size of the difference of the errors of two runs that answer one
    question and are near in predicted time: the order of two strategies that far apart is wrong
    where the difference goes against it, in one of five. Shrunk to that of all runs where the
    class has few questions."""


def wider(own: RunClass) -> tuple[RunClass, ...]:
    """Return a class and the wider ones that stand in for it, the nearest first."""
    return (own, own._replace(low_precision=None),
            own._replace(system=None, low_precision=None),
            RunClass(None, own.system, own.experts, None),
            RunClass(None, None, own.experts, None))


LEVEL = (0, 1, 1, 2, 3)
"""Into `WIDER_LEVELS`, for each class of `wider`."""


@lru_cache(maxsize=1)
def spreads() -> dict[RunClass, Spread]:
    """Return the percentiles of every class with measured runs."""
    text = (files("simcore") / "data" / FILE).read_text("utf-8")
    data = require_mapping(parse_yaml(text, where=FILE), where=FILE)
    found: dict[RunClass, Spread] = {}
    for entry in data["classes"]:  # type: ignore[attr-defined]
        key = RunClass(*(entry.get(name) for name in RunClass._fields))
        found[key] = Spread(float(entry["low"]), float(entry["high"]), int(entry["runs"]),
                            float(entry.get("pair", 0.0)))
    return found


def spread_of(own: RunClass, known: dict[RunClass, Spread]) -> Spread:
    """Return the percentiles for a class: its own, or a wider class' and wider by that."""
    for level, key in zip(LEVEL, wider(own), strict=True):
        if key in known:
            factor, found = WIDER_LEVELS[level], known[key]
            return Spread(found.low * factor, found.high * factor, found.runs,
                          found.pair * factor)
    return Spread(-0.3, 0.3, 0, 0.15)


def relative_interval(model: ModelSpec, system: SystemSpec, batch: Batch,
                      given: Batch | None = None) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return factors on the step time that measured runs stay between in 8 of 10 cases.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
        Resolved strategies, n rows.
    given : Batch, optional
        The same before they were resolved: tells which versions have no profile.

    Returns
    -------
    low, high : ndarray, shape (n,)
        10th and 90th percentile over the prediction.
    pair : ndarray, shape (n,)
        Relative difference below which two strategies of one question cannot be told apart.
    """
    low_precision = is_fp8(batch["precision"])
    keys = 2 * batch["framework"] + low_precision
    distinct, index = np.unique(keys, return_inverse=True)
    table = np.empty((3, len(distinct)))
    for i, key in enumerate(distinct.tolist()):
        own = RunClass(FRAMEWORKS[key // 2], system.name, model.is_moe, bool(key % 2))
        found = spread_of(own, spreads())
        table[:, i] = found.low, found.high, found.pair
    low, high, pair = table[:, index.ravel()]
    factor = np.where(_unknown_version(batch, given), WIDER_PROFILE, 1.0)
    return np.exp(low * factor), np.exp(high * factor), np.expm1(pair * factor)


def _unknown_version(batch: Batch, given: Batch | None) -> BoolArray:
    """Tell where the version that was asked for is not the profile's, (n,)."""
    if given is None:
        return np.zeros(len(batch), np.bool_)
    asked, used = given["framework_version"], batch["framework_version"]
    if np.all(asked == UNSET):
        return np.zeros(len(batch), np.bool_)
    pairs, index = np.unique(np.stack([asked, used]), axis=1, return_inverse=True)
    unknown = np.array([a != UNSET and not same_version(given.texts[a], batch.texts[u])
                        for a, u in pairs.astype(np.int64).T.tolist()], np.bool_)
    return np.asarray(unknown[index.ravel()], np.bool_)
