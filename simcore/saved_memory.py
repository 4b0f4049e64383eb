"""What a rank keeps for backward: the saves of the chunks in flight at its fullest moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcore.activations import boundary, dropout_mask
from simcore.batch import distinct
from simcore.frame import Class, Frame
from simcore.head_activations import mtp_tensors
from simcore.inputs.fields import code
from simcore.schedule.orders import KINDS, in_flight_by_chunk, in_flight_chunks
from simcore.schedule.split import DUAL_KINDS
from simcore.tensors import Tensors, total_bytes
from simcore.terms import Term
from simcore.typing import FloatArray, IntArray

SCHEDULE_FIELDS = ("schedule", "pp", "vpp", "microbatch_group_size")
"""Fields that, with the number of micro-batches, decide the order of a pipeline's work."""


def _in_flight(frame: Frame, c: Class) -> FloatArray:
    """Chunk activations alive at most on the first rank of class c, (n,)."""
    batch, rank = frame.batch, frame.stage(frame.tables.first_rank, c).astype(np.int64)
    schedule = batch["schedule"]
    total = np.zeros(len(frame))
    for kind in KINDS:
        rows = schedule == code("schedule", kind)
        if not np.any(rows):
            continue
        alive = in_flight_chunks(kind, pp=batch["pp"], vpp=batch["vpp"],
                                 num_microbatches=frame.microbatches.astype(np.int64),
                                 group_size=batch["microbatch_group_size"], rank=rank)
        total = np.where(rows, alive, total)
    return total


def _overlapped(frame: Frame, in_flight: FloatArray) -> FloatArray:
    """Chunks more that 1F1B overlap of the expert exchange keeps: that of the forward which runs
    beside a backward, (n,)."""
    batch = frame.batch
    more: FloatArray = ((batch["ep_comm_overlap"] > 0)
                        & (in_flight < frame.runs * frame.chunks)).astype(np.float64)
    return more


def unit_layers(frame: Frame) -> FloatArray:
    """Layers that are recomputed at once, (n,)."""
    uniform = frame.batch["recompute_method"] == code("recompute_method", "uniform")
    return np.where(uniform, np.maximum(frame.batch["recompute_unit_layers"], 1), 1)


class ChunkTerm(NamedTuple):
    """Tensors that one micro-batch saves in some chunks: `counts` (n, V) times `each` (n,)."""

    where: str
    counts: FloatArray
    each: FloatArray
    tensors: Tensors


@dataclass(frozen=True)
class Activations:
    """What is saved for backward on a class of ranks.

    Parameters
    ----------
    chunks : tuple of ChunkTerm
        Saves of one micro-batch.
    alive, alive_at_head : ndarray, shape (n, V)
        Micro-batches of each chunk that are alive at the fullest moment, and at the fullest
        moment at which the last chunk's backward starts; host memory's share taken off.
    more : ndarray, shape (n, V)
        Of these, the chunk of a forward that runs beside a backward.
    in_flight : ndarray, shape (n,)
        Chunks alive at most.
    offloaded : ndarray, shape (n,)
        Share of the saved bytes that host memory holds.
    in_transit : tuple of Term
        On their way to or from the host.
    kept, kept_at_head, host, beside : ndarray, shape (n,)
        Bytes of all that, on the device at the two moments, and on the host; `beside` is of
        `kept` what is in transit or of `more` [B].
    """

    chunks: tuple[ChunkTerm, ...]
    alive: FloatArray
    alive_at_head: FloatArray
    in_flight: FloatArray
    offloaded: FloatArray
    in_transit: tuple[Term, ...]
    kept: FloatArray
    kept_at_head: FloatArray
    host: FloatArray
    beside: FloatArray

    def terms(self, *, at_head: bool) -> list[Term]:
        """What `kept` (or `kept_at_head`) sums, chunk by chunk."""
        alive = self.alive_at_head if at_head else self.alive
        return [Term(chunk.where, (chunk.counts * alive).sum(axis=1), chunk.each, chunk.tensors)
                for chunk in self.chunks] + list(self.in_transit)


def activations(frame: Frame, c: Class) -> Activations:
    """Find what a class of ranks keeps for backward."""
    in_flight = _in_flight(frame, c)
    uniform = frame.stage(frame.tables.uniform, c) > 0
    if frame.costs.any_dropout:
        # The first chunk also keeps the mask of the embedding's dropout.
        uniform = uniform & ~(frame.stage(frame.tables.has_embedding, c) > 0)
    alike = bool(np.all(uniform))
    chunks = chunk_terms(frame, c, slice(1) if alike else slice(None))
    sizes = chunk_bytes(frame, chunks)
    if alike:
        alive = at_head = in_flight[:, None]
    else:
        alive = np.zeros_like(sizes)
        alive[:, 0] = in_flight
        at_head = np.array(alive)
        rows = np.nonzero(~uniform)[0]
        alive[rows], at_head[rows] = _fullest_mix(frame, c, sizes[rows], rows)
    extra = _overlapped(frame, in_flight)
    beside = np.zeros(len(frame))
    if np.any(extra):
        fullest = np.zeros_like(sizes)
        fullest[np.arange(len(sizes)), sizes.argmax(axis=1)] = extra
        alive, at_head = alive + fullest, at_head + fullest
        beside = extra * sizes.max(axis=1)
    kept, at_head_bytes = (alive * sizes).sum(axis=1), (at_head * sizes).sum(axis=1)
    share = host = np.zeros(len(frame))
    in_transit: tuple[Term, ...] = ()
    if np.any(frame.batch["activation_offload_layers"] > 0):
        share, in_transit = _offloaded(frame, c, kept)
        host, here = kept * share, 1.0 - share
        moving = sum((term.bytes for term in in_transit), np.zeros(len(frame)))
        alive, at_head = alive * here[:, None], at_head * here[:, None]
        kept, at_head_bytes, beside = (part * here + moving
                                       for part in (kept, at_head_bytes, beside))
    return Activations(chunks, alive, at_head, in_flight + extra, share, in_transit, kept,
                       at_head_bytes, host, beside)


