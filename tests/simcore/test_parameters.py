"""Parameters of whole models against transformers, and of ranks against Megatron-Core."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.inputs.load import load_model, model_names
from simcore.inputs.model import MlpKind, ModelSpec
from simcore.parameters import (
    active_parameters,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
    total_parameters,
    weight_shapes,
)

DERIVE = Path(__file__).parents[2] / "benchmarks" / "derive"
GOLDEN = Path(__file__).parents[1] / "golden"
TOTALS = json.loads((GOLDEN / "parameters.json").read_text())["models"]
MEGATRON = json.loads((GOLDEN / "megatron_parameters.json").read_text())["rows"]
POWERS = st.sampled_from([1, 2, 4, 8])


def stage_parameters(model: ModelSpec, row: dict) -> tuple[float, float]:
    """Add up what a rank of one stage holds; returns all parameters, and the experts' alone."""
    degrees = {key: row[key] for key in ("tp", "ep", "etp")}
    first, last = row["stage"] == 0, row["stage"] == row["pp"] - 1
    dense = expert = 0.0
    for name, mlp in (("dense_layers", MlpKind.DENSE), ("moe_layers", MlpKind.MOE)):
        for kind in [k for k in model.kinds if k.mlp is mlp][:1]:
            layer = layer_parameters(model, kind, **degrees)
            dense += row[name] * float(layer.dense)
            expert += row[name] * float(layer.expert)
    if row["mtp"]:
        layer = mtp_parameters(model, **degrees)
        dense += row["mtp"] * float(layer.dense)
        expert += row["mtp"] * float(layer.expert)
    if first or row["mtp"]:
        dense += float(embedding_parameters(model, tp=row["tp"]))
    if last:
        dense += final_norm_parameters(model)
        if not (model.tied_embeddings and row["pp"] == 1):
            dense += float(head_parameters(model, tp=row["tp"]))
    return dense + expert, expert


def by_layout() -> dict[str, list[dict]]:
    """Group the golden rows by model and layout, for one test each."""
    groups: dict[str, list[dict]] = defaultdict(list)
    for row in MEGATRON:
        degrees = "-".join(f"{key}{row[key]}" for key in ("tp", "pp", "vpp", "ep", "etp"))
        groups[f"{row['model']}-{degrees}-{row['num_layers']}-{row['layout'][:12]}"].append(row)
    return groups


LAYOUTS = by_layout()


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_totals_equal_transformers(name: str) -> None:
    model = load_model(name)
    assert total_parameters(model) == TOTALS[name]["parameters"]
    assert active_parameters(model) == TOTALS[name]["active_parameters"]


def test_every_built_in_model_is_counted() -> None:
    assert sorted(TOTALS) == sorted(model_names())


