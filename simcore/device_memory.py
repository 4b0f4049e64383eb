"""From bytes that tensors hold to what the device shows: allocator, context, communicators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.frame import Frame
from simcore.typing import FloatArray
from simcore.units import GIB

IMBALANCE_HIGH = 1.25
"""Rows of the fullest rank over balanced ones that a router's drift brings in dropless MoE."""


@dataclass(frozen=True)
class Lost:
    """What the allocator reserves beyond the tensors, as shares of them.

    Parameters
    ----------
    static : float
        Of what lies there from start to end: blocks are rounded up to 2 MiB.
    dynamic : float
        Of what comes and goes within a step: blocks that are free but of the wrong size.
    """

    static: float
    dynamic: float


@dataclass(frozen=True)
class DeviceConstants:
    """What stands between the tensors and the device.

    The allocator's shares come from what SimuMax's eight B200 runs reserved beyond their
    tensors (0.8 to 7.4 GiB): 0.025 of what stays, which is 2 MiB roundings and remainders, then
    least squares for the rest, 0.205. The context is set from the verdicts of Hagemann et al.
    (arXiv 2311.05610), two of their four sheets at a time, and judged on the other two
    (``tests/published/test_out_of_memory.py``); the shipped one is of all four, and such that
    Llama-3-70B's states do not fit on 16 x 80 GB, as users report.

    Parameters
    ----------
    likely, high : Lost
        Usual and pessimistic fragmentation; the B200 runs' worst is a dynamic share of 0.44.
    expandable, expandable_high : Lost
        The same with expandable segments, which the launchers of Megatron-Bridge and torchtitan
        ask for: what is cut from a segment can be used again (a judgement; no run tells them
        apart).
    context_bytes : float
        CUDA context with the kernels of PyTorch, cuBLAS and the fused libraries, and what the
        driver keeps of the memory it reports (0.3 to 0.8 GiB of 80): nvidia-smi shows 0.5 to 0.8
        GiB of an idle process before they are loaded.
    communicator_bytes : float
        Of one NCCL communicator: 342 MiB for 2 ranks, 392 for 4 to 8 (aiconfigurator-core's
        system files).
    outside_high : float
        What context and communicators take at worst over what is likely.
    """

    likely: Lost = Lost(0.025, 0.20)
    high: Lost = Lost(0.035, 0.35)
    expandable: Lost = Lost(0.01, 0.05)
    expandable_high: Lost = Lost(0.02, 0.12)
    context_bytes: float = 2.7 * GIB
    communicator_bytes: float = 0.37 * GIB
    outside_high: float = 1.1


SHIPPED = DeviceConstants()


@dataclass(frozen=True)
class DeviceMemory:
    """What the device has in use, arrays of shape (n,) or (C, n) [B].

    Parameters
    ----------
    likely : ndarray
        Tensors, usual fragmentation, context and communicators.
    fragmentation, imbalance, workspaces : ndarray
        What comes on top at worst: a fragmented allocator, a drifting router, and more of
        context and communicators.
    expandable : ndarray
        Of the first two, what expandable segments would save.
    """

    likely: FloatArray
    fragmentation: FloatArray
    imbalance: FloatArray
    workspaces: FloatArray
    expandable: FloatArray

    @property
    def high(self) -> FloatArray:
        """At worst [B]."""
        high: FloatArray = self.likely + self.fragmentation + self.imbalance + self.workspaces
        return high


def device_bytes(frame: Frame, peak: FloatArray, dynamic: FloatArray, activations: FloatArray,
                 constants: DeviceConstants = SHIPPED) -> DeviceMemory:
    """From bytes that tensors hold to what the driver reports.

    Beside the tensors stand what the allocator cannot use again, the context and one
    communicator's buffers for every group of more than one rank. At worst, fragmentation is
    higher, and dropless experts get more rows than their share.

    Parameters
    ----------
    frame : Frame
        n rows.
    peak, dynamic, activations : ndarray, shape (n,) or (C, n)
        Of a rank, or of C of them [B]; `dynamic` is the part of the peak that comes and goes
        within a step, `activations` what is saved for backward.
    constants : DeviceConstants
    """
    outside = constants.context_bytes + _communicators(frame) * constants.communicator_bytes
    expandable = frame.spread(frame.local.software("expandable_segments")) > 0

    def reserved(tensors: FloatArray, moving: FloatArray, usual: Lost, new: Lost) -> FloatArray:
        static = np.where(expandable, new.static, usual.static)
        dynamic = np.where(expandable, new.dynamic, usual.dynamic)
        total: FloatArray = tensors + static * (tensors - moving) + dynamic * moving
        return total

    usual = reserved(peak, dynamic, constants.likely, constants.expandable)
    worst = reserved(peak, dynamic, constants.high, constants.expandable_high)
    more, drifted = (peak, dynamic), worst
    if frame.model.is_moe:
        dropless = frame.batch.real("capacity_factor") <= 0
        drift = np.where(dropless & (frame.batch["ep"] > 1),
                         (IMBALANCE_HIGH - 1.0) * _expert_share(frame) * activations, 0.0)
        more = peak + drift, dynamic + drift
        drifted = reserved(*more, constants.high, constants.expandable_high)
    new = reserved(*more, constants.expandable_high, constants.expandable_high)
    return DeviceMemory(usual + outside, worst - usual, drifted - worst,
                        (constants.outside_high - 1.0) * outside, drifted - new)


def _communicators(frame: Frame) -> FloatArray:
    """Groups of more than one rank that a rank is in, (n,)."""
    batch = frame.batch
    groups = sum(((size > 1).astype(np.float64) for size in (
        batch["tp"], batch["cp"], batch["pp"], frame.dp * batch["cp"])), np.zeros(len(frame)))
    if frame.model.is_moe:
        groups = groups + (batch["ep"] * batch["etp"] > 1) + (frame.edp > 1)
    return groups


def _expert_share(frame: Frame) -> FloatArray:
    """Share of saved activations that grows with the rows of experts, roughly, (n,)."""
    share = np.zeros(len(frame.local.batch))
    for cost in frame.layer_costs:
        share = np.maximum(share, cost.expert_rows / np.maximum(cost.saved.full, 1.0))
    return frame.spread(share)
