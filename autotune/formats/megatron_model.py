"""Megatron's arguments as a model.

References
----------
Megatron-LM core 0.19.2: ``validate_args`` for what missing arguments become,
``get_gpt_layer_specs`` and ``is_layer_window_attention`` for patterns over layers.
"""

from __future__ import annotations

from autotune.formats.imported import Arguments, Data, pattern_of

_REFUSED = {
    "is_hybrid_model": "hybrid Mamba models are not modelled",
    "hybrid_layer_pattern": "hybrid Mamba models are not modelled",
    "hybrid_override_pattern": "hybrid Mamba models are not modelled",
    "heterogeneous_layers_config_path": "layers of different widths are not modelled",
    "heterogeneous_layers_config_encoded_json": "layers of different widths are not modelled",
    "moe_latent_size": "experts behind a latent projection are not modelled",
    "qk_l2_norm": "an L2 norm of queries and keys is not modelled",
    "moe_use_upcycling": "it converts a dense checkpoint first",
}
_DEFAULT_SWIGLU_UNIT = 64


def model_of(a: Arguments, *, name: str, vocab_size: int | None) -> Data:
    """Build a model from Megatron's arguments.

    Parameters
    ----------
    a : Arguments
        By Megatron's attribute names; what is wrong is noted there.
    name : str
        Name of the model.
    vocab_size : int or None
        Where the arguments do not say.

    Returns
    -------
    dict
        Keys of `ModelSpec` that are not at their defaults.
    """
    for key, reason in _REFUSED.items():
        if a.raw(key) not in (None, False, "", "False"):
            a.fail(key, f"is refused: {reason}")
    layers = _needed(a, "num_layers", a.number("encoder_num_layers")
                     or a.number("decoder_num_layers"))
    hidden = _needed(a, "hidden_size")
    heads = _needed(a, "num_attention_heads")
    gated = a.flag("swiglu") or a.flag("quick_geglu")
    width = 4 * hidden
    if a.flag("swiglu"):
        # validate_args: two thirds of 4h, in units of 64.
        width = int((4 * hidden * 2 / 3) / _DEFAULT_SWIGLU_UNIT) * _DEFAULT_SWIGLU_UNIT
    seq_len = a.number("seq_length") or a.number("encoder_seq_length") or 0
    if not seq_len:
        a.fail("seq_length", "is needed")
        seq_len = 1
    model: Data = {
        "name": name, "family": "custom", "source": "Megatron-LM arguments",
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_query_groups": _groups(a, heads),
        "head_dim": a.number("kv_channels") or max(1, hidden // max(1, heads)),
        "ffn_hidden_size": a.number("ffn_hidden_size") or width, "gated_mlp": gated,
        "activation": _activation(a), "vocab_size": _vocab(a, vocab_size), "seq_len": seq_len,
        "max_position_embeddings": a.number("max_position_embeddings") or seq_len,
        "normalization": a.text("normalization", "LayerNorm").lower(),
        "tied_embeddings": not a.flag("untie_embeddings_and_output_weights"),
        "mtp_num_layers": a.number("mtp_num_layers") or 0,
    }
    if model["normalization"] not in ("layernorm", "rmsnorm"):
        a.fail("normalization", f"'{str(model['normalization'])[:40]}' is not modelled",
               "use LayerNorm or RMSNorm")
    bias = a.flag("add_bias_linear", default=True)
    model.update(attention_bias=bias or a.flag("add_qkv_bias"), attention_output_bias=bias,
                 mlp_bias=bias)
    model.update(_positions(a), **_attention(a, layers), **_mla(a), **_moe(a, model, bias))
    if a.flag("attention_output_gate"):
        model["attention_output_gate"] = True
    return model


def _needed(a: Arguments, name: str, other: int | None = None) -> int:
    value = a.number(name) or other
    if value is None or value < 1:
        a.fail(name, "is needed")
        return 1
    return value


def _groups(a: Arguments, heads: int) -> int:
    groups = a.number("num_query_groups")
    return groups if groups and a.flag("group_query_attention") else heads


def _activation(a: Arguments) -> str:
    if a.flag("squared_relu"):
        return "squared_relu"
    return "silu" if a.flag("swiglu") else "gelu"


def _vocab(a: Arguments, given: int | None) -> int:
    a.raw("make_vocab_size_divisible_by")
    value = a.number("vocab_size") or given or a.number("padded_vocab_size")
    if value is None:
        known = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
        value = known.get(a.text("tokenizer_type"))
    if value is None:
        a.fail("vocab_size", "is needed: the file leaves it to the tokenizer",
               "add --vocab-size, or use 'autotune import FILE --vocab-size N'")
        return 1
    return value


def _positions(a: Arguments) -> Data:
    kind = a.text("position_embedding_type", "learned_absolute")
    if kind not in ("learned_absolute", "rope", "yarn", "none", "mrope"):
        a.fail("position_embedding_type", f"'{kind[:40]}' is not modelled",
               "use rope, yarn, learned_absolute or none")
    learned = kind == "learned_absolute" and a.flag("add_position_embedding", default=True)
    return {"learned_positions": learned, "rotary": kind in ("rope", "yarn", "mrope")}


def _attention(a: Arguments, layers: int) -> Data:
    """Which layers slide or are linear, and what stands around attention."""
    found: Data = {}
    if a.text("softmax_type", "vanilla") == "learnable":
        found["attention_sinks"] = True
    elif a.text("softmax_type", "vanilla") != "vanilla":
        a.fail("softmax_type", "is not modelled", "use vanilla or learnable")
    if a.flag("qk_layernorm") and not a.flag("multi_latent_attention"):
        found["qk_norm"] = True
    kinds = ["full"] * layers
    if a.raw("window_size") is not None:
        window = a.text("window_size").strip("()[] ").replace(",", " ").split()
        if not window or not window[0].isdigit():
            a.fail("window_size", "must be two numbers, such as 128,0")
        else:
            found["sliding_window"] = int(window[0]) + 1
            kinds = _pattern(a, "window_attn_skip_freq", layers, "sliding")
    variant = a.text("experimental_attention_variant", "None")
    if variant == "gated_delta_net" or a.raw("linear_attention_freq") is not None:
        kinds = _pattern(a, "linear_attention_freq", layers, "linear")
        found["linear_attention"] = {
            "num_key_heads": a.number("linear_num_key_heads", 16),
            "num_value_heads": a.number("linear_num_value_heads", 32),
            "key_head_dim": a.number("linear_key_head_dim", 128),
            "value_head_dim": a.number("linear_value_head_dim", 128),
            "conv_kernel": a.number("linear_conv_kernel_dim", 4)}
    elif variant != "None":
        a.fail("experimental_attention_variant", f"'{variant[:40]}' is not modelled")
    if set(kinds) != {"full"}:
        found["attention_pattern"] = shortest(kinds)
    return found


def _pattern(a: Arguments, name: str, layers: int, kind: str) -> list[str]:
    """Kinds of all layers: every N-th is full, or as a list of zeros (full) and ones says."""
    given = pattern_of(a.raw(name, 0))
    if isinstance(given, list):
        if len(given) != layers:
            a.fail(name, f"must name every layer ({layers}), got {len(given)}")
            return ["full"] * layers
        return [kind if g else "full" for g in given]
    if given is None or given < 0:
        a.fail(name, "must be a number or a list such as ([1]*3+[0]*1)*12")
        return ["full"] * layers
    return [kind if not given or (i + 1) % given else "full" for i in range(layers)]


def shortest(kinds: list[str]) -> list[str]:
    """Return the shortest beginning whose repetition gives the list."""
    size = len(kinds)
    return next((kinds[:p] for p in range(1, size)
                 if all(kinds[i] == kinds[i % p] for i in range(size))), kinds)


def _mla(a: Arguments) -> Data:
    if not a.flag("multi_latent_attention"):
        return {}
    mla = {"q_lora_rank": a.number("q_lora_rank", 0), "kv_lora_rank": a.number("kv_lora_rank", 32),
           "qk_nope_head_dim": a.number("qk_head_dim", 128),
           "qk_rope_head_dim": a.number("qk_pos_emb_head_dim", 64),
           "v_head_dim": a.number("v_head_dim", 128)}
    return {"mla": mla, "num_query_groups": a.number("num_attention_heads"),
            "head_dim": (mla["qk_nope_head_dim"] or 0) + (mla["qk_rope_head_dim"] or 0)}


def _moe(a: Arguments, model: Data, bias: bool) -> Data:
    experts = a.number("num_experts")
    if not experts:
        return {}
    moe: Data = {"num_experts": experts, "topk": a.number("moe_router_topk", 2),
                 "ffn_hidden_size": a.number("moe_ffn_hidden_size") or model["ffn_hidden_size"]}
    if shared := a.number("moe_shared_expert_intermediate_size"):
        moe["shared_ffn_hidden_size"] = shared
        moe["shared_expert_gate"] = a.flag("moe_shared_expert_gate")
    if bias:
        moe["expert_bias"] = True
    layers = int(str(model["num_layers"]))
    given = pattern_of(a.raw("moe_layer_freq", 1))
    if isinstance(given, int) and given > 0:
        has = [i % given == 0 for i in range(layers)]
    elif isinstance(given, list) and len(given) == layers:
        has = [bool(g) for g in given]
    else:
        a.fail("moe_layer_freq", f"must be a number, or a list with all {layers} layers")
        has = [True] * layers
    if all(has):
        return {"moe": moe}
    first = has.index(True) if True in has else layers
    if all(has[first:]):
        return {"moe": moe, "first_dense_layers": first}
    return {"moe": moe, "moe_layers": has}
