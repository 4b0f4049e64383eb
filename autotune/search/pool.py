"""Which bounded candidates have to be simulated, and what is best among those that were.

A candidate is simulated unless its lower bound proves that it cannot be wanted: not among the
best, not the best of its (tp, pp, ep) cell, and dominated by a candidate already simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autotune.objectives import Objectives
from autotune.pareto import dominated_by, pareto_mask
from autotune.search.engine import BoundsLike, Engine, PredictionsLike
from autotune.search.enumerate import Block, Enumerator
from autotune.search.problem import Problem
from simcore.batch import CHUNK, Batch
from simcore.typing import BoolArray, FloatArray, IntArray

SLACK = 1e-10
"""Bounds are lowered by this share: they are proven in real numbers, not in rounded ones."""
MAX_POOL = 1 << 18
"""Bounded candidates held before the needed ones are simulated and the others dropped."""
CELL = ("tp", "pp", "ep")


@dataclass(frozen=True)
class Wanted:
    """What a search must be able to name for certain.

    Parameters
    ----------
    top : int
        This many of the best by the first goal; 0: none.
    cells, pareto : bool
        The best of every (tp, pp, ep); the Pareto set.
    """

    top: int
    cells: bool = True
    pareto: bool = True


@dataclass
class Simulated:
    """Candidates with exact results, one a row.

    Parameters
    ----------
    rows : ndarray, shape (n, fields)
        Codes of the varying fields.
    losses : ndarray, shape (n, goals)
    points : ndarray, shape (n, k)
        What Pareto dominance compares: the losses, or loss and memory where one goal is given.
    memory_bytes, memory_high_bytes : ndarray, shape (n,)
    cell : ndarray, shape (n, 3)
    origin : list of (PredictionsLike, int)
        Where each row's prediction is.
    """

    rows: FloatArray
    losses: FloatArray
    points: FloatArray
    memory_bytes: FloatArray
    memory_high_bytes: FloatArray
    cell: IntArray
    origin: list[tuple[PredictionsLike, int]]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: IntArray) -> Simulated:
        """Return some rows, in the order of the index."""
        return Simulated(self.rows[index], self.losses[index], self.points[index],
                         self.memory_bytes[index], self.memory_high_bytes[index],
                         self.cell[index], [self.origin[i] for i in index])

    def order(self) -> IntArray:
        """Return the rows best first; ties are broken by memory and then by the fields."""
        keys = [*self.rows.T[::-1], self.memory_bytes, *self.losses.T[::-1]]
        return np.lexsort(keys).astype(np.int64)

    def best_of_cells(self) -> IntArray:
        """Return the best row of every cell, assuming that rows are ordered."""
        _, first = np.unique(self.cell, axis=0, return_index=True)
        return np.sort(first).astype(np.int64)

    def front(self) -> IntArray:
        """Return the Pareto set, one row of those that are equal, assuming ordered rows."""
        on_front = np.flatnonzero(pareto_mask(self.points))
        _, first = np.unique(self.points[on_front], axis=0, return_index=True)
        return np.sort(on_front[first]).astype(np.int64)


def merge(parts: list[Simulated]) -> Simulated:
    """Put results together."""
    return Simulated(
        np.concatenate([p.rows for p in parts]), np.concatenate([p.losses for p in parts]),
        np.concatenate([p.points for p in parts]),
        np.concatenate([p.memory_bytes for p in parts]),
        np.concatenate([p.memory_high_bytes for p in parts]),
        np.concatenate([p.cell for p in parts]), [o for p in parts for o in p.origin])


def select(found: Simulated, wanted: Wanted) -> Simulated:
    """Keep what is wanted, ordered."""
    found = found.take(found.order())
    keep = np.zeros(len(found), np.bool_)
    keep[:wanted.top] = True
    if wanted.cells:
        keep[found.best_of_cells()] = True
    if wanted.pareto:
        keep[found.front()] = True
    return found.take(np.flatnonzero(keep))


@dataclass
class NearestMiss:
    """The candidate that exceeds the memory limit by least."""

    excess_bytes: float = np.inf
    row: tuple[float, ...] = ()

    def offer(self, excess_bytes: FloatArray, block: Block, names: tuple[str, ...]) -> None:
        """Take a block's smallest excess if it is smaller."""
        i = int(excess_bytes.argmin())
        if excess_bytes[i] < self.excess_bytes:
            self.excess_bytes = float(excess_bytes[i])
            self.row = tuple(float(block.columns[n][i]) for n in names)


