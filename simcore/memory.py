"""Peak bytes of every class of pipeline ranks, and what the device shows beside them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from simcore.activations import mlp_parts
from simcore.batch import distinct
from simcore.frame import Class, Frame
from simcore.inputs.fields import code
from simcore.schedule.orders import in_flight_by_chunk, in_flight_chunks
from simcore.states import BytesPerParameter, is_muon
from simcore.tensors import total_bytes
from simcore.typing import FloatArray, IntArray
from simcore.units import GIB, MIB

MUON_STEP_BYTES = 12.0
"""Of the largest matrix a value, in the step: update, product and next iterate in fp32
(`newton_schulz` of NVIDIA's emerging_optimizers)."""
PHASES = ("forward", "backward", "head", "recompute", "optimizer")
"""Moments at which a rank can be fullest."""

TE_WORKSPACE_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB}
"""cuBLAS workspace of Transformer Engine (``pytorch/module/base.py``,
`get_cublas_workspace_size_bytes`): 32 MiB from Hopper on, else 4."""
SCHEDULE_FIELDS = ("schedule", "pp", "vpp", "microbatch_group_size")
"""Fields that, with the number of micro-batches, decide the order of a pipeline's work."""
GROUPED_GEMM_STREAMS = 4.0
CUBLAS_HEAD_BYTES = 8.0 * MIB
CONTEXT_BYTES = 1.0 * GIB
"""CUDA context with loaded libraries: nvidia-smi shows 0.5 to 0.8 GiB of an idle PyTorch process
on Hopper, before the kernels of cuDNN, NCCL and Transformer Engine are loaded. Set so that
Llama-3-70B's states do not fit on 16 x 80 GB, as users report."""
NCCL_BYTES = 0.37 * GIB
"""Of one communicator: 342 MiB for 2 ranks, 392 for 4 to 8 (aiconfigurator-core's system
files)."""
FRAGMENTATION, FRAGMENTATION_HIGH = 1.045, 1.12
"""Reserved over allocated: 1.03 to 1.07 in the B200 runs of SimuMax; up to 1.10 elsewhere."""
IMBALANCE_HIGH = 1.25
"""Rows of the fullest rank over balanced ones that a router's drift brings in dropless MoE."""


@dataclass(frozen=True)
class ClassMemory:
    """Bytes of one class of ranks, arrays of shape (n,)."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    temporaries: FloatArray
    peak: FloatArray
    phase: FloatArray
    """Index into `PHASES`."""
    host: FloatArray
    """Of the host's memory."""

    def take(self, index: IntArray) -> ClassMemory:
        """Return the rows that an index names."""
        return ClassMemory(*(getattr(self, f.name)[index] for f in fields(self)))


def class_memory(frame: Frame, c: Class) -> ClassMemory:
    """Bytes that tensors hold on the fullest rank of class c."""
    static, step = _static(frame, c)
    found = _activations(frame, c)
    forward, backward, head, recompute = _moments(frame, c, found.in_flight)
    # The head works while its own chunk is alive; no activation is in the optimizer step.
    kept = np.stack((found.kept, found.kept, found.kept_at_head, found.kept,
                     np.zeros(len(frame))))
    beside = np.stack((forward, backward, head, recompute, step))
    phase = np.argmax(kept + beside, axis=0)[None]
    activations = np.take_along_axis(kept, phase, axis=0)[0]
    temporaries = np.take_along_axis(beside, phase, axis=0)[0]
    phase, fixed = phase[0], static[3]
    total = static[0] + static[1] + static[2] + fixed + activations + temporaries
    return ClassMemory(static[0], static[1], static[2], activations, temporaries + fixed, total,
                       phase, _host(frame, c, found))


def _host(frame: Frame, c: Class, found: Activations) -> FloatArray:
    """Host memory of a rank: offloaded optimizer and activations, (n,) [B]."""
    host = found.host
    if np.any(frame.batch["optimizer_offload"] > 0):
        own = frame.parameters(c)
        host = host + own.dense * frame.dense_bytes.host
        if frame.model.is_moe:
            host = host + own.expert * frame.expert_bytes.host
    return host


