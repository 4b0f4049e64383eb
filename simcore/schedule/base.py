"""When each pipeline rank finishes: the exact recurrence of a schedule, for many candidates.

The recurrence is the definition; closed forms and lower bounds are in
`simcore.formulas.pipeline` and are tested against it.
"""

from __future__ import annotations

import numpy as np

from simcore.formulas.pipeline import lower_bound_s
from simcore.schedule.orders import KINDS, in_flight_by_chunk, in_flight_chunks
from simcore.schedule.plan import Piece, Plan, make_plan
from simcore.schedule.split import DUAL_KINDS, SPLIT_KINDS
from simcore.typing import FloatArray, IntArray

__all__ = ["KINDS", "in_flight_by_chunk", "in_flight_chunks", "lower_bound_s", "makespan"]

# About what stays in the cache; candidates beyond it are evaluated in turns.
_BUFFER_BYTES = 4.0 * 2**20
_PERIODIC_RTOL = 1e-13


def makespan(kind: str, *, pp: int, vpp: int, num_microbatches: int, group_size: int,
             forward_s: FloatArray, backward_s: FloatArray, edge_s: FloatArray,
             weight_s: FloatArray | None = None) -> FloatArray:
    """Return when each rank finishes its last backward.

    Parameters
    ----------
    kind : str
        One of `KINDS`; '1f1b' and 'zero-bubble' need vpp=1, the dual ones two chunks (vpp=2).
    pp, vpp : int
        Pipeline ranks, and model chunks of a rank.
    num_microbatches : int
        Micro-batches of a step.
    group_size : int
        ``microbatch_group_size_per_vp_stage`` of 'interleaved'; not used by the others.
    forward_s, backward_s : ndarray, shape (pp, vpp, n)
        Time of one micro-batch in a chunk [s].
    edge_s : ndarray, shape (n,)
        Time from the end of an operation to the start of the one on the next rank that needs
        its result [s]; the send does not keep the rank busy.
    weight_s : ndarray, shape (pp, vpp, n), optional
        Of the backward, the weights' gradient, which split schedules may run later [s]; none of
        it where it is left out.

    Returns
    -------
    ndarray, shape (pp, n)
        Seconds from the start of the first forward on rank 0 [s]. Rank 0 finishes last unless
        the schedule is a split one.

    Raises
    ------
    ValueError
        Unknown kind, 1f1b with several chunks, or an order that deadlocks.

    Notes
    -----
    Longest path of the precedence graph: an operation starts when the one before it on its rank
    has ended and `edge_s` after what it needs from another rank has ended. Where a candidate's
    ends advance by one amount over one or several periods (all that later operations read, to
    1e-13 of that amount), the recurrence, being max-plus linear, repeats for ever, and the
    periods left are added at once. Other candidates run every period. A row's result does not
    depend on the rows beside it.

    References
    ----------
    Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", Wiley 1992, theorem 3.112
    (powers of an irreducible max-plus matrix become periodic).

    Examples
    --------
    Two equal stages, three micro-batches: (m + pp - 1)(f + b).

    >>> one = np.ones((2, 1, 1))
    >>> makespan("1f1b", pp=2, vpp=1, num_microbatches=3, group_size=2, forward_s=one,
    ...          backward_s=2 * one, edge_s=np.zeros(1))
    array([[12.],
           [10.]])
    """
    if kind not in KINDS:
        raise ValueError(f"schedule must be one of {', '.join(KINDS)}, got {kind}")
    chunks = {"1f1b": 1, "zero-bubble": 1, "dualpipe": 2, "dualpipev": 2}.get(kind, vpp)
    if vpp != chunks:
        raise ValueError(f"schedule {kind} holds {chunks} chunks a rank, got vpp {vpp}")
    plan = make_plan(kind, pp, vpp, num_microbatches, group_size)
    n = forward_s.shape[-1]
    # Row chunk*pp + rank of the durations: forwards, backwards, their parts, pairs, nothing.
    size = pp * vpp
    durations_s = np.zeros((5 * size + 1, n))
    durations_s[:size] = forward_s.transpose(1, 0, 2).reshape(size, n)
    durations_s[size:2 * size] = backward_s.transpose(1, 0, 2).reshape(size, n)
    if kind in SPLIT_KINDS:
        if weight_s is not None:
            durations_s[3 * size:4 * size] = weight_s.transpose(1, 0, 2).reshape(size, n)
        durations_s[2 * size:3 * size] = durations_s[size:2 * size] - durations_s[3 * size:
                                                                                  4 * size]
    if kind in DUAL_KINDS:
        other = (backward_s[:, ::-1] + forward_s).transpose(1, 0, 2)
        durations_s[4 * size:-1] = other.reshape(size, n)
    edges_s = np.broadcast_to(np.asarray(edge_s, dtype=np.float64), (n,))
    longest = max(len(piece.need) for piece in _all_pieces(plan))
    width = max(1, int(_BUFFER_BYTES / (8 * pp * (plan.carry + 2 * longest))))
    end_s = np.empty((pp, n))
    for at in range(0, n, width):
        part = slice(at, at + width)
        end_s[:, part] = _Run(plan, pp, durations_s[:, part], edges_s[part]).finish()
    return end_s


def _all_pieces(plan: Plan) -> tuple[Piece, ...]:
    return plan.head + plan.tail + (() if plan.block is None else (plan.block,))


