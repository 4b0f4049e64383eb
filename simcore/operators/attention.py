"""Operators of a layer's attention half: norm, projections, core attention, residual add."""

from __future__ import annotations

import numpy as np

from simcore.efficiency import Source, table_of
from simcore.flops import core_attention_flops_per_token
from simcore.inputs.fields import code
from simcore.inputs.model import AttentionKind, LayerKind, Norm
from simcore.kernels import (
    Rate,
    bf16_flops_per_s,
    elementwise,
    gemm,
    launch_s,
    memory_bytes_per_s,
    sustained_bf16_flops_per_s,
)
from simcore.local import Local
from simcore.operators.base import Op, Phase, make
from simcore.typing import FloatArray

EAGER_FP32_NORM_PASSES = 9.0
"""The same with a conversion to fp32 first: 36 B a bf16 value forward (cast, square, mean,
product, cast, scale) against 4, and 70 against 8 backward (count of kernels)."""
UNFUSED_NORM_PASSES = 3.0
"""A norm in separate PyTorch kernels reads and writes about three times as often: square,
mean, multiply, scale (count of kernels in eager `LlamaRMSNorm`)."""
UNFUSED_ROPE_PASSES = 2.5
"""Rotate-half in eager mode: negate and concatenate, two products and a sum."""
BACKWARD_FLOPS_RATIO = 2.5
"""Five products against two (Dao, FlashAttention-2, arXiv 2307.08691, section 3.1.2)."""


def norm_ops(local: Local, name: str, module: str = "layernorm") -> list[Op]:
    """Normalisation over the hidden dimension, forward (read, write) and backward."""
    size = local.bytes_per_value
    eager = np.where(local.software("norm_keeps_fp32") > 0, EAGER_FP32_NORM_PASSES,
                     UNFUSED_NORM_PASSES)
    passes = np.where(local.on("fused_norm"), 1.0, eager)
    values = local.tokens_sharded * local.model.hidden_size
    return [elementwise(local, f"{name}_fwd", module, Phase.FORWARD, 2 * size * values * passes,
                        kernels=passes),
            elementwise(local, f"{name}_bwd", module, Phase.BACKWARD, 4 * size * values * passes,
                        kernels=passes)]


def residual_ops(local: Local, name: str) -> list[Op]:
    """Residual add: two reads and a write (and dropout's mask); backward adds the gradients."""
    each = 3.0 * local.bytes_per_value + np.where(local.is_dropped, 1.0, 0.0)
    moved = each * local.tokens_sharded * local.model.hidden_size
    return [elementwise(local, f"{name}_fwd", "residual", Phase.FORWARD, moved),
            elementwise(local, f"{name}_bwd", "residual", Phase.BACKWARD, moved)]


def attention_ops(local: Local, kind: LayerKind) -> list[Op]:
    """All operators of the attention half of a layer, without collectives."""
    model = local.model
    ops: list[Op] = []
    if not model.no_pre_norms:
        ops += norm_ops(local, "input_norm")
    if kind.attention is AttentionKind.LINEAR:
        ops += _linear_attention_ops(local)
    elif model.mla is not None:
        ops += _mla_projection_ops(local)
        ops += core_attention_ops(local, kind)
        ops += gemm(local, "proj", "attn", rows=local.tokens, out=model.hidden_size,
                    inner=model.num_attention_heads * model.mla.v_head_dim / local.tp)
    else:
        ops += _gqa_projection_ops(local)
        ops += core_attention_ops(local, kind)
        ops += gemm(local, "proj", "attn", rows=local.tokens, out=model.hidden_size,
                    inner=model.num_attention_heads * model.head_dim / local.tp)
    if model.post_norms:
        ops += norm_ops(local, "post_attention_norm")
    return ops + residual_ops(local, "attention_residual")


def query_width(local: Local) -> float:
    """Width of all queries of a layer."""
    return float(local.model.num_attention_heads * local.model.head_dim)


def key_value_width(local: Local) -> FloatArray:
    """Width of keys on one tensor rank; each rank holds at least one group."""
    groups = np.maximum(local.model.num_query_groups / local.tp, 1.0)
    return groups * local.model.head_dim