@pytest.mark.parametrize("rows", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_ranks_equal_megatron(rows: list[dict]) -> None:
    model = load_model(rows[0]["model"]).with_layers(rows[0]["num_layers"])
    for row in rows:
        total, expert = stage_parameters(model, row)
        assert total == row["parameters"], row
        # Without expert parallelism Megatron gives experts no group of their own.
        assert expert == row["expert_parameters"] or row["ep"] == 1, row


def test_enough_layouts() -> None:
    assert len(LAYOUTS) >= 40
    assert len({row["model"] for row in MEGATRON}) >= 8


def test_llama3_70b_of_megatron_tp8_pp4_vpp5() -> None:
    """Twenty layers a rank; the figures are those of Megatron-Core 0.19.2."""
    model = load_model("llama3-70b")
    layers = 20 * layer_parameters(model, model.kinds[0], tp=8, ep=1, etp=8).dense
    assert layers == 2_139_422_720
    assert layers + embedding_parameters(model, tp=8) == 2_271_543_296
    head = head_parameters(model, tp=8) + final_norm_parameters(model)
    assert layers + head == 2_271_551_488


@pytest.mark.parametrize("name", ["llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b",
                                  "qwen3-next-80b-a3b", "gpt2", "olmo2-13b"])
def test_arrays_equal_numbers(name: str) -> None:
    model = load_model(name)
    tp, ep, etp = np.array([1, 2, 4, 8]), np.array([4, 1, 2, 8]), np.array([1, 2, 1, 4])
    for kind in model.kinds:
        batch = layer_parameters(model, kind, tp=tp, ep=ep, etp=etp)
        assert batch.dense.shape == batch.expert.shape == (4,)
        assert batch.dense.dtype == batch.expert.dtype == np.float64
        for i in range(4):
            one = layer_parameters(model, kind, tp=int(tp[i]), ep=int(ep[i]), etp=int(etp[i]))
            assert (one.dense, one.expert) == (batch.dense[i], batch.expert[i])
        for weight in weight_shapes(model, kind, tp=tp, ep=ep, etp=etp):
            assert weight.outputs.shape == weight.inputs.shape == (4,), weight.name


@pytest.mark.parametrize("name", model_names())
def test_matrices_are_most_of_a_layer(name: str) -> None:
    model = load_model(name)
    for kind in model.kinds:
        layer = layer_parameters(model, kind, tp=1, ep=1, etp=1)
        weights = weight_shapes(model, kind, tp=1, ep=1, etp=1)
        dense = sum(float(w.outputs * w.inputs) for w in weights if not w.is_expert)
        assert 0.95 * layer.dense <= dense <= layer.dense
        assert len({w.name for w in weights}) == len(weights)
        one_expert = sum(float(w.outputs * w.inputs) for w in weights if w.is_expert)
        experts = model.moe.num_experts if model.moe else 0
        assert 0.99 * layer.expert <= experts * one_expert <= layer.expert


@given(vocab=st.integers(1, 300_000), tp=st.integers(1, 64))
def test_vocabulary_is_padded_to_the_next_multiple(vocab: int, tp: int) -> None:
    model = load_model("llama3-8b").model_copy(update={"vocab_size": vocab})
    padded = float(padded_vocab(model, tp))
    assert vocab <= padded < vocab + 128 * tp
    assert padded % (128 * tp) == 0


@settings(deadline=None)
@given(name=st.sampled_from(["llama3-70b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3",
                             "gpt-oss-120b", "qwen3-next-80b-a3b", "qwen2-57b-a14b",
                             "gemma2-27b"]),
       tp=st.sampled_from([1, 2, 4]), ep=POWERS, etp=POWERS)
def test_ranks_add_up_to_the_layer(name: str, tp: int, ep: int, etp: int) -> None:
    """Over all ranks: the experts exactly, the rest once more for what every rank holds."""
    model = load_model(name)
    for kind in model.kinds:
        whole = layer_parameters(model, kind, tp=1, ep=1, etp=1)
        rank = layer_parameters(model, kind, tp=tp, ep=ep, etp=etp)
        bias = 0.0
        if model.moe is not None and model.moe.expert_bias and kind.mlp is MlpKind.MOE:
            bias = (etp - 1) * model.moe.num_experts * model.hidden_size
        assert rank.expert * ep * etp == whole.expert + bias
        # Twice the degree halves what is split: the replicated part follows from two points.
        half = layer_parameters(model, kind, tp=2 * tp, ep=ep, etp=etp)
        replicated = 2 * half.dense - rank.dense
        assert 0 < replicated < whole.dense
        assert (rank.dense - replicated) * tp == whole.dense - replicated


@settings(deadline=None)
@given(name=st.sampled_from(sorted(TOTALS)), tp=POWERS, ep=POWERS, etp=POWERS)
def test_more_ranks_hold_no_more(name: str, tp: int, ep: int, etp: int) -> None:
    model = load_model(name)
    for kind in model.kinds:
        rank = layer_parameters(model, kind, tp=tp, ep=ep, etp=etp)
        more = layer_parameters(model, kind, tp=2 * tp, ep=2 * ep, etp=2 * etp)
        assert more.dense <= rank.dense
        assert more.expert <= rank.expert
    assert active_parameters(model) <= total_parameters(model)
    assert (active_parameters(model) < total_parameters(model)) is model.is_moe


@pytest.mark.oracle
@pytest.mark.parametrize(("script", "golden", "package"), [
    ("model_parameters.py", "parameters.json", "transformers"),
    ("megatron_parameters.py", "megatron_parameters.json", "megatron")])
def test_the_frameworks_still_say_so(script: str, golden: str, package: str,
                                     tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec(package) is None:
        pytest.skip(f"needs torch and {package}")
    out = tmp_path / golden
    subprocess.run([sys.executable, DERIVE / script, "--out", out], check=True,
                   capture_output=True, timeout=600)
    assert json.loads(out.read_text()) == json.loads((GOLDEN / golden).read_text())