def _static(frame: Frame, c: Class) -> tuple[tuple[FloatArray, ...], FloatArray]:
    """Weights, gradients, optimizer states and fixed buffers; and the step's temporaries."""
    own = frame.parameters(c)
    each = frame.dense_bytes
    weights = own.dense * each.weight + own.dense_matrices * each.quantised
    gradients, step = own.dense * each.gradient, own.dense * each.step
    optimizer = own.dense * each.optimizer
    if frame.model.is_moe:
        more = frame.expert_bytes
        weights = weights + own.expert * more.weight + own.expert_matrices * more.quantised
        gradients = gradients + own.expert * more.gradient
        optimizer, step = optimizer + own.expert * more.optimizer, step + own.expert * more.step
    if np.any(is_muon(frame.batch)):
        optimizer = optimizer + _muon_states(frame, own.dense_hidden, own.dense_largest, each) + (
            _muon_states(frame, own.expert_hidden, own.expert_largest, frame.expert_bytes))
        step = step + MUON_STEP_BYTES * np.maximum(own.dense_largest, own.expert_largest)
    fixed = _fixed(frame, c) + _gathered(frame, c)
    return (weights, gradients, optimizer, fixed), step


def _muon_states(frame: Frame, hidden: FloatArray, largest: FloatArray,
                 each: BytesPerParameter) -> FloatArray:
    """What Muon's states are more (or less) than Adam's, (n,) [B].

    It has no second moment; and each matrix is whole on one rank of the sharded group
    (`LayerWiseDistributedOptimizer`), so that the fullest rank has at least the largest one.
    """
    shards = np.where(frame.batch["zero"] >= 1, each.shards, 1.0)
    excess = np.maximum(largest - hidden / shards, 0.0)
    kept: FloatArray = excess * shards * (each.main + each.exp_avg)
    return kept - hidden * each.exp_avg_sq


def _fixed(frame: Frame, c: Class) -> FloatArray:
    """Workspaces, dummy gradients and the gather buffer of the head's rank, (n,) [B]."""
    architecture = frame.system.accelerator.architecture
    workspace = TE_WORKSPACE_BYTES.get(architecture, 4 * MIB)
    if frame.model.is_moe:
        workspace *= 1.0 + GROUPED_GEMM_STREAMS
    has_head = frame.stage(frame.tables.has_head, c)
    local = frame.local
    gather = np.where(local.on("sp"), local.bytes_per_value * frame.model.hidden_size
                      * local.tokens, 0.0)
    return workspace + frame.dummy_gradients_bytes(c) + has_head * (
        frame.spread(gather) + CUBLAS_HEAD_BYTES)


def _gathered(frame: Frame, c: Class) -> FloatArray:
    """Under ZeRO-3: two gathered layers and the gradient of one (prefetch of the next); under
    ZeRO-2 the bucket that is being reduced, (n,) [B]."""
    zero = frame.batch["zero"]
    if not np.any(zero >= 2):
        return np.zeros(len(frame))
    largest = np.zeros(len(frame))
    for cost in frame.layer_costs:
        largest = np.maximum(largest, frame.spread(cost.parameters.dense
                                                   + cost.parameters.expert))
    has_head = frame.stage(frame.tables.has_head, c)
    ends = has_head * frame.spread(frame.costs.end_parameters[1])
    gradient = np.where(frame.is_fsdp, 4.0, 2.0)
    gathered = 2.0 * 2.0 * largest + gradient * np.maximum(largest, ends) + 2.0 * ends
    return np.where(zero >= 3, gathered, np.where(zero == 2, gradient * largest, 0.0))


def _in_flight(frame: Frame, c: Class) -> FloatArray:
    """Chunk activations alive at most on the first rank of class c, (n,)."""
    batch, rank = frame.batch, frame.stage(frame.tables.first_rank, c).astype(np.int64)
    schedule = batch["schedule"]
    total = np.zeros(len(frame))
    for kind in ("1f1b", "interleaved", "gpipe"):
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
                        & (in_flight < frame.microbatches * batch["vpp"])).astype(np.float64)
    return more


def _unit_layers(frame: Frame) -> FloatArray:
    """Layers that are recomputed at once, (n,)."""
    uniform = frame.batch["recompute_method"] == code("recompute_method", "uniform")
    return np.where(uniform, np.maximum(frame.batch["recompute_unit_layers"], 1), 1)


@dataclass(frozen=True)
class Activations:
    """What is saved for backward on a class of ranks, arrays of shape (n,) [B].

    Parameters
    ----------
    kept : ndarray
        By all chunks in flight, at the fullest moment.
    kept_at_head : ndarray
        At the fullest moment at which the last chunk's backward starts.
    in_flight : ndarray
        Chunks alive at most.
    offloaded : ndarray
        Share of the saved bytes that host memory holds.
    host : ndarray
        Those bytes, at the fullest moment.
    beside : ndarray
        Of `kept`, what is on its way to or from the host, and the chunk of a forward that runs
        beside a backward.
    """

    kept: FloatArray
    kept_at_head: FloatArray
    in_flight: FloatArray
    offloaded: FloatArray
    host: FloatArray
    beside: FloatArray