def _gqa_projection_ops(local: Local) -> list[Op]:
    model = local.model
    query = query_width(local) / local.tp
    key_value = key_value_width(local)
    gate = query if model.attention_output_gate else 0.0
    ops = gemm(local, "qkv", "attn", rows=local.tokens, out=query + gate + 2 * key_value,
               inner=model.hidden_size)
    moved = 2 * local.bytes_per_value * local.tokens * (query + key_value)
    if model.qk_norm or model.qk_norm_full:
        ops += [elementwise(local, "qk_norm_fwd", "attn", Phase.FORWARD, moved, kernels=2),
                elementwise(local, "qk_norm_bwd", "attn", Phase.BACKWARD, 2 * moved, kernels=2)]
    if model.rotary:
        ops += rope_ops(local, moved)
    return ops


def rope_ops(local: Local, moved: FloatArray) -> list[Op]:
    """Rotary embedding of queries and keys."""
    passes = np.where(local.on("fused_rope"), 1.0, UNFUSED_ROPE_PASSES)
    return [elementwise(local, f"rope_{phase.value}", "mla_up_proj", phase, passes * moved,
                        kernels=2 * passes) for phase in Phase]


def _mla_projection_ops(local: Local) -> list[Op]:
    """Down- and up-projections of latent attention (DeepSeek-V2, arXiv 2405.04434, eq. 9-13).

    The down-projections are replicated over tensor ranks and work on the sequence shard
    (Megatron's ``multi_latent_attention.py``); the up-projections are column-parallel.
    """
    model, mla = local.model, local.model.mla
    if mla is None:
        return []
    heads = model.num_attention_heads / local.tp
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    size = local.bytes_per_value
    ops: list[Op] = []
    shard, tokens, h = local.tokens_sharded, local.tokens, model.hidden_size
    if mla.q_lora_rank:
        ops += gemm(local, "q_down", "attn", rows=shard, out=mla.q_lora_rank, inner=h)
        ops += gemm(local, "q_up", "mla_up_proj", rows=tokens, out=heads * qk,
                    inner=mla.q_lora_rank)
    else:
        ops += gemm(local, "q_proj", "attn", rows=tokens, out=heads * qk, inner=h)
    ops += gemm(local, "kv_down", "attn", rows=shard,
                out=mla.kv_lora_rank + mla.qk_rope_head_dim, inner=h)
    ops += gemm(local, "kv_up", "mla_up_proj", rows=tokens,
                out=heads * (mla.qk_nope_head_dim + mla.v_head_dim), inner=mla.kv_lora_rank)
    compressed = 2 * size * shard * (mla.q_lora_rank + mla.kv_lora_rank)
    ops += [elementwise(local, "latent_norm_fwd", "attn", Phase.FORWARD, compressed, kernels=2),
            elementwise(local, "latent_norm_bwd", "attn", Phase.BACKWARD, 2 * compressed,
                        kernels=2)]
    return ops + rope_ops(local, 2 * size * tokens * heads * 2 * qk)


def fused_attention_rate(local: Local, kind: LayerKind, phase: Phase) -> Rate:
    """Sustained rate of the fused kernel on the FLOP of the causal half (or the window).

    An exchange of heads (context parallelism by all-to-all) leaves fewer heads of the whole
    length; a ring works on blocks of the shard's length.
    """
    model, system = local.model, local.system
    efficiency, backward = system.efficiency, phase is Phase.BACKWARD
    sustained = bf16_flops_per_s(local) * efficiency.sustained_frac
    width = model.head_dim if model.mla is None else (
        model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim)
    table, length = table_of(system), local.real("seq_len")
    if table is None:
        # Narrow heads leave less arithmetic for each exponential (FlashAttention-3,
        # arXiv 2407.08608, figures 5 and 6: head size 64 reaches 0.75 to 0.8 of 128's rate).
        narrow = min(1.0, (width / 128.0) ** 0.4)
        # A kernel needs some hundred tokens a block row to fill its pipeline.
        fill = length / (length + 512.0)
        frac = efficiency.attention_backward_frac if backward else (
            efficiency.attention_forward_frac)
        return Rate(sustained * frac * narrow * fill, np.full(len(length), Source.FORMULA))
    cp = local.real("cp")
    by_heads = local.batch["cp_comm"] != code("cp_comm", "p2p")
    units = local.real("mbs") * model.num_attention_heads / local.tp
    found = table.attention(
        head_dim=float(width), units=np.where(by_heads, units / cp, units),
        length=np.where(by_heads, length, length / cp), backward=backward,
        window=float(model.sliding_window) if kind.attention is AttentionKind.SLIDING else 0.0)
    return Rate(sustained * found.share, found.source)


