"""Structures of strategies: what a sampler's trial fixes, asked for and mended field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.search.axes import STRUCTURE, Axis, Grid
from autotune.search.enumerate import domain
from autotune.search.exact import Outcome
from simcore.inputs.codec import decode
from simcore.inputs.fields import FIELD, UNSET

if TYPE_CHECKING:
    from optuna.trial import Trial

Key = tuple[float, ...]
"""A structure: codes of its fields in the order of `Structures.names`."""
FREE_SHARE = 0.1
"""Share of axes that take any choice where structures are mixed."""


class Structures:
    """Asks trials for structures, and mends those whose fields do not go together."""

    def __init__(self, grid: Grid, seed: int) -> None:
        self.axes = [a for a in grid.axes if set(a.fields) <= set(STRUCTURE)]
        self._grid = grid
        choices = domain(grid)
        self._choices = {
            name: {decode(FIELD[name], c, grid.texts): c for c in choices[name]}
            for axis in self.axes for name in axis.fields}
        self.names = tuple(n for axis in self.axes for n in axis.fields)
        self._random = np.random.default_rng(seed)
        self._spent: set[Key] = set()
        self._memory: dict[object, tuple[Key, ...]] = {}

    def ask(self, trial: Trial) -> tuple[dict[str, float], dict[str, float]]:
        """Return the codes that a trial suggests, and the nearest that are on offer.

        A field is suggested only where, given the fields before it, there is a choice.
        """
        picked: dict[str, float] = {}
        mended: dict[str, float] = {}
        for axis in self.axes:
            options = self._options(axis, mended)
            if len(options) == 1:
                own = options[0]
            else:
                own = tuple(self._choices[n][trial.suggest_categorical(
                    n, list(self._choices[n]))] for n in axis.fields)
            picked.update(zip(axis.fields, own, strict=True))
            mended.update(zip(axis.fields, _closest(own, options), strict=True))
        return picked, mended

    def mend(self, wish: Mapping[str, float]) -> dict[str, float]:
        """Return the structure nearest to a wish, axis by axis."""
        mended: dict[str, float] = {}
        for axis in self.axes:
            own = tuple(wish[n] for n in axis.fields)
            mended.update(zip(axis.fields, _closest(own, self._options(axis, mended)),
                              strict=True))
        return mended

    def untried(self, outcomes: Mapping[Key, Outcome]) -> Key | None:
        """Return a structure not tried yet, one axis from the best that still has one."""
        for key in self.ranked(outcomes):
            if key in self._spent:
                continue
            moves = [k for k in self.neighbours(key) if k not in outcomes]
            if moves:
                return moves[int(self._random.integers(len(moves)))]
            self._spent.add(key)
        return None

    def ranked(self, outcomes: Mapping[Key, Outcome]) -> list[Key]:
        """Return the structures that were tried, best first."""
        return sorted(outcomes, key=lambda k: (_loss(outcomes[k]), k))

    def neighbours(self, key: Key) -> list[Key]:
        """List the structures that differ in the choice of one axis.

        Axes behind the one that moves keep their values as far as those are still on offer.
        """
        chosen = dict(zip(self.names, key, strict=True))
        found = {tuple(self.mend({**chosen, **dict(zip(axis.fields, option, strict=True))}
                                 ).values()): None
                 for axis in self.axes for option in self._options(axis, chosen)}
        found.pop(key, None)
        return list(found)

    def draw(self, count: int) -> list[Key]:
        """Draw structures, every axis evenly from what is on offer; equal ones count once."""
        return list(dict.fromkeys(tuple(self._drawn().values()) for _ in range(count)))

    def blend(self, parents: Sequence[Key], count: int) -> list[Key]:
        """Mix structures: each axis takes one parent's choice, or any on offer one time in ten."""
        found: dict[Key, None] = {}
        for _ in range(count if parents else 0):
            wish = self._drawn()
            which = self._random.integers(len(parents), size=len(self.axes))
            free = self._random.random(len(self.axes)) < FREE_SHARE
            for axis, parent, keep in zip(self.axes, which.tolist(), (~free).tolist(),
                                          strict=True):
                if keep:
                    own = dict(zip(self.names, parents[parent], strict=True))
                    wish.update({n: own[n] for n in axis.fields})
            found[tuple(self.mend(wish).values())] = None
        return list(found)

    def _drawn(self) -> dict[str, float]:
        chosen: dict[str, float] = {}
        for axis, share in zip(self.axes, self._random.random(len(self.axes)).tolist(),
                               strict=True):
            options = self._options(axis, chosen)
            chosen.update(zip(axis.fields, options[int(share * len(options))], strict=True))
        return chosen

    def params(self, key: Key) -> dict[str, Any]:
        """Return a structure as the parameters of a trial."""
        return {n: decode(FIELD[n], c, self._grid.texts)
                for n, c in zip(self.names, key, strict=True)}

    def _options(self, axis: Axis, before: Mapping[str, float]) -> tuple[Key, ...]:
        given = {p: before.get(p, self._grid.base.get(p, UNSET)) for p in axis.parents}
        key = (axis.fields, tuple(given.values()))
        if key not in self._memory:
            self._memory[key] = axis.options(given)
        return self._memory[key]


def _loss(outcome: Outcome) -> float:
    found = outcome.found
    return float(found.losses[0, 0]) if found is not None and len(found) else math.inf


def _closest(own: Key,
             options: tuple[Key, ...]) -> Key:
    """Return the option that is nearest by ratio; the first of those that are equally near."""
    if own in options:
        return own
    return min(options, key=lambda o: sum(
        abs(math.log2((a + 2) / (b + 2))) for a, b in zip(own, o, strict=True)))
