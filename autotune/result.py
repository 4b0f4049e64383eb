"""What a search found, ready to be shown and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autotune.search.axes import Grid
from autotune.search.enumerate import Tally, domain
from autotune.search.exact import Outcome
from autotune.search.pool import Simulated
from autotune.search.problem import Problem
from simcore.inputs.codec import Value, decode
from simcore.inputs.fields import FIELD, FIELD_NAMES
from simcore.inputs.strategy import Strategy
from simcore.typing import FloatArray
from simcore.units import GIB

SAME_TIME_FRAC = 1e-3
SAME_MEMORY_FRAC = 1e-2
LAYOUT = ("gpus", "tp", "cp", "pp", "vpp", "ep", "etp", "first_stage_layers",
          "last_stage_layers", "pp_layout")
"""Strategies that agree in these have the same layout."""


def not_told_apart(ranked: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ranks whose speed cannot be told from the first's, that one included.

    Errors of strategies that answer one question are alike and cancel, so what counts is how
    much errors differ between measured runs of one question (``told_apart_pct``), not the
    interval of each.
    """
    if not ranked:
        return []
    best = float(ranked[0]["tokens_per_s"])
    return [int(entry["rank"]) for entry in ranked
            if abs(best / float(entry["tokens_per_s"]) - 1.0) * 100.0
            <= max(float(entry["told_apart_pct"]), float(ranked[0]["told_apart_pct"]))
            or entry is ranked[0]]


