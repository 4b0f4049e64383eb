"""Strategies that differ from a given one in one or two axes of a space, and what each brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from autotune.search.axes import build_grid
from autotune.search.engine import SimcoreEngine
from autotune.search.enumerate import domain
from autotune.search.problem import Problem
from simcore.batch import Batch, Column
from simcore.inputs.codec import decode
from simcore.inputs.fields import FIELD, FIELD_NAMES, Kind
from simcore.inputs.strategy import Strategy
from simcore.prediction import Predictions, evaluate
from simcore.resolve import resolve
from simcore.rules import check
from simcore.units import GIB

VERDICTS = ("fits", "marginal", "does_not_fit")
Change = tuple[tuple[str, float], ...]
"""Fields and the codes that they are set to."""


@dataclass(frozen=True)
class Neighbours:
    """What runs today, and strategies around it.

    Parameters
    ----------
    start : dict
        Today's run; its `change` is empty.
    ranked : list of dict
        The fastest that fit, today's among them where it is in its place: `set` holds the
        axes that are set, `change` every resolved field that differs, as it is and would be;
        `step_time_pct` and `device_memory_delta_gib` are against today.
    single : list of dict
        The fastest that fits of each axis alone, whatever it brings.
    tried, fitting : int
        Distinct legal neighbours, and those of them that fit.
    """

    start: dict[str, Any]
    ranked: list[dict[str, Any]]
    single: list[dict[str, Any]]
    tried: int
    fitting: int


def neighbours(problem: Problem, today: Strategy) -> Neighbours:
    """Rank the neighbours of a strategy.

    Parameters
    ----------
    problem : Problem
        Its space names the axes; every other field stays as it is.
    today : Strategy
        As it was given: a default follows a change.

    Raises
    ------
    InputError
        Today's strategy is illegal.
    """
    now = evaluate(problem.model, problem.system, Batch.from_strategies([today]),
                   limit_bytes=problem.memory_limit_bytes)
    changes = _changes(problem, now.batch)
    rows = _rows(Batch.from_strategies([today]), changes)
    batch = resolve(problem.model, problem.system, rows)
    legal = np.flatnonzero(check(problem.model, problem.system, batch, given=rows).ok)
    legal = _distinct(batch, legal, now.batch)
    worst = 1 if problem.marginal else 0
    start = _row(now, 0, now, ())
    start["fits"] = VERDICTS.index(start["verdict"]) <= worst
    if not len(legal):
        return Neighbours(start, [{"rank": 1, **start}] if start["fits"] else [], [], 0, 0)
    found = evaluate(problem.model, problem.system, rows.take(legal),
                     limit_bytes=problem.memory_limit_bytes)
    fits = found.columns["verdict"] <= worst
    time = found.columns["step_time_s"]
    order = [int(i) for i in np.argsort(time, kind="stable") if fits[i]]
    place = sum(1 for i in order if time[i] < start["step_time_s"])
    ranked = [{"rank": 0, **_row(found, i, now, changes[int(legal[i])])}
              for i in order[:problem.top]]
    if start["fits"]:
        ranked.insert(place, {"rank": 0, **start})
    for r, row in enumerate(ranked[:problem.top], start=1):
        row["rank"] = r
    # Today's run stays in sight where it is not among the first.
    ranked = [row if row["rank"] else {**row, "rank": place + 1}
              for row in ranked if row["rank"] or not row["change"]]
    best: dict[str, dict[str, Any]] = {}
    for i in order:
        change = changes[int(legal[i])]
        if len(change) == 1:
            best.setdefault(change[0][0], {"axis": change[0][0], **_row(found, i, now, change)})
    return Neighbours(start, ranked, list(best.values()), len(legal), len(order))


def _changes(problem: Problem, now: Batch) -> list[Change]:
    """List every other value of each axis, and every pair of two axes' values."""
    values = domain(build_grid(problem, SimcoreEngine()))
    single = {name: [(name, code) for code in codes if code != float(now.columns[name][0])]
              for name, codes in values.items() if FIELD[name].kind is not Kind.TEXT}
    found: list[Change] = [(one,) for ones in single.values() for one in ones]
    for a, b in combinations(single, 2):
        found += [(x, y) for x in single[a] for y in single[b]]
    return found


def _rows(today: Batch, changes: Sequence[Change]) -> Batch:
    size = len(changes)
    columns: dict[str, Column | float] = {}
    for name in FIELD_NAMES:
        columns[name] = np.asarray(np.repeat(today.columns[name], size), dtype=np.float64)
    places: dict[str, list[tuple[int, float]]] = {}
    for row, change in enumerate(changes):
        for name, code in change:
            places.setdefault(name, []).append((row, code))
    for name, where in places.items():
        column = np.full(size, float(today.columns[name][0]))
        column[[row for row, _ in where]] = [code for _, code in where]
        columns[name] = column
    return Batch.from_columns(columns, texts=today.texts, size=size)


def _distinct(batch: Batch, legal: Any, now: Batch) -> Any:
    """Keep the first of rows that resolve to the same, and none that is today's."""
    if not len(legal):
        return legal
    table = np.stack([np.asarray(batch.columns[name], dtype=np.float64)[legal]
                      for name in FIELD_NAMES], axis=1)
    first = np.sort(np.unique(table, axis=0, return_index=True)[1])
    own = np.array([float(now.columns[name][0]) for name in FIELD_NAMES])
    return legal[first[np.any(table[first] != own, axis=1)]]


def _row(found: Predictions, i: int, now: Predictions, change: Change) -> dict[str, Any]:
    """Figures of one strategy, against today's."""
    def figure(of: Predictions, name: str, row: int) -> float:
        return float(of.columns[name][row])

    step, memory = figure(found, "step_time_s", i), figure(found, "device_memory_bytes", i)
    before = figure(now, "step_time_s", 0)
    verdict = VERDICTS[int(found.columns["verdict"][i])]
    return {
        "set": {name: decode(FIELD[name], code, found.batch.texts) for name, code in change},
        "change": _change(found.batch, i, now.batch), "step_time_s": step,
        "step_time_pct": 100 * (step / before - 1),
        "tokens_per_s_per_gpu": figure(found, "tokens_per_s_per_gpu", i),
        "device_memory_gib": memory / GIB,
        "device_memory_delta_gib": (memory - figure(now, "device_memory_bytes", 0)) / GIB,
        "verdict": verdict, "fits": verdict != "does_not_fit",
        "strategy": dict(found.batch.row(i).items())}


def _change(batch: Batch, i: int, now: Batch) -> Mapping[str, dict[str, Any]]:
    changed = {}
    for name in FIELD_NAMES:
        old, new = (decode(FIELD[name], float(b.columns[name][row]), b.texts)
                    for b, row in ((now, 0), (batch, i)))
        if old != new:
            changed[name] = {"from": old, "to": new}
    return changed
