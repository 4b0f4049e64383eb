"""Model FLOP: what a step has to compute, by Megatron's formula.

Source: `num_floating_point_operations` in Megatron-LM's ``megatron/training/training.py``
(causal attention at half of the square; recomputation, router and embedding look-up do not
count).
"""

from __future__ import annotations

import numpy as np

from simcore.inputs.model import AttentionKind, LayerKind, MlpKind, ModelSpec
from simcore.parameters import padded_vocab
from simcore.typing import Num

BACKWARD_AND_FORWARD = 3.0
"""Backward computes two products for each of the forward's one."""


def attention_projection_weights(model: ModelSpec, kind: LayerKind) -> float:
    """Multiplied weights of a layer's attention projections."""
    h = float(model.hidden_size)
    if kind.attention is AttentionKind.LINEAR and model.linear_attention is not None:
        lin = model.linear_attention
        key = lin.num_key_heads * lin.key_head_dim
        value = lin.num_value_heads * lin.value_head_dim
        return h * (2 * key + 2 * value + 2 * lin.num_value_heads) + value * h
    heads = float(model.num_attention_heads)
    if model.mla is not None:
        mla = model.mla
        qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        query = (mla.q_lora_rank * (h + heads * qk) if mla.q_lora_rank else h * heads * qk)
        key_value = h * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank * heads * (
            mla.qk_nope_head_dim + mla.v_head_dim)
        return query + key_value + heads * mla.v_head_dim * h
    query_width = heads * model.head_dim
    gate = query_width if model.attention_output_gate else 0.0
    return h * (2 * query_width + gate + 2 * model.num_query_groups * model.head_dim)


def mlp_weights(model: ModelSpec, kind: LayerKind) -> float:
    """Multiplied weights of a layer's MLP; routed experts count top-k times."""
    matrices = 3.0 if model.gated_mlp else 2.0
    if kind.mlp is MlpKind.MOE and model.moe is not None:
        width = model.moe.topk * model.moe.ffn_hidden_size + model.moe.shared_ffn_hidden_size
        return matrices * model.hidden_size * width
    return matrices * model.hidden_size * model.ffn_hidden_size


def core_attention_flops_per_token(model: ModelSpec, kind: LayerKind, seq_len: Num) -> Num:
    """Forward FLOP a token of the scores and their product with the values, causal half.

    A sliding window of w tokens sees w - w^2/(2 s) of them on average.
    """
    seq = np.asarray(seq_len, dtype=np.float64)
    if kind.attention is AttentionKind.LINEAR and model.linear_attention is not None:
        lin = model.linear_attention
        # The state of each value head is updated and read once a token.
        return 4.0 * lin.num_value_heads * lin.key_head_dim * lin.value_head_dim + 0.0 * seq
    seen = seq / 2.0
    if kind.attention is AttentionKind.SLIDING:
        window = np.minimum(seq, float(model.sliding_window))
        seen = window - window * window / (2.0 * seq)
    if model.mla is not None:
        mla = model.mla
        width = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
        return 2.0 * model.num_attention_heads * width * seen
    return 4.0 * model.num_attention_heads * model.head_dim * seen


def model_flops_per_token(model: ModelSpec, seq_len: Num, *, mtp: Num = 0, tp: Num = 1) -> Num:
    """Model FLOP of forward and backward, a token.

    Parameters
    ----------
    model : ModelSpec
    seq_len : float or ndarray, shape (n,)
        [tokens]
    mtp : float or ndarray, shape (n,)
        Multi-token-prediction layers; each adds a layer, a projection of 2h x h and the head.
    tp : float or ndarray, shape (n,)
        Decides the padding of the vocabulary.

    Returns
    -------
    float or ndarray, shape (n,)
        [FLOP/token]
    """
    forward: Num = 0.0
    for index, kind in enumerate(model.kinds):
        count = float(model.layers.count(index))
        forward = forward + count * layer_forward_flops_per_token(model, kind, seq_len)
    head = 2.0 * model.hidden_size * padded_vocab(model, np.asarray(tp))
    extra = (layer_forward_flops_per_token(model, model.layer_kinds[-1], seq_len)
             + 4.0 * model.hidden_size**2 + head)
    return BACKWARD_AND_FORWARD * (forward + head + np.asarray(mtp) * extra)


def layer_forward_flops_per_token(model: ModelSpec, kind: LayerKind, seq_len: Num) -> Num:
    """Forward FLOP a token of one layer."""
    weights = attention_projection_weights(model, kind) + mlp_weights(model, kind)
    return 2.0 * weights + core_attention_flops_per_token(model, kind, seq_len)
