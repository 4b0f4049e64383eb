"""Hugging Face configs: counted by transformers, refused by name, defaults of the classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.inputs.hf import MODEL_TYPES, model_from_hf
from simcore.inputs.hf_reader import shortest_pattern
from simcore.inputs.load import load_model
from simcore.inputs.model import AttentionKind, ModelSpec, Norm
from simcore.parameters import active_parameters, total_parameters

HERE = Path(__file__).parent
CONFIGS = json.loads((HERE / "configs.json").read_text())
GOLDEN = json.loads((HERE.parents[1] / "golden" / "parameters.json").read_text())["configs"]
SHARED = sorted((HERE.parents[3] / "shared" / "validation" / "models").glob("*.json"))
FULL, SLIDING = AttentionKind.FULL, AttentionKind.SLIDING


def read(config: dict, **changes: object) -> ModelSpec:
    return model_from_hf({**config, **changes}, name="m", where="config.json")


def problems(config: dict, **changes: object) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        read(config, **changes)
    return {i.where.removeprefix("config.json: "): f"{i.message}. {i.fix}"
            for i in caught.value.issues}


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_parameters_equal_transformers(name: str) -> None:
    model = read(CONFIGS[name])
    assert total_parameters(model) == GOLDEN[name]["parameters"]
    assert active_parameters(model) == GOLDEN[name]["active_parameters"]
    assert ModelSpec.model_validate(model.model_dump()) == model


def test_every_model_type_has_a_config() -> None:
    assert {config["model_type"] for config in CONFIGS.values()} == set(MODEL_TYPES)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED, reason="needs the tables of measured runs")
@pytest.mark.parametrize("path", SHARED, ids=lambda p: p.stem)
def test_configs_of_measured_runs_load(path: Path) -> None:
    model = load_model(path)
    assert model.name == path.stem
    assert model.seq_len <= model.max_position_embeddings


def test_gpt2_is_what_gpt2_is() -> None:
    model = read(CONFIGS["gpt2"])
    assert model.learned_positions
    assert not model.rotary
    assert model.normalization is Norm.LAYERNORM
    assert model.attention_bias
    assert model.attention_output_bias
    assert model.mlp_bias
    assert model.tied_embeddings
    assert not model.gated_mlp
    assert model.ffn_hidden_size == 4 * 256


def test_mla_and_leading_dense_layers() -> None:
    model = read(CONFIGS["deepseek_v3"])
    assert model.mla is not None
    assert model.head_dim == 128 + 64
    assert [k.mlp.value for k in model.layer_kinds] == ["dense", "moe", "moe", "moe"]
    assert model.mtp_num_layers == 1
    assert read(CONFIGS["deepseek_v2"]).mla.q_lora_rank == 0


def test_sparse_steps_and_dense_layers() -> None:
    model = read(CONFIGS["qwen2_moe"])
    assert [k.mlp.value for k in model.layer_kinds] == ["dense", "moe", "dense", "dense"]


@pytest.mark.parametrize(("name", "pattern", "window"), [
    ("mistral-defaults", (SLIDING,), 4096), ("mistral-null-window", (FULL,), 0),
    ("mixtral", (FULL,), 0), ("qwen2", (FULL,), 0),
    ("qwen2-sliding", (FULL, FULL, SLIDING, SLIDING), 128), ("gpt_oss", (SLIDING, FULL), 128),
    ("gemma2", (SLIDING, FULL), 4096), ("gemma3_text", (SLIDING, SLIDING, FULL), 512),
    ("phi3", (SLIDING,), 2047), ("qwen3_next", (AttentionKind.LINEAR,) * 3 + (FULL,), 0)])
def test_attention_patterns(name: str, pattern: tuple, window: int) -> None:
    model = read(CONFIGS[name])
    assert model.attention_pattern == pattern
    assert model.sliding_window == window


def test_layer_types_win() -> None:
    types = ["full_attention", "sliding_attention"] * 2
    assert read(CONFIGS["gpt_oss"], layer_types=types).attention_pattern == (FULL, SLIDING)
    assert "layers" in problems(CONFIGS["gpt_oss"], layer_types=types[:3])["layer_types"]
    bad = problems(CONFIGS["gpt_oss"], layer_types=["chunked_attention"] * 4)
    assert "chunked_attention" in bad["layer_types"]


@given(st.lists(st.sampled_from([FULL, SLIDING]), min_size=1, max_size=20))
def test_shortest_pattern_repeats_to_the_list(kinds: list) -> None:
    pattern = shortest_pattern(kinds)
    assert [pattern[i % len(pattern)] for i in range(len(kinds))] == kinds
    assert len(pattern) <= len(kinds)


def test_default_sequence_length() -> None:
    llama = CONFIGS["llama-defaults"]
    assert read(llama).seq_len == 2048
    assert read(llama, max_position_embeddings=131072).seq_len == 4096
    assert read(llama, max_position_embeddings=131072, vocab_size=128256).seq_len == 8192


def test_all_problems_at_once() -> None:
    found = problems(CONFIGS["llama-defaults"], hidden_size=None, num_attention_heads="8",
                     vocab_size=-1, num_hidden_layers=True, hidden_act="magic",
                     tie_word_embeddings="yes")
    assert set(found) == {"hidden_size", "num_attention_heads", "vocab_size",
                          "num_hidden_layers", "hidden_act", "tie_word_embeddings"}


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads",
                                 "vocab_size", "intermediate_size"])
def test_what_is_needed(key: str) -> None:
    config = {k: v for k, v in CONFIGS["llama-defaults"].items() if k != key}
    assert "needed" in problems(config)[key]


@pytest.mark.parametrize(("base", "changes", "key", "reason"), [
    ("llama-defaults", {"model_type": "lama"}, "model_type", "'llama'"),
    ("llama-defaults", {"model_type": "mamba2"}, "model_type", "not modelled"),
    ("llama-defaults", {"model_type": "minimax"}, "model_type", "lightning attention"),
    ("llama-defaults", {"model_type": "nemotron_h"}, "model_type", "Mamba"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias", "bias"),
    ("llama-defaults", {"model_type": 3}, "model_type", "not modelled"),
    ("llama-defaults", {"vision_config": {"a": 1}}, "vision_config", "multimodal"),
    ("llama-defaults", {"num_key_value_head": 2}, "num_key_value_head", "num_key_value_heads"),
    ("llama-defaults", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers", "may change"),
    ("llama-defaults", {"num_key_value_heads": 3}, "num_key_value_heads", "must divide"),
    ("llama-defaults", {"num_attention_heads": 7}, "hidden_size", "multiple"),
    ("llama-defaults", {"architectures": ["LlamaForSequenceClassification"]}, "architectures",
     "not modelled"),
    ("deepseek_v3", {"attention_bias": True}, "attention_bias", "not modelled"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq", "not modelled"),
    ("deepseek_v3", {"index_topk": 2048}, "index_topk", "sparse attention"),
    ("mixtral", {"num_experts_per_tok": 5}, "moe", "topk (5)"),
    ("mixtral", {"num_local_experts": None}, "num_local_experts", "needed"),
    ("qwen2_moe", {"mlp_only_layers": [9]}, "mlp_only_layers", "0 to 3"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention", "cross-attention"),
    ("gpt2", {"hidden_size": 128}, "n_embd", "differ"),
    ("gpt_oss", {"sliding_window": None}, "sliding_window", "needed"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention",
     "causal"),
    ("mpt", {"no_bias": False}, "no_bias", "not modelled"),
    ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi", "not modelled"),
    ("mpt", {"attn_config": 3}, "attn_config", "mapping"),
    ("mpt", {"norm_type": "rmsnorm"}, "norm_type", "not modelled"),
])
def test_what_cannot_be_expressed_is_refused(base: str, changes: dict, key: str,
                                             reason: str) -> None:
    assert reason in problems(CONFIGS[base], **changes)[key]


def test_model_type_follows_from_the_class() -> None:
    config = {k: v for k, v in CONFIGS["qwen3_moe"].items() if k != "model_type"}
    assert read(config, architectures=["Qwen3MoeForCausalLM"]).family == "qwen3_moe"
    assert "known" in problems(config)["model_type"]


def test_keys_of_checkpoints_and_generation_are_ignored() -> None:
    llama = CONFIGS["llama-defaults"]
    extra = {"_name_or_path": "x", "num_beams": 4, "quantization_config": {"bits": 8},
             "rope_scaling": {"factor": 8.0}, "attention_dropout": 0.1, "top_k": 50,
             "auto_map": {"AutoModel": "m.M"}, "num_labels": 2, "vision_config": None}
    assert read(llama, **extra) == read(llama)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(), st.text(),
                   st.lists(st.integers(-3, 9), max_size=5),
                   st.dictionaries(st.text(), st.integers(), max_size=2))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_configs_raise_only_input_errors(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    keys = data.draw(st.lists(st.sampled_from(sorted(CONFIGS[name])), max_size=3))
    changes = {key: data.draw(VALUES) for key in keys}
    try:
        model = read(CONFIGS[name], **changes)
    except InputError as error:
        wheres = [issue.where for issue in error.issues]
    else:
        wheres = []
        assert total_parameters(model) > 0
    assert all(where.startswith("config.json") for where in wheres)
