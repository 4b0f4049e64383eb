"""A model as Megatron-LM's arguments.

References
----------
Megatron-LM core 0.19.2, ``megatron/training/arguments.py``; patterns over layers:
``get_gpt_layer_specs`` and ``is_layer_window_attention``.
"""

from __future__ import annotations

from autotune.formats.exported import Exported
from autotune.formats.megatron_flags import MODEL_FLAGS
from simcore.inputs.model import Activation, AttentionKind, MlpKind, ModelSpec, Norm

_NORMS = {Norm.RMSNORM: "RMSNorm", Norm.LAYERNORM: "LayerNorm"}
_REFUSED = ("post_norms", "no_pre_norms", "qk_norm_full", "parallel_residual")


def add_model(out: Exported, model: ModelSpec, seq_len: int) -> None:
    """Add a model's arguments; what they cannot express is refused there by name."""
    for name in _REFUSED:
        if getattr(model, name):
            out.refuse("model", f"{name} has no argument in Megatron-LM",
                       "leave out --with-model and give the model by a specification")
    if model.moe and model.moe.expert_bias != model.mlp_bias:
        out.refuse("model", "biases of experts alone have no argument in Megatron-LM",
                   "leave out --with-model and give the model by a specification")
    data = model.model_dump()
    data["max_position_embeddings"] = max(model.max_position_embeddings, seq_len)
    data["normalization"] = _NORMS[model.normalization]
    data["tied_embeddings"] = not model.tied_embeddings
    for flag in MODEL_FLAGS:
        group, _, key = flag.field.rpartition(".")
        holder = data.get(group) if group else data
        value = None if holder is None else holder[key]
        if value is None or (key == "q_lora_rank" and not value):
            continue
        if key == "shared_ffn_hidden_size" and not value:
            continue
        if flag.action == "store":
            out.add(f"Model: {flag.field}", flag.option, value)
        elif value:
            out.add(f"Model: {flag.field}", flag.option)
    _rest(out, model)


def _rest(out: Exported, model: ModelSpec) -> None:
    if model.num_query_groups != model.num_attention_heads and model.mla is None:
        out.add("Model: keys and values are shared by groups of heads",
                "--group-query-attention")
    if model.mla is not None:
        out.add("Model: latent attention", "--multi-latent-attention")
        if not model.qk_norm:
            out.add("Model: norms behind the latent projections", "--qk-layernorm")
    biases = (model.attention_bias, model.attention_output_bias, model.mlp_bias)
    if not all(biases):
        out.add("Model: products have no bias", "--disable-bias-linear")
        if model.attention_bias:
            out.add("Model: but queries, keys and values have", "--add-qkv-bias")
        if model.attention_output_bias or model.mlp_bias:
            out.refuse("model", "biases of the attention's output or the MLP alone have no "
                       "argument in Megatron-LM", "leave out --with-model")
    if model.activation is Activation.SQUARED_RELU:
        out.add("Model: activation", "--squared-relu")
    elif model.gated_mlp != (model.activation is Activation.SILU) or (
            model.activation is Activation.RELU):
        out.refuse("model", f"activation {model.activation} "
                   f"{'with' if model.gated_mlp else 'without'} a gate has no argument in "
                   "Megatron-LM", "leave out --with-model")
    kind = ("rope" if model.rotary else
            "learned_absolute" if model.learned_positions else "none")
    out.add("Model: positions", "--position-embedding-type", kind)
    if model.attention_sinks:
        out.add("Model: a trained number a head in the softmax", "--softmax-type", "learnable")
    kinds = [layer.attention for layer in model.layer_kinds]
    if model.sliding_window:
        out.add("Model: sliding window", "--window-size", f"{model.sliding_window - 1},0",
                "--window-attn-skip-freq", _pattern([k is AttentionKind.SLIDING for k in kinds]))
    if model.linear_attention is not None:
        out.add("Model: linear attention", "--experimental-attention-variant",
                "gated_delta_net", "--linear-attention-freq",
                _pattern([k is AttentionKind.LINEAR for k in kinds]))
    if model.moe is not None:
        out.add("Model: which layers hold experts", "--moe-layer-freq",
                _pattern([layer.mlp is MlpKind.MOE for layer in model.layer_kinds]))


def _pattern(flags: list[bool]) -> str:
    """Write a list of zeros and ones, repeats in short: ``([0]*3+[1]*58)``."""
    runs: list[list[int]] = []
    for flag in flags:
        if runs and runs[-1][0] == int(flag):
            runs[-1][1] += 1
        else:
            runs.append([int(flag), 1])
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"
