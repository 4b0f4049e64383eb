"""Tensors that a layer keeps for backward, and what lives beside them.

Each is a record with its shape, so that what is summed can be listed. The inventory follows
Transformer Engine's modules and Megatron-Core's checkpoints; every term names its tensor. T is
the tokens of a context-parallel rank, Ts the shard of it under sequence parallelism.

References
----------
Megatron-LM core_r0.14, ``megatron/core/transformer/``; Transformer Engine 2.11,
``transformer_engine/pytorch/module/``; Korthikanti et al. 2022 (arXiv 2205.05198), section 4,
for the layout without fused kernels.
"""

from __future__ import annotations

import numpy as np

from simcore.inputs.fields import code
from simcore.inputs.framework import MemoryStyle
from simcore.inputs.model import AttentionKind, LayerKind, MlpKind, Norm
from simcore.local import Local
from simcore.operators.attention import key_value_width, norm_statistics_bytes, query_width
from simcore.operators.mlp import gate_factor
from simcore.tensors import Saved, Tensor, Tensors
from simcore.typing import BoolArray, FloatArray, Num

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


TE = "Transformer Engine, pytorch/module/"
MCORE = "Megatron-Core, transformer/"
KORTHIKANTI = "Korthikanti et al., arXiv 2205.05198, section 4.1"


Parts = dict[str, Tensors]
"""Tensors by the module whose recomputation frees them."""


def attention_parts(local: Local, kind: LayerKind) -> Parts:
    """Saved tensors of the attention half, by the module whose recomputation frees them."""
    model = local.model
    parts = norm_parts(local, "input_layernorm", norms=0 if model.no_pre_norms else 1)
    if kind.attention is AttentionKind.LINEAR:
        return parts | _linear_parts(local)
    inputs, output_width, head_width = (
        _latent_inputs(local) if model.mla is not None else _grouped_inputs(local))
    size, tokens = local.bytes_per_value, local.tokens
    heads_here = model.num_attention_heads / local.tp
    scores = (local.real("mbs"), heads_here, local.real("seq_len"),
              local.real("seq_len") / local.real("cp"))
    is_flash = local.batch["attention"] == code("attention", "flash")
    # Dropout keeps a mask and its own output, where the softmax is not fused with it.
    dropped = np.where(local.is_dropped | (local.software("attention_dropout") > 0),
                       1.0 + size, 0.0)
    parts["core_attn"] = (
        Tensor("core_attention.log_sum_exp", (tokens, heads_here), np.where(is_flash, 4.0, 0.0),
               "FlashAttention-2, arXiv 2307.08691, section 3.1"),
        Tensor("core_attention.softmax", scores, np.where(is_flash, 0.0, size),
               KORTHIKANTI),
        Tensor("core_attention.dropout mask and output", scores,
               np.where(is_flash, 0.0, dropped), KORTHIKANTI))
    is_a2a = (local.real("cp") > 1) & (local.batch["cp_comm"] >= code("cp_comm", "a2a"))
    output = (tokens, output_width)
    parts |= inputs
    parts["attn"] += (
        Tensor("core_attention.output", output, size, TE + "linear.py"),
        Tensor("core_attention.output, batch first", output,
               np.where(is_flash & _is_batch_first(local), size, 0.0),
               "Transformer Engine, dot_product_attention/backends.py"),
        Tensor("linear_proj.input", output, np.where(local.is_fp8, local.gemm_input_bytes, 0.0),
               TE + "linear.py: its own quantised input"),
        Tensor("core_attention.output before all-to-all", output, np.where(is_a2a, size, 0.0),
               "Transformer Engine, dot_product_attention/context_parallel.py"))
    is_gather = (local.real("cp") > 1) & (
        local.batch["cp_comm"] == code("cp_comm", "all_gather"))
    parts["cp_gathered"] = (Tensor(
        "core_attention.gathered_key_value", (tokens, head_width - output_width),
        np.where(is_gather, size, 0.0),
        "Transformer Engine, dot_product_attention/context_parallel.py"),)
    if model.post_norms:
        parts["post_norms"] = _post_norm(local, "post_self_attn_layernorm")
    return parts


