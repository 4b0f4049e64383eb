"""Where a sampler looks first: structures whose candidates are promising at a few inner settings.

A trial exhausts the inner axes of one structure, some hundred candidates. What a structure is
worth shows in a handful of them: the first choices of every inner axis (switches on, smallest
micro-batches), with and without recomputation. Those of many structures are bounded in one
call, and the best are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.search.axes import Axis, Grid
from autotune.search.engine import Engine
from autotune.search.exact import Outcome, search_grid
from autotune.search.pool import Wanted
from autotune.search.problem import Problem
from autotune.search.structures import Key, Structures

PROBES = {"mbs": 2, "recompute": 2}
"""Choices of an inner axis that are looked at, from its first; one of all others."""
DRAWN = 2000
"""Structures drawn before the first trial, legal or not."""
FIRST = 12
"""Structures that the first trials take over from those drawn."""
EVERY = 5
"""Structures tried between two looks around the best."""
AROUND, NEXT = 3, 3
"""Structures around which is looked, and how many of what was seen are tried next."""
PARENTS, BLENDS = 8, 300
"""Best structures whose choices are mixed, and how many mixtures are looked at."""


class Guide:
    """Names structures to try next.

    Parameters
    ----------
    problem : Problem
    engine : Engine
    grid : Grid
        The whole space.
    structures : Structures
    """

    def __init__(self, problem: Problem, engine: Engine, grid: Grid,
                 structures: Structures) -> None:
        self._problem, self._engine, self._grid = problem, engine, grid
        self._structures = structures
        self._seen: set[Key] = set()
        self._inner = tuple(_first(a, PROBES.get(a.fields[0], 1)) for a in grid.axes
                            if not set(a.fields) <= set(structures.names))
        self.outcomes: list[Outcome] = []

    @property
    def useful(self) -> bool:
        """Whether a look costs less than a trial: there are inner axes."""
        return bool(self._inner and self._structures.axes)

    def start(self) -> list[Key]:
        """Return the best of the structures drawn at random."""
        return self._look(self._structures.draw(DRAWN), FIRST)

    def around(self, tried: Mapping[Key, Outcome]) -> list[Key]:
        """Return the best of those one axis from the best that were tried, and of mixtures."""
        ranked = self._structures.ranked(tried)
        near = [k for best in ranked[:AROUND] for k in self._structures.neighbours(best)]
        near += self._structures.blend(ranked[:PARENTS], BLENDS)
        return self._look([k for k in dict.fromkeys(near) if k not in tried], NEXT)

    def _look(self, keys: Sequence[Key], count: int) -> list[Key]:
        new = tuple(k for k in keys if k not in self._seen)
        if not new:
            return []
        self._seen.update(new)
        joint = Axis(self._structures.names, (), lambda _: new)
        grid = Grid((joint, *self._inner), self._grid.fixed, self._grid.base, self._grid.texts)
        # Several settings of one structure may be among the best.
        outcome = search_grid(self._problem, self._engine, grid,
                              Wanted(top=4 * count, cells=False, pareto=False))
        width = len(self._structures.names)
        rows = outcome.found.rows[:, :width].tolist() if outcome.found is not None else []
        # Trials find the candidates again: here they only count as evaluated.
        self.outcomes.append(Outcome(None, replace(outcome.counts, feasible=0, unfit={})))
        return list(dict.fromkeys(tuple(row) for row in rows))[:count]


def _first(axis: Axis, count: int) -> Axis:
    return Axis(axis.fields, axis.parents, lambda given: axis.options(given)[:count])
