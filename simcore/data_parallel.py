"""Data-parallel communication and the optimizer, once a step (or a micro-batch under ZeRO)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.formulas.collectives import Collective, collective_s
from simcore.frame import Class, Frame
from simcore.inputs.fields import code
from simcore.placement import Placement
from simcore.resolve import is_fp8
from simcore.states import dtype_bytes
from simcore.typing import FloatArray, IntArray, Num
from simcore.units import GB

UNHIDDEN_BUCKET_SHARE = 0.03
"""The last bucket of an overlapped reduction has nothing to hide behind. Megatron's buckets hold
max(40 million, 1 million x dp) parameters (``distributed_data_parallel_config.py``): some
thirtieth of a rank's share."""


@dataclass(frozen=True)
class StepEnds:
    """What a class of ranks spends around its pipeline, arrays of shape (n,) [s].

    Parameters
    ----------
    reduce_s : ndarray
        Exposed gradient reduction behind the last backward.
    gather_s : ndarray
        Exposed parameter gather.
    optimizer_s : ndarray
        Gradient norm, clipping and the update.
    forward_s, backward_s : ndarray
        Exposed ZeRO-2/3 communication of one micro-batch.
    """

    reduce_s: FloatArray
    gather_s: FloatArray
    optimizer_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray


@dataclass(frozen=True)
class _Collectives:
    """Seconds of whole reductions and gathers, (n,)."""

    reduce_s: FloatArray
    gather_s: FloatArray


def _gradient_bytes(frame: Frame) -> FloatArray:
    return np.where(frame.batch["grad_dtype"] == code("grad_dtype", "fp32"), 4.0, 2.0)


def _collectives(frame: Frame, parameters: FloatArray, group: Placement,
                 ranks: IntArray) -> _Collectives:
    """Reduction (scatter, or all-reduce without sharding) and gather over one group."""
    network = frame.system.network

    def time(kind: Collective, size: Num) -> FloatArray:
        return collective_s(kind, size_bytes=size, group=group, network=network)

    sent = frame.spread(frame.local.software("gradient_reduction_bytes"))
    gradient = parameters * np.where(sent > 0, sent, _gradient_bytes(frame))
    zero = frame.batch["zero"]
    whole = (zero == 0) | (frame.spread(frame.local.software("gradient_all_reduce")) > 0)
    reduce = time(Collective.REDUCE_SCATTER, gradient)
    if np.any(whole):
        reduce = np.where(whole, time(Collective.ALL_REDUCE, gradient), reduce)
    low = is_fp8(frame.batch["precision"]) & (frame.batch["fp8_param_gather"] > 0)
    width = np.where(low, 1.0, 2.0)
    gather = np.where(zero >= 1, time(Collective.ALL_GATHER, parameters * width), 0.0)
    # A library that does not reach the network's rate across nodes is bound by its own.
    own = frame.spread(frame.local.software("data_parallel_gb_per_s")) * GB
    bound = (own > 0) & (group.nodes > 1)
    if np.any(bound):
        moved = (ranks - 1) / np.maximum(ranks, 1) / np.maximum(own, 1.0)
        reduce = np.where(bound, np.maximum(reduce, np.where(whole, 2.0, 1.0) * gradient
                                            * moved), reduce)
        gather = np.where(bound & (zero >= 1),
                          np.maximum(gather, parameters * width * moved), gather)
    return _Collectives(np.where(ranks > 1, reduce, 0.0), np.where(ranks > 1, gather, 0.0))


VOLUME_FIELDS = (
    "gpus", "tp", "cp", "pp", "vpp", "ep", "etp", "dp_replicate", "rank_order",
    "first_stage_layers", "last_stage_layers", "pp_layout", "mtp", "zero", "precision",
    "grad_dtype", "fp8_param_gather", "optimizer", "optimizer_offload", "main_params_dtype",
    "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "framework", "framework_version",
)
"""Fields that decide how much is reduced, gathered and updated, and over which links."""


@dataclass(frozen=True)
class Volumes:
    """Whole reductions, gathers and updates of a class of ranks, nothing hidden, (n,) [s]."""

    reduce_s: FloatArray
    gather_s: FloatArray
    optimizer_s: FloatArray
    tied_s: FloatArray


def volumes(frame: Frame) -> tuple[Volumes, ...]:
    """Seconds of each class' data-parallel work, evaluated once a distinct `VOLUME_FIELDS`."""
    narrow, index = frame.narrowed(VOLUME_FIELDS)
    found = narrow.per_class(_class_volumes)
    if index is None:
        return found
    return tuple(Volumes(v.reduce_s[index], v.gather_s[index], v.optimizer_s[index],
                         v.tied_s[index]) for v in found)


