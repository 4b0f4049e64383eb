"""Step times of Korthikanti et al. 2022 (arXiv 2205.05198), table 5, on A100 nodes."""

from __future__ import annotations

import pytest

from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict

RUNS = [("22b", "full", 1.42), ("22b", "core_attn", 1.10), ("175b", "full", 18.13),
        ("175b", "core_attn", 13.75)]
LAYOUTS = {"22b": {"gpus": 8, "gbs": 4, "mbs": 4, "tp": 8},
           "175b": {"gpus": 64, "gbs": 64, "mbs": 1, "tp": 8, "pp": 8, "vpp": 3}}


def model_of(size: str) -> ModelSpec:
    """The paper's models: GPT-3's shape, with its own sizes."""
    spec = load_model("gpt3-175b").model_copy(update={"vocab_size": 51200})
    if size == "22b":
        spec = spec.model_copy(update={
            "hidden_size": 6144, "num_attention_heads": 64, "num_query_groups": 64,
            "head_dim": 96, "ffn_hidden_size": 24576}).with_layers(48)
    return spec


@pytest.mark.parametrize(("size", "recompute", "measured_s"), RUNS)
def test_step_time(size: str, recompute: str, measured_s: float) -> None:
    found = predict(model_of(size), load_system("a100-sxm-80g"), Strategy.from_mapping({
        **LAYOUTS[size], "seq_len": 2048, "precision": "fp16", "zero": 0,
        "sp": recompute != "full", "recompute": recompute, "attention": "unfused"}))
    assert found["step_time_s"] == pytest.approx(measured_s, rel=0.05)
