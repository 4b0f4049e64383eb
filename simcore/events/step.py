"""One training step as events: the pipeline, then gradients, optimizer and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcore.events.queue import Run, run_orders
from simcore.frame import Frame
from simcore.inputs.fields import FIELD
from simcore.prediction import Prediction
from simcore.schedule.orders import rank_order
from simcore.schedule.split import DUAL_KINDS, routes
from simcore.timing import Timing
from simcore.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Step:
    """Everything that happens in one step, by pipeline rank; times in seconds from its start.

    Parameters
    ----------
    prediction : Prediction
        What was simulated.
    timing : Timing
        Its frame's times, a batch of one.
    run : Run
        Forwards and backwards.
    classes : ndarray of int, shape (pp,)
        Class of each rank (`simcore.stages`).
    reduce_s, optimizer_s, gather_s : ndarray, shape (pp,)
        Exposed gradient reduction, update and parameter gather of each rank [s].
    barrier_s : float
        When the slowest rank has its gradients: the norm needs all of them [s].
    end_s : float
        The makespan [s].
    """

    prediction: Prediction
    timing: Timing
    run: Run
    classes: IntArray
    reduce_s: FloatArray
    optimizer_s: FloatArray
    gather_s: FloatArray
    barrier_s: float
    end_s: float

    @property
    def pp(self) -> int:
        """Pipeline ranks."""
        return len(self.run.orders)

    @property
    def kind(self) -> str:
        """The pipeline schedule."""
        return FIELD["schedule"].choices[int(self.frame.batch["schedule"][0])]

    @property
    def chunks(self) -> int:
        """Chunks that a rank holds."""
        return int(self.frame.chunks[0])

    @property
    def ways(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Ways of the micro-batches: (rank, chunk) in order."""
        return routes(self.kind, self.pp, self.chunks)

    def is_first(self, rank: int, chunk: int) -> bool:
        """Whether a chunk has the embedding."""
        return any(way[0] == (rank, chunk) for way in self.ways)

    def is_last(self, rank: int, chunk: int) -> bool:
        """Whether a chunk has the head."""
        return any(way[-1] == (rank, chunk) for way in self.ways)

    @property
    def num_ranks(self) -> int:
        """GPUs of the run."""
        return int(self.frame.batch["gpus"][0])

    @property
    def frame(self) -> Frame:
        """The batch of one."""
        return self.timing.frame

    @cached_property
    def frame_of_ranks(self) -> Frame:
        """The batch of one with every pipeline rank a class of its own, for memory."""
        frame = self.frame
        return Frame.build(frame.model, frame.system, frame.batch, apart=True)

    @property
    def busy_s(self) -> FloatArray:
        """Seconds that each rank works in a step, shape (pp,) [s]."""
        work = [float((end - start).sum()) for start, end in
                zip(self.run.start_s, self.run.end_s, strict=True)]
        return np.array(work) + self.reduce_s + self.optimizer_s + self.gather_s


def simulate_step(prediction: Prediction) -> Step:
    """Simulate one step of a predicted strategy.

    Parameters
    ----------
    prediction : Prediction
        Of `simcore.predict`, or a row of a batch.

    Returns
    -------
    Step

    Notes
    -----
    The ranks of a tensor, context or data parallel group do the same at the same time, so one of
    each pipeline stage stands for all.
    """
    whole = prediction.predictions.frame
    i = prediction.index
    frame = Frame.build(whole.model, whole.system, whole.batch.take(slice(i, i + 1)))
    timing = Timing(frame)
    strategy = prediction.strategy
    pp, vpp = int(strategy.pp or 1), int(strategy.vpp or 1)
    m = int(frame.microbatches[0])
    kind = FIELD["schedule"].choices[int(frame.batch["schedule"][0])]
    vpp = 2 if kind in DUAL_KINDS else vpp
    row = np.zeros(1, np.int64)
    forward, backward, classes = timing.rank_work(row, pp, vpp)
    orders = [rank_order(kind, pp=pp, vpp=vpp, num_microbatches=m,
                         group_size=int(frame.batch["microbatch_group_size"][0]), rank=rank)
              for rank in range(pp)]
    run = run_orders(orders, vpp=vpp, forward_s=forward[..., 0], backward_s=backward[..., 0],
                     edge_s=float(timing.edge_s[0]),
                     weight_s=timing.weight_work(row, pp, vpp)[..., 0],
                     ways=routes(kind, pp, vpp))
    ends = [timing.classes[c][2] for c in classes[:, 0].tolist()]
    reduce, optimizer, gather = (np.array([float(getattr(e, name)[0]) for e in ends])
                                 for name in ("reduce_s", "optimizer_s", "gather_s"))
    barrier = float((run.ends_s + reduce).max())
    end = barrier + float((optimizer + gather).max()) + float(timing.overhead_s[0])
    end *= float(timing.stragglers[0])
    return Step(prediction, timing, run, classes[:, 0], reduce, optimizer, gather, barrier, end)
