"""Bytes that a layer of the real Megatron-Core saves for backward, tensor by tensor.

Layers of the local specification run forward under fake tensors in a fake process group, so no
memory is used and no GPU asked for; a hook counts each storage that autograd keeps, once. The
tests compare `simcore.activations` with what this writes.

    python benchmarks/derive/megatron_activations.py [--out tests/golden/activations.json]

``megatron_on_cpu.py`` gives Megatron a norm, a core attention and random states that work without
CUDA and save what Transformer Engine's save. Needs torch 2.13 and megatron-core 0.19.2, beside
what `simcore` needs; takes about half a minute.
"""

from __future__ import annotations

import argparse
import json
import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import megatron_on_cpu
import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
)
from megatron.core.tensor_parallel import random as tensor_random
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver
from megatron_parameters import MEGATRON_VERSION, ROOT, config_of, fake_world
from torch._subclasses.fake_tensor import FakeTensorMode

from simcore.inputs.load import load_model
from simcore.inputs.model import ModelSpec

GOLDEN = ROOT / "tests" / "golden" / "activations.json"
LAYERS = 2
FULL = {"recompute_granularity": "full", "recompute_method": "uniform",
        "recompute_num_layers": 1}
SELECTIVE = ("core_attn", "mlp", "layernorm", "moe", "shared_experts", "mla_up_proj")
MODULES = {"megatron_on_cpu.py": "norm_or_attention", "layers.py": "linear",
           "rope_utils.py": "rope",
           "fused_bias_swiglu.py": "activation", "fused_bias_gelu.py": "activation",
           "mlp.py": "activation", "router.py": "router", "token_dispatcher.py": "permute",
           "moe_utils.py": "router", "random.py": "checkpoint"}
"""What saved a tensor, by the innermost file of the call."""


