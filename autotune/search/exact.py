"""Exact search: every legal candidate is bounded, and no better one can be left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.parallel import run_all
from autotune.search.axes import Grid, build_grid
from autotune.search.engine import Engine
from autotune.search.enumerate import Block, Enumerator, Tally
from autotune.search.pool import Counts, NearestMiss, Pool, Simulated, Wanted, merge, select
from autotune.search.problem import Problem
from simcore.batch import CHUNK

ROWS_PER_S = 300_000.0
"""Legal candidates bounded a second on one core, for estimates only."""
PARTS = 32
"""Parts of a large space. Their number does not follow the cores, so that the counts, too,
are the same on every machine."""

Progress = Callable[[int, int], None]
"""Called with what is done and the total, in candidates or parts."""


@dataclass
class Outcome:
    """What an exact search found.

    Parameters
    ----------
    found : Simulated or None
        The best, the Pareto set and the best of every cell, ordered; None: nothing fits.
    counts : Counts
    tally : Tally
    miss : NearestMiss
    """

    found: Simulated | None
    counts: Counts = field(default_factory=Counts)
    tally: Tally = field(default_factory=Tally)
    miss: NearestMiss = field(default_factory=NearestMiss)


@dataclass(frozen=True)
class _Part:
    problem: Problem
    engine: Engine
    wanted: Wanted
    chunk: int
    part: tuple[int, int]


def search_grid(problem: Problem, engine: Engine, grid: Grid, wanted: Wanted, *,
                chunk: int = CHUNK, part: tuple[int, int] = (0, 1),
                progress: Progress | None = None) -> Outcome:
    """Search one grid, or a part of it, on one core."""
    enumerator = Enumerator(problem, engine, grid, chunk=chunk, part=part)
    pool = Pool(problem, engine, enumerator, wanted)
    raw = enumerator.leaves(Block({}, 1), 0)
    for block, batch in enumerator.chunks():
        pool.offer(block, batch)
        if progress is not None:
            progress(pool.counts.bounded + sum(enumerator.tally.counts.values()), raw)
    pool.settle()
    return Outcome(pool.found, pool.counts, enumerator.tally, pool.miss)


def _search_part(work: _Part) -> Outcome:
    grid = build_grid(work.problem, work.engine)
    outcome = search_grid(work.problem, work.engine, grid, work.wanted, chunk=work.chunk,
                          part=work.part)
    outcome.tally = outcome.tally.worded()
    return outcome


def search_exact(problem: Problem, engine: Engine, grid: Grid, wanted: Wanted, *,
                 long: bool = False, jobs: int = 1, chunk: int = CHUNK,
                 progress: Progress | None = None) -> Outcome:
    """Search a whole grid.

    Parameters
    ----------
    long : bool
        Whether to share the search out in parts.
    jobs : int
        Processes that take parts.
    """
    if not long:
        return search_grid(problem, engine, grid, wanted, chunk=chunk, progress=progress)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, PARTS)

    works = [_Part(problem, engine, wanted, chunk, (i, PARTS)) for i in range(PARTS)]
    outcomes = run_all(_search_part, works, jobs=jobs, done=advance)
    return combine(outcomes, wanted)


def combine(outcomes: list[Outcome], wanted: Wanted) -> Outcome:
    """Put the outcomes of disjoint parts together."""
    total = Outcome(None)
    for outcome in outcomes:
        total.counts.bounded += outcome.counts.bounded
        total.counts.simulated += outcome.counts.simulated
        total.counts.feasible += outcome.counts.feasible
        for reason, count in outcome.counts.unfit.items():
            total.counts.unfit[reason] = total.counts.unfit.get(reason, 0) + count
        for name, count in outcome.tally.counts.items():
            total.tally.add(name, count)
        for name, issue in outcome.tally.examples.items():
            total.tally.examples.setdefault(name, issue)
        if outcome.miss.excess_bytes < total.miss.excess_bytes:
            total.miss = outcome.miss
    found = [o.found for o in outcomes if o.found is not None and len(o.found)]
    if found:
        total.found = select(merge(found), wanted)
    return total
