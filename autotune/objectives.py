"""What a search optimises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from simcore.errors import InputError, Issue, nearest
from simcore.inputs.system import SystemSpec
from simcore.typing import FloatArray
from simcore.units import GIB

SECONDS_PER_HOUR = 3600.0
COST_TOKENS = 1e9
"""Tokens that a cost is quoted for where the user names no number of them."""


class Goal(StrEnum):
    """Names that `--objective` takes."""

    TOKENS_PER_S = "tokens_per_s"
    TIME_TO_TRAIN = "time_to_train"
    COST = "cost"
    MEMORY_HEADROOM = "memory_headroom"


DIRECTION: Mapping[Goal, Literal["minimize", "maximize"]] = {
    Goal.TOKENS_PER_S: "maximize", Goal.TIME_TO_TRAIN: "minimize", Goal.COST: "minimize",
    Goal.MEMORY_HEADROOM: "maximize"}
KEY = {Goal.TOKENS_PER_S: "tokens_per_s", Goal.TIME_TO_TRAIN: "time_to_train_s",
       Goal.COST: "cost_usd", Goal.MEMORY_HEADROOM: "memory_headroom_gib"}
"""Keys of a ranked strategy's `objectives`."""
UNIT = {Goal.TOKENS_PER_S: "tokens/s", Goal.TIME_TO_TRAIN: "s", Goal.COST: "USD",
        Goal.MEMORY_HEADROOM: "GiB"}


@dataclass(frozen=True)
class Objectives:
    """One goal, or several whose Pareto set is searched.

    Parameters
    ----------
    goals : tuple of Goal
    tokens : float
        Tokens of the whole training run, for time to train and cost.
    price_per_gpu_hour : float
        [USD]
    memory_limit_bytes : float
        What a strategy may use of a GPU.
    """

    goals: tuple[Goal, ...]
    tokens: float
    price_per_gpu_hour: float
    memory_limit_bytes: float

    @property
    def text(self) -> str:
        """The goals as `--objective` takes them."""
        return ",".join(self.goals)

    def losses(self, *, step_time_s: FloatArray, tokens_per_step: FloatArray,
               gpus: FloatArray, device_memory_bytes: FloatArray) -> FloatArray:
        """Return what is minimised, one column a goal.

        Every loss rises with the step time or does not depend on it, so a lower bound of
        the step time gives a lower bound of the loss.

        Returns
        -------
        ndarray, shape (n, number of goals)
            Seconds a token, training time [s], cost [USD], memory in use [byte].
        """
        s_per_token = step_time_s / tokens_per_step
        columns = {
            Goal.TOKENS_PER_S: s_per_token,
            Goal.TIME_TO_TRAIN: s_per_token * self.tokens,
            Goal.COST: (s_per_token * self.tokens * gpus
                        * (self.price_per_gpu_hour / SECONDS_PER_HOUR)),
            Goal.MEMORY_HEADROOM: device_memory_bytes,
        }
        return np.stack([columns[goal] for goal in self.goals], axis=1)

    def of_entry(self, entry: Mapping[str, Any]) -> dict[str, float]:
        """Return the goals of one ranked strategy, by name with unit (`KEY`)."""
        strategy = entry["strategy"]
        one = {name: np.array([float(value)]) for name, value in (
            ("step_time_s", entry["step_time_s"]), ("gpus", strategy["gpus"]),
            ("tokens_per_step", strategy["gbs"] * strategy["seq_len"]),
            ("device_memory_bytes", entry["device_memory_gib"] * GIB))}
        values = self.values(self.losses(**one))[0]
        return {KEY[goal]: float(value) for goal, value in zip(self.goals, values, strict=True)}

    def values(self, losses: FloatArray) -> FloatArray:
        """Return the goals in their own units from losses, shape (n, number of goals)."""
        out = losses.copy()
        for i, goal in enumerate(self.goals):
            if goal is Goal.TOKENS_PER_S:
                out[:, i] = 1.0 / losses[:, i]
            elif goal is Goal.MEMORY_HEADROOM:
                out[:, i] = (self.memory_limit_bytes - losses[:, i]) / GIB
        return out


def parse_objectives(text: str, system: SystemSpec, *, memory_limit_bytes: float,
                     tokens: float | None = None,
                     price_per_gpu_hour: float | None = None) -> Objectives:
    """Read `--objective`.

    Raises
    ------
    InputError
        An unknown or repeated goal, time to train without a number of tokens, or cost
        without a price.
    """
    issues: list[Issue] = []
    goals: list[Goal] = []
    for part in (p.strip().lower() for p in text.split(",")):
        if part not in list(Goal):
            issues.append(Issue("objective", f"'{part[:60]}' is not one",
                                nearest(part, [g.value for g in Goal])))
        elif Goal(part) in goals:
            issues.append(Issue("objective", f"names {part} twice"))
        else:
            goals.append(Goal(part))
    price = system.accelerator.price_per_hour_usd if price_per_gpu_hour is None \
        else price_per_gpu_hour
    if Goal.TIME_TO_TRAIN in goals and tokens is None:
        issues.append(Issue("tokens", "is needed for the objective time_to_train",
                            "give the tokens to train on, such as --tokens 15e12"))
    if Goal.COST in goals and not price > 0:
        issues.append(Issue("price_per_gpu_hour", f"is needed for the objective cost: "
                            f"{system.name} has no price", "give --price-per-gpu-hour"))
    for name, number in (("tokens", tokens), ("price_per_gpu_hour", price_per_gpu_hour)):
        if number is not None and not 0 < number < 1e30:
            issues.append(Issue(name, f"must be a number above 0, got {number:g}"))
    if issues:
        raise InputError(issues)
    return Objectives(tuple(goals), COST_TOKENS if tokens is None else tokens, price,
                      memory_limit_bytes)
