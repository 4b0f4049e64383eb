"""One call from a problem to ranked strategies."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.parallel import WORTH_S
from autotune.result import SearchResult, build_result
from autotune.search.axes import Grid, build_grid
from autotune.search.engine import Engine, SimcoreEngine
from autotune.search.enumerate import Block, Enumerator
from autotune.search.exact import ROWS_PER_S, Outcome, Progress, search_exact
from autotune.search.nothing import nothing_fits
from autotune.search.pool import Wanted
from autotune.search.problem import Problem
from simcore.batch import CHUNK
from simcore.errors import InputError, Issue

if TYPE_CHECKING:
    from autotune.search.sampled import Budget

AUTO = "auto"
EXACT = "exact"
EXACT_LIMIT = 20_000_000
"""Legal candidates up to which the search is exact unless a sampler is named."""
SPARE = 8
"""Candidates known exactly for each one that is ranked, so that near-duplicates can be
grouped."""


def search(problem: Problem, *, method: str = AUTO, jobs: int = 1,
           budget: Budget | None = None, storage: str | None = None, chunk: int = CHUNK,
           engine: Engine | None = None, progress: Progress | None = None) -> SearchResult:
    """Rank the strategies of a problem.

    Parameters
    ----------
    problem : Problem
    method : str
        ``auto``, ``exact``, or a sampler of Optuna (``tpe``, ``nsga2``, ``random``, or the name
        of a class of `optuna.samplers`).
    jobs : int
        Processes for searches of more than about 20 s; the answer does not depend on it.
    budget : Budget, optional
        When a sampler stops.
    storage : str, optional
        Where the study lives; in memory by default.
    chunk : int
        Rows evaluated at once; the answer does not depend on it.
    engine : Engine, optional
        The simulator.
    progress : callable, optional
        Called with what is done and the total.

    Raises
    ------
    InputError
        A bad option, or no candidate is legal.
    NoFeasibleStrategyError
        No legal candidate fits the memory.
    """
    start = time.perf_counter()
    engine = SimcoreEngine() if engine is None else engine
    problem = problem.checked()
    grid = build_grid(problem, engine)
    counter = Enumerator(problem, engine, grid, chunk=chunk)
    issues = counter.base_issues()
    if issues:
        raise InputError(issues)
    raw = counter.leaves(Block({}, 1), 0)
    legal = raw
    # Counting costs a fifth of searching: only where it can matter.
    if method in (AUTO, EXACT) and raw > min(EXACT_LIMIT, ROWS_PER_S * WORTH_S):
        limit = EXACT_LIMIT if method == AUTO else np.inf
        legal = Enumerator(problem, engine, grid, chunk=chunk).count(limit)
    if method == AUTO:
        method = EXACT if legal <= EXACT_LIMIT else "tpe"
    if method != EXACT:
        from autotune.search.sampled import Budget, search_sampled
        from autotune.search.study import describe
        sampled = search_sampled(problem, engine, grid, method, budget or Budget(),
                                 storage=storage, progress=progress)
        _require(problem, engine, grid, sampled.outcome)
        result = build_result(problem, grid, sampled.outcome, method=method, exact=False,
                              wall_s=time.perf_counter() - start,
                              candidates=sampled.candidates, study=sampled.study)
        describe(sampled.study, result)
        return result
    outcome = search_exact(problem, engine, grid, wanted_of(problem), jobs=jobs,
                           long=legal > ROWS_PER_S * WORTH_S, chunk=chunk, progress=progress)
    _require(problem, engine, grid, outcome)
    result = build_result(problem, grid, outcome, method=EXACT, exact=True,
                          wall_s=time.perf_counter() - start,
                          candidates=outcome.counts.bounded)
    return replace(result, recorded=result.study(storage)) if storage else result


def wanted_of(problem: Problem) -> Wanted:
    """Say what has to be known exactly: with several goals no single order ranks."""
    several = len(problem.objectives.goals) > 1
    return Wanted(top=0 if several else max(SPARE * problem.top, 64))


def _require(problem: Problem, engine: Engine, grid: Grid, outcome: Outcome) -> None:
    """Raise where nothing is legal, or nothing fits."""
    if outcome.found is not None and len(outcome.found):
        return
    if not outcome.counts.bounded:
        reasons = sorted(outcome.tally.counts, key=lambda n: -outcome.tally.counts[n])
        issues = [outcome.tally.examples[n]() for n in reasons if n in outcome.tally.examples]
        raise InputError(issues[:3] or Issue("space", "holds no candidate"))
    enumerator = Enumerator(problem, engine, grid)
    columns = {n: np.array([v]) for n, v in zip(grid.fields, outcome.miss.row, strict=True)}
    raise nothing_fits(problem, engine, enumerator.batch(Block(columns, 1)), outcome)
