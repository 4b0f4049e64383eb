"""Levels: which operations of a schedule can be evaluated at once, for all ranks and candidates.

The end of an operation is ``max(end of the operation before it on its rank, end of the operation
that it needs + edge) + duration``. All operations of one level need only lower levels, and each
rank has at most one in a level, so one level costs a few numpy calls on arrays (pp, n).

References
----------
The recurrence is the longest path of the schedule's precedence graph, linear in the max-plus
algebra: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", Wiley 1992,
sections 2.5 and 3.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simcore.schedule.orders import effective_group, forward_table, positions, warmup_forwards
from simcore.schedule.split import SPLIT_KINDS, split_durations, split_needs, split_order
from simcore.typing import IntArray


@dataclass(frozen=True)
class Levels:
    """Operations of a schedule by level.

    Parameters
    ----------
    need : ndarray, shape (levels, pp)
        Row ``level*pp + rank + 1`` of the end that an operation needs from another rank;
        0 where it needs none or the rank has nothing to do in that level.
    duration : ndarray, shape (levels, pp)
        Row of the operation's duration: chunk*pp + rank for a forward, pp*vpp more for a
        backward, 2 and 3 times as much more for its parts (input, weights), 4 times for a forward
        with the other chunk's backward, 5*pp*vpp for nothing (zero).
    done : ndarray, shape (levels + 1, pp)
        Operations that a rank has run before a level.
    """

    need: IntArray
    duration: IntArray
    done: IntArray


@dataclass(frozen=True)
class Cut:
    """Where a table repeats itself: levels first to last are one period.

    Parameters
    ----------
    first, last : int
        Levels at which the state of all ranks is the same but for one period of operations.
    """

    first: int
    last: int


def _needs(*, pp: int, vpp: int, table: IntArray, warmup: IntArray) -> tuple[IntArray, IntArray]:
    """Return rank and position of what each operation needs from another rank, (pp, 2*total).

    The rank is -1 where nothing is needed: the first chunk's forward, the last chunk's backward
    (its own forward stands before it in the order), and all operations of a single rank.
    """
    total = table.shape[1]
    num_microbatches = total // vpp
    index = np.empty((vpp, num_microbatches), dtype=np.int64)
    index[table[0], table[1]] = np.arange(total)
    ranks = np.arange(pp)[:, None]
    steps = np.broadcast_to(np.arange(total), (pp, total))
    forward_at, backward_at = positions(steps, warmup[:, None], total)
    rank = np.full((pp, 2 * total), -1, dtype=np.int64)
    position = np.zeros((pp, 2 * total), dtype=np.int64)
    if pp == 1:
        return rank, position
    # A backward counts chunks from the end, so both directions walk the same table; `near` is
    # the rank that the micro-batch comes from, `edge_rank` where the walk enters the next chunk.
    for at, step, edge_rank in ((forward_at, -1, 0), (backward_at, 1, pp - 1)):
        enters = np.broadcast_to(ranks == edge_rank, (pp, total))
        source = np.broadcast_to((ranks + step) % pp, (pp, total))
        before = np.where(enters, index[table[0] - 1, table[1]], steps)
        needed = ~enters | (table[0] > 0)
        rows = np.broadcast_to(ranks, (pp, total))
        rank[rows[needed], at[needed]] = source[needed]
        position[rows[needed], at[needed]] = at[source[needed], before[needed]]
    return rank, position


def _earliest(rank: IntArray, position: IntArray) -> list[list[int]]:
    """Return the lowest level of every operation, a list for each rank.

    Raises
    ------
    ValueError
        Where the ranks wait for one another for ever.
    """
    need_rank, need_at = rank.tolist(), position.tolist()
    size = rank.shape[1]
    level: list[list[int]] = [[] for _ in need_rank]
    progress = True
    while progress:
        progress = False
        for own, sources, places in zip(level, need_rank, need_at, strict=True):
            at = len(own)
            last = own[-1] if own else -1
            while at < size:
                source = sources[at]
                if source >= 0:
                    other, place = level[source], places[at]
                    if place >= len(other):
                        break
                    last = max(last, other[place])
                last += 1
                own.append(last)
                at += 1
                progress = True
    if any(len(own) < size for own in level):
        raise ValueError("the pipeline schedule deadlocks: micro-batches must be a multiple of "
                         "the group size, or leave a remainder of at least pp")
    return level


@lru_cache(maxsize=512)
def build_levels(kind: str, pp: int, vpp: int, num_microbatches: int, group_size: int) -> Levels:
    """Return the levels of a schedule.

    Parameters
    ----------
    kind : str
        One of `simcore.schedule.orders.KINDS`.
    pp, vpp, num_microbatches, group_size : int
        See `simcore.schedule.orders.warmup_forwards`.

    Raises
    ------
    ValueError
        Unknown kind, or an order in which the ranks wait for one another for ever.
    """
    if kind in SPLIT_KINDS:
        orders = [split_order(kind, pp, num_microbatches, rank) for rank in range(pp)]
        rank, position = split_needs(kind, pp, vpp, orders)
        return _levels(rank, position, split_durations(pp, vpp, orders), 5 * pp * vpp)
    group = effective_group(kind, num_microbatches, group_size)
    table = forward_table(vpp, num_microbatches, group)
    warmup = warmup_forwards(kind, pp=pp, vpp=vpp, num_microbatches=num_microbatches,
                             group_size=group_size, rank=np.arange(pp))
    total = table.shape[1]
    rank, position = _needs(pp=pp, vpp=vpp, table=table, warmup=warmup)
    rows = np.broadcast_to(np.arange(pp)[:, None], (pp, total))
    steps = np.broadcast_to(np.arange(total), (pp, total))
    forward_at, backward_at = positions(steps, warmup[:, None], total)
    operation = np.empty(rank.shape, dtype=np.int64)
    np.put_along_axis(operation, forward_at, table[0] * pp + rows, axis=1)
    np.put_along_axis(operation, backward_at, (2 * vpp - 1 - table[0]) * pp + rows, axis=1)
    return _levels(rank, position, operation, 5 * pp * vpp)


def _levels(rank: IntArray, position: IntArray, operation: IntArray, nothing: int) -> Levels:
    """Put operations with their needs, all (pp, ops), on levels."""
    pp = len(rank)
    level = np.array(_earliest(rank, position))
    count = int(level.max()) + 1
    rows = np.broadcast_to(np.arange(pp)[:, None], level.shape)
    duration = np.full((count, pp), nothing, dtype=np.intp)
    duration[level, rows] = operation
    need = np.zeros((count, pp), dtype=np.intp)
    need[level, rows] = np.where(rank >= 0, level[rank, position] * pp + rank + 1, 0)
    done = np.stack([np.searchsorted(own, np.arange(count + 1)) for own in level], axis=1)
    for array in (need, duration, done):
        array.setflags(write=False)
    return Levels(need, duration, done)
