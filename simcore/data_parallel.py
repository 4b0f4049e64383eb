"""Data-parallel communication and the optimizer, once a step (or a micro-batch under ZeRO)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.formulas.collectives import Collective, collective_s
from simcore.frame import Class, Frame
from simcore.local import NVFP4_BYTES
from simcore.optimizer_step import optimizer_s, orthogonalisation_s
from simcore.resolve import is_fp8
from simcore.states import gradient_bytes, is_muon, shard_sizes
from simcore.typing import FloatArray, Num
from simcore.units import GB

UNHIDDEN_BUCKET_SHARE = 0.03
"""The last bucket of an overlapped reduction has nothing to hide behind. Megatron's buckets hold
max(40 million, 1 million x dp) parameters (``distributed_data_parallel_config.py``): some
thirtieth of a rank's share."""

OFFLOAD_EXPOSED_SHARE = 0.25
"""Of the time that offloaded activations travel, what neighbouring layers do not hide; fitted to
the rows of Megatron-Bridge that offload 20 and 40 layers of llama3-70b."""


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
    offload_s : ndarray
        What a micro-batch waits for activations on their way to the host and back.
    """

    reduce_s: FloatArray
    gather_s: FloatArray
    optimizer_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray
    offload_s: FloatArray


@dataclass(frozen=True)
class _Collectives:
    """Seconds of whole reductions and gathers, (n,)."""

    reduce_s: FloatArray
    gather_s: FloatArray


def _collectives(frame: Frame, parameters: FloatArray, expert: bool) -> _Collectives:  # noqa: FBT001
    """Reduction (scatter, or all-reduce without sharding) and gather over one group.

    With replicas (HSDP) each shard is all-reduced between them behind the scatter.
    """
    network, place = frame.system.network, frame.placements
    group, between = (place["edp"], place["edp_replicate"]) if expert else (
        place["dp_cp"], place["dp_replicate"])
    ranks = group.ranks

    def time(kind: Collective, size: Num) -> FloatArray:
        return collective_s(kind, size_bytes=size, group=group, network=network)

    sent = frame.spread(frame.local.software("gradient_reduction_bytes"))
    gradient = parameters * np.where(sent > 0, sent, gradient_bytes(frame.batch))
    zero = frame.batch["zero"]
    whole = (zero == 0) | (frame.spread(frame.local.software("gradient_all_reduce")) > 0)
    reduce = time(Collective.REDUCE_SCATTER, gradient)
    if np.any(whole):
        reduce = np.where(whole, time(Collective.ALL_REDUCE, gradient), reduce)
    precision = frame.batch["precision"]
    width = np.where(is_fp8(precision) & (frame.batch["fp8_param_gather"] > 0), 1.0, 2.0)
    width = np.where(frame.batch["fp4_param_gather"] > 0, NVFP4_BYTES, width)
    gather = np.where(zero >= 1, time(Collective.ALL_GATHER, parameters * width), 0.0)
    # A library that does not reach the network's rate across nodes is bound by its own.
    own = frame.spread(frame.local.software("data_parallel_gb_per_s")) * GB
    own = own * np.sqrt(group.per_node / np.maximum(group.nodes, 1))
    bound = (own > 0) & (group.nodes > 1)
    if np.any(bound):
        moved = (ranks - 1) / np.maximum(ranks, 1) / np.maximum(own, 1.0)
        reduce = np.where(bound, np.maximum(reduce, np.where(whole, 2.0, 1.0) * gradient
                                            * moved), reduce)
        gather = np.where(bound & (zero >= 1),
                          np.maximum(gather, parameters * width * moved), gather)
    reduce, gather = np.where(ranks > 1, reduce, 0.0), np.where(ranks > 1, gather, 0.0)
    if np.any(frame.batch["dp_replicate"] > 1):
        reduce = reduce + np.where(between.ranks > 1, collective_s(
            Collective.ALL_REDUCE, size_bytes=gradient / np.maximum(ranks, 1), group=between,
            network=network), 0.0)
    if np.any(frame.is_dualpipe):
        # Both copies of a stage take part: the shards pass between the two ranks that hold them.
        pair, shard = frame.placements["ends"], np.maximum(ranks, 1)
        between_copies = [collective_s(kind, size_bytes=size, group=pair, network=network)
                          for kind, size in (
                              (Collective.ALL_REDUCE, gradient),
                              (Collective.REDUCE_SCATTER, gradient / shard),
                              (Collective.ALL_GATHER, parameters * width / shard))]
        reduce = reduce + frame.is_dualpipe * np.where(whole, *between_copies[:2])
        gather = gather + frame.is_dualpipe * np.where(zero >= 1, between_copies[2], 0.0)
    return _Collectives(reduce, gather)


VOLUME_FIELDS = (
    "gpus", "tp", "cp", "pp", "vpp", "ep", "etp", "dp_replicate", "rank_order",
    "first_stage_layers", "last_stage_layers", "pp_layout", "mtp", "schedule", "zero",
    "precision",
    "grad_dtype", "fp8_param_gather", "fp4_param_gather", "optimizer", "optimizer_offload",
    "main_params_dtype",
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
    held = frame.parameters(c)
    dense, expert = held.dense, held.expert
    whole = _collectives(frame, dense, expert=False)
    reduce, gather = whole.reduce_s, whole.gather_s
    shards, expert_shards = shard_sizes(frame.batch)
    optimizer = optimizer_s(frame, dense, held.dense_hidden, shards)
    if frame.model.is_moe:
        own = _collectives(frame, expert, expert=True)
        reduce, gather = reduce + own.reduce_s, gather + own.gather_s
        optimizer = optimizer + optimizer_s(frame, expert, held.expert_hidden, expert_shards)
    if np.any(is_muon(frame.batch)):
        optimizer = optimizer + orthogonalisation_s(frame, c)
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
                    each_backward, _offload_s(frame))


def _offload_s(frame: Frame) -> FloatArray:
    """What a micro-batch waits for activations that travel to the host and back, (n,) [s].

    Offloading goes with one stage, which holds all layers.
    """
    layers = np.maximum(frame.batch["activation_offload_layers"], 0)
    if not np.any(layers):
        return np.zeros(len(frame))
    counts = np.array([frame.model.layers.count(k) for k in range(len(frame.layer_costs))])
    each = sum((count * frame.spread(cost.saved.kept)
                for count, cost in zip(counts, frame.layer_costs, strict=True)),
               np.zeros(len(frame))) / counts.sum()
    moved: FloatArray = 2.0 * layers * each / (frame.system.network.pcie_gb_per_s * GB)
    return OFFLOAD_EXPOSED_SHARE * moved


def _exposed(communication: FloatArray, compute: FloatArray, share: FloatArray) -> FloatArray:
    """What compute cannot hide; the last bucket never can [s]."""
    return np.maximum(communication - share * compute, UNHIDDEN_BUCKET_SHARE * communication)


def _tied_embedding_s(frame: Frame, c: Class) -> FloatArray:
    """All-reduce of a tied embedding's gradient between the first and the last stage, (n,)."""
    if not frame.model.tied_embeddings:
        return np.zeros(len(frame))
    ends = 1.0 * frame.stage(frame.tables.has_embedding, c) + frame.stage(
        frame.tables.has_head, c)
    pp = frame.batch["pp"]
    size = frame.spread(frame.local.vocab / frame.local.tp) * (
        frame.model.hidden_size * gradient_bytes(frame.batch))
    seconds = collective_s(Collective.ALL_REDUCE, size_bytes=size,
                           group=frame.placements["ends"], network=frame.system.network)
    # A rank that holds both ends needs no exchange.
    return np.where((ends == 1) & (pp > 1), seconds, 0.0)
