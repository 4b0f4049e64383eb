"""Operators of a layer's second half: dense MLP, or router, dispatch and experts."""

from __future__ import annotations

import numpy as np

from simcore.inputs.fields import code
from simcore.inputs.model import LayerKind, MlpKind, ModelSpec
from simcore.kernels import elementwise, gemm, launch_s, memory_bytes_per_s, memory_source
from simcore.local import Local
from simcore.operators.attention import norm_ops, residual_ops
from simcore.operators.base import Op, Phase, make
from simcore.typing import FloatArray, Num

EXPERT_BIAS_PASSES = 2.9
"""Traffic over the kernels' own 28 and 40 B a value, forward and backward: product with the
probability (write 4), sum (2 + 4, 4), concatenation (4, 4) and cast (4, 2); and their
gradients. Fitted to the gpt-oss-120b rows of Megatron-Bridge: sums over an expert's rows for
the gradients of both biases, and products broadcast over them, run well below copies' rate."""
UNFUSED_ACTIVATION_PASSES = 1.8
"""Eager SwiGLU: activation and product are two kernels with the activation written between."""


def gate_factor(model: ModelSpec) -> float:
    """Width of the first matrix over the MLP's: 2 where it holds a gate."""
    return 2.0 if model.gated_mlp else 1.0


def mlp_ops(local: Local, kind: LayerKind) -> list[Op]:
    """All operators of the MLP half of a layer, without collectives."""
    model = local.model
    ops: list[Op] = [] if model.no_pre_norms else norm_ops(local, "pre_mlp_norm")
    if kind.mlp is MlpKind.DENSE:
        ops += _dense_ops(local, "mlp", "mlp", width=model.ffn_hidden_size / local.tp)
    else:
        ops += _router_ops(local) + _permute_ops(local) + _expert_ops(local)
        if model.moe is not None and model.moe.shared_ffn_hidden_size:
            ops += _dense_ops(local, "shared", "shared_experts",
                              width=model.moe.shared_ffn_hidden_size / local.tp)
    if model.post_norms:
        ops += norm_ops(local, "post_mlp_norm")
    return ops + residual_ops(local, "mlp_residual")


def _activation_ops(local: Local, name: str, module: str, rows: FloatArray,
                    width: Num) -> list[Op]:
    """Activation (and gate): reads fc1's output, writes fc2's input; backward both gradients."""
    gate = gate_factor(local.model)
    passes = np.where(local.on("fused_swiglu"), 1.0, UNFUSED_ACTIVATION_PASSES)
    values = passes * local.bytes_per_value * rows * width
    return [elementwise(local, f"{name}_act_fwd", module, Phase.FORWARD, (gate + 1) * values,
                        kernels=passes),
            elementwise(local, f"{name}_act_bwd", module, Phase.BACKWARD,
                        (2 * gate + 1) * values, kernels=passes)]


def _dense_ops(local: Local, name: str, module: str, *, width: FloatArray) -> list[Op]:
    model, gate = local.model, gate_factor(local.model)
    return [*gemm(local, f"{name}_fc1", module, rows=local.tokens, out=gate * width,
                  inner=model.hidden_size),
            *_activation_ops(local, name, module, local.tokens, width),
            *gemm(local, f"{name}_fc2", module, rows=local.tokens, out=model.hidden_size,
                  inner=width)]


def _router_ops(local: Local) -> list[Op]:
    """Router in fp32: scores, top-k, auxiliary loss; bound by memory and launches."""
    moe = local.model.moe
    if moe is None:
        return []
    tokens = local.tokens_sharded
    ops = gemm(local, "router", "router", rows=tokens, out=moe.num_experts,
               inner=local.model.hidden_size, low_precision=False)
    moved = 40.0 * tokens * moe.num_experts * local.software("moe_passes")
    return [*ops, elementwise(local, "topk_fwd", "router", Phase.FORWARD, moved, kernels=8),
            elementwise(local, "topk_bwd", "router", Phase.BACKWARD, moved, kernels=6)]


def _permute_ops(local: Local) -> list[Op]:
    """Sorting rows by expert, before and behind the exchange, both ways.

    Fused: one read and one write a move. Not fused: index_select and a scatter with fp32
    probabilities. A grouped exchange over ep needs a second sort by local expert.
    """
    moe = local.model.moe
    if moe is None:
        return []
    system = local.system.efficiency
    rate = memory_bytes_per_s(local) / system.memory_frac * system.permute_frac
    sent = local.dispatched_rows * local.model.hidden_size * local.bytes_per_value
    received = local.routed_rows * local.model.hidden_size * local.bytes_per_value
    passes = np.where(local.on("permute_fusion"), 1.0, 2.0)
    second = np.where(local.real("ep") > 1, 1.0, 0.0)
    # The fused dispatchers write rows in the experts' order themselves.
    second = np.where(local.batch["dispatcher"] >= code("dispatcher", "deepep"), 0.0, second)
    passes = passes * local.software("moe_passes")
    moved = passes * 2.0 * (2.0 * sent + 2.0 * second * received)
    return [make(local, f"permute_{phase.value}", "permute", phase,
                 moved / rate + 4 * passes * launch_s(local), bytes_moved=moved,
                 source=memory_source(local.system))
            for phase in Phase]


def _expert_ops(local: Local) -> list[Op]:
    model, moe = local.model, local.model.moe
    if moe is None:
        return []
    gate = gate_factor(model)
    groups = np.maximum(moe.num_experts / local.real("ep"), 1.0)
    width = moe.ffn_hidden_size / local.real("etp")
    rows = local.routed_rows
    return [*gemm(local, "experts_fc1", "experts", rows=rows, out=gate * width,
                  inner=model.hidden_size, groups=groups),
            *_activation_ops(local, "experts", "moe_act", rows, width),
            *gemm(local, "experts_fc2", "experts", rows=rows, out=model.hidden_size,
                  inner=width, groups=groups), *_expert_bias_ops(local, groups)]


def _expert_bias_ops(local: Local, groups: FloatArray) -> list[Op]:
    """The second matrix' bias, times each row's probability: eager, expert by expert, in fp32.

    `TEGroupedMLP._apply_bias` (Megatron-Core 0.14 to 0.19, ``moe/experts.py``).
    """
    moe = local.model.moe
    if moe is None or not moe.expert_bias:
        return []
    values = EXPERT_BIAS_PASSES * local.routed_rows * local.model.hidden_size
    return [elementwise(local, f"expert_bias_{phase.value}", "experts", phase, count * values,
                        kernels=kernels * groups)
            for phase, count, kernels in ((Phase.FORWARD, 28.0, 2.0), (Phase.BACKWARD, 40.0, 5.0))]
