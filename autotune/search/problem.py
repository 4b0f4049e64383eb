"""One question that a search answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.objectives import Objectives, parse_objectives
from autotune.space import SearchSpace
from simcore.errors import InputError, Issue
from simcore.inputs.fields import DEFAULT_GBS
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.units import GIB


@dataclass(frozen=True)
class Problem:
    """Model, cluster, space and what is wanted.

    Parameters
    ----------
    model : ModelSpec
    system : SystemSpec
    space : SearchSpace
        Names at least `gpus`.
    objective : str
        As `--objective` takes it.
    memory_reserve_gib, memory_utilisation : float
        The limit is the device's memory times the utilisation, less the reserve.
    marginal : bool
        Whether strategies are kept that fit only without fragmentation.
    tokens, price_per_gpu_hour : float, optional
        For the objectives time_to_train and cost.
    seed : int
        Of samplers; the exact search needs none.
    top : int
        Strategies that are ranked.
    """

    model: ModelSpec
    system: SystemSpec
    space: SearchSpace
    objective: str = "tokens_per_s"
    memory_reserve_gib: float = 0.0
    memory_utilisation: float = 1.0
    marginal: bool = True
    tokens: float | None = None
    price_per_gpu_hour: float | None = None
    seed: int = 0
    top: int = 10

    @property
    def memory_limit_bytes(self) -> float:
        """What a strategy may use of a GPU."""
        memory_gib = self.system.accelerator.memory_gib
        return (memory_gib * self.memory_utilisation - self.memory_reserve_gib) * GIB

    @property
    def objectives(self) -> Objectives:
        """The goals, checked."""
        return parse_objectives(self.objective, self.system, tokens=self.tokens,
                                memory_limit_bytes=self.memory_limit_bytes,
                                price_per_gpu_hour=self.price_per_gpu_hour)

    def checked(self) -> Problem:
        """Return the problem with the global batch size filled in.

        Raises
        ------
        InputError
            What is wrong with limits, objective or space.
        """
        issues: list[Issue] = []
        if not 0 < self.memory_utilisation <= 1:
            issues.append(Issue("memory_utilisation", "must be above 0 and at most 1, got "
                                f"{self.memory_utilisation:g}"))
        elif not self.memory_reserve_gib >= 0 or not self.memory_limit_bytes > 0:
            issues.append(Issue(
                "memory_reserve_gib", "must leave some of the device's "
                f"{self.system.accelerator.memory_gib:g} GiB, got {self.memory_reserve_gib:g}"))
        if not 1 <= self.top <= 10_000:
            issues.append(Issue("top", f"must be a whole number from 1 to 10000, got {self.top}"))
        gpus = self.space.axes.get("gpus")
        if not gpus:
            issues.append(Issue("gpus", "is needed", "give --gpus"))
        try:
            _ = self.objectives
        except InputError as error:
            issues.extend(error.issues)
        if issues or not gpus:
            raise InputError(issues)
        if self.space.axes.get("gbs", ()):
            return self
        sizes = tuple(dict.fromkeys(default_gbs(int(n)) for n in gpus))
        # Strategies with different batch sizes answer different questions: one for all.
        fixed = (max(sizes),) if "gbs" not in self.space.axes else (max(sizes), 2 * max(sizes))
        return replace(self, space=self.space.override({"gbs": list(fixed)}))


def default_gbs(gpus: int) -> int:
    """Choose the global batch size of a search where none is given.

    The least size from 1024 up that is a power of two times the odd part of the number of
    GPUs, so that the data-parallel sizes that a cluster of any size allows divide it.
    """
    size = gpus
    while size % 2 == 0:
        size //= 2
    while size < DEFAULT_GBS:
        size *= 2
    return size
