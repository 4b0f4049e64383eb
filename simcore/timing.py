"""Step time: a rank's work, the pipeline over it, and what comes once a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcore.batch import distinct
from simcore.data_parallel import StepEnds, step_ends, volumes
from simcore.formulas.collectives import Collective, collective_s
from simcore.formulas.pipeline import lower_bound_s
from simcore.frame import SITE_FIELDS, Class, Frame
from simcore.inputs.fields import FIELD, code
from simcore.layer_costs import Times, weight_gradient_s
from simcore.layout import LAYOUT_FIELDS
from simcore.local import LOCAL_FIELDS
from simcore.operators.base import TERMS, Term
from simcore.saved_memory import SCHEDULE_FIELDS
from simcore.schedule.base import makespan
from simcore.schedule.split import DUAL_KINDS, SPLIT_KINDS
from simcore.typing import BoolArray, FloatArray, IntArray
from simcore.units import MICRO

_Place = tuple[int, int]
"""Rank, and chunk of the rank."""


@dataclass(frozen=True)
class Parts:
    """Forward and backward (with recomputation) seconds of one part, (u,) or (n,)."""

    forward: FloatArray
    backward: FloatArray
    whole: FloatArray
    """Forward once more, where the whole layer is recomputed."""


@dataclass(frozen=True)
class Work:
    """Forward and backward of a micro-batch on one class of ranks, (n,) [s]."""

    forward_s: FloatArray
    backward_s: FloatArray


class Ahead(NamedTuple):
    """First micro-batch on the ranks before a rank, (n,) [s]."""

    both_s: FloatArray
    """Forward and backward."""
    arrival_s: FloatArray
    """Forward, with the sends to the rank."""


WORK_FIELDS = tuple(dict.fromkeys((*LOCAL_FIELDS, *LAYOUT_FIELDS, *SITE_FIELDS,
                                   "recompute_layers", "recompute_method", "overlap_p2p")))
"""Fields that a micro-batch's work and sends on a rank depend on."""


def _sum(times: Mapping[Term, FloatArray]) -> FloatArray:
    total = times[TERMS[0]]
    for term in TERMS[1:]:
        total = total + times[term]
    return total


def _rows(values: FloatArray, index: IntArray | None) -> FloatArray:
    """Gather values of narrowed rows; None: they are all."""
    return values if index is None else values.take(index)


