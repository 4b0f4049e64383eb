"""In which order each pipeline rank runs its forwards and backwards.

Every schedule here, but those of `simcore.schedule.split`, is described by two things: a table
that lists the forwards of a rank (the same on all ranks; the backwards follow it with the chunks
reversed), and the number of forwards that a rank runs before its first backward. After these
warm-up forwards a rank alternates one forward and one backward, then runs the backwards that are
left.

References
----------
Megatron-Core 0.19.2, ``megatron/core/pipeline_parallel/schedules.py``: `get_schedule_table`,
`get_pp_rank_microbatches`, `forward_backward_pipelining_with_interleaving`,
`forward_backward_pipelining_without_interleaving`.
Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", arXiv:2104.04473, section 2.2.
Huang et al., "GPipe", arXiv:1811.06965, figure 2.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from simcore.schedule.split import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    PAIRED_FORWARD,
    SPLIT_KINDS,
    split_order,
)
from simcore.typing import IntArray

TABLE_KINDS = ("1f1b", "interleaved", "gpipe")
"""Schedules that `forward_table` describes."""
KINDS = (*TABLE_KINDS, *SPLIT_KINDS)
"""The schedules that are modelled, in the order of the field's values."""


@lru_cache(maxsize=256)
def forward_table(vpp: int, num_microbatches: int, group_size: int) -> IntArray:
    """Return the forwards of a rank in their order, shape (2, vpp*num_microbatches).

    Groups of `group_size` micro-batches pass all chunks of the rank, one chunk after another,
    before the next group starts; the last group holds what is left.

    Parameters
    ----------
    vpp : int
        Chunks of the rank.
    num_microbatches : int
        Micro-batches of a step.
    group_size : int
        ``microbatch_group_size_per_vp_stage``.

    Returns
    -------
    ndarray of int64, shape (2, vpp*num_microbatches)
        Row 0: the chunk; row 1: the micro-batch.

    References
    ----------
    Megatron-Core 0.19.2, `get_schedule_table`.
    """
    chunks = np.arange(vpp)
    parts = []
    for first in range(0, num_microbatches, group_size):
        group = np.arange(first, min(first + group_size, num_microbatches))
        parts.append(np.stack((np.repeat(chunks, len(group)), np.tile(group, vpp))))
    table = np.concatenate(parts, axis=1)
    table.setflags(write=False)
    return table


def warmup_forwards(kind: str | npt.NDArray[np.str_], *, pp: int | IntArray, vpp: int | IntArray,
                    num_microbatches: int | IntArray, group_size: int | IntArray,
                    rank: int | IntArray) -> IntArray:
    """Return how many forwards a rank runs before its first pair of forward and backward.

    All arguments broadcast.

    Parameters
    ----------
    kind : str or ndarray of str
        One of `TABLE_KINDS`.
    pp, vpp : int or ndarray
        Pipeline ranks and chunks of a rank.
    num_microbatches : int or ndarray
        Micro-batches of a step.
    group_size : int or ndarray
        ``microbatch_group_size_per_vp_stage``; used by 'interleaved' alone.
    rank : int or ndarray
        Pipeline rank, from 0.

    Returns
    -------
    ndarray of int64
        Between 0 and vpp*num_microbatches.

    References
    ----------
    Megatron-Core 0.19.2, `get_pp_rank_microbatches`.
    """
    kinds = np.asarray(kind)
    for name in np.unique(kinds):
        if name not in TABLE_KINDS:
            raise ValueError(f"schedule must be one of {', '.join(TABLE_KINDS)}, got {name}")
    later = np.asarray(pp) - rank - 1
    total = np.asarray(vpp) * num_microbatches
    warmup = np.where(kinds == "1f1b", later, 2 * later + (np.asarray(vpp) - 1) * group_size)
    warmup = np.where(kinds == "gpipe", total, warmup)
    return np.minimum(warmup, total).astype(np.int64)


def in_flight_chunks(kind: str | npt.NDArray[np.str_], *, pp: int | IntArray,
                     vpp: int | IntArray, num_microbatches: int | IntArray,
                     group_size: int | IntArray, rank: int | IntArray) -> IntArray:
    """Return how many chunk activations are alive on a rank at most.

    A chunk's activations live from its forward to its backward; the most are alive after the
    first forward that follows the warm-up. All arguments broadcast, `kind` too.

    Parameters
    ----------
    kind, pp, vpp, num_microbatches, group_size, rank
        See `warmup_forwards`.

    Returns
    -------
    ndarray of int64
        1f1b: min(pp - rank, m); interleaved: min(2(pp - rank - 1) + (vpp - 1)N + 1, m vpp);
        gpipe: m vpp; zero-bubble: min(pp, m) on every rank, whose weight gradients wait;
        dualpipe: pp + 1, dualpipev: 2 pp + 1 (a chunk is 1/pp and 1/(2 pp) of the model).

    References
    ----------
    As `warmup_forwards`; arXiv:2104.04473, section 2.2.1, for 1F1B (p micro-batches at most);
    arXiv:2401.10241, table 2, for ZB-H1; arXiv:2412.19437, table 2, for DualPipe (PP + 1).

    Examples
    --------
    The first stage of llama3-70b at pp4 vpp5 with 8 micro-batches:

    >>> int(in_flight_chunks("interleaved", pp=4, vpp=5, num_microbatches=8, group_size=4, rank=0))
    23
    """
    kinds = np.asarray(kind)
    split = np.isin(kinds, SPLIT_KINDS)
    warmup = warmup_forwards(np.where(split, "1f1b", kinds), pp=pp, vpp=vpp,
                             num_microbatches=num_microbatches, group_size=group_size, rank=rank)
    total = np.asarray(vpp) * num_microbatches
    alive = np.minimum(warmup + 1, total)
    if not split.any():
        return alive
    stages = np.asarray(pp) * np.where(kinds == "dualpipev", 2, 1)
    return np.where(split, np.where(kinds == "zero-bubble", np.minimum(pp, num_microbatches),
                                    stages + 1), alive)


