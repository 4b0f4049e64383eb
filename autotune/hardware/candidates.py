"""All legal strategies of a search, kept to be timed anew on other systems.

Which strategies are legal, and how much memory they take, does not depend on how fast the links
and the units are; so they are listed once, and a system with other figures needs the times alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autotune.hardware.figures import SPACE_FIGURES, changed
from autotune.search.axes import build_grid
from autotune.search.engine import SimcoreEngine
from autotune.search.enumerate import Enumerator
from autotune.search.problem import Problem
from simcore.batch import CHUNK, Batch
from simcore.errors import NoFeasibleStrategyError
from simcore.inputs.system import SystemSpec
from simcore.prediction import Prediction, bound, evaluate, lower_bound_s
from simcore.typing import FloatArray
from simcore.units import GIB

FIRST = 64
"""Candidates simulated at first, those of the lowest bounds; then four times as many."""
SLACK = 1e-10


@dataclass(frozen=True)
class _Part:
    batch: Batch
    device_bytes: FloatArray


class Candidates:
    """The legal strategies of a problem, with their memory.

    Parameters
    ----------
    problem : Problem
        Its system is the one that others are compared with.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem.checked()
        engine = SimcoreEngine()
        grid = build_grid(self.problem, engine)
        self._parts: list[_Part] = []
        for _, batch in Enumerator(self.problem, engine, grid, chunk=CHUNK).chunks():
            found = bound(self.problem.model, self.problem.system, batch)
            memory = (found.device_memory_bytes if self.problem.marginal
                      else found.device_memory_high_bytes)
            self._parts.append(_Part(batch, memory))
        self._fitting: dict[float, list[Batch]] = {}

    @property
    def legal(self) -> int:
        """Legal strategies."""
        return sum(len(part.batch) for part in self._parts)

    def _fit(self, limit_bytes: float) -> list[Batch]:
        """Those that fit a limit, remembered for the last one asked for."""
        if limit_bytes not in self._fitting:
            parts = [p.batch.take(np.flatnonzero(p.device_bytes <= limit_bytes))
                     for p in self._parts]
            self._fitting = {limit_bytes: [b for b in parts if len(b)]}
        return self._fitting[limit_bytes]

    def best(self, figures: dict[str, float]) -> Prediction | None:
        """Return the fastest strategy on the system with some figures changed.

        Parameters
        ----------
        figures : dict
            Full names and values; empty: the system as it is.

        Returns
        -------
        Prediction or None
            None where nothing fits. The same as a search of that system finds.
        """
        system = changed(self.problem.system, figures) if figures else self.problem.system
        if SPACE_FIGURES & figures.keys():
            return _searched(self.problem, system)
        scale = self.problem.memory_utilisation
        limit = (system.accelerator.memory_gib * scale - self.problem.memory_reserve_gib) * GIB
        return fastest(self.problem, system, self._fit(limit))


def _searched(problem: Problem, system: SystemSpec) -> Prediction | None:
    try:
        candidates = Candidates(replace(problem, system=system))
    except NoFeasibleStrategyError:
        return None
    return candidates.best({})


def fastest(problem: Problem, system: SystemSpec, batches: list[Batch]) -> Prediction | None:
    """Return the strategy with the shortest step for each token, exactly.

    Parameters
    ----------
    problem : Problem
    system : SystemSpec
        On which they are timed.
    batches : list of Batch
        Resolved, legal, and fitting.
    """
    if not batches:
        return None
    per_token = [lower_bound_s(problem.model, system, b) / (b.real("gbs") * b.real("seq_len"))
                 for b in batches]
    bounds = np.concatenate(per_token) * (1.0 - SLACK)
    starts = np.cumsum([0, *(len(b) for b in batches)])
    order = np.argsort(bounds, kind="stable")
    best: Prediction | None = None
    best_s, done, width = np.inf, 0, FIRST
    while done < len(order) and bounds[order[done]] <= best_s:
        chosen = order[done:done + width]
        chosen = chosen[bounds[chosen] <= best_s]
        for i, batch in enumerate(batches):
            rows = np.sort(chosen[(chosen >= starts[i]) & (chosen < starts[i + 1])]) - starts[i]
            if not len(rows):
                continue
            found = evaluate(problem.model, system, batch.take(rows))
            each = 1.0 / found.columns["tokens_per_s"]
            at = int(np.argmin(each))
            if each[at] < best_s:
                best, best_s = found.row(at), float(each[at])
        done, width = done + width, 4 * width
    return best

