"""Saved activations of a layer: against the real Megatron-Core, tensor for tensor."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from simcore.activations import attention_parts, layer_saved, mlp_parts
from simcore.batch import Batch
from simcore.head_activations import head_saved, mtp_saved
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import LayerKind, MlpKind, ModelSpec, Norm
from simcore.inputs.strategy import Strategy
from simcore.local import Local
from simcore.operators.attention import key_value_width, norm_statistics_bytes, query_width
from simcore.resolve import profile_codes, resolve
from simcore.tensors import total_bytes

ROOT = Path(__file__).parents[2]
ROWS = json.loads((ROOT / "tests" / "golden" / "activations.json").read_text())["rows"]
CPU_LAYER_NORM_BYTES = 4.0
"""PyTorch's layer norm on a CPU keeps mean and deviation in bf16, Transformer Engine in fp32."""


def local_of(model: ModelSpec, **fields: object) -> Local:
    """Resolve one strategy on H100 and return what a layer's cost reads."""
    given = {"gpus": 1024, "cross_entropy": "fused", **fields}
    batch = resolve(model, load_system("h100-sxm"),
                    Batch.from_strategies([Strategy.from_mapping(given)]))
    profiles, index = profile_codes(batch)
    return Local(model, load_system("h100-sxm"), batch, profiles, index)


def of_row(row: dict) -> tuple[Local, LayerKind]:
    """Local combination and kind of layer of one golden row."""
    model = load_model(row["model"])
    padded = {"capacity_factor": 1.0, "pad_to_capacity": True} if model.is_moe else {}
    local = local_of(model, **{name: row[name] for name in (
        "tp", "ep", "etp", "sp", "mbs", "seq_len", "recompute")}, **padded)
    wanted = MlpKind.MOE if row["experts"] else MlpKind.DENSE
    return local, next(kind for kind in model.kinds if kind.mlp is wanted)


def named_differences(row: dict, local: Local) -> dict[str, float]:
    """What local layers on a CPU keep more (or less) than Transformer Engine's, by name [B]."""
    model = local.model
    tokens, shard = float(local.tokens[0]), float(local.tokens_sharded[0])
    asked = row["recompute"].split("+")
    statistics = 0.0
    if model.normalization is Norm.LAYERNORM:
        statistics = CPU_LAYER_NORM_BYTES - norm_statistics_bytes(model.normalization)
    found = {"final norm": shard * (2.0 * model.hidden_size + statistics
                                    + norm_statistics_bytes(model.normalization)) / row["layers"]}
    if asked == ["full"]:
        return found
    if "layernorm" not in asked:
        found["statistics of a layer norm in bf16"] = 2.0 * statistics * shard
    if "core_attn" in asked:
        found["the checkpoint's own number"] = 4.0
    if row["experts"] and "moe" not in asked:
        found["probabilities of the rows"] = 2.0 * float(local.routed_rows[0])
    if model.mla is not None:
        rotary = row["seq_len"] * model.mla.qk_rope_head_dim
        if "mla_up_proj" in asked:
            # One table, kept by the checkpoints of all layers.
            found["rotary angles in fp32"] = 4.0 * rotary
        else:
            found["cosines and sines of queries and keys"] = 4 * 2.0 * rotary
    elif model.rotary:
        found["cosines and sines of queries and keys"] = 8.0 * row["seq_len"] * model.head_dim
        query = query_width(local) / row["tp"]
        several_groups = model.num_query_groups > row["tp"]
        # Values are a view of the fused product, which therefore stays; queries are copied out
        # of it where they are not in one piece.
        found["fused queries, keys and values"] = 2.0 * tokens * (
            query * several_groups if model.qk_norm
            else query + float(key_value_width(local)[0]))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(
    str(row[name]) for name in ("model", "tp", "sp", "mbs", "ep", "etp", "recompute", "experts")))
def test_equal_to_megatron(row: dict) -> None:
    local, kind = of_row(row)
    saved = layer_saved(local, kind)
    ours = float((saved.input_only if row["recompute"] == "full" else saved.kept)[0])
    if row["experts"] and not {"full", "moe"} & set(row["recompute"].split("+")):
        # Fused permutation keeps a map of rows, the local one sorted indices; what the router
        # keeps goes with its kind of scores.
        parts = mlp_parts(local, kind)
        ours -= float(total_bytes((*parts["router"], *parts["permute"]), 1)[0])
    theirs = sum(size for module, size in row["saved"].items()
                 if module not in ("router", "permute")) / row["layers"]
    assert ours + sum(named_differences(row, local).values()) == theirs


def test_enough_combinations() -> None:
    assert len(ROWS) >= 60
    assert {row["tp"] for row in ROWS} >= {1, 2, 4, 8}
    assert {row["recompute"] for row in ROWS} >= {"none", "full", "core_attn", "mlp", "layernorm",
                                                  "moe", "shared_experts", "mla_up_proj"}


def test_published_bytes_of_a_token() -> None:
    # llama3-70b at tp 1 under Transformer Engine, counted by hand from its modules.
    local = local_of(load_model("llama3-70b"), tp=1, seq_len=4096)
    kept = layer_saved(local, local.model.kinds[0]).kept
    assert kept[0] / 4096 == 274_696


def test_head_of_the_fused_loss() -> None:
    model = load_model("llama3-8b")
    # Transformer Engine's loss, which Megatron offers up to 0.18.
    fused = head_saved(local_of(model, tp=2, seq_len=4096, cross_entropy_impl="te",
                                framework_version="0.18"))[0]
    unfused = head_saved(local_of(model, tp=2, seq_len=4096, cross_entropy="unfused"))[0]
    native = head_saved(local_of(model, tp=2, seq_len=4096, cross_entropy_impl="native"))[0]
    logits = 4096 * 128256 / 2
    # Final norm's input and output, sharded over tp, with its statistics.
    ends = 2048 * (2 * 2 * 4096 + 4)
    assert fused[0] == ends + 2 * logits
    assert unfused[0] == ends + 6 * logits
    assert fused[0] < native[0] < unfused[0]


def test_parts_add_up_and_rise_with_tokens() -> None:
    model = load_model("deepseek-v3")
    for kind in model.kinds:
        one, two = (local_of(model, tp=2, ep=8, etp=1, mbs=mbs, seq_len=4096)
                    for mbs in (1, 2))
        parts = [*attention_parts(one, kind).values(), *mlp_parts(one, kind).values()]
        assert sum(total_bytes(part, 1)[0] for part in parts) == layer_saved(one, kind).full[0]
        assert layer_saved(two, kind).kept[0] == 2 * layer_saved(one, kind).kept[0]
    assert mtp_saved(two)[0] == 2 * mtp_saved(one)[0]


@pytest.mark.oracle
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs Megatron-Core")
def test_golden_is_what_megatron_gives(tmp_path: Path) -> None:
    out = tmp_path / "activations.json"
    subprocess.run([sys.executable, ROOT / "benchmarks" / "derive" / "megatron_activations.py",
                    "--out", out], check=True)
    assert json.loads(out.read_text())["rows"] == ROWS