def effective_group(kind: str, num_microbatches: int, group_size: int) -> int:
    """Return the group size of the forward table: 1 for 1f1b, all micro-batches for gpipe."""
    if kind == "interleaved":
        return min(group_size, num_microbatches)
    return 1 if kind == "1f1b" else num_microbatches


def rank_order(kind: str, *, pp: int, vpp: int, num_microbatches: int, group_size: int,
               rank: int) -> IntArray:
    """Return the operations of a rank in their order, shape (3, 2*vpp*num_microbatches).

    Returns
    -------
    ndarray of int64, shape (3, 2*vpp*num_microbatches)
        Row 0: 0 for a forward and 1 for a backward (and 2 and 3 for its parts, see
        `simcore.schedule.split`); row 1: the chunk (virtual stage) of the rank; row 2: the
        micro-batch.
    """
    if kind in SPLIT_KINDS:
        return split_order(kind, pp, num_microbatches, rank)
    table = forward_table(vpp, num_microbatches,
                          effective_group(kind, num_microbatches, group_size))
    total = table.shape[1]
    warmup = int(warmup_forwards(kind, pp=pp, vpp=vpp, num_microbatches=num_microbatches,
                                 group_size=group_size, rank=rank))
    steps = np.arange(total)
    order = np.empty((3, 2 * total), dtype=np.int64)
    forward_at, backward_at = positions(steps, warmup, total)
    order[0, forward_at] = 0
    order[1:, forward_at] = table
    order[0, backward_at] = 1
    order[1, backward_at] = vpp - 1 - table[0]
    order[2, backward_at] = table[1]
    return order


def positions(steps: IntArray, warmup: IntArray | int,
              total: int) -> tuple[IntArray, IntArray]:
    """Return where in a rank's order its forward and its backward number `steps` stand.

    `warmup` forwards come first, then pairs of a forward and a backward, then the rest of the
    backwards.
    """
    forward_at = np.where(steps < warmup, steps, 2 * steps - warmup)
    backward_at = np.where(steps < total - warmup, warmup + 2 * steps + 1, total + steps)
    return forward_at, backward_at


@lru_cache(maxsize=1024)
def in_flight_by_chunk(kind: str, *, pp: int, vpp: int, num_microbatches: int, group_size: int,
                       rank: int, before_chunk: int | None = None) -> IntArray:
    """Return which activations of which chunks can be alive at once on a rank.

    Chunks differ in layers, so the moment that holds most bytes need not be the first with the
    most activations: while a rank alternates, their number stays and their mix changes.

    Parameters
    ----------
    kind, pp, vpp, num_microbatches, group_size, rank
        See `warmup_forwards`; plain numbers.
    before_chunk : int, optional
        Look only at the moments before a backward of this chunk.

    Returns
    -------
    ndarray of int64, shape (mixes, vpp)
        Activations alive of each chunk. Row 0 is the first moment at which the most are alive;
        the others are the further moments that no single row exceeds in every chunk. With
        ``bytes`` (vpp, n) of a chunk's activations, ``(mixes @ bytes).max(0)`` is the exact peak.
    """
    kind_of, chunk, _ = rank_order(kind, pp=pp, vpp=vpp, num_microbatches=num_microbatches,
                                   group_size=group_size, rank=rank)
    step = np.zeros((len(chunk), max(vpp, int(chunk.max()) + 1)), dtype=np.int64)
    # What the weight gradient needs lives until it is computed.
    step[np.arange(len(chunk)), chunk] = np.array([1, -1, 0, -1, 1])[kind_of]
    alive = np.cumsum(step, axis=0)
    starts_backward = (kind_of[1:] == BACKWARD) | (kind_of[1:] == INPUT_GRADIENT)
    if before_chunk is None:
        # Only a moment between a forward and a backward can be a maximum.
        ends_forward = (kind_of[:-1] == FORWARD) | (kind_of[:-1] == PAIRED_FORWARD)
        moments = alive[:-1][ends_forward & starts_backward]
    else:
        moments = alive[:-1][(chunk[1:] == before_chunk) & starts_backward]
    first = moments[np.argmax(moments.sum(axis=1))]
    peaks = np.unique(moments, axis=0)
    no_more = (peaks[:, None] <= peaks[None]).all(axis=2)
    exceeded = no_more & ~(peaks[:, None] == peaks[None]).all(axis=2)
    kept = peaks[~exceeded.any(axis=1)]
    others = kept[~(kept == first).all(axis=1)]
    mixes = np.concatenate((first[None], others))
    mixes.setflags(write=False)
    return mixes
