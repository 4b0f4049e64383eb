"""How many parameters a model has, and how many of them one rank holds.

Numbers are those of Megatron-Core: what tensor parallelism splits is divided by `tp`; norms, the
router, MLA's down projections, the biases of row-parallel layers and learned positions are held
by every tensor rank; experts are divided by `ep` and `etp`. Degrees are numbers or arrays of
shape (n,), and so are the results, as float64.

References
----------
Megatron-Core 0.19, `megatron/core/transformer/{attention,multi_latent_attention,mlp}.py`,
`transformer/moe/{experts,router,shared_experts}.py`, `ssm/gated_delta_net`,
`transformer/multi_token_prediction.py`; `transformers` 5, `models/*/modeling_*.py` for totals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcore.inputs.model import AttentionKind, LayerKind, MlpKind, ModelSpec, Norm
from simcore.typing import FloatArray, IntArray

Degree = float | IntArray | FloatArray
"""A parallel degree: a number, or one a candidate, shape (n,)."""

VOCAB_MULTIPLE = 128
"""Megatron's default of `--make-vocab-size-divisible-by`."""


class RankParameters(NamedTuple):
    """Parameters that one rank holds, float64, shape of the degrees.

    `expert` are those of the routed experts, which expert parallelism divides and which have
    their own data-parallel group; `dense` is the rest.
    """

    dense: FloatArray
    expert: FloatArray


class Weight(NamedTuple):
    """One matrix of a rank: `outputs` rows and `inputs` columns, shape of the degrees."""

    name: str
    outputs: FloatArray
    inputs: FloatArray
    is_expert: bool


class Parameter(NamedTuple):
    """One parameter of a rank, or several alike.

    Parameters
    ----------
    name : str
        As Megatron-Core calls it within its layer; vectors of a module are one entry.
    shape : tuple of float or ndarray
        Shape of the degrees; one side for all vectors of the entry together.
    is_expert : bool
        Whether expert parallelism divides it.
    copies : float or ndarray
        How many of them the rank holds (local experts).
    has_copies : bool
        Whether it is multiplied in low precision, where the strategy says so.
    """

    name: str
    shape: tuple[Degree, ...]
    is_expert: bool = False
    copies: Degree = 1.0
    has_copies: bool = False

    @property
    def elements(self) -> FloatArray:
        """Values of all of them together."""
        total = _degree(self.copies)
        for side in self.shape:
            total = total * side
        return total

    @property
    def is_matrix(self) -> bool:
        """Whether it has two dimensions."""
        return len(self.shape) == 2


def _degree(value: Degree) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def padded_vocab(model: ModelSpec, tp: Degree) -> FloatArray:
    """Vocabulary after padding to a multiple of 128 times `tp`.

    References
    ----------
    Megatron-LM, `megatron/training/tokenizer/tokenizer.py`, `_vocab_size_with_padding`.
    """
    multiple = VOCAB_MULTIPLE * _degree(tp)
    return np.ceil(model.vocab_size / multiple) * multiple


def _norm(model: ModelSpec, width: int) -> int:
    """Parameters of one norm: a weight, and a bias in a layer norm."""
    has_bias = model.normalization is Norm.LAYERNORM and model.norm_bias
    return width * (2 if has_bias else 1)


def _gates(model: ModelSpec) -> int:
    """Width of the first MLP matrix over the MLP's width: gate and up are one matrix."""
    return 2 if model.gated_mlp else 1


def weight_shapes(model: ModelSpec, kind: LayerKind, *, tp: Degree, ep: Degree,
                  etp: Degree) -> list[Weight]:
    """Matrices of one layer on a rank, as Transformer Engine holds them.

    Query, key and value are one matrix, gate and up another. Routed experts have one entry for
    each of their two matrices (every local expert has its own pair of that shape). The router,
    the shared expert's gate and the convolution of linear attention are no Transformer Engine
    modules and are left out.

    Parameters
    ----------
    model : ModelSpec
    kind : LayerKind
    tp, ep, etp : int or ndarray, shape (n,)

    Returns
    -------
    list of Weight
        Name, output and input width of each matrix.
    """
    tp, etp = _degree(tp), _degree(etp)
    full = np.ones_like(tp * _degree(ep) * etp)
    weights = (_linear_attention_weights(model, tp, full)
               if kind.attention is AttentionKind.LINEAR else _attention_weights(model, tp, full))
    if kind.mlp is MlpKind.DENSE:
        return weights + _mlp_weights(model, "mlp", model.ffn_hidden_size, tp, full)
    moe = model.moe
    if moe is None:
        return weights
    weights += [w._replace(is_expert=True) for w in
                _mlp_weights(model, "experts", moe.ffn_hidden_size, etp, full)]
    if moe.shared_ffn_hidden_size:
        weights += _mlp_weights(model, "shared_experts", moe.shared_ffn_hidden_size, tp, full)
    return weights


def _mlp_weights(model: ModelSpec, name: str, width: int, tp: FloatArray,
                 full: FloatArray) -> list[Weight]:
    h, local = model.hidden_size * full, width / tp * full
    return [Weight(f"{name}.linear_fc1", _gates(model) * local, h, False),
            Weight(f"{name}.linear_fc2", h, local, False)]