def _activations(frame: Frame, c: Class) -> Activations:
    alive = _in_flight(frame, c)
    uniform = frame.stage(frame.tables.uniform, c) > 0
    alike = bool(np.all(uniform))
    chunks = _chunk_bytes(frame, c, slice(1) if alike else slice(None))
    kept = at_head = chunks[:, 0] * alive
    if not alike:
        rows = np.nonzero(~uniform)[0]
        kept, at_head = np.array(kept), np.array(at_head)
        kept[rows], at_head[rows] = _mixed_peak(frame, c, chunks[rows], rows)
    more = _overlapped(frame, alive)
    beside = more * chunks.max(axis=1)
    kept, at_head = kept + beside, at_head + beside
    share = host = np.zeros(len(frame))
    if np.any(frame.batch["activation_offload_layers"] > 0):
        share, in_transit = _offloaded(frame, c, kept)
        host = kept * share
        kept, at_head, beside = (part * (1.0 - share) + in_transit
                                 for part in (kept, at_head, beside))
    return Activations(kept, at_head, alive + more, share, host, beside)


def _offloaded(frame: Frame, c: Class, kept: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Share of the saved bytes that host memory holds, and what is on its way, (n,) [B].

    The offloaded layers leave; the one that comes back and the one that leaves stay. Zero where
    that is no gain.
    """
    counts = frame.stage(frame.tables.layers, c)
    largest = np.zeros(len(frame))
    for k, cost in enumerate(frame.layer_costs):
        largest = np.maximum(largest, np.where(counts[:, k] > 0,
                                               frame.spread(cost.saved.kept), 0.0))
    wanted = np.maximum(frame.batch["activation_offload_layers"], 0)
    share = np.minimum(wanted / np.maximum(counts.sum(axis=1), 1.0), 1.0)
    gains = kept * share > 2.0 * largest
    return np.where(gains, share, 0.0), np.where(gains, 2.0 * largest, 0.0)


def _chunk_bytes(frame: Frame, c: Class, which: slice = slice(None)) -> FloatArray:
    """Bytes that one micro-batch saves in each chunk, or in some of them, shape (n, V)."""
    chunk = frame.stage(frame.tables.chunk_layers, c)[:, which]
    whole = frame.recomputed_layers(c)[:, which]
    # Where whole layers are recomputed, each unit of them keeps its input.
    inputs = np.ceil(whole.sum(axis=2) / _unit_layers(frame)[:, None])
    total: FloatArray = inputs * frame.boundary_bytes[:, None]
    for k, cost in enumerate(frame.layer_costs):
        stored = frame.spread(cost.saved.kept)
        total = total + (chunk[:, :, k] - whole[:, :, k]) * stored[:, None]
    if frame.has_mtp:
        extra = frame.costs.mtp_memory + frame.layer_costs[frame.model.layers[-1]].saved.kept
        last = np.minimum(frame.batch["vpp"], total.shape[1]) - 1
        total[np.arange(len(frame)), last] += frame.mtp_here(c) * frame.spread(extra)
    return total


def _mixed_peak(frame: Frame, c: Class, chunk_bytes: FloatArray,
                rows: IntArray) -> tuple[FloatArray, FloatArray]:
    """Most bytes alive where chunks of a rank differ, exactly, by distinct schedule: at any
    moment, and where the last chunk's backward starts."""
    rank = frame.stage(frame.tables.first_rank, c)[rows].astype(np.int64)
    columns = [*(frame.batch[name][rows] for name in SCHEDULE_FIELDS),
               frame.microbatches[rows].astype(np.int64), rank]
    first, inverse = distinct(columns, len(rows))
    peak, at_head = np.empty(len(rows)), np.empty(len(rows))
    names = ("1f1b", "interleaved", "gpipe")
    for i, at_row in enumerate(first.tolist()):
        schedule, pp, vpp, group, m, at = (int(column[at_row]) for column in columns)
        mine = inverse == i
        own = chunk_bytes[mine, :vpp].T
        for found, chunk in ((peak, None), (at_head, vpp - 1)):
            mixes = in_flight_by_chunk(names[schedule], pp=pp, vpp=vpp, num_microbatches=m,
                                       group_size=group, rank=at, before_chunk=chunk)
            found[mine] = (mixes @ own).max(axis=0)
    return peak, at_head


def _moments(frame: Frame, c: Class, in_flight: FloatArray,
             ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Bytes beside the saves at each moment: forward, backward, head, recomputation, (n,)."""
    layers = frame.stage(frame.tables.layers, c)
    forward = np.zeros(len(frame))
    backward, recompute = np.zeros(len(frame)), np.zeros(len(frame))
    unit, boundary = _unit_layers(frame), frame.boundary_bytes
    whole = frame.whole_layers(c)
    for k, cost in enumerate(frame.layer_costs):
        present = layers[:, k] > 0
        saved = cost.saved
        backward = np.maximum(backward, np.where(present, frame.spread(saved.backward), 0.0))
        forward = np.maximum(forward, np.where(present, frame.spread(saved.forward), 0.0))
        # The unit's input is kept already.
        again = frame.spread(saved.full) * unit - boundary + frame.spread(saved.backward)
        recompute = np.maximum(recompute, np.where(whole[:, k] > 0, again, 0.0))
    # A stage after the first also holds the gradient that it sent last, and one before the last
    # the gradient that it received for the micro-batch before: variables of the schedule's loop
    # (``pipeline_parallel/schedules.py``), alive while the next forward runs.
    later = (frame.stage(frame.tables.first_rank, c) > 0) * boundary
    steady = (frame.batch["vpp"] == 1) & (frame.microbatches > in_flight)
    before_last = frame.stage(frame.tables.last_rank, c) < frame.batch["pp"] - 1
    received = (steady & before_last) * boundary
    kept_head, beside_head = frame.costs.head_memory
    has_head = frame.stage(frame.tables.has_head, c)
    head = np.where(has_head > 0, frame.spread(kept_head + beside_head), 0.0)
    return (forward + later + received, backward + later, head + later * (head > 0),
            recompute + later)


@dataclass(frozen=True)
class DeviceMemory:
    """What the device has in use on the fullest rank, likely and at worst, (n,) [B]."""

    likely: FloatArray
    high: FloatArray


def device_bytes(frame: Frame, peak: FloatArray, activations: FloatArray) -> DeviceMemory:
    """From bytes that tensors hold to what the driver reports.

    Reserved memory is the peak times a fragmentation; beside it stand the context and one
    communicator's buffers for every group of more than one rank. At worst, fragmentation is
    higher, and dropless experts get more rows than their share.
    """
    batch = frame.batch
    groups = sum(((size > 1).astype(np.float64) for size in (
        batch["tp"], batch["cp"], batch["pp"], frame.dp * batch["cp"])), np.zeros(len(frame)))
    if frame.model.is_moe:
        groups = groups + (batch["ep"] * batch["etp"] > 1) + (frame.edp > 1)
    outside = CONTEXT_BYTES + groups * NCCL_BYTES
    likely = FRAGMENTATION * peak + outside
    drift = np.zeros(len(frame))
    if frame.model.is_moe:
        dropless = batch.real("capacity_factor") <= 0
        drift = np.where(dropless & (batch["ep"] > 1),
                         (IMBALANCE_HIGH - 1.0) * _expert_share(frame) * activations, 0.0)
    return DeviceMemory(likely, FRAGMENTATION_HIGH * (peak + drift) + 1.3 * outside)


def _expert_share(frame: Frame) -> FloatArray:
    """Share of saved activations that grows with the rows of experts, roughly, (n,)."""
    share = np.zeros(len(frame.local.batch))
    for kind, cost in zip(frame.model.kinds, frame.layer_costs, strict=True):
        parts = mlp_parts(frame.local, kind)
        rows = total_bytes((*parts.get("experts", ()), *parts.get("moe_act", ())), len(share))
        share = np.maximum(share, rows / np.maximum(cost.saved.full, 1.0))
    return frame.spread(share)


@dataclass(frozen=True)
class RankBytes:
    """What a rank of one class holds when, arrays of shape (n, ...) [B].

    Parameters
    ----------
    static : ndarray, shape (n,)
        From start to end: weights, gradients, optimizer states, fixed buffers.
    chunks : ndarray, shape (n, V)
        Saved on the device for backward by one micro-batch in each chunk.
    beside : ndarray, shape (n,)
        Beside them where activations are offloaded (on their way to the host and back), or the
        next forward runs beside a backward.
    moments : ndarray, shape (4, n)
        Beside them while an operation runs, in the order of `PHASES`.
    step : ndarray, shape (n,)
        Beside the static part in the optimizer step.
    """

    static: FloatArray
    chunks: FloatArray
    beside: FloatArray
    moments: FloatArray
    step: FloatArray


def rank_bytes(frame: Frame, c: Class) -> RankBytes:
    """Bytes of class c by when they are alive, for a simulation of events."""
    static, step = _static(frame, c)
    found = _activations(frame, c)
    return RankBytes(sum(static, np.zeros(len(frame))),
                     _chunk_bytes(frame, c) * (1.0 - found.offloaded)[:, None], found.beside,
                     np.stack(_moments(frame, c, found.in_flight)), step)
