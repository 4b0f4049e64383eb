"""A discrete-event simulation of a pipeline: ranks, messages, and a queue of what happens next.

Nothing here knows of levels, periods or bounds (`simcore.schedule`): it starts an operation when
its rank is free and its input has arrived, and nothing else. It is slow and easy to check.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcore.schedule.split import (
    BACKWARD,
    FORWARD,
    PAIRED_FORWARD,
    WEIGHT_GRADIENT,
)
from simcore.typing import FloatArray, IntArray

__all__ = ["BACKWARD", "FORWARD", "IS_FORWARD", "RELEASES", "WEIGHT_GRADIENT", "Run",
           "run_orders"]
IS_FORWARD = (FORWARD, PAIRED_FORWARD)
RELEASES = (BACKWARD, WEIGHT_GRADIENT)
"""Operations after which a micro-batch's activations are gone."""

_Key = tuple[int, int, int, int]


@dataclass(frozen=True)
class Run:
    """When every operation ran.

    Parameters
    ----------
    orders : tuple of ndarray, shape (3, ops) each
        What each rank did: kind (see `simcore.schedule.split`), chunk of the rank, micro-batch.
    start_s, end_s : tuple of ndarray, shape (ops,) each
        When, from the start of the step [s].
    """

    orders: tuple[IntArray, ...]
    start_s: tuple[FloatArray, ...]
    end_s: tuple[FloatArray, ...]

    @property
    def ends_s(self) -> FloatArray:
        """End of each rank's last operation, shape (pp,) [s]."""
        return np.array([float(end.max(initial=0.0)) for end in self.end_s])

    @property
    def num_operations(self) -> int:
        """Operations of all ranks."""
        return sum(order.shape[1] for order in self.orders)


def run_orders(orders: Sequence[IntArray], *, vpp: int, forward_s: FloatArray,
               backward_s: FloatArray, edge_s: float, weight_s: FloatArray | None = None,
               ways: Sequence[Sequence[tuple[int, int]]] | None = None) -> Run:
    """Run what each rank has to do, in its order.

    Parameters
    ----------
    orders : sequence of ndarray, shape (3, ops)
        One for each of pp ranks: kind, chunk, micro-batch.
    vpp : int
        Chunks of a rank; chunk v of rank r is virtual stage ``v*pp + r``.
    forward_s, backward_s : ndarray, shape (pp, vpp)
        Time of one micro-batch in a chunk [s].
    edge_s : float
        From the end of an operation until its result is on the next rank [s]; the sender goes on
        meanwhile.
    weight_s : ndarray, shape (pp, vpp), optional
        The weights' share of a backward, in orders that split it [s].
    ways : sequence of sequence of (rank, chunk), optional
        Ways of the micro-batches; the one of virtual stages where it is left out.

    Raises
    ------
    ValueError
        The ranks wait for one another for ever.
    """
    pp = len(orders)
    weight = np.zeros_like(backward_s) if weight_s is None else weight_s
    # A pair's forward has its own time, and its backward follows at once.
    durations = (forward_s, backward_s, backward_s - weight, weight, forward_s)
    plain = [[(stage % pp, stage // pp) for stage in range(pp * vpp)]]
    return _Pipeline(orders, durations, edge_s, plain if ways is None else ways).run()


class _Pipeline:
    """State of a simulation: each rank's place in its order, and the inputs that have arrived."""

    def __init__(self, orders: Sequence[IntArray], durations_s: tuple[FloatArray, ...],
                 edge_s: float, ways: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.orders = tuple(orders)
        self.operations = [list(zip(*order.tolist(), strict=True)) for order in orders]
        self.pp, self.edge_s = len(orders), edge_s
        self.after = {a: b for way in ways for a, b in itertools.pairwise(way)}
        self.before = {b: a for a, b in self.after.items()}
        self.durations_s = tuple(d.tolist() for d in durations_s)
        self.at = [0] * self.pp
        self.busy = [False] * self.pp
        self.arrived: set[_Key] = set()
        self.start: list[list[float]] = [[] for _ in orders]
        self.end: list[list[float]] = [[] for _ in orders]
        # Time, a running number that keeps ties in order, and what arrives or which rank ends.
        self.queue: list[tuple[float, int, _Key | int]] = []
        self.count = 0

    def run(self) -> Run:
        """Take events in the order of their time until none is left."""
        for rank in range(self.pp):
            self._try_start(rank, 0.0)
        while self.queue:
            now, _, event = heapq.heappop(self.queue)
            if isinstance(event, int):
                self.busy[event] = False
                self._announce(event, now)
                self._try_start(event, now)
            else:
                self.arrived.add(event)
                self._try_start(event[0], now)
        if any(at < len(own) for at, own in zip(self.at, self.operations, strict=True)):
            raise ValueError("the pipeline schedule deadlocks: ranks wait for one another")
        return Run(self.orders, tuple(map(np.array, self.start)), tuple(map(np.array, self.end)))

    def _push(self, time: float, event: _Key | int) -> None:
        heapq.heappush(self.queue, (time, self.count, event))
        self.count += 1

    def _try_start(self, rank: int, now: float) -> None:
        """Start a rank's next operation where the rank is free and the input is there."""
        at, own = self.at[rank], self.operations[rank]
        if self.busy[rank] or at >= len(own):
            return
        kind, chunk, _ = own[at]
        # A pair waits for both of its inputs.
        needed = own[at:at + 2] if kind == PAIRED_FORWARD else own[at:at + 1]
        if not all(self._is_there(rank, *operation) for operation in needed):
            return
        self.at[rank], self.busy[rank] = at + 1, True
        end = now + self.durations_s[kind][rank][chunk]
        self.start[rank].append(now)
        self.end[rank].append(end)
        self._push(end, rank)

    def _is_there(self, rank: int, kind: int, chunk: int, microbatch: int) -> bool:
        """Whether an operation has its input: the first stage's forward reads the data, and a
        weights' gradient follows the input's on its own rank."""
        if kind == WEIGHT_GRADIENT:
            return True
        if kind in IS_FORWARD:
            return (rank, chunk) not in self.before or (
                rank, FORWARD, chunk, microbatch) in self.arrived
        return (rank, BACKWARD, chunk, microbatch) in self.arrived

    def _announce(self, rank: int, now: float) -> None:
        """Hand on what a rank's latest operation made; a pair hands on both at its end."""
        at, own = self.at[rank], self.operations[rank]
        if own[at - 1][0] == PAIRED_FORWARD:
            return
        if at > 1 and own[at - 2][0] == PAIRED_FORWARD:
            self._hand_on(rank, now, *own[at - 2])
        self._hand_on(rank, now, *own[at - 1])

    def _hand_on(self, rank: int, now: float, kind: int, chunk: int, microbatch: int) -> None:
        if kind == WEIGHT_GRADIENT:
            return
        forward = kind in IS_FORWARD
        to = (self.after if forward else self.before).get((rank, chunk))
        if to is None:
            if forward:
                self.arrived.add((rank, BACKWARD, chunk, microbatch))
            return
        receiver, its_chunk = to
        key = (receiver, FORWARD if forward else BACKWARD, its_chunk, microbatch)
        if receiver == rank:
            self.arrived.add(key)
        else:
            self._push(now + self.edge_s, key)
