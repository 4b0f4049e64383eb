"""Bytes that a layer, the embedding and the head keep for backward, and what lives beside.

The inventory follows Transformer Engine's modules and Megatron-Core's checkpoints; every term
names its tensor. T is the tokens of a context-parallel rank, Ts the shard of it under sequence
parallelism.

References
----------
Megatron-LM core_r0.14, ``megatron/core/transformer/``; Transformer Engine 2.11,
``transformer_engine/pytorch/module/``; Korthikanti et al. 2022 (arXiv 2205.05198), section 4,
for the layout without fused kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.inputs.fields import code
from simcore.inputs.model import AttentionKind, LayerKind, MlpKind
from simcore.local import Local
from simcore.operators.attention import key_value_width, norm_statistics_bytes, query_width
from simcore.operators.ends import logits_width
from simcore.operators.mlp import gate_factor
from simcore.typing import FloatArray

ROUTER_BYTES = 15.0
"""Router's saves a token and expert: fp32 logits and probabilities, their gradient's inputs and
the routing map (11 to 20 B by version of the router; ``moe/router.py``)."""
UNFUSED_NORM_BYTES = 8.0
"""Eager RMSNorm keeps the fp32 input and the normalised fp32 value [B an element]."""
KEPT_FP32_NORM_BYTES = 16.0
"""The same with both products' inputs kept in fp32, per layer and element (Aleph Alpha's
library, whose OOM verdicts ask for it)."""
SELECTIVE_OP_SHARE = 0.5
"""Of a layer's products whose outputs torchtitan's selective_op keeps."""


@dataclass(frozen=True)
class Saved:
    """Bytes of one layer and micro-batch, arrays of shape (u,).

    Parameters
    ----------
    kept : ndarray
        Saved for backward, with the selective recomputation of the strategy.
    input_only : ndarray
        Saved where the whole layer is recomputed.
    full : ndarray
        Saved without any recomputation; alive while a recomputed layer runs backward.
    backward : ndarray
        Beside the saves at the worst moment of the layer's backward; may be negative where a
        saved tensor is freed before.
    forward : ndarray
        Beside the saves at the worst moment of the layer's forward.
    """

    kept: FloatArray
    input_only: FloatArray
    full: FloatArray
    backward: FloatArray
    forward: FloatArray


Parts = dict[str, FloatArray]


def attention_parts(local: Local, kind: LayerKind) -> Parts:
    """Saved tensors of the attention half, by the module whose recomputation frees them."""
    model, size = local.model, local.bytes_per_value
    tokens, shard, h = local.tokens, local.tokens_sharded, model.hidden_size
    parts = norm_parts(local, norms=0 if model.no_pre_norms else 1)
    if kind.attention is AttentionKind.LINEAR:
        return parts | _linear_parts(local)
    if model.mla is not None:
        mla, heads = model.mla, model.num_attention_heads / local.tp
        qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        latent = mla.q_lora_rank + mla.kv_lora_rank
        # Compressed queries and keys before and after their norms; the rotary part of the keys.
        statistics = norm_statistics_bytes(model.normalization) * shard
        parts["attn"] = (size + local.gemm_input_bytes) * shard * latent + (
            size * shard * mla.qk_rope_head_dim) + (
            statistics * (2.0 if mla.q_lora_rank else 1.0))
        parts["mla_up_proj"] = size * tokens * heads * (2 * qk + mla.v_head_dim)
        output_width, head_width = heads * mla.v_head_dim, heads * (2 * qk + mla.v_head_dim)
    else:
        query, key_value = query_width(local) / local.tp, key_value_width(local)
        parts["attn"] = size * tokens * (query + 2 * key_value)
        if model.qk_norm or model.qk_norm_full:
            # Their norms' inputs and statistics, which are one a head or one a token.
            each = 2.0 if model.qk_norm_full else (query + key_value) / model.head_dim
            parts["attn"] = parts["attn"] + size * tokens * (query + key_value) + (
                norm_statistics_bytes(model.normalization) * tokens * each)
        if model.attention_output_gate:
            parts["attn"] = parts["attn"] + 2 * size * tokens * query
        output_width, head_width = query, query + 2 * key_value
    is_flash = local.batch["attention"] == code("attention", "flash")
    heads_here = model.num_attention_heads / local.tp
    scores = local.real("mbs") * heads_here * local.real("seq_len") ** 2 / local.real("cp")
    # Fused: log-sum-exp. Not fused: the softmax' output.
    parts["core_attn"] = np.where(is_flash, 4.0 * heads_here * tokens, size * scores)
    output = size * tokens * output_width
    # In fp8 the projection keeps its own quantised input beside attention's bf16 output.
    copy = np.where(local.is_fp8, local.gemm_input_bytes * tokens * output_width, 0.0)
    parts["attn"] = parts["attn"] + output + copy
    is_a2a = (local.real("cp") > 1) & (local.batch["cp_comm"] == code("cp_comm", "a2a"))
    # Transformer Engine's all-to-all keeps attention's output in both layouts.
    parts["attn"] = parts["attn"] + np.where(is_a2a, output, 0.0)
    is_gather = (local.real("cp") > 1) & (
        local.batch["cp_comm"] == code("cp_comm", "all_gather"))
    parts["cp_gathered"] = np.where(is_gather, size * tokens * (head_width - output_width)
                                    * np.minimum(local.real("cp") - 1, 1.0), 0.0)
    if model.post_norms:
        parts["post_norms"] = size * shard * h + norm_statistics_bytes(
            model.normalization) * shard
    return parts


def norm_parts(local: Local, *, norms: int) -> Parts:
    """Input (the residual stream), output (the product's input) and statistics of norms."""
    model, size = local.model, local.bytes_per_value
    values = local.tokens_sharded * model.hidden_size
    statistics = norm_statistics_bytes(model.normalization) * local.tokens_sharded
    unfused = np.where(local.on("fused_norm"), 0.0, UNFUSED_NORM_BYTES * values)
    kept_fp32 = np.where(local.software("norm_keeps_fp32") > 0,
                         0.5 * KEPT_FP32_NORM_BYTES * values, 0.0)
    return {
        "residual": size * values + 0.0 * statistics,
        "layernorm": norms * (local.gemm_input_bytes * values),
        "norm_statistics": norms * (statistics + np.maximum(unfused, kept_fp32)),
    }


def _linear_parts(local: Local) -> Parts:
    lin = local.model.linear_attention
    if lin is None:
        return {}
    key = lin.num_key_heads * lin.key_head_dim / local.tp
    value = lin.num_value_heads * lin.value_head_dim / local.tp
    size, tokens = local.bytes_per_value, local.tokens
    # Convolution's input and output, the gate, the scan's output, the gated norm's output; a
    # state for each chunk of 64 tokens in bf16.
    states = size * tokens / 64.0 * (lin.num_value_heads / local.tp) * (
        lin.key_head_dim * lin.value_head_dim)
    return {"attn": size * tokens * (2 * (2 * key + value) + 3 * value),
            "core_attn": states}


def mlp_parts(local: Local, kind: LayerKind) -> Parts:
    """Saved tensors of the MLP half, by the module whose recomputation frees them."""
    model = local.model
    parts = norm_parts(local, norms=0 if model.no_pre_norms else 1)
    if kind.mlp is MlpKind.DENSE:
        parts["mlp"] = _dense_bytes(local, model.ffn_hidden_size / local.tp)
    else:
        parts |= _moe_parts(local)
    if model.post_norms:
        parts["post_norms"] = (local.bytes_per_value * model.hidden_size
                               + norm_statistics_bytes(model.normalization)) * (
            local.tokens_sharded)
    return parts


def _dense_bytes(local: Local, width: FloatArray) -> FloatArray:
    """FC1's output, FC2's input, and the activation's own output where it is not fused."""
    size, gate = local.bytes_per_value, gate_factor(local.model)
    unfused = np.where(local.on("fused_swiglu") | (gate < 2), 0.0, size)
    return local.tokens * width * (gate * size + local.gemm_input_bytes + unfused)


def _moe_parts(local: Local) -> Parts:
    model, moe = local.model, local.model.moe
    if moe is None:
        return {}
    size, gate = local.bytes_per_value, gate_factor(model)
    rows, width = local.routed_rows, moe.ffn_hidden_size / local.real("etp")
    unfused = np.where(local.on("fused_swiglu") | (gate < 2), 0.0, size)
    fused_map = np.where(local.on("permute_fusion"), 4.0 * (2 * moe.num_experts + 1),
                         8.0 * moe.topk + moe.num_experts)
    parts = {
        "router": ROUTER_BYTES * moe.num_experts * local.tokens_sharded,
        "permute": fused_map * local.tokens_sharded + 4.0 * rows * (
            local.software("probabilities_in_dispatch") > 0),
        "experts": rows * (local.gemm_input_bytes * model.hidden_size
                           + (gate * size + unfused) * width),
        "moe_act": local.gemm_input_bytes * rows * width,
        "shared_experts": np.zeros(len(local.batch)),
    }
    if moe.shared_ffn_hidden_size:
        parts["shared_experts"] = _dense_bytes(local, moe.shared_ffn_hidden_size / local.tp)
    return parts


FREED_BY = {
    "core_attn": ("core_attn",),
    "mlp": ("mlp",),
    "layernorm": ("layernorm", "norm_statistics"),
    "moe": ("router", "permute", "experts", "moe_act", "shared_experts"),
    "moe_act": ("moe_act",),
    "mla_up_proj": ("mla_up_proj",),
    "shared_experts": ("shared_experts",),
}
"""Saved parts that a recompute module frees (``--recompute-modules``)."""


def layer_saved(local: Local, kind: LayerKind) -> Saved:
    """What one layer of a kind keeps, shape (u,) each."""
    halves = (attention_parts(local, kind), mlp_parts(local, kind))
    zero = np.zeros(len(local.batch))
    full = sum((sum(part.values(), zero) for part in halves), zero)
    freed: dict[str, FloatArray] = {}
    for module, parts in FREED_BY.items():
        runs = local.recomputes(module)
        for part in parts:
            freed[part] = np.maximum(freed.get(part, zero), runs)
    gone = sum((half[part] * share for half in halves for part, share in freed.items()
                if part in half), zero)
    selective = local.recomputes("selective_op")
    if np.any(selective):
        products = sum((half.get(p, zero) for half in halves
                        for p in ("mlp", "layernorm", "experts", "moe_act", "shared_experts")),
                       zero)
        gone = gone + selective * SELECTIVE_OP_SHARE * products
    if local.model.mla is not None:
        # The checkpoint keeps its inputs; of these the rotary keys have just been gathered.
        gathered = local.bytes_per_value * local.tokens * local.model.mla.qk_rope_head_dim
        gone = gone - gathered * (local.recomputes("mla_up_proj") & local.on("sp"))
    boundary = local.bytes_per_value * local.model.hidden_size * local.tokens_sharded
    rebuilt = _rebuilt_in_backward(local, kind, halves, freed)
    backward, forward = _beside(local, kind)
    return Saved(kept=full - gone, input_only=boundary, full=full,
                 backward=backward + rebuilt, forward=forward)


def _rebuilt_in_backward(local: Local, kind: LayerKind, halves: tuple[Parts, Parts],
                         freed: dict[str, FloatArray]) -> FloatArray:
    """Recomputed tensors that are alive again at the layer's worst moment of backward.

    The activation's backward needs its input (recomputed with `mlp`, `moe`); FC2's input has
    been used and freed by then, so where it is not saved in the first place, nothing is freed.
    """
    zero = np.zeros(len(local.batch))
    mlp = halves[1]
    if kind.mlp is MlpKind.DENSE:
        return mlp["mlp"] * freed.get("mlp", zero)
    again = mlp["experts"] * freed.get("experts", zero)
    return again + mlp["moe_act"] * freed.get("moe_act", zero)


def _beside(local: Local, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Temporaries beside the saves at the worst moment of backward and of forward.

    Dense: the activation's backward, when FC2's input is freed and the gradients of its output
    and input and the layer's received gradient are alive. MoE: the same with rows in place of
    tokens; forward's worst moment is the un-permute, with permuted, dispatched, unsorted and
    returned rows at once.
    """
    model, size = local.model, local.bytes_per_value
    h, gate = model.hidden_size, gate_factor(model)
    received = size * h * local.tokens_sharded
    if kind.mlp is MlpKind.DENSE:
        width = local.tokens * model.ffn_hidden_size / local.tp
        backward = width * (size + gate * size - local.gemm_input_bytes) + received
        forward = received + size * h * local.tokens
        return backward, forward
    moe = model.moe
    if moe is None:
        return received, received
    rows, width = local.routed_rows, moe.ffn_hidden_size / local.real("etp")
    backward = rows * width * (size + gate * size - local.gemm_input_bytes) + (
        size * h * rows + received)
    forward = 4.0 * size * h * rows + 2.0 * received
    # DeepEP and HybridEP exchange tokens through buffers of their own and un-permute in place.
    fused = local.batch["dispatcher"] >= code("dispatcher", "deepep")
    return backward, np.where(fused, 2.0 * size * h * rows + 2.0 * received, forward)


def head_saved(local: Local) -> tuple[FloatArray, FloatArray]:
    """Head and loss of one micro-batch: kept for backward, and beside it at its worst moment.

    The fused loss writes its gradient into the bf16 logits; the unfused one holds fp32 copies.
    At the head's backward the data gradient (gathered, and its shard) is alive.
    """
    model, size = local.model, local.bytes_per_value
    values = model.hidden_size * local.tokens_sharded
    is_fused = local.batch["cross_entropy"] == code("cross_entropy", "fused")
    native = local.batch["cross_entropy_impl"] == code("cross_entropy_impl", "native")
    logits = logits_width(local) * local.tokens
    copies = 4.0 * local.software("logits_fp32_copies")
    # The compiled native loss keeps the fp32 exponentials.
    per_logit = size + np.where(is_fused, np.where(native, 2.0, 0.0), copies)
    kept = 2.0 * size * values + norm_statistics_bytes(model.normalization) * (
        local.tokens_sharded) + per_logit * logits
    gathered = size * model.hidden_size * local.tokens
    beside = gathered + np.where(local.on("sp"), size * values, 0.0)
    return kept, beside


def mtp_saved(local: Local) -> FloatArray:
    """What an MTP layer keeps beside its decoder layer: its norms, projection and own head."""
    values = local.model.hidden_size * local.tokens_sharded * local.bytes_per_value
    return 6.0 * values + head_saved(local)[0]
