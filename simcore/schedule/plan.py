"""Plans: the levels of a schedule cut into a head, one period that repeats, and a tail.

Between warm-up and cool-down every rank repeats the same operations for each group of
micro-batches. `make_plan` finds two levels at which all ranks stand at the same point of that
cycle; a schedule of any length is then head + period * repeats + tail, and the table of a short
schedule serves the long ones.

Notes
-----
Let `done` be the operations that each rank has run before a level. The levels are built by "run
as early as possible, one operation a level", a rule that looks at `done` alone. So if Q levels
after some level all ranks have run exactly one period of Q operations more, the levels repeat for
as long as the orders do, and the tail follows any number of periods as it follows the first. The
period starts where nothing at or after its first level reads an end from before that level (then
its reads repeat too, not only its operations). What must hold, and is checked, so that the orders
do repeat:

- at that level every rank has finished its warm-up (from there on the operation at position q of
  an order is found at q + Q when one more group is put in);
- within the period no rank reaches the cool-down or the last, smaller group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from simcore.schedule.levels import Levels, build_levels
from simcore.schedule.orders import effective_group, warmup_forwards
from simcore.schedule.split import SPLIT_KINDS
from simcore.typing import IntArray

# With the buffer of `simcore.schedule.base`, what measured fastest at n = 1 and n = 1000.
_PIECE_LEVELS = 64
_Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Piece:
    """Some consecutive levels, which read their own ends and those of `carry` levels before.

    Parameters
    ----------
    need : tuple of ndarray, shape (pp,)
        A level each: row of the buffer that holds the needed end; row 0 holds minus infinity,
        then come pp rows for each carried level, then pp rows for each level of the piece.
    duration : ndarray, shape (levels, pp)
        As in `simcore.schedule.levels.Levels`.
    """

    need: tuple[_Index, ...]
    duration: _Index


@dataclass(frozen=True)
class Plan:
    """How to evaluate a schedule.

    Parameters
    ----------
    carry : int
        Levels before a piece that its operations read, at least one.
    head, tail : tuple of Piece
        Before and after the periods; the tail is empty where nothing repeats.
    block : Piece or None
        `block_periods` periods in one piece.
    block_periods : int
        Periods of a block.
    periods : int
        Periods between head and tail.
    live : ndarray of int
        Rows of the carried levels that later operations read; the last pp of them are the
        ranks' own last ends.
    """

    carry: int
    head: tuple[Piece, ...]
    block: Piece | None
    tail: tuple[Piece, ...]
    block_periods: int
    periods: int
    live: _Index


def _piece(levels: Levels, first: int, last: int, carry: int) -> Piece:
    pp = levels.need.shape[1]
    need = levels.need[first:last]
    shifted = np.where(need > 0, need + (carry - first) * pp, 0)
    return Piece(tuple(shifted), levels.duration[first:last])


def _pieces(levels: Levels, first: int, last: int, carry: int) -> tuple[Piece, ...]:
    return tuple(_piece(levels, at, min(at + _PIECE_LEVELS, last), carry)
                 for at in range(first, last, _PIECE_LEVELS))


def _lags(levels: Levels) -> IntArray:
    """Return how many levels back the operations of a level read, shape (levels,)."""
    count, pp = levels.need.shape
    source = (levels.need - 1) // pp
    lag = np.where(levels.need > 0, np.arange(count)[:, None] - source, 1)
    deepest: IntArray = lag.max(axis=1)
    return deepest


def _find_cut(levels: Levels, warmup: IntArray, *, period_ops: int, full_forwards: int) -> int:
    """Return the first level of a period of `period_ops` levels, or -1."""
    count = len(levels.need)
    at = np.arange(count - period_ops)
    if not len(at):
        return -1
    reach = np.maximum.accumulate(_lags(levels)[::-1])[::-1][at]
    before = np.maximum(at - reach, 0)
    fits = (
        (at >= reach)
        & (levels.done[before + period_ops] == levels.done[before] + period_ops).all(axis=1)
        & (levels.done[before] >= warmup).all(axis=1)
        & (levels.done[at + period_ops] <= 2 * full_forwards - warmup).all(axis=1)
    )
    return int(np.argmax(fits)) if fits.any() else -1


def _whole(levels: Levels) -> Plan:
    carry = int(_lags(levels).max())
    return Plan(carry, _pieces(levels, 0, len(levels.need), carry), None, (), 1, 0,
                np.empty(0, dtype=np.intp))


def _cut_plan(levels: Levels, first: int, *, period_ops: int, block_periods: int,
              periods: int) -> Plan:
    """Return the plan that repeats levels `first` to ``first + period_ops``."""
    pp = levels.need.shape[1]
    last = first + period_ops
    carry = int(_lags(levels).max())
    # The period read `block_periods` times over: the same operations, each read moved along.
    once = levels.need[first:last]
    moves = np.repeat(np.arange(block_periods) * period_ops * pp, period_ops)[:, None]
    need = np.tile(once, (block_periods, 1))
    need = np.where(need > 0, need + moves + (carry - first) * pp, 0)
    block = Piece(tuple(need), np.tile(levels.duration[first:last], (block_periods, 1)))
    tail = levels.need[last:]
    reads = np.concatenate((need.ravel(), np.where(tail > 0, tail + (carry - last) * pp, 0)
                            .ravel()))
    rows = carry * pp
    own = np.arange(rows - pp + 1, rows + 1)
    others = np.unique(reads[(reads > 0) & (reads <= rows - pp)])
    live = np.concatenate((others, own)).astype(np.intp)
    return Plan(carry, _pieces(levels, 0, first, carry), block,
                _pieces(levels, last, len(levels.need), carry), block_periods, periods, live)


@lru_cache(maxsize=2048)
def make_plan(kind: str, pp: int, vpp: int, num_microbatches: int, group_size: int) -> Plan:
    """Return how to evaluate a schedule; see the module's notes.

    Parameters
    ----------
    kind, pp, vpp, num_microbatches, group_size
        See `simcore.schedule.orders.warmup_forwards`.
    """
    if kind in SPLIT_KINDS:
        return _whole(build_levels(kind, pp, vpp, num_microbatches, group_size))
    group = effective_group(kind, num_microbatches, group_size)
    period_ops = 2 * group * vpp
    # Enough periods in a block to see a state that repeats only after a round trip through all
    # ranks, which holds pp micro-batches at most in 1F1B.
    block_periods = max(2, -(-2 * max(pp, 8) // period_ops))
    warmup = warmup_forwards(kind, pp=pp, vpp=vpp, num_microbatches=num_microbatches,
                             group_size=group_size, rank=np.arange(pp))
    groups, rest = divmod(num_microbatches, group)
    short = 3 + int(warmup[0]) // (group * vpp)
    while kind != "gpipe" and short + 2 * block_periods <= groups:
        levels = build_levels(kind, pp, vpp, short * group + rest, group_size)
        first = _find_cut(levels, warmup, period_ops=period_ops,
                          full_forwards=short * group * vpp)
        if first >= 0:
            return _cut_plan(levels, first, period_ops=period_ops, block_periods=block_periods,
                             periods=groups - short + 1)
        short += 1 + short // 2
    return _whole(build_levels(kind, pp, vpp, num_microbatches, group_size))