def _attention_weights(model: ModelSpec, tp: FloatArray, full: FloatArray) -> list[Weight]:
    h, heads = model.hidden_size * full, model.num_attention_heads / tp * full
    if model.mla is None:
        queries = heads * model.head_dim
        # Fewer key heads than tensor ranks are split all the same (and gathered when used).
        keys = model.num_query_groups * model.head_dim / tp
        gated = 2 if model.attention_output_gate else 1
        return [Weight("linear_qkv", gated * queries + 2 * keys, h, False),
                Weight("linear_proj", h, queries, False)]
    mla = model.mla
    queries = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    q_rank, kv_rank = mla.q_lora_rank * full, mla.kv_lora_rank * full
    weights = [Weight("linear_kv_down_proj", kv_rank + mla.qk_rope_head_dim, h, False),
               Weight("linear_kv_up_proj", heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                      kv_rank, False),
               Weight("linear_proj", h, heads * mla.v_head_dim, False)]
    if not mla.q_lora_rank:
        return [Weight("linear_q_proj", queries, h, False), *weights]
    return [Weight("linear_q_down_proj", q_rank, h, False),
            Weight("linear_q_up_proj", queries, q_rank, False), *weights]


def _linear_attention_weights(model: ModelSpec, tp: FloatArray,
                              full: FloatArray) -> list[Weight]:
    spec = model.linear_attention
    if spec is None:
        return []
    h = model.hidden_size * full
    keys = spec.num_key_heads * spec.key_head_dim / tp
    values = spec.num_value_heads * spec.value_head_dim / tp * full
    # Queries, keys, values and their gate, and two numbers a value head (alpha and beta).
    inputs = 2 * keys + 2 * values + 2 * spec.num_value_heads / tp
    return [Weight("in_proj", inputs, h, False), Weight("out_proj", h, values, False)]


def layer_parameters(model: ModelSpec, kind: LayerKind, *, tp: Degree, ep: Degree,
                     etp: Degree) -> RankParameters:
    """Parameters of one decoder layer on a rank.

    Parameters
    ----------
    model : ModelSpec
    kind : LayerKind
        One of ``model.kinds``.
    tp, ep, etp : int or ndarray, shape (n,)

    Returns
    -------
    RankParameters
        Norms, router and shared expert are in `dense`.
    """
    dense = np.zeros_like(_degree(tp) * _degree(ep) * _degree(etp))
    expert = np.zeros_like(dense)
    for tensor in layer_tensors(model, kind, tp=tp, ep=ep, etp=etp):
        if tensor.is_expert:
            expert = expert + tensor.elements
        else:
            dense = dense + tensor.elements
    return RankParameters(dense, expert)


def layer_tensors(model: ModelSpec, kind: LayerKind, *, tp: Degree, ep: Degree,
                  etp: Degree) -> list[Parameter]:
    """Every parameter of one decoder layer on a rank; `layer_parameters` counts them."""
    tp, ep, etp = _degree(tp), _degree(ep), _degree(etp)
    moe, h = model.moe, model.hidden_size
    experts = moe.num_experts / ep if moe is not None else 1.0
    found = [Parameter(f"{w.name}.weight", (w.outputs, w.inputs), w.is_expert,
                       experts if w.is_expert else 1.0, has_copies=True)
             for w in weight_shapes(model, kind, tp=tp, ep=ep, etp=etp)]
    found += [*_attention_vectors(model, kind, tp),
              Parameter("layernorms", (float(_layer_norms(model)),))]
    if kind.mlp is MlpKind.DENSE:
        if model.mlp_bias:
            found.append(Parameter("mlp.bias", (_mlp_biases(model, model.ffn_hidden_size, tp),)))
    elif moe is not None:
        if moe.expert_bias:
            found.append(Parameter("experts.bias", (
                _mlp_biases(model, moe.ffn_hidden_size, etp),), True, experts))
        found.append(Parameter("router.weight", (float(moe.num_experts), float(h))))
        if moe.router_bias:
            found.append(Parameter("router.bias", (float(moe.num_experts * moe.router_bias),)))
        if moe.shared_expert_gate:
            found.append(Parameter("shared_experts.gate_weight", (1.0, float(h))))
    return found


def _layer_norms(model: ModelSpec) -> int:
    """Norms before (and behind) attention and MLP, the same on every tensor rank."""
    count = (0 if model.no_pre_norms else 2) + (2 if model.post_norms else 0)
    return count * _norm(model, model.hidden_size)


def _mlp_biases(model: ModelSpec, width: int, tp: FloatArray) -> FloatArray:
    # The second bias is added after the reduction, so every tensor rank holds it.
    return _gates(model) * width / tp + model.hidden_size


