"""Count the parameters of each pipeline stage's first rank with the real Megatron-Core.

Models are built on the meta device inside a fake process group of any size, so neither a GPU nor
Transformer Engine is needed. The tests compare `simcore.parameters` with what this writes.

    python benchmarks/derive/megatron_parameters.py [--out tests/golden/megatron_parameters.json]

Needs torch 2.13 and megatron-core 0.19.2 (installed with `--no-deps --ignore-requires-python`
under Python 3.11), beside what `simcore` needs; takes about two minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import megatron_import  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from megatron.core import __version__ as MEGATRON_VERSION  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.models.backends import LocalSpecProvider  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.identity_op import IdentityOp  # noqa: E402
from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver  # noqa: E402
from megatron.core.transformer.torch_norm import WrappedTorchNorm  # noqa: E402
from megatron.core.transformer.transformer_config import (  # noqa: E402
    MLATransformerConfig,
    TransformerConfig,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from simcore.inputs.load import load_model  # noqa: E402
from simcore.inputs.model import MlpKind, ModelSpec  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "megatron_parameters.json"
ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu, "squared_relu": squared_relu}
DEEPSEEK_LAYOUT = "Et*4|(t*4|)*14tL"
DEEPSEEK_MTP_LAYOUT = "Et*4|(t*4|)*14tmL"

LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "llama3-70b": [
        {}, {"tp": 8}, {"tp": 8, "pp": 4, "vpp": 5}, {"tp": 4, "pp": 8},
        {"tp": 16, "pp": 2}, {"tp": 2, "pp": 4, "first": 18, "last": 18},
        {"pp": 6, "account": True, "layers": 82}],
    "llama3.1-405b": [
        {"tp": 8, "pp": 16, "account": True}, {"tp": 8, "pp": 16, "vpp": 4, "account": True},
        {"tp": 16, "pp": 9}],
    "llama3.2-1b": [{}, {"tp": 2, "pp": 2}, {"tp": 4, "pp": 4, "vpp": 2}],
    "gpt3-175b": [{"tp": 8}, {"tp": 8, "pp": 8}, {"tp": 8, "pp": 8, "vpp": 6}],
    "gpt2-xl": [{}, {"tp": 5}, {"pp": 4}],
    "nemotron4-340b": [{"tp": 8, "pp": 12}, {"tp": 8, "pp": 12, "vpp": 8}],
    "qwen2.5-7b": [{}, {"tp": 4, "pp": 2}, {"tp": 2, "pp": 4, "first": 8, "last": 6}],
    "qwen3-8b": [{"tp": 8, "pp": 2}, {"tp": 2, "pp": 4, "vpp": 3}],
    "mixtral-8x7b": [
        {"pp": 4, "ep": 8}, {"tp": 2, "pp": 4, "ep": 8, "etp": 1}, {"tp": 4, "ep": 2},
        {"tp": 8, "pp": 2, "ep": 4, "etp": 2}, {"pp": 4, "vpp": 8, "ep": 4},
        {"tp": 1, "ep": 4, "etp": 2}],
    "mixtral-8x22b": [{"tp": 2, "pp": 8, "vpp": 7, "ep": 8, "etp": 1}, {"tp": 8, "pp": 4}],
    "qwen3-30b-a3b": [{"ep": 8}, {"tp": 2, "pp": 4, "ep": 16, "etp": 1}],
    "qwen3-235b-a22b": [
        {"tp": 4, "ep": 32, "etp": 1}, {"tp": 2, "pp": 8, "ep": 8, "account": True, "etp": 1},
        {"pp": 8, "vpp": 4, "ep": 16, "account": True}],
    "qwen2-57b-a14b": [{"tp": 4, "pp": 4, "ep": 4, "etp": 1}, {"tp": 2, "pp": 2, "ep": 8}],
    "deepseek-v2-lite": [{"ep": 8}, {"tp": 2, "pp": 3, "ep": 4, "etp": 1}],
    "deepseek-v3": [
        {"pp": 16, "ep": 32, "layout": DEEPSEEK_LAYOUT},
        {"tp": 2, "pp": 16, "ep": 32, "etp": 1, "mtp": 1, "layout": DEEPSEEK_MTP_LAYOUT},
        {"tp": 4, "pp": 8, "ep": 16, "etp": 2, "mtp": 1, "first": 7, "last": 6},
        {"tp": 8, "pp": 4, "vpp": 4, "ep": 8, "mtp": 1, "first": 12, "last": 8,
         "layers": 52}],
    "moonlight-16b-a3b": [{"ep": 8}, {"tp": 2, "pp": 2, "ep": 8, "etp": 1, "first": 14}],
    "gpt-oss-20b": [{"ep": 4}, {"tp": 2, "pp": 2, "ep": 8, "etp": 1},
                    {"tp": 4, "ep": 2, "etp": 1}],
}


def plain_norm(cls: type, config: TransformerConfig, hidden_size: int, eps: float = 1e-5,
               **_: Any) -> torch.nn.Module:
    """Stand in for Megatron's norm, which refuses sequence parallelism; same parameters."""
    rms = config.normalization == "RMSNorm"
    return (torch.nn.RMSNorm if rms else torch.nn.LayerNorm)(hidden_size, eps=eps)