def core_attention_ops(local: Local, kind: LayerKind) -> list[Op]:
    """Scores, softmax and values: one fused kernel, or four with the scores in memory."""
    model = local.model
    flops = (core_attention_flops_per_token(model, kind, local.real("seq_len")) * local.tokens
             / local.tp)
    heads = np.maximum(model.num_attention_heads / local.tp, 1.0)
    ops = []
    for phase, ratio in ((Phase.FORWARD, 1.0), (Phase.BACKWARD, BACKWARD_FLOPS_RATIO)):
        rate = fused_attention_rate(local, kind, phase)
        fused = ratio * flops / (rate.flops_per_s * local.attention_rate_frac)
        # Not fused: the whole square is computed by batched products, and the scores travel:
        # written by the product, read and written by scale, mask and softmax, read again.
        scores = local.real("mbs") * heads * (
            local.real("seq_len") ** 2 / local.real("cp")) * local.bytes_per_value
        passes = (4.0 if phase is Phase.FORWARD else 8.0) * local.software("softmax_passes")
        unfused = (2.0 * (2.0 if phase is Phase.BACKWARD else 1.0) * flops
                   / (sustained_bf16_flops_per_s(local) * 0.8)
                   + passes * scores / memory_bytes_per_s(local) + 4 * launch_s(local))
        is_flash = local.batch["attention"] == code("attention", "flash")
        ops.append(make(local, f"core_attention_{phase.value}", "core_attn", phase,
                        np.where(is_flash, fused + launch_s(local), unfused),
                        flops=ratio * flops,
                        bytes_moved=np.where(is_flash, 0.0, passes * scores),
                        source=np.where(is_flash, rate.source, Source.FORMULA)))
    return ops


def _linear_attention_ops(local: Local) -> list[Op]:
    """Gated delta rule: projections, short convolution, chunked scan, gated norm, output."""
    model, lin = local.model, local.model.linear_attention
    if lin is None:
        return []
    key = lin.num_key_heads * lin.key_head_dim / local.tp
    value = lin.num_value_heads * lin.value_head_dim / local.tp
    size, tokens = local.bytes_per_value, local.tokens
    ops = gemm(local, "in_proj", "attn", rows=tokens, inner=model.hidden_size,
               out=2 * key + 2 * value + 2 * lin.num_value_heads / local.tp)
    conv = 2 * size * tokens * (2 * key + value)
    # Chunks of 64 tokens: products inside a chunk and with the state, about three times the
    # recurrence's FLOP, at a third of the dense rate (flash-linear-attention's kernels).
    scan = (3.0 * 4.0 * tokens * lin.num_value_heads / local.tp
            * lin.key_head_dim * lin.value_head_dim)
    rate = sustained_bf16_flops_per_s(local) / 3.0
    for phase, ratio in ((Phase.FORWARD, 1.0), (Phase.BACKWARD, 2.5)):
        ops.append(elementwise(local, f"conv_{phase.value}", "attn", phase, ratio * conv,
                               kernels=2))
        ops.append(make(local, f"delta_rule_{phase.value}", "core_attn", phase,
                        ratio * scan / rate + 6 * launch_s(local), flops=ratio * scan))
        ops.append(elementwise(local, f"gated_norm_{phase.value}", "attn", phase,
                               ratio * 3 * size * tokens * value, kernels=2))
    return ops + gemm(local, "proj", "attn", rows=tokens, out=model.hidden_size, inner=value)


def norm_statistics_bytes(norm: Norm) -> float:
    """Saved statistics of a norm, fp32 [B a token]: rstd, and the mean of a layer norm."""
    return 8.0 if norm is Norm.LAYERNORM else 4.0