def _attention_vectors(model: ModelSpec, kind: LayerKind, tp: FloatArray) -> list[Parameter]:
    """Biases, norms inside attention, sinks, and the small tensors of linear attention."""
    if kind.attention is AttentionKind.LINEAR and model.linear_attention is not None:
        spec = model.linear_attention
        keys = spec.num_key_heads * spec.key_head_dim
        values = spec.num_value_heads * spec.value_head_dim
        # The decay and the step's bias are one number a value head each; the norm before the
        # output projection has one weight for all heads.
        return [Parameter("conv1d.weight", ((2 * keys + values) / tp, 1.0,
                                            float(spec.conv_kernel))),
                Parameter("A_log, dt_bias", (2 * spec.num_value_heads / tp,)),
                Parameter("out_norm.weight", (float(spec.value_head_dim),))]
    if model.mla is not None:
        return [Parameter("q_layernorm, kv_layernorm", (float(
            _norm(model, model.mla.q_lora_rank) + _norm(model, model.mla.kv_lora_rank)),))]
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_query_groups * model.head_dim
    gated = 2 if model.attention_output_gate else 1
    found = []
    if model.attention_bias:
        found.append(Parameter("linear_qkv.bias", ((gated * queries + 2 * keys) / tp,)))
    if model.attention_sinks:
        found.append(Parameter("core_attention.softmax_offset",
                               (model.num_attention_heads / tp,)))
    if model.qk_norm_full:
        found.append(Parameter("q_layernorm, k_layernorm",
                               ((_norm(model, queries) + _norm(model, keys)) / tp,)))
    if model.qk_norm:
        found.append(Parameter("q_layernorm, k_layernorm",
                               (2.0 * _norm(model, model.head_dim),)))
    if model.attention_output_bias:
        found.append(Parameter("linear_proj.bias", (float(model.hidden_size),)))
    return found


def embedding_parameters(model: ModelSpec, *, tp: Degree) -> FloatArray:
    """Word embedding (padded vocabulary over `tp`) and learned positions, on a rank."""
    return sum((t.elements for t in embedding_tensors(model, tp=tp)), np.zeros_like(_degree(tp)))


def embedding_tensors(model: ModelSpec, *, tp: Degree) -> list[Parameter]:
    """Every parameter of the embedding on a rank."""
    tp, h = _degree(tp), float(model.hidden_size)
    found = [Parameter("word_embeddings.weight", (padded_vocab(model, tp) / tp, h))]
    if model.learned_positions:
        found.append(Parameter("position_embeddings.weight",
                               (float(model.max_position_embeddings), h)))
    return found


def head_parameters(model: ModelSpec, *, tp: Degree) -> FloatArray:
    """Output projection on a rank.

    The same where it is tied to the embedding: with more than one pipeline stage Megatron holds
    a copy of it on the last one. On a single stage the caller leaves it out.
    """
    tp = _degree(tp)
    return padded_vocab(model, tp) / tp * model.hidden_size


def final_norm_parameters(model: ModelSpec) -> float:
    """Norm behind the last decoder layer; on every tensor rank."""
    return float(_norm(model, model.hidden_size)) if model.final_norm else 0.0


def mtp_parameters(model: ModelSpec, *, tp: Degree, ep: Degree, etp: Degree) -> RankParameters:
    """One multi-token-prediction layer on a rank.

    Two norms, a projection of 2h to h that is column-parallel, a decoder layer of the model's
    last kind, and a norm. The copy of the word embedding that its pipeline rank holds besides
    (where that rank is not the first) is `embedding_parameters`.

    References
    ----------
    DeepSeek-V3 technical report, arXiv 2412.19437, section 2.2; Megatron-Core,
    `multi_token_prediction.py`, `MultiTokenPredictionLayer`.
    """
    layer = layer_parameters(model, model.layer_kinds[-1], tp=tp, ep=ep, etp=etp)
    own = sum((tensor.elements for tensor in mtp_tensors(model, tp=tp)), np.zeros(()))
    return layer._replace(dense=layer.dense + own)


def mtp_tensors(model: ModelSpec, *, tp: Degree) -> list[Parameter]:
    """What a multi-token-prediction layer holds beside its decoder layer."""
    h = float(model.hidden_size)
    return [Parameter("eh_proj.weight", (h / _degree(tp), 2.0 * h)),
            Parameter("enorm, hnorm, final_layernorm", (3.0 * _norm(model, model.hidden_size),))]


def total_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model, as `transformers` counts them.

    The vocabulary is not padded, tied weights count once, and multi-token prediction is left out.
    """
    return _count(model, active=False)


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token meets: of the routed experts, only the top k."""
    return _count(model, active=True)


def _count(model: ModelSpec, *, active: bool) -> int:
    words = model.vocab_size * model.hidden_size
    total = words * (1 if model.tied_embeddings else 2) + int(final_norm_parameters(model))
    if model.learned_positions:
        total += model.max_position_embeddings * model.hidden_size
    for i, kind in enumerate(model.kinds):
        layer = layer_parameters(model, kind, tp=1, ep=1, etp=1)
        expert = int(layer.expert)
        if active and model.moe is not None:
            expert = expert // model.moe.num_experts * model.moe.topk
        total += model.layers.count(i) * (int(layer.dense) + expert)
    return total