class Duplicated(torch.nn.Module):
    """Stand in for Transformer Engine's linear layer in its `duplicated` mode."""

    def __init__(self, inputs: int, outputs: int, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return F.linear(x, self.weight), None


def cases() -> Iterator[dict[str, Any]]:
    """List the combinations, at least one for every effect and model family."""
    def row(model: str, tp: int, **more: Any) -> dict[str, Any]:
        return {"model": model, "tp": tp, "sp": tp > 1, "mbs": 1, "seq_len": 4096, "ep": 1,
                "etp": 1, "recompute": "none", "experts": False, **more}

    dense = ("llama3-8b", "llama2-7b", "qwen2.5-7b", "qwen3-8b", "nemotron4-15b", "gpt2-xl",
             "gpt3-175b")
    for model in dense:
        short = {"seq_len": 1000} if model == "gpt2-xl" else {}
        degrees = {"gpt2-xl": (1, 5), "qwen2.5-7b": (1, 2, 4)}.get(model, (1, 2, 4, 8))
        for tp in degrees:
            yield row(model, tp, **short)
        yield row(model, degrees[1], sp=False, **short)
        yield row(model, degrees[1], mbs=3, **{"seq_len": 2048, **short})
        for module in ("core_attn", "mlp", "layernorm", "full"):
            yield row(model, degrees[1], recompute=module, **short)
    yield row("llama3-70b", 8, seq_len=8192)
    yield row("llama3-70b", 8, seq_len=8192, recompute="mlp+layernorm")
    for model, layouts in (
        ("mixtral-8x7b", ({"ep": 8}, {"tp": 2, "ep": 8}, {"tp": 4, "ep": 2, "etp": 4},
                          {"tp": 1, "ep": 1})),
        ("qwen3-30b-a3b", ({"ep": 8}, {"tp": 4, "ep": 32})),
        ("deepseek-v3", ({"ep": 32}, {"tp": 2, "ep": 64}, {"tp": 8, "ep": 32})),
        ("moonlight-16b-a3b", ({"ep": 8}, {"tp": 2, "ep": 8})),
        ("deepseek-v2", ({"ep": 8}, {"tp": 4, "ep": 8}))):
        for layout in layouts:
            yield row(model, layout.get("tp", 1), **{k: v for k, v in layout.items()
                                                    if k != "tp"}, experts=True)
        last = {k: v for k, v in layouts[-1].items() if k != "tp"}
        tp = layouts[-1].get("tp", 1)
        yield row(model, tp, **last, experts=True, mbs=2, seq_len=2048)
        for module in ("moe", "layernorm", "full"):
            yield row(model, tp, **last, experts=True, recompute=module)
        if load_model(model).mla is not None:
            yield row(model, tp, **last, experts=True, recompute="mla_up_proj")
            yield row(model, tp, **last, experts=True, recompute="shared_experts")
            yield row(model, tp)
            yield row(model, tp, recompute="mlp")


def config(spec: ModelSpec, row: dict[str, Any]) -> Any:
    """Megatron's configuration of a few layers of one kind."""
    made = config_of(spec, {"pp": 1, "vpp": 1, "mtp": 0, "layers": LAYERS, **row})
    values = {name: getattr(made, name) for name in made.__dataclass_fields__
              if made.__dataclass_fields__[name].init}
    values["sequence_parallel"] = row["sp"]
    # Fused kernels exist for these activations; the others run eagerly.
    values["bias_activation_fusion"] = spec.activation in ("silu", "gelu")
    if spec.moe is not None:
        values["moe_layer_freq"] = [int(row["experts"])] * LAYERS
        values |= {"moe_expert_capacity_factor": 1.0,
                   "moe_pad_expert_input_to_capacity": True}
    if row["recompute"] == "full":
        values |= FULL
    elif row["recompute"] != "none":
        values |= {"recompute_granularity": "selective",
                   "recompute_modules": row["recompute"].split("+")}
    return type(made)(**values)


def block(spec: ModelSpec, made: Any) -> torch.nn.Module:
    """Build the layers on the CPU; under fake tensors nothing is allocated."""
    if spec.moe is not None or spec.mla is not None:
        layers = get_gpt_decoder_block_spec(made, use_transformer_engine=False,
                                            normalization=made.normalization)
    else:
        layers = get_gpt_layer_local_spec(normalization=made.normalization,
                                          qk_layernorm=made.qk_layernorm)
    if spec.mla is not None:
        for layer in layers.layer_specs:
            attention = layer.submodules.self_attention.submodules
            attention.linear_q_down_proj = attention.linear_kv_down_proj = Duplicated
            if not spec.mla.q_lora_rank:
                attention.q_layernorm = IdentityOp
    with torch.device("cpu"):
        return GPTModel(
            config=made, transformer_layer_spec=layers, vocab_size=128 * 840,
            max_sequence_length=spec.max_position_embeddings, parallel_output=True,
            position_embedding_type="learned_absolute" if spec.learned_positions else "rope",
            rotary_percent=1.0)


class Saved:
    """Storages that autograd packs, without parameters, each once."""

    def __init__(self, known: Iterator[torch.Tensor], hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.kept: dict[int, tuple[torch.Tensor, str]] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        key = tensor.untyped_storage()._cdata
        if key not in self.known and key not in self.kept:
            module = where()
            if module == "router" and tensor.shape[-1] == self.hidden_size:
                module = "linear"
            if module == "expert_activation" and tensor.shape[-1] == 1:
                module = "probabilities"
            self.kept[key] = tensor, module
        return tensor

    def by_module(self) -> dict[str, int]:
        """Add up the bytes now alive; discarded outputs count nothing."""
        found: Counter[str] = Counter()
        for tensor, module in self.kept.values():
            found[module] += tensor.untyped_storage().nbytes()
        return {module: size for module, size in sorted(found.items()) if size}


def where() -> str:
    """Name what is saving a tensor now."""
    names = [frame.filename for frame in traceback.extract_stack()]
    ours = [Path(name).name for name in names
            if "megatron/core" in name or "megatron_on_cpu" in name]
    inner = ours[-1] if ours else ""
    if inner == "moe_utils.py" and "token_dispatcher.py" in ours[-3:]:
        return "permute"
    if inner == "fused_bias_swiglu.py" and "experts.py" in ours:
        return "expert_activation"
    return MODULES.get(inner, inner)


def measure(row: dict[str, Any], mode: FakeTensorMode) -> dict[str, int]:
    """Run the layers forward; returns the bytes of all of them by what saved them."""
    spec = load_model(row["model"])
    fake_world(0, max(row["tp"], row["ep"] * row["etp"]), tp=row["tp"], pp=1, vpp=1,
               ep=row["ep"], etp=row["etp"])
    tensor_random.model_parallel_cuda_manual_seed(1234)
    with mode:
        made = config(spec, row)
        model = block(spec, made)
        model.train()
        sharded = row["seq_len"] // (row["tp"] if row["sp"] else 1)
        hidden = torch.randn(sharded, row["mbs"], spec.hidden_size,
                             dtype=torch.bfloat16).requires_grad_()
        rope = (model.rotary_pos_emb(row["seq_len"])
                if spec.rotary and spec.mla is None else None)
        known = [*model.parameters(), *model.buffers(), *([] if rope is None else [rope])]
        saved = Saved(iter(known), spec.hidden_size)
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
            # The result is held on to: dropped, it would take the graph with it.
            out = model.decoder(hidden_states=hidden, attention_mask=None, rotary_pos_emb=rope)
            found = saved.by_module()
        del out
    return found


def patch() -> None:
    """Bring in what a CPU needs, and projections of latents as Transformer Engine has them."""
    megatron_on_cpu.replace()
    multi_latent_attention.TELinear = Duplicated
    QKNormConfigResolver._mla_fused_linear_or_default = lambda self, given, name: given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--only", default="", help="part of a model's name")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    patch()
    mode = FakeTensorMode()
    rows = []
    for row in cases():
        if arguments.only in row["model"]:
            try:
                rows.append({**row, "layers": LAYERS, "saved": measure(row, mode)})
                print(row, sum(rows[-1]["saved"].values()), flush=True)
            except Exception as error:  # a combination that this release refuses
                print(row, f"FAILED {type(error).__name__}: {error}"[:300], flush=True)
                if arguments.only:
                    traceback.print_exc()
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    arguments.out.write_text(f'{{"source": "megatron-core {MEGATRON_VERSION}",\n'
                             f' "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
