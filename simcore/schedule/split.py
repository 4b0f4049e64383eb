"""Schedules that split a backward in two: the input's gradient now, the weights' when it suits.

The order of each rank is written out operation by operation, since it follows no table that all
ranks share.

References
----------
ZB-H1: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 2.1 and
table 1; ``torch/distributed/pipelining/schedules.py``, `_get_1f1b_rank_ops` with zero bubble.
DualPipe and DualPipeV: DeepSeek-AI, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe,
``dualpipe/dualpipe.py`` and ``dualpipev.py``, the eight steps of `step`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from simcore.typing import IntArray

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, PAIRED_FORWARD = range(5)
"""Row 0 of an order. A backward (1) is both gradients in one operation. A paired forward (4) is
one with the backward of the other chunk that follows it: both inputs are awaited first, and both
results leave when the two are done."""
SPLIT_KINDS = ("zero-bubble", "dualpipe", "dualpipev")
DUAL_KINDS = ("dualpipe", "dualpipev")
"""Those whose ranks hold two chunks each, wherever `vpp` stands."""

_Places = tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def routes(kind: str, pp: int, vpp: int) -> tuple[_Places, ...]:
    """Return the ways of micro-batches through the pipeline: (rank, chunk of the rank) in order.

    DualPipe feeds half of the micro-batches from either end; rank r holds stages r and
    pp - 1 - r. DualPipeV's way turns at the last rank, which holds the two middle stages of 2 pp.
    """
    there = tuple((rank, 0) for rank in range(pp))
    back = tuple((rank, 1) for rank in reversed(range(pp)))
    if kind == "dualpipe":
        return there, back
    if kind == "dualpipev":
        return (there + back,)
    return (tuple((rank, chunk) for chunk in range(vpp) for rank in range(pp)),)


def chunk_runs(kind: str, num_microbatches: int) -> int:
    """Return how many micro-batches pass each chunk in a step."""
    return num_microbatches // 2 if kind == "dualpipe" else num_microbatches


@lru_cache(maxsize=1024)
def split_order(kind: str, pp: int, num_microbatches: int, rank: int) -> IntArray:
    """Return the operations of a rank in their order.

    Parameters
    ----------
    kind : str
        One of `SPLIT_KINDS`.
    pp, num_microbatches, rank : int
        Pipeline ranks, micro-batches of a step (of both directions together in DualPipe), rank.

    Returns
    -------
    ndarray of int64, shape (3, ops)
        What (`FORWARD` to `WEIGHT_GRADIENT`), chunk of the rank, micro-batch of the chunk's way.

    Raises
    ------
    ValueError
        DualPipe with an odd number of ranks or micro-batches, or fewer than 2 pp of these.
    """
    if kind == "zero-bubble":
        steps = _zero_bubble(pp, num_microbatches, rank)
    else:
        if num_microbatches < 2 * pp or (kind == "dualpipe" and (pp | num_microbatches) % 2):
            raise ValueError(f"{kind} needs at least 2 pp micro-batches, and an even number of "
                             f"them and of ranks in dualpipe, got pp {pp} and {num_microbatches}")
        second = kind == "dualpipe" and rank >= pp // 2
        half = pp // 2 if kind == "dualpipe" else pp
        steps = _dual(half, pp - 1 - rank if second else rank, chunk_runs(kind, num_microbatches))
        if second:
            steps = [(what, 1 - chunk, i) for what, chunk, i in steps]
    order = np.array(steps, dtype=np.int64).T
    order.setflags(write=False)
    return order


_Step = tuple[int, int, int]


def _zero_bubble(pp: int, m: int, rank: int) -> list[_Step]:
    """ZB-H1: 1F1B whose weight gradients follow `rank` micro-batches behind their inputs'.

    All ranks then keep pp micro-batches at most, as rank 0 of 1F1B does.
    """
    warmup = min(pp - rank - 1, m)
    steps = [(FORWARD, 0, i) for i in range(warmup)]
    for i in range(m):
        if warmup + i < m:
            steps.append((FORWARD, 0, warmup + i))
        steps.append((INPUT_GRADIENT, 0, i))
        if i >= rank:
            steps.append((WEIGHT_GRADIENT, 0, i - rank))
    return steps + [(WEIGHT_GRADIENT, 0, i) for i in range(max(m - rank, 0), m)]


class _Recorder:
    """Steps of one rank; each chunk counts its micro-batches, weight gradients wait in line."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self.count = {(what, chunk): 0 for what in (FORWARD, BACKWARD) for chunk in (0, 1)}
        self.waiting: list[tuple[int, int]] = []

    def forward(self, chunk: int) -> None:
        self._add(FORWARD, chunk, FORWARD)

    def backward(self, chunk: int, *, split: bool = False) -> None:
        i = self._add(BACKWARD, chunk, INPUT_GRADIENT if split else BACKWARD)
        if split:
            self.waiting.append((chunk, i))

    def weights(self) -> None:
        chunk, i = self.waiting.pop(0)
        self.steps.append((WEIGHT_GRADIENT, chunk, i))

    def pair(self, chunk: int) -> None:
        """Forward of a chunk with the backward of the other, as one."""
        self._add(FORWARD, chunk, PAIRED_FORWARD)
        self.backward(1 - chunk)

    def _add(self, counter: int, chunk: int, what: int) -> int:
        i = self.count[counter, chunk]
        self.count[counter, chunk] = i + 1
        self.steps.append((what, chunk, i))
        return i


