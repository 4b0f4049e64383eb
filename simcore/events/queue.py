"""A discrete-event simulation of a pipeline: ranks, messages, and a queue of what happens next.

Nothing here knows of levels, periods or bounds (`simcore.schedule`): it starts an operation when
its rank is free and its input has arrived, and nothing else. It is slow and easy to check.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcore.typing import FloatArray, IntArray

FORWARD, BACKWARD = 0, 1
"""Row 0 of an order (see `simcore.schedule.orders.rank_order`)."""

_Key = tuple[int, int, int, int]


@dataclass(frozen=True)
class Run:
    """When every operation ran.

    Parameters
    ----------
    orders : tuple of ndarray, shape (3, ops) each
        What each rank did: kind (0 forward, 1 backward), chunk of the rank, micro-batch.
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
               backward_s: FloatArray, edge_s: float) -> Run:
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

    Raises
    ------
    ValueError
        The ranks wait for one another for ever.
    """
    return _Pipeline(orders, vpp, (forward_s, backward_s), edge_s).run()


class _Pipeline:
    """State of a simulation: each rank's place in its order, and the inputs that have arrived."""

    def __init__(self, orders: Sequence[IntArray], vpp: int,
                 durations_s: tuple[FloatArray, FloatArray], edge_s: float) -> None:
        self.orders = tuple(orders)
        self.operations = [list(zip(*order.tolist(), strict=True)) for order in orders]
        self.pp, self.vpp, self.edge_s = len(orders), vpp, edge_s
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
        kind, chunk, microbatch = own[at]
        key = (rank, kind, chunk, microbatch)
        if not self._is_source(key) and key not in self.arrived:
            return
        self.at[rank], self.busy[rank] = at + 1, True
        end = now + self.durations_s[kind][rank][chunk]
        self.start[rank].append(now)
        self.end[rank].append(end)
        self._push(end, rank)

    def _is_source(self, key: _Key) -> bool:
        """Whether an operation waits for nothing: the first stage's forward reads the data."""
        rank, kind, chunk, _ = key
        return kind == FORWARD and rank == 0 and chunk == 0

    def _announce(self, rank: int, now: float) -> None:
        """Hand on what a rank's latest operation made."""
        kind, chunk, microbatch = self.operations[rank][self.at[rank] - 1]
        stage = chunk * self.pp + rank
        last = self.vpp * self.pp - 1
        if kind == FORWARD and stage == last:
            self.arrived.add((rank, BACKWARD, chunk, microbatch))
            return
        to = stage + 1 if kind == FORWARD else stage - 1
        if to < 0:
            return
        receiver = to % self.pp
        key = (receiver, kind, to // self.pp, microbatch)
        if receiver == rank:
            self.arrived.add(key)
        else:
            self._push(now + self.edge_s, key)