def _latent_inputs(local: Local) -> tuple[Parts, Num, Num]:
    """Saves of multi-latent attention's projections; output width, width of q, k and v."""
    mla, size, shard = local.model.mla, local.bytes_per_value, local.tokens_sharded
    if mla is None:
        return {}, 0.0, 0.0
    source = MCORE + "multi_latent_attention.py"
    heads = local.model.num_attention_heads / local.tp
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    latent = mla.q_lora_rank + mla.kv_lora_rank
    statistics = norm_statistics_bytes(local.model.normalization)
    parts: Parts = {
        # Compressed queries and keys before and after their norms; the keys' rotary part.
        "attn": (
            Tensor("q_kv_down_proj.output", (shard, latent), size, source),
            Tensor("q_kv_layernorm.output", (shard, latent), local.gemm_input_bytes, source),
            Tensor("kv_down_proj.rotary_key", (shard, mla.qk_rope_head_dim), size, source),
            Tensor("q_kv_layernorm.statistics", (shard, 2.0 if mla.q_lora_rank else 1.0),
                   statistics, source)),
        "mla_up_proj": (
            Tensor("core_attention.query", (local.tokens, heads, qk), size, source),
            Tensor("core_attention.key", (local.tokens, heads, qk), size, source),
            Tensor("core_attention.value", (local.tokens, heads, mla.v_head_dim), size, source)),
    }
    return parts, heads * mla.v_head_dim, heads * (2 * qk + mla.v_head_dim)


def _grouped_inputs(local: Local) -> tuple[Parts, Num, Num]:
    """Saves of grouped-query attention's projections; output width, width of q, k and v."""
    model, size, tokens = local.model, local.bytes_per_value, local.tokens
    query, key_value = query_width(local) / local.tp, key_value_width(local)
    source = MCORE + "attention.py"
    tensors = [Tensor("core_attention.query", (tokens, query), size, source),
               Tensor("core_attention.key", (tokens, key_value), size, source),
               Tensor("core_attention.value", (tokens, key_value), size, source)]
    if model.qk_norm or model.qk_norm_full:
        # Their norms' inputs and statistics, which are one a head or one a token.
        each = 2.0 if model.qk_norm_full else (query + key_value) / model.head_dim
        tensors += [
            Tensor("q_k_layernorm.input", (tokens, query + key_value), size, source),
            Tensor("q_k_layernorm.statistics", (tokens, each),
                   norm_statistics_bytes(model.normalization), source)]
    if model.attention_output_gate:
        tensors.append(Tensor("output_gate.input_and_output", (tokens, 2.0, query), size, source))
    return {"attn": tuple(tensors)}, query, query + 2 * key_value


def _post_norm(local: Local, name: str) -> Tensors:
    shard, model = local.tokens_sharded, local.model
    return (Tensor(f"{name}.input", (shard, float(model.hidden_size)), local.bytes_per_value,
                   TE + "layernorm.py"),
            Tensor(f"{name}.statistics", (shard,), norm_statistics_bytes(model.normalization),
                   TE + "layernorm.py"))


def _is_batch_first(local: Local) -> BoolArray:
    """Where attention keeps its output in FlashAttention's own layout, batch first.

    The projection's input is then a copy of it, but for a single sequence, which is the same in
    both layouts. Transformer Engine prefers cuDNN's kernel, which takes the sequence first, from
    Hopper on (``dot_product_attention/utils.py``, `get_attention_backend`).
    """
    ampere = local.system.accelerator.architecture == "ampere"
    own: BoolArray = ampere & (local.real("mbs") > 1) & ~local.style_is(MemoryStyle.FSDP.value)
    return own


def dropout_mask(local: Local, name: str) -> Tensor:
    """Mask of a dropout of the hidden states, a byte a value."""
    return Tensor(f"{name}.dropout_mask", (local.tokens_sharded, float(local.model.hidden_size)),
                  np.where(local.is_dropped, 1.0, 0.0), KORTHIKANTI)


