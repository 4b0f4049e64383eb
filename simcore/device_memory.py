"""From bytes that tensors hold to what the device shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.activations import mlp_parts
from simcore.frame import Frame
from simcore.tensors import total_bytes
from simcore.typing import FloatArray
from simcore.units import GIB

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
