"""The model families of Hugging Face `transformers` that can be read, one entry each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from simcore.inputs.hf_reader import Reader
from simcore.inputs.model import AttentionKind

Fields = dict[str, object]
_FULL, _SLIDING, _LINEAR = AttentionKind.FULL, AttentionKind.SLIDING, AttentionKind.LINEAR


@dataclass(frozen=True)
class Family:
    """How one `model_type` is read.

    Parameters
    ----------
    read : callable
        Reads what only this family has; gets the reader and what is read so far.
    fields : mapping
        Fields of `ModelSpec` that are the same in every model of the family.
    names : mapping
        Other names under which the family's class reads or writes a key.
    head_dim, num_key_value_heads : int
        Class default; 0: hidden_size over heads, and one for every query head.
    max_position_embeddings : int
        Class default.
    tied : bool
        Class default of `tie_word_embeddings`.
    activation : str
        Class default of the non-linearity.
    mla : bool
        Multi-head latent attention, where `num_key_value_heads` has no meaning.
    wide_mlp : bool
        Whether a missing `intermediate_size` means four times `hidden_size`.
    """

    read: Callable[[Reader, Fields], Fields]
    fields: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    head_dim: int = 0
    num_key_value_heads: int = 0
    max_position_embeddings: int = 2048
    tied: bool = False
    activation: str = "silu"
    mla: bool = False
    wide_mlp: bool = False


def _layers(fields: Fields) -> int:
    return int(str(fields["num_layers"]))


def _biases(reader: Reader, *, default: bool = False) -> Fields:
    bias = reader.flag("attention_bias", default=default)
    return {"attention_bias": bias, "attention_output_bias": bias}


def _pattern(reader: Reader, fields: Fields, default: list[AttentionKind],
             window: int) -> Fields:
    pattern = reader.layer_types(_layers(fields), default)
    if _SLIDING in pattern and not window:
        reader.fail("sliding_window", "is needed: some layers are of type sliding_attention")
        window = 1
    return {"attention_pattern": [str(kind) for kind in pattern],
            "sliding_window": window if _SLIDING in pattern else 0}


def _window(reader: Reader, default: int) -> int:
    """Return `sliding_window`; null is none, a missing key takes the class default."""
    _, _, given = reader.raw("sliding_window")
    return reader.count("sliding_window", 0 if given else default, minimum=0)


def _all_alike(reader: Reader, fields: Fields, window: int) -> Fields:
    kind = _SLIDING if window else _FULL
    return _pattern(reader, fields, [kind] * _layers(fields), window)


def _llama(reader: Reader, fields: Fields) -> Fields:
    return {**_biases(reader), "mlp_bias": reader.flag("mlp_bias", default=False)}


def _mistral(reader: Reader, fields: Fields) -> Fields:
    return _all_alike(reader, fields, _window(reader, 4096))


def _mixtral(reader: Reader, fields: Fields) -> Fields:
    moe = {"num_experts": reader.count("num_local_experts"),
           "topk": reader.count("num_experts_per_tok"),
           "ffn_hidden_size": fields["ffn_hidden_size"]}
    return {**_all_alike(reader, fields, _window(reader, 0)), "moe": moe}


def _qwen_window(reader: Reader, fields: Fields, *, late: bool) -> Fields:
    """Sliding layers of Qwen 2 and 3: off unless `use_sliding_window`, then the late layers."""
    use = reader.flag("use_sliding_window", default=False)
    window = _window(reader, 4096) if use else 0
    first = reader.count("max_window_layers", 28, minimum=0) if late and use else 0
    reader.seen.update(("sliding_window", "max_window_layers"))
    default = [_SLIDING if window and i >= first else _FULL for i in range(_layers(fields))]
    return _pattern(reader, fields, default, window)


def _qwen2(reader: Reader, fields: Fields) -> Fields:
    return _qwen_window(reader, fields, late=True)


def _qwen3(reader: Reader, fields: Fields) -> Fields:
    return {**_qwen_window(reader, fields, late=True), **_biases(reader)}


def _sparse(reader: Reader, fields: Fields, *, shared: bool) -> Fields:
    """Read the experts of the Qwen families."""
    layers = _layers(fields)
    experts = reader.count("num_experts", minimum=0)
    step = reader.count("decoder_sparse_step", 1)
    dense = reader.indices("mlp_only_layers", layers)
    moe: Fields = {"num_experts": experts, "topk": reader.count("num_experts_per_tok"),
                   "ffn_hidden_size": reader.count("moe_intermediate_size")}
    if shared:
        moe["shared_ffn_hidden_size"] = reader.count("shared_expert_intermediate_size")
        moe["shared_expert_gate"] = True
    if not experts:
        return {}
    has_moe = [i not in dense and (i + 1) % step == 0 for i in range(layers)]
    return {"moe": moe, **({} if all(has_moe) else {"moe_layers": has_moe})}


def _qwen2_moe(reader: Reader, fields: Fields) -> Fields:
    if reader.flag("use_sliding_window", default=False) and "layer_types" not in reader.config:
        reader.fail("use_sliding_window", "needs layer_types: releases of transformers differ "
                    "in which layers slide")
    return {**_qwen_window(reader, fields, late=False), **_sparse(reader, fields, shared=True),
            "attention_bias": reader.flag("qkv_bias", default=True)}


def _qwen3_moe(reader: Reader, fields: Fields) -> Fields:
    return {**_qwen_window(reader, fields, late=False), **_biases(reader),
            **_sparse(reader, fields, shared=False)}


def _qwen3_next(reader: Reader, fields: Fields) -> Fields:
    interval = reader.count("full_attention_interval", 4)
    default = [_FULL if (i + 1) % interval == 0 else _LINEAR for i in range(_layers(fields))]
    linear = {"num_key_heads": reader.count("linear_num_key_heads", 16),
              "num_value_heads": reader.count("linear_num_value_heads", 32),
              "key_head_dim": reader.count("linear_key_head_dim", 128),
              "value_head_dim": reader.count("linear_value_head_dim", 128),
              "conv_kernel": reader.count("linear_conv_kernel_dim", 4)}
    return {**_pattern(reader, fields, default, 0), **_biases(reader),
            **_sparse(reader, fields, shared=True), "linear_attention": linear}


def _deepseek(reader: Reader, fields: Fields) -> Fields:
    """DeepSeek V2 and V3, Kimi K2, Moonlight: MLA, and experts behind a few dense layers."""
    for key in ("attention_bias", "mlp_bias"):
        if reader.flag(key, default=False):
            reader.fail(key, "is not modelled: multi-head latent attention with biases")
    if reader.count("moe_layer_freq", 1) != 1:
        reader.fail("moe_layer_freq", "is not modelled: transformers ignores every value but 1")
    mla = {"q_lora_rank": _rank(reader), "kv_lora_rank": reader.count("kv_lora_rank", 512),
           "qk_nope_head_dim": reader.count("qk_nope_head_dim", 128),
           "qk_rope_head_dim": reader.count("qk_rope_head_dim", 64),
           "v_head_dim": reader.count("v_head_dim", 128)}
    width = reader.count("moe_intermediate_size")
    shared = reader.count("n_shared_experts", 0, minimum=0)
    moe = {"num_experts": reader.count("n_routed_experts"),
           "topk": reader.count("num_experts_per_tok"), "ffn_hidden_size": width,
           "shared_ffn_hidden_size": shared * width}
    return {"mla": mla, "head_dim": mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"],
            "moe": moe,
            "first_dense_layers": reader.count("first_k_dense_replace", minimum=0),
            "mtp_num_layers": reader.count("num_nextn_predict_layers", 0, minimum=0,
                                           maximum=16)}


def _rank(reader: Reader) -> int:
    """Return `q_lora_rank`; null means that queries are projected in one step."""
    _, value, given = reader.raw("q_lora_rank")
    return 0 if given and value is None else reader.count("q_lora_rank", 1536)


def _gpt2(reader: Reader, fields: Fields) -> Fields:
    return _biases(reader, default=True)


def _gpt_neox(reader: Reader, fields: Fields) -> Fields:
    return {**_biases(reader, default=True),
            "parallel_residual": reader.flag("use_parallel_residual", default=True)}


def _gpt_oss(reader: Reader, fields: Fields) -> Fields:
    default = [_FULL if i % 2 else _SLIDING for i in range(_layers(fields))]
    moe = {"num_experts": reader.count("num_local_experts"),
           "topk": reader.count("num_experts_per_tok"),
           "ffn_hidden_size": fields["ffn_hidden_size"], "expert_bias": True,
           "router_bias": True}
    return {**_pattern(reader, fields, default, _window(reader, 128)),
            **_biases(reader, default=True), "moe": moe}


def _plain(reader: Reader, fields: Fields) -> Fields:
    return _biases(reader)


def _gemma2(reader: Reader, fields: Fields) -> Fields:
    default = [_FULL if i % 2 else _SLIDING for i in range(_layers(fields))]
    return {**_pattern(reader, fields, default, _window(reader, 4096)), **_biases(reader)}


def _gemma3(reader: Reader, fields: Fields) -> Fields:
    period = reader.count("sliding_window_pattern", 6)
    default = [_SLIDING if (i + 1) % period else _FULL for i in range(_layers(fields))]
    return {**_pattern(reader, fields, default, _window(reader, 4096)), **_biases(reader)}


def _phi3(reader: Reader, fields: Fields) -> Fields:
    return _all_alike(reader, fields, _window(reader, 0))


def _nemotron(reader: Reader, fields: Fields) -> Fields:
    return {**_biases(reader), "mlp_bias": reader.flag("mlp_bias", default=False)}


def _glm4(reader: Reader, fields: Fields) -> Fields:
    return {"attention_bias": reader.flag("attention_bias", default=True)}


def _glm4_moe(reader: Reader, fields: Fields) -> Fields:
    """GLM 4.5: experts behind a few dense layers, norms over heads where the config says so."""
    width = reader.count("moe_intermediate_size", 1408)
    shared = reader.count("n_shared_experts", 1, minimum=0)
    return {"attention_bias": reader.flag("attention_bias", default=False),
            "qk_norm": reader.flag("use_qk_norm", default=False),
            "moe": {"num_experts": reader.count("n_routed_experts", 128),
                    "topk": reader.count("num_experts_per_tok", 8), "ffn_hidden_size": width,
                    "shared_ffn_hidden_size": shared * width},
            "first_dense_layers": reader.count("first_k_dense_replace", 1, minimum=0),
            "mtp_num_layers": reader.count("num_nextn_predict_layers", 0, minimum=0,
                                           maximum=16)}


def _ernie(reader: Reader, fields: Fields) -> Fields:
    """ERNIE 4.5 with experts: between a first and a last layer, every so many."""
    if reader.flag("use_bias", default=False):
        reader.fail("use_bias", "is not modelled: the head over the vocabulary has a bias too")
    # Of the first release's own class; that of transformers never reads them.
    reader.seen.update(("moe_capacity", "moe_gate", "moe_gate_act", "moe_use_aux_free",
                        "moe_norm_min", "moe_aux_loss_lambda"))
    layers = _layers(fields)
    width = reader.count("moe_intermediate_size", 1536)
    shared = reader.count("moe_num_shared_experts", 2, minimum=0)
    first = reader.count("moe_layer_start_index", 1, minimum=0)
    last = reader.count("moe_layer_end_index", -1, minimum=-1)
    step = reader.count("moe_layer_interval", 1)
    last = layers - 1 if last < 0 else last
    # The correction of the router's choice is a parameter here, though no gradient reaches it.
    moe = {"num_experts": reader.count("num_experts", 64),
           "topk": reader.count("num_experts_per_tok", 6), "ffn_hidden_size": width,
           "shared_ffn_hidden_size": shared * width, "router_bias": True}
    return {"moe": moe, "moe_layers": [first <= i <= last and (i + 1) % step == 0
                                       for i in range(layers)]}


def _mpt(reader: Reader, fields: Fields) -> Fields:
    """MPT as its released models are: ALiBi, no biases at all."""
    if reader.count("expansion_ratio", 4) != 4:
        reader.fail("expansion_ratio", "is not modelled: transformers builds 4 whatever it says")
    reader.seen.add("learned_pos_emb")
    if not reader.flag("no_bias", default=True):
        reader.fail("no_bias", "false is not modelled: transformers builds no biases")
    norm = reader.config.get("norm_type", "low_precision_layernorm")
    reader.seen.add("norm_type")
    if norm not in ("low_precision_layernorm", "layernorm"):
        reader.fail("norm_type", f"{str(norm)[:60]!r} is not modelled",
                    "use low_precision_layernorm")
    attention = reader.config.get("attn_config")
    reader.seen.add("attn_config")
    attention = {} if attention is None else attention
    if not isinstance(attention, dict):
        reader.fail("attn_config", "must be a mapping")
        attention = {}
    needed = {"attn_type": "multihead_attention", "alibi": True, "prefix_lm": False,
              "qk_ln": False}
    for key, value in attention.items():
        if key in needed and value != needed[key]:
            reader.fail(f"attn_config.{key}", f"{str(value)[:60]!r} is not modelled",
                        f"only {needed[key]!r} is")
        elif key.startswith("kv_n_heads"):
            reader.fail(f"attn_config.{key}", "is not modelled")
    return {}


_GPT_NAMES = MappingProxyType({
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions", "intermediate_size": "n_inner"})
_MPT_NAMES = MappingProxyType({
    "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len"})
_GPT = {"gated_mlp": False, "normalization": "layernorm"}
_GELU = "gelu_pytorch_tanh"

FAMILIES: Mapping[str, Family] = MappingProxyType({
    "llama": Family(_llama),
    "mistral": Family(_mistral, num_key_value_heads=8, max_position_embeddings=131072),
    "mixtral": Family(_mixtral, names={"num_local_experts": "num_experts"},
                      num_key_value_heads=8, max_position_embeddings=131072),
    "qwen2": Family(_qwen2, {"attention_bias": True}, num_key_value_heads=32,
                    max_position_embeddings=32768),
    "qwen2_moe": Family(_qwen2_moe, num_key_value_heads=16, max_position_embeddings=32768),
    "qwen3": Family(_qwen3, {"qk_norm": True}, head_dim=128, num_key_value_heads=32,
                    max_position_embeddings=32768),
    "qwen3_moe": Family(_qwen3_moe, {"qk_norm": True}, {"num_experts": "num_local_experts"},
                        num_key_value_heads=4, max_position_embeddings=32768),
    "qwen3_next": Family(_qwen3_next, {"qk_norm": True, "attention_output_gate": True},
                         head_dim=256, num_key_value_heads=2, max_position_embeddings=32768),
    "deepseek_v2": Family(_deepseek, mla=True),
    "deepseek_v3": Family(_deepseek, names={"n_routed_experts": "num_local_experts"},
                          max_position_embeddings=4096, mla=True),
    "gpt2": Family(_gpt2, {**_GPT, "learned_positions": True, "rotary": False, "mlp_bias": True},
                   _GPT_NAMES, max_position_embeddings=1024, tied=True, activation="gelu_new",
                   wide_mlp=True),
    "gpt_neox": Family(_gpt_neox, {**_GPT, "mlp_bias": True}, activation="gelu"),
    "gpt_oss": Family(_gpt_oss, {"attention_sinks": True}, {"num_local_experts": "num_experts"},
                      head_dim=64, num_key_value_heads=8, max_position_embeddings=131072),
    "gemma": Family(_plain, head_dim=256, num_key_value_heads=16, max_position_embeddings=8192,
                    tied=True, activation=_GELU),
    "gemma2": Family(_gemma2, {"post_norms": True}, head_dim=256, num_key_value_heads=4,
                     max_position_embeddings=8192, tied=True, activation=_GELU),
    "gemma3_text": Family(_gemma3, {"post_norms": True, "qk_norm": True}, head_dim=256,
                          num_key_value_heads=4, max_position_embeddings=131072, tied=True,
                          activation=_GELU),
    "phi3": Family(_phi3, max_position_embeddings=4096),
    "olmo2": Family(_plain, {"post_norms": True, "no_pre_norms": True, "qk_norm_full": True}),
    "glm4": Family(_glm4, {"post_norms": True}, head_dim=128, num_key_value_heads=2,
                   max_position_embeddings=131072),
    "glm4_moe": Family(_glm4_moe, names={"n_routed_experts": "num_local_experts"},
                       num_key_value_heads=8, max_position_embeddings=131072),
    "ernie4_5_moe": Family(_ernie, names={"num_experts": "moe_num_experts",
                                          "num_experts_per_tok": "moe_k"},
                           num_key_value_heads=4, max_position_embeddings=131072, tied=True),
    "nemotron": Family(_nemotron, _GPT, max_position_embeddings=4096, activation="relu2"),
    "mpt": Family(_mpt, {**_GPT, "rotary": False, "norm_bias": False}, _MPT_NAMES, tied=True,
                  activation="gelu", wide_mlp=True),
})
