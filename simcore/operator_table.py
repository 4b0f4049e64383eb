"""Time, work and efficiency of every operator of a strategy, by shape and memory layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from simcore.efficiency import Source
from simcore.frame import Frame
from simcore.operators.base import Op, Phase, Term
from simcore.prediction import Prediction
from simcore.time_listing import Use, alone, uses
from simcore.units import GB, MICRO, TERA

NEVER_LOW = ("head", "router", "core_attn")
"""Modules whose products stay in 16 bits."""
LAYOUTS = {"_fwd": "TN", "_dgrad": "NN", "_wgrad": "NT"}
"""Transposition of both inputs of a product, as cuBLAS names them, in Transformer Engine's
linear layer (``pytorch/module/linear.py``)."""


def _shape(op: Op, frame: Frame, u: int) -> str:
    """Sides of the operator's tensors: ``[groups x] rows x columns x depth`` of a product;
    sequences x heads x query tokens x key tokens x head size of attention."""
    if op.shape:
        groups, *sides = (float(np.broadcast_to(side, (len(op.seconds),))[u])
                          for side in op.shape)
        text = "x".join(f"{side:.0f}" for side in sides)
        return f"{groups:.0f} x {text}" if groups > 1 else text
    local, model = frame.local, frame.model
    if op.name.startswith("core_attention"):
        heads = max(model.num_attention_heads / float(local.tp[u]), 1.0)
        seq_len, cp = float(local.real("seq_len")[u]), float(local.real("cp")[u])
        return (f"{float(local.real('mbs')[u]):.0f}x{heads:.0f}x{seq_len / cp:.0f}x{seq_len:.0f}"
                f"x{model.head_dim}")
    return f"{float(op.bytes[u]) / 1e6:.4g} MB" if float(op.bytes[u]) > 0 else ""


def _peak_flops_per_s(op: Op, frame: Frame, u: int) -> float:
    accelerator, local = frame.system.accelerator, frame.local
    low = bool(local.is_fp8[u]) and op.module not in NEVER_LOW
    if low and bool(local.precision_is("nvfp4")[u]):
        return accelerator.peak_fp4_tflops * TERA
    return (accelerator.peak_fp8_tflops if low else accelerator.peak_bf16_tflops) * TERA


def _row(use: Use, op: Op, frame: Frame, step_s: float) -> dict[str, Any]:
    u = int(frame.local_index[0])
    flops, moved, seconds = float(op.flops[u]), float(op.bytes[u]), use.seconds
    row: dict[str, Any] = {
        "part": use.part, "operator": op.name, "module": op.module, "phase": use.phase,
        "term": op.term.value, "shape": _shape(op, frame, u),
        "layout": next((v for k, v in LAYOUTS.items() if op.shape and op.name.endswith(k)), ""),
        "count": use.count, "time_s": seconds, "flop": flops, "bytes": moved,
        "flop_per_byte": flops / moved if moved > 0 else None,
        "tflops": flops / seconds / TERA, "gb_per_s": moved / seconds / GB}
    compute_s = flops / _peak_flops_per_s(op, frame, u)
    memory_s = moved / (frame.system.accelerator.memory_bandwidth_gb_per_s * GB)
    launch_s = frame.system.efficiency.launch_s_per_kernel_us * MICRO
    if op.term is Term.COMPUTE:
        longest = max(compute_s, memory_s)
        # A gap before the kernel that is longer than its work at full speed.
        row["bound_by"] = "launch" if launch_s > longest else (
            "compute" if compute_s >= memory_s else "memory")
        row["efficiency"] = longest / seconds
    else:
        row["bound_by"] = "cpu" if op.term is Term.CPU else "network"
        row["efficiency"] = None
    row["share_of_step"] = use.time_s / step_s
    row["source"] = _source(op, frame)
    return row


def _source(op: Op, frame: Frame) -> str:
    """Where the figures come from that the operator's time rests on."""
    if op.term is Term.CPU:
        return "framework profile"
    if op.term is Term.COMPUTE:
        return Source(int(op.source[int(frame.local_index[0])])).name.lower()
    return frame.system.network.provenance.value


def operator_table(prediction: Prediction) -> list[dict[str, Any]]:
    """List the operators of the pipeline rank with most busy time, the longest first.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    list of dict
        ``time_s`` is of one run, ``count`` how often it runs in a step, ``share_of_step`` of both
        together; ``efficiency`` is the time at the device's peak rates over the time taken.
    """
    frame, step_s = alone(prediction), prediction["step_time_s"]
    found = uses(prediction)
    idle = {use.stage: use.time_s for use in found if use.operator == "bubble"}
    stage = min(idle, key=lambda rank: idle[rank])
    rows = [{"stage": stage, **_row(use, use.op, frame, step_s)} for use in found
            if use.op is not None and use.stage == stage
            and use.phase in ("recompute", *(phase.value for phase in Phase))]
    return sorted(rows, key=lambda row: -row["share_of_step"])