def _class_volumes(frame: Frame, c: Class) -> Volumes:
    dense, expert = frame.parameters(c).dense, frame.parameters(c).expert
    shards = frame.dp * frame.batch["cp"]
    whole = _collectives(frame, dense, frame.placements["dp_cp"], shards)
    reduce, gather = whole.reduce_s, whole.gather_s
    optimizer = _optimizer_s(frame, dense, shards)
    if frame.model.is_moe:
        own = _collectives(frame, expert, frame.placements["edp"], frame.edp)
        reduce, gather = reduce + own.reduce_s, gather + own.gather_s
        optimizer = optimizer + _optimizer_s(frame, expert, frame.edp)
    return Volumes(reduce, gather, optimizer, _tied_embedding_s(frame, c))


def step_ends(frame: Frame, volume: Volumes, forward_s: FloatArray,
              backward_s: FloatArray) -> StepEnds:
    """Exposed cost of gradients, parameters and optimizer on a rank of one class.

    Parameters
    ----------
    volume : Volumes
        The class' whole volumes.
    forward_s, backward_s : ndarray, shape (n,)
        Time of one micro-batch on the rank, beside which communication can run [s].
    """
    batch, zero = frame.batch, frame.batch["zero"]
    reduce, gather = volume.reduce_s, volume.gather_s
    reduce_share = frame.spread(frame.local.software("overlap_grad_reduce_share"))
    gather_share = frame.spread(frame.local.software("overlap_param_gather_share"))
    at_end = np.where(batch["overlap_grad_reduce"] > 0,
                      _exposed(reduce, backward_s, reduce_share), reduce)
    at_start = np.where(batch["overlap_param_gather"] > 0,
                        _exposed(gather, forward_s, gather_share), gather)
    each_forward = each_backward = np.zeros(len(frame))
    if np.any(zero >= 2):
        prefetch = frame.spread(frame.local.software("fsdp_prefetch_share"))
        each_forward = np.where(zero >= 3, _exposed(gather, forward_s, prefetch), 0.0)
        each_backward = np.where(
            zero >= 3, _exposed(gather + reduce, backward_s, prefetch),
            np.where(zero == 2, _exposed(reduce, backward_s, reduce_share), 0.0))
        at_end = np.where(zero <= 1, at_end, 0.0)
        at_start = np.where(zero <= 2, at_start, 0.0)
    return StepEnds(at_end + volume.tied_s, at_start, volume.optimizer_s, each_forward,
                    each_backward)


def _exposed(communication: FloatArray, compute: FloatArray, share: FloatArray) -> FloatArray:
    """What compute cannot hide; the last bucket never can [s]."""
    return np.maximum(communication - share * compute, UNHIDDEN_BUCKET_SHARE * communication)


def _tied_embedding_s(frame: Frame, c: Class) -> FloatArray:
    """All-reduce of a tied embedding's gradient between the first and the last stage, (n,)."""
    if not frame.model.tied_embeddings:
        return np.zeros(len(frame))
    ends = frame.stage(frame.tables.has_embedding, c) + frame.stage(frame.tables.has_head, c)
    pp = frame.batch["pp"]
    size = frame.spread(frame.local.vocab / frame.local.tp) * (
        frame.model.hidden_size * _gradient_bytes(frame))
    seconds = collective_s(Collective.ALL_REDUCE, size_bytes=size,
                           group=frame.placements["ends"], network=frame.system.network)
    return np.where((ends > 0) & (pp > 1), seconds, 0.0)


def _optimizer_s(frame: Frame, parameters: FloatArray, shards: IntArray) -> FloatArray:
    """Memory passes of the step: zeroing the buffer, norm, clipping, update, new weights.

    Adam reads and writes master weights and moments and reads the gradient; each element's
    traffic is twice its states' bytes, plus three passes over the gradient (norm, clip, read)
    and the written weight.
    """
    batch = frame.batch
    each = frame.system.accelerator.memory_bandwidth_gb_per_s * GB * (
        frame.system.efficiency.memory_frac)
    gradient = _gradient_bytes(frame)
    moments = np.where(batch["optimizer"] == code("optimizer", "sgd"), 0.0,
                       dtype_bytes(batch, "exp_avg_dtype")
                       + dtype_bytes(batch, "exp_avg_sq_dtype"))
    states = 4.0 + moments
    own = parameters / np.where(batch["zero"] >= 1, np.maximum(shards, 1), 1)
    zeroed = parameters / np.where(batch["zero"] >= 2, np.maximum(shards, 1), 1)
    return (own * (2.0 * states + 4.0 * gradient + 2.0) + zeroed * gradient) / each