@dataclass(frozen=True)
class Entry:
    """One simulated strategy.

    Parameters
    ----------
    found : Simulated
        All that were kept.
    index : int
        Row of this one.
    values : tuple of float
        The goals, in their own units.
    limit_bytes : float
        Memory limit of the search.
    """

    found: Simulated
    index: int
    values: tuple[float, ...]
    limit_bytes: float

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy with every field resolved."""
        predictions, i = self.found.origin[self.index]
        return predictions.batch.row(i)

    @property
    def verdict(self) -> str:
        """Whether it fits the search's limit, which may be below the device's memory."""
        high = self.found.memory_high_bytes[self.index] > self.limit_bytes
        return "marginal" if high else "fits"

    def column(self, name: str) -> float:
        """Return a column of the predictions, such as ``step_time_s``."""
        predictions, i = self.found.origin[self.index]
        return float(predictions.columns[name][i])

    @cached_property
    def prediction(self) -> dict[str, Any]:
        """The keys of `predict`."""
        predictions, i = self.found.origin[self.index]
        return {**predictions.row(i).to_dict(), "verdict": self.verdict}


@dataclass(frozen=True)
class Ranked:
    """A place in the ranking.

    Parameters
    ----------
    rank : int
        From 1.
    entry : Entry
        The best of its near-duplicates.
    duplicates : int
        Strategies of the same layout behind it that differ by less than 0.1 % in step time
        and 1 % in memory.
    differences : mapping
        Fields in which it differs from the first, as (first's, own).
    """

    rank: int
    entry: Entry
    duplicates: int
    differences: Mapping[str, tuple[Value | None, Value | None]]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one ranked strategy."""
        return {"rank": self.rank, **self.entry.prediction, "duplicates": self.duplicates,
                "differs": {k: own for k, (_, own) in self.differences.items()}}


@dataclass(frozen=True)
class SearchResult:
    """Ranked strategies, and what happened to the rest of the space.

    Parameters
    ----------
    problem : Problem
    method : str
        ``exact``, or a sampler's name.
    space : mapping of str to tuple
        Values by field; None where the field is left to its default.
    candidates, evaluated, simulated, feasible : int
        Legal strategies of the space, those bounded or simulated, those simulated, those
        that fit.
    rejected : mapping of str to int
        Candidates by the rule they break, and by why legal ones were dropped.
    exact : bool
        Whether no legal candidate can be better than what is ranked.
    wall_s : float
    ranked : tuple of Ranked
    pareto, cells : tuple of Entry
        Best trade-offs of the goals (of speed and memory where one goal is given), and the
        best of every (tp, pp, ep).
    entries : tuple of Entry
        All that were kept, best first.
    recorded : object
        The sampler's own study.
    """

    problem: Problem
    method: str
    space: Mapping[str, tuple[Value | None, ...]]
    candidates: int
    evaluated: int
    simulated: int
    feasible: int
    rejected: Mapping[str, int]
    exact: bool
    wall_s: float
    ranked: tuple[Ranked, ...]
    pareto: tuple[Entry, ...]
    cells: tuple[Entry, ...]
    entries: tuple[Entry, ...] = ()
    tally: Tally = field(default_factory=Tally, repr=False, compare=False)
    recorded: object = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Entry:
        """The first of the ranking."""
        return self.ranked[0].entry

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `search`."""
        ranked = [r.to_dict() for r in self.ranked]
        return {
            "model": self.problem.model.name, "system": self.problem.system.name,
            "objective": self.problem.objectives.text, "method": self.method,
            "memory_limit_gib": self.problem.memory_limit_bytes / GIB,
            "seed": self.problem.seed,
            "space": {k: list(v) for k, v in self.space.items()},
            "candidates": self.candidates, "evaluated": self.evaluated,
            "simulated": self.simulated, "feasible": self.feasible,
            "rejected": dict(self.rejected), "rejected_examples": self.examples,
            "exact": self.exact, "wall_s": self.wall_s,
            "ranked": ranked, "not_told_apart": not_told_apart(ranked),
        }

    @cached_property
    def examples(self) -> dict[str, str]:
        """A message for each rule that refused something."""
        return {name: str(example()) for name, example in self.tally.examples.items()}

    @cached_property
    def columns(self) -> dict[str, FloatArray]:
        """Predictions of all kept strategies, best first, one array a column."""
        if not self.entries:
            return {}
        predictions, _ = self.entries[0].found.origin[0]
        return {name: np.array([e.column(name) for e in self.entries])
                for name in predictions.columns}

    def study(self, storage: str | None = None, *, name: str = "autotune") -> Any:
        """Return the search as an Optuna study; a sampler's study is the one it used."""
        from autotune.search.study import record
        return record(self, storage, name=name)

    def save(self, folder: str | Path) -> None:
        """Write the result to a folder; nothing is written where something fails."""
        from autotune.search.save import save
        save(self, Path(folder))


def build_result(problem: Problem, grid: Grid, outcome: Outcome, *, method: str, exact: bool,
                 wall_s: float, candidates: int, study: object = None) -> SearchResult:
    """Rank what a search found."""
    found = outcome.found
    if found is None:
        raise ValueError("nothing was found")
    values = problem.objectives.values(found.losses)
    entries = tuple(Entry(found, i, tuple(values[i].tolist()), problem.memory_limit_bytes)
                    for i in range(len(found)))
    pareto = tuple(entries[i] for i in found.front())
    cells = tuple(entries[i] for i in found.best_of_cells())
    several = len(problem.objectives.goals) > 1
    reasons = {**outcome.tally.counts, **outcome.counts.unfit}
    rejected = dict(sorted(reasons.items(), key=lambda kv: (-kv[1], kv[0])))
    return SearchResult(
        problem=problem, method=method, space=_space(problem, grid), candidates=candidates,
        evaluated=outcome.counts.bounded, simulated=outcome.counts.simulated,
        feasible=outcome.counts.feasible, rejected=rejected,
        tally=outcome.tally, exact=exact, wall_s=wall_s,
        ranked=rank(pareto if several else entries, problem.top), pareto=pareto,
        cells=cells, entries=entries, recorded=study)


def rank(entries: tuple[Entry, ...], top: int) -> tuple[Ranked, ...]:
    """Group near-duplicates of entries that stand best first, and number the groups."""
    leaders: list[Entry] = []
    duplicates: list[int] = []
    places: dict[tuple[object, ...], list[int]] = {}
    for entry in entries:
        layout = tuple(getattr(entry.strategy, name) for name in LAYOUT)
        same = next((i for i in places.get(layout, ()) if _alike(leaders[i], entry)), None)
        if same is not None:
            duplicates[same] += 1
        elif len(leaders) < top:
            places.setdefault(layout, []).append(len(leaders))
            leaders.append(entry)
            duplicates.append(0)
        else:
            break
    return tuple(
        Ranked(i + 1, entry, duplicates[i], _differences(leaders[0], entry))
        for i, entry in enumerate(leaders))


def _alike(a: Entry, b: Entry) -> bool:
    time_a, time_b = a.column("step_time_s"), b.column("step_time_s")
    memory_a = a.found.memory_bytes[a.index]
    memory_b = b.found.memory_bytes[b.index]
    return bool(abs(time_b - time_a) <= SAME_TIME_FRAC * time_a
                and abs(memory_b - memory_a) <= SAME_MEMORY_FRAC * memory_a)


def _differences(first: Entry,
                 own: Entry) -> dict[str, tuple[Value | None, Value | None]]:
    a, b = first.strategy, own.strategy
    return {name: (getattr(a, name), getattr(b, name)) for name in FIELD_NAMES
            if getattr(a, name) != getattr(b, name)}


def _space(problem: Problem, grid: Grid) -> dict[str, tuple[Value | None, ...]]:
    """Values of every field of the space, fixed ones too."""
    values = domain(grid)
    found = {name: tuple(decode(FIELD[name], c, grid.texts) for c in codes)
             for name, codes in values.items()}
    for name, code in grid.fixed.items():
        found[name] = (decode(FIELD[name], code, grid.texts),)
    return {name: found[name] for name in FIELD_NAMES if name in found}