@dataclass(frozen=True)
class Timing:
    """Times of a frame's rows."""

    frame: Frame

    def _parts(self, times: Times) -> Parts:
        spread = self.frame.spread
        forward = spread(_sum(times.forward))
        backward = spread(_sum(times.backward) + _sum(times.recompute))
        return Parts(forward, backward, forward)

    @cached_property
    def _narrow(self) -> tuple[Timing, IntArray | None]:
        """Times of the rows that differ in `WORK_FIELDS`, and which of them each row has."""
        frame, index = self.frame.narrowed(WORK_FIELDS)
        return (self if index is None else Timing(frame)), index

    @cached_property
    def layers(self) -> tuple[Parts, ...]:
        """Of one layer of each kind, (n,)."""
        return tuple(self._parts(cost.times) for cost in self.frame.layer_costs)

    @cached_property
    def embedding(self) -> Parts:
        """Of the embedding, (n,)."""
        return self._parts(self.frame.costs.embedding)

    @cached_property
    def head(self) -> Parts:
        """Of the head, (n,)."""
        return self._parts(self.frame.costs.head)

    @cached_property
    def mtp(self) -> Parts:
        """Of one MTP layer, (n,)."""
        return self._parts(self.frame.costs.mtp_layer)

    @cached_property
    def send_s(self) -> FloatArray:
        """One pipeline send of a micro-batch's hidden states, (n,) [s]."""
        narrow, index = self._narrow
        if index is not None:
            return narrow.send_s[index]
        frame, local = self.frame, self.frame.local
        pp = frame.batch["pp"]
        size = frame.spread(local.bytes_per_value * frame.model.hidden_size
                            * local.tokens_sharded)
        seconds = collective_s(Collective.P2P, size_bytes=size,
                               group=frame.placements["neighbours"],
                               network=frame.system.network)
        return np.where(pp > 1, seconds, 0.0)

    @cached_property
    def blocking_s(self) -> FloatArray:
        """Send time that keeps the sender busy, (n,) [s]."""
        return np.where(self._sends_beside, 0.0, self.send_s)

    @cached_property
    def _sends_beside(self) -> BoolArray:
        """Where a rank goes on while it sends, (n,): DualPipe's ranks always do."""
        batch = self.frame.batch
        rows: BoolArray = (batch["overlap_p2p"] > 0) | (
            batch["schedule"] >= code("schedule", "dualpipe"))
        return rows

    @cached_property
    def edge_s(self) -> FloatArray:
        """Send time that only the receiver waits for, (n,) [s]."""
        return np.where(self._sends_beside, self.send_s, 0.0)

    @cached_property
    def overhead_s(self) -> FloatArray:
        """Once a step, (n,) [s]."""
        return self.frame.spread(self.frame.local.software("step_overhead_us")) * MICRO

    @cached_property
    def stragglers(self) -> FloatArray:
        """Step over that of one node: each doubling of the nodes adds a share, (n,)."""
        frame = self.frame
        nodes = np.maximum(frame.batch["gpus"] / frame.system.network.gpus_per_node, 1.0)
        share: FloatArray = 1.0 + frame.spread(
            frame.local.software("straggler_frac")) * np.log2(nodes)
        return share

    def class_work(self, c: Class) -> tuple[FloatArray, FloatArray]:
        """Forward and backward of a micro-batch through all chunks of a rank, (n,) [s]."""
        frame, tables = self.frame, self.frame.tables
        counts = frame.stage(tables.layers, c)
        whole = frame.whole_layers(c)
        forward, backward = np.zeros(len(frame)), np.zeros(len(frame))
        for k, part in enumerate(self.layers):
            forward = forward + counts[:, k] * part.forward
            backward = backward + counts[:, k] * part.backward + whole[:, k] * part.whole
        ends = [(frame.stage(tables.has_embedding, c), self.embedding),
                (frame.stage(tables.has_head, c), self.head)]
        if frame.has_mtp:
            ends.append((frame.mtp_here(c), self.mtp))
        for here, part in ends:
            forward = forward + here * part.forward
            backward = backward + here * part.backward
        sends = self.sends(c)
        return forward + sends[0] * self.blocking_s, backward + sends[1] * self.blocking_s

    def sends(self, c: Class) -> tuple[FloatArray, FloatArray]:
        """Sends of a rank and micro-batch, forward and backward, (n,)."""
        frame, tables = self.frame, self.frame.tables
        is_piped = frame.batch["pp"] > 1
        vpp = frame.chunks
        return (is_piped * (vpp - frame.stage(tables.has_head, c)),
                is_piped * (vpp - frame.stage(tables.has_embedding, c)))

    @cached_property
    def classes(self) -> tuple[tuple[FloatArray, FloatArray, StepEnds], ...]:
        """Forward, backward (with exposed ZeRO traffic) and step ends of each class, (n,)."""
        narrow, index = self._narrow
        found = []
        for work, volume in zip(narrow.frame.per_class(narrow.work), volumes(self.frame),
                                strict=True):
            own = Work(_rows(work.forward_s, index), _rows(work.backward_s, index))
            ends = step_ends(self.frame, volume, own.forward_s, own.backward_s)
            found.append((own.forward_s + ends.forward_s,
                          own.backward_s + ends.backward_s + ends.offload_s, ends))
        return tuple(found)

    def work(self, frame: Frame, c: Class) -> Work:
        """Work of class c of this frame's rows, or of those of a frame made of it."""
        timing = self if frame is self.frame else Timing(frame)
        return Work(*timing.class_work(c))

    @cached_property
    def post_s(self) -> FloatArray:
        """Optimizer and parameter gather of the slowest rank, (n,) [s]."""
        post = np.zeros(len(self.frame))
        for _, _, ends in self.classes:
            post = np.maximum(post, ends.optimizer_s + ends.gather_s)
        return post

    def lower_bound_s(self) -> FloatArray:
        """Proven lower bound of the step time, (n,) [s].

        For every class: what precedes its last rank, its own work for all micro-batches, and
        what follows until rank 0 ends (see `simcore.formulas.pipeline`).
        """
        frame, tables = self.frame, self.frame.tables
        before, own, ranks, alone = [], [], [], np.zeros(len(frame))
        m, (narrow, index) = frame.microbatches, self._narrow
        # DualPipe's ranks may start from either end: nothing surely precedes them.
        starts = np.where(frame.is_dualpipe, 0.0, 1.0)
        for c, (forward, backward, ends) in enumerate(self.classes):
            both_s, arrival_s = (_rows(part, index) for part in narrow.ahead(c))
            at = frame.stage(tables.last_rank, c)
            before.append(both_s)
            own.append(forward + backward)
            ranks.append(at)
            alone = np.maximum(alone, starts * arrival_s + frame.runs * (forward + backward)
                               + ends.reduce_s)
        whole = lower_bound_s(pp=frame.batch["pp"], vpp=frame.batch["vpp"],
                              num_microbatches=m, busy_before_s=np.stack(before),
                              own_s=np.stack(own), ranks_before=np.stack(ranks),
                              edge_s=self.edge_s, is_1f1b=self._is_plain())
        # Split schedules end with weight gradients, which no path leads back from.
        end = np.where(frame.is_split, alone,
                       np.maximum(whole + self.classes[0][2].reduce_s, alone))
        # The recurrence adds the same numbers in another order.
        return (end + self.post_s + self.overhead_s) * self.stragglers * (1.0 - 1e-12)

    def _is_plain(self) -> BoolArray:
        """Rows of 1F1B whose `ahead` is exact: no ZeRO traffic in a micro-batch, and MTP, where
        there is any, behind all other ranks, (n,)."""
        frame, tables = self.frame, self.frame.tables
        plain = (frame.batch["schedule"] == code("schedule", "1f1b")) & (
            (frame.batch["zero"] <= 1) | (frame.batch["pp"] == 1))
        if frame.has_mtp:
            for c in range(tables.num_classes):
                plain = plain & ~((frame.stage(tables.mtp, c) > 0)
                                  & (frame.stage(tables.has_head, c) == 0))
        rows: BoolArray = plain
        return rows

    def ahead(self, c: Class) -> Ahead:
        """What virtual stage 0 takes on the ranks before a class' last."""
        frame, tables = self.frame, self.frame.tables
        counts, whole = frame.layers_before(c), frame.whole_before(c)
        at = frame.stage(tables.last_rank, c)
        first = at > 0
        forward = first * self.embedding.forward + at * self.blocking_s
        backward = first * self.embedding.backward + np.maximum(at - 1, 0) * self.blocking_s
        for k, part in enumerate(self.layers):
            forward = forward + counts[:, k] * part.forward
            backward = backward + counts[:, k] * part.backward + whole[:, k] * part.whole
        return Ahead(forward + backward, forward + at * self.edge_s)

    def step_s(self) -> FloatArray:
        """Step time by the exact recurrence, (n,) [s]."""
        frame = self.frame
        columns = [*(frame.batch[name] for name in SCHEDULE_FIELDS),
                   frame.microbatches.astype(np.int64)]
        first, inverse = distinct(columns, len(frame))
        end = np.empty(len(frame))
        for i, at_row in enumerate(first.tolist()):
            rows = np.nonzero(inverse == i)[0]
            end[rows] = self._pipeline_end_s(rows, *(int(column[at_row]) for column in columns))
        return (end + self.post_s + self.overhead_s) * self.stragglers

    def _pipeline_end_s(self, rows: IntArray, schedule: int, pp: int, vpp: int, group_size: int,
                        m: int) -> FloatArray:
        """When the last rank has reduced its gradients, for rows of one schedule [s]."""
        kind = FIELD["schedule"].choices[schedule]
        chunks = 2 if kind in DUAL_KINDS else vpp
        forward, backward, classes = self.rank_work(rows, pp, chunks)
        weight = self.weight_work(rows, pp, chunks) if kind in SPLIT_KINDS else None
        ends = makespan(kind, pp=pp, vpp=chunks, num_microbatches=m,
                        group_size=group_size, forward_s=forward, backward_s=backward,
                        edge_s=np.ascontiguousarray(self.edge_s[rows]), weight_s=weight)
        reduce = np.stack([c[2].reduce_s[rows] for c in self.classes])
        last: FloatArray = (ends + np.take_along_axis(reduce, classes, axis=0)).max(axis=0)
        return last

    def rank_work(self, rows: IntArray, pp: int,
                   vpp: int) -> tuple[FloatArray, FloatArray, IntArray]:
        """Work of every rank and chunk: (pp, vpp, n), (pp, vpp, n), class of each rank (pp, n)."""
        frame, tables = self.frame, self.frame.tables
        layout = frame.layout_index[rows]
        classes = np.stack([tables.class_of_rank[i] for i in layout.tolist()], axis=1)
        counts = tables.chunk_layers[layout[None, :], classes][:, :, :vpp]
        depth = frame.recomputed_depth[rows]
        whole = tables.first_layers[layout[None], classes, :, depth[None]][:, :, :vpp]
        shape = (pp, vpp, len(rows))
        forward, backward = np.zeros(shape), np.zeros(shape)
        for k, part in enumerate(self.layers):
            n_k, w_k = counts[..., k].transpose(0, 2, 1), whole[..., k].transpose(0, 2, 1)
            forward += n_k * part.forward[rows]
            backward += n_k * part.backward[rows] + w_k * part.whole[rows]
        first, last = self._ends(rows, pp, vpp)
        for places, part in ((first, self.embedding), (last, self.head)):
            for at in places:
                forward[at] += part.forward[rows]
                backward[at] += part.backward[rows]
        self._add_mtp(forward, backward, rows, last)
        if pp > 1:
            blocking = self.blocking_s[rows]
            forward += blocking
            backward += blocking
            for at in last:
                forward[at] -= blocking
            for at in first:
                backward[at] -= blocking
        if np.any((frame.batch["zero"] >= 2) | (frame.batch["activation_offload_layers"] > 0)):
            for c, (_, _, ends) in enumerate(self.classes):
                here = (classes == c)[:, None]
                forward += here * ends.forward_s[rows] / vpp
                backward += here * (ends.backward_s + ends.offload_s)[rows] / vpp
        return forward, backward, classes

    def _ends(self, rows: IntArray, pp: int, vpp: int) -> tuple[list[_Place], list[_Place]]:
        """Rank and chunk of the embeddings and of the heads, alike in all rows."""
        kind = FIELD["schedule"].choices[int(self.frame.batch["schedule"][rows[0]])]
        if kind == "dualpipe":
            return [(0, 0), (pp - 1, 1)], [(pp - 1, 0), (0, 1)]
        return [(0, 0)], [(0, 1) if kind == "dualpipev" else (pp - 1, vpp - 1)]

    def weight_work(self, rows: IntArray, pp: int, vpp: int) -> FloatArray:
        """Weight gradients of every rank and chunk, (pp, vpp, n) [s]."""
        frame, tables = self.frame, self.frame.tables
        layout = frame.layout_index[rows]
        classes = np.stack([tables.class_of_rank[i] for i in layout.tolist()], axis=1)
        counts = tables.chunk_layers[layout[None, :], classes][:, :, :vpp]
        weight = np.zeros((pp, vpp, len(rows)))
        for k, cost in enumerate(frame.layer_costs):
            each = frame.spread(weight_gradient_s(cost.times.ops, frame.local))[rows]
            weight += counts[..., k].transpose(0, 2, 1) * each
        _, last = self._ends(rows, pp, vpp)
        for at in last:
            weight[at] += frame.spread(weight_gradient_s(frame.costs.head.ops,
                                                         frame.local))[rows]
        return weight

    def _add_mtp(self, forward: FloatArray, backward: FloatArray, rows: IntArray,
                 last: list[_Place]) -> None:
        """Add MTP layers to the last chunk of the rank that holds them."""
        frame = self.frame
        if not frame.has_mtp:
            return
        if np.any(frame.batch["schedule"][rows] >= code("schedule", "dualpipe")):
            for at in last:
                here = np.maximum(frame.batch["mtp"][rows], 0)
                forward[at] += here * self.mtp.forward[rows]
                backward[at] += here * self.mtp.backward[rows]
            return
        layout = frame.layout_index[rows]
        classes = np.stack([frame.tables.class_of_rank[i] for i in layout.tolist()], axis=1)
        here = frame.tables.mtp[layout[None], classes] * np.maximum(frame.batch["mtp"][rows], 0)
        forward[:, -1] += here * self.mtp.forward[rows]
        backward[:, -1] += here * self.mtp.backward[rows]