class NoAttention(torch.nn.Module):
    """Stand in for the core attention of MLA, which the local one cannot build; no parameters."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


class Duplicated(torch.nn.Module):
    """Stand in for Transformer Engine's linear layer in its `duplicated` mode."""

    def __init__(self, inputs: int, outputs: int, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs))


def as_transformer_engine(attention: Any, spec: ModelSpec) -> None:
    """Give MLA what Megatron's Transformer Engine specification builds.

    There the down projections are whole on every tensor rank, while the local specification that
    runs here would split them. Queries that are projected in one step have no norm of their own
    (Moonlight, DeepSeek-V2-Lite).
    """
    attention.linear_q_down_proj = attention.linear_kv_down_proj = Duplicated
    if not spec.mla.q_lora_rank:
        attention.q_layernorm = IdentityOp


def patch() -> None:
    """Replace what asks for a GPU while a model is built."""
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.Stream = types.SimpleNamespace  # the token dispatcher makes one; never used
    WrappedTorchNorm.__new__ = plain_norm
    multi_latent_attention.TELinear = Duplicated
    # Asked only where queries have no norm: the projection is then the plain one.
    QKNormConfigResolver._mla_fused_linear_or_default = lambda self, given, name: given


def fake_world(rank: int, size: int, *, tp: int, pp: int, vpp: int, ep: int, etp: int) -> None:
    """Initialise Megatron's groups for one rank of a world that is not there."""
    if dist.is_initialized():
        ps.destroy_model_parallel()
        dist.destroy_process_group()
    dist.init_process_group(backend="fake", store=FakeStore(), rank=rank, world_size=size)
    ps.initialize_model_parallel(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=etp,
        create_gloo_process_groups=False)


def config_of(spec: ModelSpec, row: dict[str, Any]) -> TransformerConfig:
    """Megatron's configuration of a model under a layout."""
    keys: dict[str, Any] = {
        "num_layers": row.get("layers", spec.num_layers), "hidden_size": spec.hidden_size,
        "ffn_hidden_size": spec.ffn_hidden_size, "num_attention_heads": spec.num_attention_heads,
        "normalization": "RMSNorm" if spec.normalization == "rmsnorm" else "LayerNorm",
        "add_bias_linear": spec.mlp_bias or spec.attention_output_bias,
        "add_qkv_bias": spec.attention_bias, "gated_linear_unit": spec.gated_mlp,
        "activation_func": ACTIVATIONS[spec.activation], "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "qk_layernorm": spec.qk_norm or spec.mla is not None,
        "tensor_model_parallel_size": row["tp"], "pipeline_model_parallel_size": row["pp"],
        "virtual_pipeline_model_parallel_size": row["vpp"] if row["vpp"] > 1 else None,
        "expert_model_parallel_size": row["ep"], "expert_tensor_parallel_size": row["etp"],
        "sequence_parallel": row["tp"] > 1, "bf16": True, "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16, "use_cpu_initialization": True,
        "perform_initialization": False, "gradient_accumulation_fusion": False,
    }
    if spec.mla is None:
        keys |= {"num_query_groups": spec.num_query_groups, "kv_channels": spec.head_dim}
    else:
        keys |= {"q_lora_rank": spec.mla.q_lora_rank or None,
                 "kv_lora_rank": spec.mla.kv_lora_rank,
                 "qk_head_dim": spec.mla.qk_nope_head_dim,
                 "qk_pos_emb_head_dim": spec.mla.qk_rope_head_dim,
                 "v_head_dim": spec.mla.v_head_dim}
    if spec.moe is not None:
        keys |= moe_keys(spec, keys["num_layers"])
    if spec.attention_sinks:
        keys["softmax_type"] = "learnable"
    if row["mtp"]:
        keys["mtp_num_layers"] = row["mtp"]
    if "layout" in row:
        keys["pipeline_model_parallel_layout"] = row["layout"]
    for short, name in (("first", "num_layers_in_first_pipeline_stage"),
                        ("last", "num_layers_in_last_pipeline_stage")):
        if short in row:
            keys[name] = row[short]
    if row.get("account"):
        keys |= {"account_for_embedding_in_pipeline_split": True,
                 "account_for_loss_in_pipeline_split": True}
    return (MLATransformerConfig if spec.mla else TransformerConfig)(**keys)