def norm_parts(local: Local, name: str, *, norms: int) -> Parts:
    """Input (the residual stream), output (the product's input) and statistics of norms."""
    model, size = local.model, local.bytes_per_value
    hidden = (local.tokens_sharded, float(model.hidden_size))
    source = TE + "layernorm_linear.py"
    parts: Parts = {
        "residual": (Tensor(f"{name}.input", hidden, size, source), dropout_mask(local, name)),
        "layernorm": (), "norm_statistics": (),
    }
    if not norms:
        return parts
    # PyTorch's own layer norm is one kernel, which keeps statistics.
    eager = np.where(local.software("norm_keeps_fp32") > 0, 0.5 * KEPT_FP32_NORM_BYTES,
                     UNFUSED_NORM_BYTES if model.normalization is Norm.RMSNORM else 0.0)
    return parts | {
        "layernorm": (Tensor(f"{name}.output", hidden, local.gemm_input_bytes, source),),
        "norm_statistics": (
            Tensor(f"{name}.statistics", (local.tokens_sharded,),
                   norm_statistics_bytes(model.normalization), source),
            Tensor(f"{name}.fp32_intermediates", hidden,
                   np.where(local.on("fused_norm"), 0.0, eager),
                   "eager PyTorch norm: fp32 input and normalised value")),
    }


def _linear_parts(local: Local) -> Parts:
    lin = local.model.linear_attention
    if lin is None:
        return {}
    key = lin.num_key_heads * lin.key_head_dim / local.tp
    value = lin.num_value_heads * lin.value_head_dim / local.tp
    size, tokens = local.bytes_per_value, local.tokens
    source = "Megatron-Core, ssm/gated_delta_net"
    return {
        "attn": (
            Tensor("conv1d.input", (tokens, 2 * key + value), size, source),
            Tensor("conv1d.output", (tokens, 2 * key + value), size, source),
            Tensor("gate", (tokens, value), size, source),
            Tensor("delta_rule.output", (tokens, value), size, source),
            Tensor("out_norm.output", (tokens, value), size, source)),
        # A state for each chunk of 64 tokens.
        "core_attn": (Tensor("delta_rule.chunk_states", (
            tokens / 64.0, lin.num_value_heads / local.tp, float(lin.key_head_dim),
            float(lin.value_head_dim)), size, source),),
    }


def mlp_parts(local: Local, kind: LayerKind) -> Parts:
    """Saved tensors of the MLP half, by the module whose recomputation frees them."""
    model = local.model
    parts = norm_parts(local, "pre_mlp_layernorm", norms=0 if model.no_pre_norms else 1)
    if kind.mlp is MlpKind.DENSE:
        parts["mlp"] = _dense_tensors(local, "mlp", model.ffn_hidden_size / local.tp)
    else:
        parts |= _moe_parts(local)
    if model.post_norms:
        parts["post_norms"] = _post_norm(local, "post_mlp_layernorm")
    return parts


def _dense_tensors(local: Local, name: str, width: FloatArray) -> Tensors:
    """FC1's output, FC2's input, and the activation's own output where it is not fused."""
    size, gate = local.bytes_per_value, gate_factor(local.model)
    unfused = np.where(local.on("fused_swiglu") | (gate < 2), 0.0, size)
    rows, source = local.tokens, MCORE + "mlp.py"
    return (Tensor(f"{name}.linear_fc1.output", (rows, gate * width), size, source),
            Tensor(f"{name}.linear_fc2.input", (rows, width), local.gemm_input_bytes, source),
            Tensor(f"{name}.activation.output", (rows, width), unfused, source))