@dataclass
class Counts:
    """What happened to the candidates."""

    bounded: int = 0
    simulated: int = 0
    feasible: int = 0
    unfit: dict[str, int] = field(default_factory=dict)


class Pool:
    """Holds bounded candidates, and simulates those that their bounds do not rule out.

    Parameters
    ----------
    problem : Problem
    engine : Engine
    enumerator : Enumerator
        Turns rows into batches.
    wanted : Wanted
    limit : int
        Candidates held at most before they are settled.
    """

    def __init__(self, problem: Problem, engine: Engine, enumerator: Enumerator,
                 wanted: Wanted, *, limit: int = MAX_POOL) -> None:
        self._problem, self._engine, self._enumerator = problem, engine, enumerator
        self._objectives: Objectives = problem.objectives
        self._names = enumerator.grid.fields
        self._wanted, self._limit = wanted, limit
        self._held: list[tuple[FloatArray, FloatArray, FloatArray, IntArray]] = []
        self._size = 0
        self.found: Simulated | None = None
        self.counts = Counts()
        self.miss = NearestMiss()

    def offer(self, block: Block, batch: Batch) -> None:
        """Bound a chunk of legal candidates and keep those that may be wanted."""
        bounds = self._engine.bound(self._problem.model, self._problem.system, batch)
        self.counts.bounded += block.size
        fits = self._fits(bounds, block)
        if not fits.any():
            return
        self.counts.feasible += int(fits.sum())
        memory = bounds.device_memory_bytes
        lower = self._losses(bounds.step_time_lower_s * (1 - SLACK), batch, memory)
        cell = np.stack([np.broadcast_to(batch[n], (block.size,)) for n in CELL], axis=1)
        rows = np.stack([block.columns[n] for n in self._names], axis=1) if self._names \
            else np.zeros((block.size, 0))
        keep = fits & self._needed(lower, memory, cell) if self.found is not None else fits
        if keep.any():
            self._held.append((rows[keep], lower[keep], memory[keep], cell[keep]))
            self._size += int(keep.sum())
        if self._size >= self._limit:
            self.settle()

    def _fits(self, bounds: BoundsLike, block: Block) -> BoolArray:
        limit = self._problem.memory_limit_bytes
        excess = bounds.device_memory_bytes - limit
        fits = excess <= 0
        if not fits.all():
            self._unfit("memory", int((~fits).sum()))
        if not self._problem.marginal:
            certain = bounds.device_memory_high_bytes <= limit
            if (fits & ~certain).any():
                self._unfit("marginal", int((fits & ~certain).sum()))
            excess = bounds.device_memory_high_bytes - limit
            fits = fits & certain
        if not self.counts.feasible and not fits.any():
            self.miss.offer(excess, block, self._names)
        return np.asarray(fits, np.bool_)

    def _unfit(self, reason: str, count: int) -> None:
        self.counts.unfit[reason] = self.counts.unfit.get(reason, 0) + count

    def _losses(self, step_time_s: FloatArray, batch: Batch,
                memory_bytes: FloatArray) -> FloatArray:
        return self._objectives.losses(
            step_time_s=step_time_s, tokens_per_step=batch.real("gbs") * batch.real("seq_len"),
            gpus=batch.real("gpus"), device_memory_bytes=memory_bytes)

    def _points(self, losses: FloatArray, memory_bytes: FloatArray) -> FloatArray:
        """Return what dominance compares; a single goal is weighed against memory."""
        if losses.shape[1] > 1:
            return losses
        return np.stack([losses[:, 0], memory_bytes], axis=1)

    def _needed(self, lower: FloatArray, memory: FloatArray, cell: IntArray) -> BoolArray:
        """Mark candidates that may be wanted, as far as exact results so far tell."""
        found, wanted = self.found, self._wanted
        if found is None:
            return np.ones(len(lower), np.bool_)
        need = np.zeros(len(lower), np.bool_)
        if wanted.top:
            enough = len(found) >= wanted.top
            need |= lower[:, 0] <= (np.sort(found.losses[:, 0])[wanted.top - 1] if enough
                                    else np.inf)
        if wanted.cells:
            need |= lower[:, 0] <= self._cell_limit(cell)
        if wanted.pareto:
            rest = np.flatnonzero(~need)
            front = found.points[pareto_mask(found.points)]
            need[rest] = ~dominated_by(self._points(lower[rest], memory[rest]), front)
        return need

    def _cell_limit(self, cell: IntArray) -> FloatArray:
        """Best exact loss of each row's cell; infinite where none was simulated."""
        if self.found is None:
            return np.full(len(cell), np.inf)
        known = _cell_key(self.found.cell)
        order = np.lexsort((self.found.losses[:, 0], known))
        keys, first = np.unique(known[order], return_index=True)
        best = self.found.losses[order[first], 0]
        mine = _cell_key(cell)
        place = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
        return np.where(keys[place] == mine, best[place], np.inf)

    def settle(self) -> None:
        """Simulate every held candidate that may be wanted, and drop the others."""
        if not self._held:
            return
        rows, lower, memory, cell = (
            np.concatenate([h[i] for h in self._held]) for i in range(4))
        self._held, self._size = [], 0
        share = 1
        while True:
            need = self._needed(lower, memory, cell)
            rows, lower, memory, cell = (a[need] for a in (rows, lower, memory, cell))
            if not len(rows):
                break
            chosen = self._next(lower, memory, cell, share)
            self._simulate(rows[chosen])
            rest = ~chosen
            rows, lower, memory, cell = (a[rest] for a in (rows, lower, memory, cell))
            share *= 2
        if self.found is not None:
            self.found = select(self.found, self._wanted)

    def _next(self, lower: FloatArray, memory: FloatArray, cell: IntArray,
              share: int) -> BoolArray:
        """Mark the most promising of the needed candidates, more of them each round."""
        chosen = np.zeros(len(lower), np.bool_)
        order = np.argsort(lower[:, 0], kind="stable")
        chosen[order[:max(self._wanted.top, 16) * share]] = True
        if self._wanted.cells:
            by_cell = order[np.argsort(_cell_key(cell)[order], kind="stable")]
            keys = _cell_key(cell)[by_cell]
            starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
            place = np.arange(len(keys)) - np.repeat(starts, np.diff([*starts, len(keys)]))
            chosen[by_cell[place < share]] = True
        if self._wanted.pareto:
            chosen |= pareto_mask(self._points(lower, memory))
        return chosen

    def _simulate(self, rows: FloatArray) -> None:
        parts = [] if self.found is None else [self.found]
        for start in range(0, len(rows), CHUNK):
            piece = rows[start:start + CHUNK]
            block = Block({n: np.ascontiguousarray(piece[:, i])
                           for i, n in enumerate(self._names)}, len(piece))
            batch = self._enumerator.batch(block)
            exact = self._engine.evaluate(self._problem.model, self._problem.system, batch)
            memory = exact.columns["device_memory_bytes"]
            losses = self._losses(exact.columns["step_time_s"], batch, memory)
            cell = np.stack([np.broadcast_to(batch[n], (len(piece),)) for n in CELL], axis=1)
            parts.append(Simulated(
                piece, losses, self._points(losses, memory), memory,
                exact.columns["device_memory_high_bytes"], cell.astype(np.int64),
                [(exact, i) for i in range(len(piece))]))
            self.counts.simulated += len(piece)
        self.found = merge(parts)


def _cell_key(cell: IntArray) -> IntArray:
    key: IntArray = (cell[:, 0] << 40) + (cell[:, 1] << 20) + cell[:, 2]
    return key
