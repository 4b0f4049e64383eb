"""Closed forms and lower bounds of pipeline schedules; numbers only.

The exact recurrence is `simcore.schedule.base.makespan`; everything here is tested against it.
"""

from __future__ import annotations

import numpy as np

from simcore.typing import BoolArray, FloatArray, IntArray, Num


def bubble_frac(pp: Num, vpp: Num, num_microbatches: Num) -> Num:
    """Return the pipeline bubble over the ideal time, for equal stages.

    Parameters
    ----------
    pp, vpp, num_microbatches : float or ndarray
        Pipeline ranks p, chunks of a rank v (1: not interleaved), micro-batches m.

    Returns
    -------
    float or ndarray
        (p - 1)/(v m): idle time of a rank over its busy time.

    Notes
    -----
    Holds for GPipe and 1F1B with v = 1 and for interleaved 1F1B where m is a multiple of p;
    sends cost nothing.

    References
    ----------
    Narayanan et al., arXiv:2104.04473, section 2.2.1 (bubble of the default schedule) and
    section 2.2.2 (interleaved schedule).

    Examples
    --------
    >>> bubble_frac(4, 1, 8), bubble_frac(4, 2, 8)
    (0.375, 0.1875)
    """
    return (pp - 1.0) / (vpp * num_microbatches)


def uniform_makespan_s(pp: Num, vpp: Num, num_microbatches: Num, chunk_s: Num) -> Num:
    """Return the time of a step of equal stages, up to the last backward of rank 0.

    Parameters
    ----------
    pp, vpp, num_microbatches : float or ndarray
        As in `bubble_frac`, with its limits.
    chunk_s : float or ndarray
        Forward and backward of a micro-batch in one chunk [s].

    Returns
    -------
    float or ndarray
        m v t (1 + (p - 1)/(v m)) [s].

    References
    ----------
    As `bubble_frac`.
    """
    ideal_s = num_microbatches * vpp * chunk_s
    return ideal_s * (1.0 + bubble_frac(pp, vpp, num_microbatches))


def lower_bound_s(*, pp: IntArray, vpp: IntArray, num_microbatches: IntArray | FloatArray,
                  busy_before_s: FloatArray, own_s: FloatArray, ranks_before: IntArray,
                  edge_s: FloatArray, is_1f1b: BoolArray | bool = False) -> FloatArray:
    """Return a time that no schedule's makespan falls below, row by row.

    Parameters
    ----------
    pp, vpp, num_microbatches : ndarray, shape (n,)
        Pipeline ranks, chunks of a rank, micro-batches; rows may differ.
    busy_before_s : ndarray, shape (k, n)
        For some ranks s of each row, in any order: forward and backward time of one micro-batch
        in the first chunks of the ranks before s [s].
    own_s : ndarray, shape (k, n)
        Forward and backward time of one micro-batch in all chunks of rank s [s].
    ranks_before : ndarray, shape (k, n)
        s, the number of ranks before it.
    edge_s : ndarray, shape (n,)
        Time between ranks, in each direction [s].
    is_1f1b : ndarray of bool, shape (n,), or bool
        Rows with the non-interleaved 1F1B order, whose bound is closer. Rows with vpp > 1 keep
        the general bound whatever stands here.

    Returns
    -------
    ndarray, shape (n,)
        Lower bound of `simcore.schedule.base.makespan` on rank 0, and so of the step [s].

    Notes
    -----
    A makespan is the longest path through the operations, so the length of any path bounds it
    from below. Every path used here starts with the first micro-batch's forwards through the
    first chunks of ranks 0 to s - 1 and ends with the last micro-batch's backwards through them:
    ``busy_before + 2 s edge``. What stands between is done by rank s or waited for by it:

    1. All schedules: the first operation of a rank is the first forward of its first chunk, the
       last one is the last backward of its first chunk (the backwards follow the table of the
       forwards with the chunks reversed), and between them it runs every operation:
       ``m own``.
    2. 1F1B, with D = pp - s. A *round trip* from forward i to backward i of rank s passes the
       ranks behind it, ``trip = sum of own from s to the last + 2 (D - 1) edge``. On rank s
       backward i stands directly before forward i + D, and from forward D on each forward
       directly after one backward, so a step from forward i to i + 1 costs own. A path of A >= 2
       trips goes forward 0, trip, backward 0, forward D, steps, trip, ... to backward m - 1:
       ``A trip + (m - 1 - (A - 1) D) own``, for 2 <= A <= 1 + (m - 1) // D. It is linear in A:
       both ends are tried. A = 2 is the wait for the first and the last backward of a busy rank,
       the largest A the cycle that binds where sends are slow or the ranks behind are slower.
    3. 1F1B, one trip: before forward i or after backward i the rank runs the other forwards or
       backwards. The mean of i = 0 and i = m - 1 is
       ``trip + own (m - 1 + max(m - D, 0)) / 2``, and the longer of the two is no shorter.

    The trip uses ``max(busy_before + own) - busy_before`` over the given ranks, which is exact
    where the last rank is among them and too small, so still a bound, where it is not. Being a
    difference, it needs busy_before_s exact: for 1F1B rows a smaller figure is no safe one.

    Equal stages with edge 0: 1. on the last rank gives uniform_makespan_s.

    References
    ----------
    Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", Wiley 1992, section 2.4
    (longest paths and cycle means). Narayanan et al., arXiv:2104.04473, section 2.2.
    """
    m = np.asarray(num_microbatches, dtype=np.float64)
    ends_s = busy_before_s + 2.0 * ranks_before * edge_s
    bound_s: FloatArray = (ends_s + m * own_s).max(axis=0)
    rows = np.flatnonzero(np.broadcast_to(is_1f1b, bound_s.shape) & (np.asarray(vpp) == 1))
    if not len(rows):
        return bound_s
    m, own_s, ends_s = m[rows], own_s[:, rows], ends_s[:, rows]
    before_s = busy_before_s[:, rows]
    behind = np.asarray(pp)[rows] - ranks_before[:, rows]  # D of the notes
    trip_s = (before_s + own_s).max(axis=0) - before_s + 2.0 * (behind - 1) * edge_s[rows]
    # Notes, 3.
    inner_s = trip_s + own_s * (m - 1 + np.maximum(m - behind, 0.0)) / 2
    # Notes, 2.
    most = 1 + np.floor((m - 1) / behind)
    for trips in (np.minimum(2.0, most), most):
        several_s = trips * trip_s + (m - 1 - (trips - 1) * behind) * own_s
        inner_s = np.maximum(inner_s, np.where(most >= 2, several_s, 0.0))
    bound_s[rows] = np.maximum(bound_s[rows], (ends_s + inner_s).max(axis=0))
    return bound_s