def _moe_parts(local: Local) -> Parts:
    model, moe = local.model, local.model.moe
    if moe is None:
        return {}
    size, gate = local.bytes_per_value, gate_factor(model)
    rows, width = local.routed_rows, moe.ffn_hidden_size / local.real("etp")
    shard = local.tokens_sharded
    unfused = np.where(local.on("fused_swiglu") | (gate < 2), 0.0, size)
    fused_map = np.where(local.on("permute_fusion"), 4.0 * (2 * moe.num_experts + 1),
                         8.0 * moe.topk + moe.num_experts)
    in_dispatch = local.software("probabilities_in_dispatch") > 0
    parts: Parts = {
        "router": (Tensor("router.scores_and_map", (shard, float(moe.num_experts)), ROUTER_BYTES,
                          MCORE + "moe/router.py"),),
        "permute": (
            Tensor("token_dispatcher.row_map", (shard,), fused_map,
                   MCORE + "moe/moe_utils.py"),
            Tensor("token_dispatcher.probabilities", (rows,), np.where(in_dispatch, 4.0, 0.0),
                   MCORE + "moe/token_dispatcher.py")),
        "experts": (
            Tensor("experts.linear_fc1.input", (rows, float(model.hidden_size)),
                   local.gemm_input_bytes, TE + "grouped_linear.py"),
            Tensor("experts.linear_fc1.output", (rows, gate * width), size,
                   MCORE + "moe/experts.py"),
            Tensor("experts.activation.output", (rows, width), unfused,
                   MCORE + "moe/experts.py")),
        "moe_act": (Tensor("experts.linear_fc2.input", (rows, width), local.gemm_input_bytes,
                           TE + "grouped_linear.py"),),
        # Probabilities that multiply after the combine need its rows for their gradient.
        "unpermute": (Tensor("token_dispatcher.returned_rows",
                             (local.dispatched_rows, float(model.hidden_size)),
                             np.where(in_dispatch, 0.0, size), MCORE + "moe/moe_utils.py"),),
        "shared_experts": (),
    }
    if moe.shared_ffn_hidden_size:
        # Overlapped, its first product takes tokens that were gathered before it, and keeps
        # them (`pre_forward_comm`); else it shares the router's input.
        gathers = local.on("shared_expert_overlap") & local.on("sp")
        parts["shared_experts"] = (
            *_dense_tensors(local, "shared_experts", moe.shared_ffn_hidden_size / local.tp),
            Tensor("shared_experts.gathered_input", (local.tokens, float(model.hidden_size)),
                   np.where(gathers, local.gemm_input_bytes, 0.0),
                   MCORE + "moe/shared_experts.py"))
    return parts


FREED_BY = {
    "core_attn": ("core_attn",),
    "mlp": ("mlp",),
    "layernorm": ("layernorm", "norm_statistics"),
    "moe": ("router", "permute", "experts", "moe_act", "unpermute", "shared_experts"),
    "moe_act": ("moe_act",),
    "mla_up_proj": ("mla_up_proj",),
    "shared_experts": ("shared_experts",),
}
"""Saved parts that a recompute module frees (``--recompute-modules``)."""
SELECTIVE_OP_PARTS = ("mlp", "layernorm", "experts", "moe_act", "shared_experts")
"""Parts of which torchtitan's selective_op keeps every second product."""


def layer_saved(local: Local, kind: LayerKind) -> Saved:
    """What one layer of a kind keeps."""
    halves = (attention_parts(local, kind), mlp_parts(local, kind))
    zero = np.zeros(len(local.batch))
    freed: dict[str, FloatArray] = {}
    for module, names in FREED_BY.items():
        runs = local.recomputes(module)
        for part in names:
            freed[part] = np.maximum(freed.get(part, zero), runs)
    halved = SELECTIVE_OP_SHARE * local.recomputes("selective_op")
    kept: list[Tensor] = []
    for half in halves:
        for part, tensors in half.items():
            share = 1.0 - freed.get(part, zero)
            if part in SELECTIVE_OP_PARTS:
                share = share - halved
            kept += [tensor.times(share) for tensor in tensors]
    if local.model.mla is not None:
        # The checkpoint keeps its inputs; of these the rotary keys have just been gathered.
        kept.append(Tensor(
            "kv_down_proj.rotary_key, gathered",
            (local.tokens, float(local.model.mla.qk_rope_head_dim)),
            local.bytes_per_value, MCORE + "multi_latent_attention.py",
            np.where(local.recomputes("mla_up_proj") & local.on("sp"), 1.0, 0.0)))
    backward, forward = _beside(local, kind)
    return Saved(
        size=len(local.batch), kept_tensors=tuple(kept), input_tensors=(boundary(local),),
        full_tensors=tuple(t for half in halves for tensors in half.values() for t in tensors),
        backward_tensors=backward + _rebuilt_in_backward(kind, halves, freed, zero),
        forward_tensors=forward)