def moe_keys(spec: ModelSpec, num_layers: int) -> dict[str, Any]:
    """Megatron's configuration of the experts."""
    moe = spec.moe
    return {
        "num_moe_experts": moe.num_experts, "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_router_topk": moe.topk, "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size or None,
        "moe_shared_expert_gate": moe.shared_expert_gate,
        "moe_layer_freq": [int(i >= spec.first_dense_layers) for i in range(num_layers)],
    }


def build(spec: ModelSpec, row: dict[str, Any]) -> Iterator[GPTModel]:
    """Build the chunks of the rank that the fake world is initialised for."""
    config = config_of(spec, row)
    core = NoAttention if spec.mla is not None else DotProductAttention
    LocalSpecProvider.core_attention = lambda self: core
    padding = 128 * row["tp"]
    for v in range(row["vpp"]):
        stage = v if row["vpp"] > 1 else None
        if spec.moe is not None or spec.mla is not None:
            layers = get_gpt_decoder_block_spec(config, use_transformer_engine=False,
                                                normalization=config.normalization,
                                                vp_stage=stage)
        else:
            layers = get_gpt_layer_local_spec(normalization=config.normalization,
                                              qk_layernorm=config.qk_layernorm)
        if spec.mla is not None:
            for layer in layers.layer_specs:
                as_transformer_engine(layer.submodules.self_attention.submodules, spec)
        mtp = {}
        if row["mtp"]:
            mtp["mtp_block_spec"] = get_gpt_mtp_block_spec(
                config, layers, use_transformer_engine=False, vp_stage=stage)
        with torch.device("meta"):
            yield GPTModel(
                config=config, transformer_layer_spec=layers,
                vocab_size=-(-spec.vocab_size // padding) * padding,
                max_sequence_length=spec.max_position_embeddings,
                pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                post_process=ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                parallel_output=True, share_embeddings_and_output_weights=spec.tied_embeddings,
                position_embedding_type="learned_absolute" if spec.learned_positions else "rope",
                vp_stage=stage, **mtp)


def count(name: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Count every stage of one layout."""
    row = {"tp": 1, "pp": 1, "vpp": 1, "ep": 1, "mtp": 0, **given}
    row.setdefault("etp", row["tp"] if load_model(name).is_moe else 1)
    spec = load_model(name).with_layers(row.get("layers", load_model(name).num_layers))
    size = row["pp"] * math.lcm(row["tp"], row["etp"] * row["ep"])
    degrees = {key: row[key] for key in ("tp", "pp", "vpp", "ep", "etp")}
    stages: list[dict[str, Any]] = []
    chunks: dict[int, str] = {}
    for stage in range(row["pp"]):
        fake_world(stage * (size // row["pp"]), size, **degrees)
        found: dict[str, Any] = {"stage": stage, "parameters": 0, "expert_parameters": 0,
                                 "dense_layers": 0, "moe_layers": 0, "mtp": 0}
        for v, model in enumerate(build(spec, row)):
            numbers = [layer.layer_number - 1 for layer in model.decoder.layers]
            held = len(model.mtp.layers) if getattr(model, "mtp_process", False) else 0
            chunks[v * row["pp"] + stage] = f"{len(numbers)}{'m' * held}"
            for number in numbers:
                moe = spec.layer_kinds[number].mlp is MlpKind.MOE
                found["moe_layers" if moe else "dense_layers"] += 1
            found["mtp"] += held
            for parameter in model.parameters():
                found["parameters"] += parameter.numel()
                if not getattr(parameter, "allreduce", True):
                    found["expert_parameters"] += parameter.numel()
        stages.append(found)
    layout = "|".join(chunks[i] for i in range(len(chunks)))
    head = {"model": name, "num_layers": spec.num_layers, **degrees, "layout": layout}
    return [{**head, **stage} for stage in stages]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--only", default="", help="part of a model's name")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    patch()
    rows = []
    for name, layouts in LAYOUTS.items():
        for layout in layouts if arguments.only in name else []:
            found = count(name, layout)
            rows += found
            print(name, layout, found[0]["layout"], found[0]["parameters"],
                  found[-1]["parameters"], flush=True)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    arguments.out.write_text(f'{{"source": "megatron-core {MEGATRON_VERSION}",\n'
                             f' "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
