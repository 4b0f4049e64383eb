"""Count parameters with `transformers` and write what the tests compare with.

Every built-in model is built as its Hugging Face class on the meta device, and so is every config
of `tests/simcore/inputs/configs.json`. Nothing is downloaded.

    python benchmarks/derive/model_parameters.py [--out tests/golden/parameters.json]

Needs torch 2.13 and transformers 5.12 (about a minute), beside what `simcore` needs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402

from simcore.inputs.load import load_model, model_names  # noqa: E402
from simcore.inputs.model import AttentionKind, ModelSpec  # noqa: E402

CONFIGS = ROOT / "tests" / "simcore" / "inputs" / "configs.json"
GOLDEN = ROOT / "tests" / "golden" / "parameters.json"
RELU2 = {"squared_relu": "relu2"}


def common(spec: ModelSpec) -> dict[str, Any]:
    """Keys that nearly every class has."""
    return {
        "vocab_size": spec.vocab_size, "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers, "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_query_groups, "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn_hidden_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "tie_word_embeddings": spec.tied_embeddings, "attention_bias": spec.attention_bias,
        "hidden_act": RELU2.get(spec.activation, str(spec.activation)),
    }


def layer_types(spec: ModelSpec) -> list[str]:
    """Attention of every layer under the names of `transformers`."""
    return [f"{kind.attention}_attention" for kind in spec.layer_kinds]


def experts(spec: ModelSpec) -> dict[str, Any]:
    """Keys of the Qwen families' experts."""
    return {
        "num_experts": spec.moe.num_experts, "num_experts_per_tok": spec.moe.topk,
        "moe_intermediate_size": spec.moe.ffn_hidden_size,
        "shared_expert_intermediate_size": spec.moe.shared_ffn_hidden_size,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }


def family_keys(spec: ModelSpec) -> dict[str, Any]:
    """Keys that only this family has."""
    match spec.family:
        case "gpt2":
            return {"n_inner": spec.ffn_hidden_size, "n_positions": spec.max_position_embeddings}
        case "mpt":
            return {"d_model": spec.hidden_size, "n_heads": spec.num_attention_heads,
                    "n_layers": spec.num_layers, "max_seq_len": spec.max_position_embeddings}
        case "mixtral" | "gpt_oss":
            return {"num_local_experts": spec.moe.num_experts,
                    "num_experts_per_tok": spec.moe.topk,
                    **({"layer_types": layer_types(spec), "sliding_window": spec.sliding_window}
                       if AttentionKind.SLIDING in spec.attention_pattern else {})}
        case "qwen2_moe" | "qwen3_moe":
            return experts(spec)
        case "qwen3_next":
            linear = spec.linear_attention
            return {**experts(spec), "layer_types": layer_types(spec),
                    "linear_conv_kernel_dim": linear.conv_kernel,
                    "linear_key_head_dim": linear.key_head_dim,
                    "linear_value_head_dim": linear.value_head_dim,
                    "linear_num_key_heads": linear.num_key_heads,
                    "linear_num_value_heads": linear.num_value_heads}
        case "deepseek_v2" | "deepseek_v3" | "kimi_k2":
            moe = spec.moe
            return {"q_lora_rank": spec.mla.q_lora_rank or None,
                    "kv_lora_rank": spec.mla.kv_lora_rank,
                    "qk_nope_head_dim": spec.mla.qk_nope_head_dim,
                    "qk_rope_head_dim": spec.mla.qk_rope_head_dim,
                    "v_head_dim": spec.mla.v_head_dim, "n_routed_experts": moe.num_experts,
                    "num_experts_per_tok": moe.topk, "moe_intermediate_size": moe.ffn_hidden_size,
                    "n_shared_experts": moe.shared_ffn_hidden_size // moe.ffn_hidden_size,
                    "first_k_dense_replace": spec.first_dense_layers}
        case "gemma2" | "gemma3_text":
            return {"layer_types": layer_types(spec), "sliding_window": spec.sliding_window}
    return {}


def build(model_type: str, keys: dict[str, Any]) -> dict[str, int]:
    """Build a model on the meta device and count."""
    keys = {k: v for k, v in keys.items() if k not in ("model_type", "architectures")}
    model_type = {"kimi_k2": "deepseek_v3"}.get(model_type, model_type)
    config = transformers.AutoConfig.for_model(model_type, **keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    total = active = 0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        share = 1.0
        if ".experts." in name:
            # The routed experts' matrices are one tensor a layer, expert by expert.
            share = config.num_experts_per_tok / parameter.shape[0]
        active += round(parameter.numel() * share)
    return {"parameters": total, "active_parameters": active}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    out = parser.parse_args().out
    models = {}
    for name in model_names():
        spec = load_model(name)
        models[name] = build(spec.family, {**common(spec), **family_keys(spec)})
        print(f"{name:28s} {models[name]['parameters']:,}", flush=True)
    configs = {name: build(config["model_type"], config)
               for name, config in json.loads(CONFIGS.read_text()).items()}
    golden = {"source": f"transformers {transformers.__version__}", "models": models,
              "configs": configs}
    out.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