def boundary(local: Local, name: str = "checkpoint.input") -> Tensor:
    """Hidden states of a micro-batch between two layers."""
    return Tensor(name, (local.tokens_sharded, float(local.model.hidden_size)),
                  local.bytes_per_value, MCORE + "transformer_block.py")


def _rebuilt_in_backward(kind: LayerKind, halves: tuple[Parts, Parts],
                         freed: dict[str, FloatArray], zero: FloatArray) -> Tensors:
    """Recomputed tensors that are alive again at the layer's worst moment of backward.

    The activation's backward needs its input (recomputed with `mlp`, `moe`); FC2's input has
    been used and freed by then, so where it is not saved in the first place, nothing is freed.
    """
    names = ("mlp",) if kind.mlp is MlpKind.DENSE else ("experts", "moe_act")
    return tuple(tensor.times(freed.get(name, zero)) for name in names
                 for tensor in halves[1].get(name, ()))


def _beside(local: Local, kind: LayerKind) -> tuple[Tensors, Tensors]:
    """Temporaries beside the saves at the worst moment of backward and of forward.

    Dense: the activation's backward, when FC2's input is freed and the gradients of its output
    and input and the layer's received gradient are alive. MoE: the same with rows in place of
    tokens; forward's worst moment is the un-permute, with permuted, dispatched, unsorted and
    returned rows at once.
    """
    model, size, moe = local.model, local.bytes_per_value, local.model.moe
    h, gate = float(model.hidden_size), gate_factor(model)
    received = boundary(local, "layer.output_gradient")
    if kind.mlp is MlpKind.DENSE:
        backward = _activation_backward(local, "mlp", local.tokens,
                                        model.ffn_hidden_size / local.tp, gate)
        forward = (boundary(local, "layer.output"),
                   Tensor("linear_fc2.output before reduction", (local.tokens, h), size,
                          "Megatron-Core, tensor_parallel/layers.py"))
        return (*backward, received), forward
    if moe is None:
        return (received,), (received,)
    rows, width = local.routed_rows, moe.ffn_hidden_size / local.real("etp")
    source = MCORE + "moe/token_dispatcher.py"
    backward = (*_activation_backward(local, "experts", rows, width, gate),
                Tensor("experts.output_gradient", (rows, h), size, source), received)
    # DeepEP and HybridEP exchange tokens through buffers of their own and un-permute in place.
    fused = local.batch["dispatcher"] >= code("dispatcher", "deepep")
    copies = np.where(fused, 2.0, 4.0)
    return backward, (
        Tensor("token_dispatcher.rows (permuted, dispatched, unsorted, returned)", (rows, h),
               size, source, copies),
        boundary(local, "layer.input_and_output").times(2.0))


def _activation_backward(local: Local, name: str, rows: FloatArray, width: FloatArray,
                         gate: float) -> Tensors:
    size, source = local.bytes_per_value, MCORE + "mlp.py, backward of the activation"
    return (Tensor(f"{name}.linear_fc2.input_gradient", (rows, width), size, source),
            Tensor(f"{name}.linear_fc1.output_gradient", (rows, gate * width), size, source),
            Tensor(f"{name}.linear_fc2.input", (rows, width), local.gemm_input_bytes, source,
                   -1.0))