def _offloaded(frame: Frame, c: Class,
               kept: FloatArray) -> tuple[FloatArray, tuple[Term, ...]]:
    """Share of the saved bytes that host memory holds, (n,), and what is on its way.

    The offloaded layers leave; the one that comes back and the one that leaves stay. Zero where
    that is no gain.
    """
    counts = frame.stage(frame.tables.layers, c)
    stored = np.stack([np.where(counts[:, k] > 0, frame.spread(cost.saved.kept), 0.0)
                       for k, cost in enumerate(frame.layer_costs)])
    largest, chosen = stored.max(axis=0), stored.argmax(axis=0)
    wanted = np.maximum(frame.batch["activation_offload_layers"], 0)
    share = np.minimum(wanted / np.maximum(counts.sum(axis=1), 1.0), 1.0)
    gains = kept * share > 2.0 * largest
    moving = tuple(Term("layer, to and from the host", np.where(gains & (chosen == k), 2.0, 0.0),
                        frame.spread(cost.saved.kept), cost.saved.kept_tensors)
                   for k, cost in enumerate(frame.layer_costs))
    return np.where(gains, share, 0.0), moving


def chunk_terms(frame: Frame, c: Class, which: slice = slice(None)) -> tuple[ChunkTerm, ...]:
    """What one micro-batch saves in each chunk, or in some of them."""
    chunk = frame.stage(frame.tables.chunk_layers, c)[:, which]
    whole = frame.recomputed_layers(c)[:, which]
    # Where whole layers are recomputed, each unit of them keeps its input.
    # A sum over the kinds, which are few: numpy's own over a short last axis is slow.
    layers = sum((whole[:, :, k] for k in range(1, whole.shape[2])), whole[:, :, 0])
    inputs = np.ceil(layers / unit_layers(frame)[:, None])
    found = [ChunkTerm("recomputed layers", inputs, frame.boundary_bytes,
                       (boundary(frame.local),))]
    found += [ChunkTerm("layer", chunk[:, :, k] - whole[:, :, k], frame.spread(cost.saved.kept),
                        cost.saved.kept_tensors) for k, cost in enumerate(frame.layer_costs)]
    if frame.costs.any_dropout:
        mask = dropout_mask(frame.local, "embedding")
        first = np.zeros(inputs.shape)
        first[:, 0] = frame.stage(frame.tables.has_embedding, c)
        found.append(ChunkTerm("embedding", first, frame.spread(total_bytes(
            (mask,), len(frame.local.batch))), (mask,)))
    if frame.has_mtp:
        last = np.zeros(inputs.shape)
        at = np.minimum(frame.chunks, inputs.shape[1]) - 1
        last[np.arange(len(frame)), at] = frame.mtp_here(c)
        layer = frame.layer_costs[frame.model.layers[-1]].saved
        found += [ChunkTerm("mtp", last, frame.spread(frame.costs.mtp_memory),
                            mtp_tensors(frame.local)),
                  ChunkTerm("mtp", last, frame.spread(layer.kept), layer.kept_tensors)]
    return tuple(found)


def chunk_bytes(frame: Frame, chunks: tuple[ChunkTerm, ...]) -> FloatArray:
    """Bytes that one micro-batch saves in each chunk, shape (n, V)."""
    total = np.zeros((len(frame), chunks[0].counts.shape[1]))
    for term in chunks:
        total = total + term.counts * term.each[:, None]
    return total


def _fullest_mix(frame: Frame, c: Class, sizes: FloatArray,
                 rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """Micro-batches alive of each chunk where chunks of a rank differ, at the fullest moment and
    at the fullest at which the last chunk's backward starts, exactly, by distinct schedule."""
    rank = frame.stage(frame.tables.first_rank, c)[rows].astype(np.int64)
    columns = [*(frame.batch[name][rows] for name in SCHEDULE_FIELDS),
               frame.microbatches[rows].astype(np.int64), rank]
    first, inverse = distinct(columns, len(rows))
    peak, at_head = np.zeros_like(sizes), np.zeros_like(sizes)
    for i, at_row in enumerate(first.tolist()):
        schedule, pp, vpp, group, m, at = (int(column[at_row]) for column in columns)
        mine = np.nonzero(inverse == i)[0]
        kind = KINDS[schedule]
        vpp = 2 if kind in DUAL_KINDS else vpp
        own = sizes[mine, :vpp].T
        # Either of DualPipe's chunks may be the last one.
        head = None if kind == "dualpipe" else vpp - 1
        for found, chunk in ((peak, None), (at_head, head)):
            mixes = in_flight_by_chunk(kind, pp=pp, vpp=vpp, num_microbatches=m,
                                       group_size=group, rank=at, before_chunk=chunk)
            found[mine, :vpp] = mixes[(mixes @ own).argmax(axis=0)]
    return peak, at_head