class _Run:
    """One evaluation of a plan: the carried ends and the candidates that are still running.

    Parameters
    ----------
    plan : Plan
        What to evaluate.
    pp : int
        Pipeline ranks.
    durations_s : ndarray, shape (5*pp*vpp + 1, n)
        Time of each operation [s].
    edge_s : ndarray, shape (n,)
        Time between ranks [s].
    """

    def __init__(self, plan: Plan, pp: int, durations_s: FloatArray, edge_s: FloatArray) -> None:
        self.plan = plan
        self.pp = pp
        self.durations_s = durations_s
        self.edge_s = edge_s

    def finish(self) -> FloatArray:
        """Return the ends of the ranks, shape (pp, n) [s]."""
        plan = self.plan
        rows = plan.carry * self.pp
        carry_s = np.zeros((rows, len(self.edge_s)))
        for piece in plan.head:
            carry_s = self._piece(piece, carry_s)
        if plan.block is not None:
            state_s = self._repeat(plan.block, carry_s)
            carry_s = np.zeros((rows, len(self.edge_s)))
            carry_s[plan.live - 1] = state_s
        for piece in plan.tail:
            carry_s = self._piece(piece, carry_s)
        return carry_s[-self.pp:]

    def _piece(self, piece: Piece, carry_s: FloatArray) -> FloatArray:
        """Run a piece after the carried ends; return the ends that the next one reads."""
        flat = self._buffer(piece, carry_s)
        _advance(flat, piece, self.durations_s[piece.duration], self.edge_s, rows=len(carry_s))
        return flat[len(flat) - len(carry_s):]

    def _buffer(self, piece: Piece, carry_s: FloatArray) -> FloatArray:
        rows, n = carry_s.shape
        flat = np.empty((1 + rows + len(piece.need) * self.pp, n))
        flat[0] = -np.inf
        flat[1:rows + 1] = carry_s
        return flat

    def _repeat(self, block: Piece, carry_s: FloatArray) -> FloatArray:
        """Run all periods; return the ends at `plan.live` after the last, (live, n)."""
        plan, rows = self.plan, len(carry_s)
        levels = len(block.need) // plan.block_periods
        marks = np.arange(plan.block_periods + 1) * levels * self.pp
        result_s = np.empty((len(plan.live), len(self.edge_s)))
        running = np.arange(len(self.edge_s))
        durations_s, edge_s = self.durations_s[block.duration], self.edge_s
        flat = self._buffer(block, carry_s)
        done, blocks, next_look = 0, 0, 1
        while True:
            count = min(plan.block_periods, plan.periods - done)
            piece = Piece(block.need[:count * levels], block.duration[:count * levels])
            _advance(flat, piece, durations_s, edge_s, rows=rows)
            done, blocks = done + count, blocks + 1
            if done == plan.periods:
                result_s[:, running] = flat[plan.live + marks[count]]
                return result_s
            if blocks == next_look:
                # Seldom and seldomer: a look costs about as much as some levels.
                next_look += max(1, next_look // 2)
                states_s = flat[marks[:, None] + plan.live]
                settled, found_s = _skip(states_s, plan.periods - done)
                result_s[:, running[settled]] = found_s
                if settled.all():
                    return result_s
                if settled.any():
                    running, edge_s = running[~settled], edge_s[~settled]
                    durations_s = durations_s[..., ~settled]
                    flat = np.ascontiguousarray(flat[:, ~settled])
            flat[1:rows + 1] = flat[len(flat) - rows:].copy()


def _advance(flat: FloatArray, piece: Piece, durations_s: FloatArray, edge_s: FloatArray, *,
             rows: int) -> None:
    """Fill the buffer's rows of a piece, level by level.

    Parameters
    ----------
    flat : ndarray, shape (1 + rows + levels*pp, n)
        Minus infinity, the carried ends, then what is filled [s].
    piece : Piece
        What the levels need.
    durations_s : ndarray, shape (levels, pp, n)
        Time of each operation, zero where a rank has nothing to do [s].
    edge_s : ndarray, shape (n,)
        Time between ranks [s].
    rows : int
        Carried rows.
    """
    pp, n = durations_s.shape[1:]
    ends = list(flat[1 + rows - pp:].reshape(-1, pp, n))
    start_s = np.empty((pp, n))
    take, add, maximum = flat.take, np.add, np.maximum
    # 'clip' spares the copy that numpy makes to check indices; they are right by construction.
    for need, duration_s, before, end in zip(piece.need, durations_s, ends, ends[1:],
                                             strict=False):
        take(need, 0, start_s, "clip")
        add(start_s, edge_s, out=start_s)
        maximum(start_s, before, out=start_s)
        add(start_s, duration_s, out=end)


def _skip(states_s: FloatArray, left: int) -> tuple[IntArray, FloatArray]:
    """Find the candidates that repeat, and return their state after `left` more periods.

    Parameters
    ----------
    states_s : ndarray, shape (periods + 1, live, n)
        Ends that later operations read, after each of the last periods [s].
    left : int
        Periods to go from the last state.

    Returns
    -------
    settled : ndarray of bool, shape (n,)
        Whether all ends advanced by one amount from an earlier state to the last.
    state_s : ndarray, shape (live, settled.sum())
        Their state after the periods left [s].
    """
    last = len(states_s) - 1
    step_s = states_s[last] - states_s[:last]
    most_s, least_s = step_s.max(axis=1), step_s.min(axis=1)
    same = most_s - least_s <= _PERIODIC_RTOL * most_s
    settled = same.any(axis=0)
    columns = np.flatnonzero(settled)
    # The latest state that the last one repeats: `cycle` periods back.
    cycle = 1 + np.argmax(same[::-1, columns], axis=0)
    more, rest = np.divmod(left, cycle)
    base_s = states_s[last - cycle + rest, :, columns].T
    return settled, base_s + (more + 1) * most_s[last - cycle, columns]