def _dual(half: int, near: int, runs: int) -> list[_Step]:
    """Return the eight steps of DualPipe, for `half` ranks between the end and the middle.

    Parameters
    ----------
    half : int
        Ranks from an end to the middle: pp/2 in DualPipe, pp in DualPipeV.
    near : int
        Ranks between this one and its end.
    runs : int
        Micro-batches that pass each chunk.
    """
    r, inner = _Recorder(), half - near - 1
    for _ in range(2 * inner):  # 1
        r.forward(0)
    for _ in range(near + 1):  # 2
        r.forward(0)
        r.forward(1)
    for _ in range(inner):  # 3
        r.backward(1, split=True)
        r.weights()
        r.forward(1)
    for i in range(runs - 2 * half + near + 1):  # 4
        if i == 0 and inner == 0:
            r.forward(0)  # in the middle, the first pair is not run as one
            r.backward(1)
        else:
            r.pair(0)
        r.pair(1)
    for _ in range(inner):  # 5
        r.backward(1)
        r.pair(1)
    split, middle = False, (near + 1) // 2
    for i in range(near + 1):  # 6: the second half leaves its weight gradients for 7 and 8
        split = split or (i == middle and near % 2 == 1)
        r.backward(1, split=split)
        split = split or (i == middle and near % 2 == 0)
        r.backward(0, split=split)
    for _ in range(inner):  # 7
        r.weights()
        r.backward(0, split=True)
    for _ in range(near + 1):  # 8
        r.weights()
    return r.steps


def split_needs(kind: str, pp: int, vpp: int,
                orders: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Return rank and position of what each operation needs from another rank, (pp, ops).

    The rank is -1 where nothing is needed, and behind the end of shorter orders.
    """
    ops = max(order.shape[1] for order in orders)
    rank = np.full((pp, ops), -1, dtype=np.int64)
    position = np.zeros((pp, ops), dtype=np.int64)
    at = {(own, int(what in (FORWARD, PAIRED_FORWARD)), chunk, i): place
          for own, order in enumerate(orders)
          for place, (what, chunk, i) in enumerate(order.T.tolist())
          if what != WEIGHT_GRADIENT}
    pairs = [order[0] == PAIRED_FORWARD for order in orders]
    for way in routes(kind, pp, vpp):
        for here, (own, chunk) in enumerate(way):
            for forward, step in ((1, -1), (0, 1)):
                if not 0 <= here + step < len(way) or way[here + step][0] == own:
                    continue
                other, its_chunk = way[here + step]
                i = 0
                while (own, forward, chunk, i) in at:
                    place = at[own, forward, chunk, i]
                    rank[own, place] = other
                    source = at[other, forward, its_chunk, i]
                    # A paired forward's result leaves with its backward's.
                    position[own, place] = source + int(pairs[other][source])
                    i += 1
    return rank, position


def split_durations(pp: int, vpp: int, orders: list[IntArray]) -> IntArray:
    """Return which duration each operation has, (pp, ops): forwards of chunk*pp + rank, then
    backwards, input gradients, weight gradients and pairs (by their forward), then nothing.

    A pair takes no time at its forward, where it waits for the one input, and all of it at its
    backward, where it waits for the other.
    """
    size = pp * vpp
    found = np.full((pp, max(order.shape[1] for order in orders)), 5 * size, dtype=np.int64)
    for rank, (what, chunk, _) in enumerate(orders):
        own = what * size + chunk * pp + rank
        first = np.flatnonzero(what == PAIRED_FORWARD)
        own[first + 1], own[first] = own[first], 5 * size
        found[rank, :len(own)] = own
    return found
