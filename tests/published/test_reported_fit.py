"""Reported cases: what fitted, what did not, and what each change was worth."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import Prediction, predict
from simcore.units import GIB

GB = 1e9


def run(model: str, system: str, *, layers: int = 0, memory_gib: float = 0.0,
        **given: Any) -> Prediction:
    """Predict a run, of a model with fewer layers or on chips of another size."""
    spec, chips = load_model(model), load_system(system)
    if layers:
        spec = spec.with_layers(layers)
    limit = memory_gib * GIB if memory_gib else None
    return predict(spec, chips, Strategy.from_mapping(given), limit_bytes=limit)


def states_gib(prediction: Prediction) -> float:
    """Weights, gradients and optimizer states of the fullest stage."""
    stage = max(prediction.to_dict()["memory"]["stages"], key=lambda s: s["peak_memory_gib"])
    return stage["weights_gib"] + stage["gradients_gib"] + stage["optimizer_gib"]


@pytest.mark.parametrize(("tp", "pp"), [
    (8, 2), (4, 4), (2, 8)])
def test_f1_llama_70b_on_16(tp: int, pp: int) -> None:
    case = {"gpus": 16, "tp": tp, "pp": pp, "mbs": 1, "gbs": 4, "seq_len": 16 * tp}
    whole = run("llama3-70b", "h100-sxm", **case)
    assert whole.verdict == "does_not_fit"
    assert states_gib(whole) > 0.9 * whole["peak_memory_bytes"] / GIB


def test_f1_cut_to_70_layers() -> None:
    cut = run("llama3-70b", "h100-sxm", layers=70, gpus=16, tp=8, pp=2, mbs=1, gbs=4,
              seq_len=128)
    whole = run("llama3-70b", "h100-sxm", gpus=16, tp=8, pp=2, mbs=1, gbs=4, seq_len=128)
    assert cut["device_memory_bytes"] < whole["device_memory_bytes"]
    assert cut.verdict in ("fits", "marginal")


@pytest.mark.parametrize("zero", [0, 1])
def test_f2_llama2_7b_on_40_gb(zero: int) -> None:
    found = run("llama2-7b", "a100-sxm-40g", gpus=8, mbs=1, gbs=8, seq_len=64, zero=zero)
    assert found.verdict == "does_not_fit"
    stage = found.to_dict()["memory"]["stages"][0]
    assert states_gib(found) > 5 * stage["activations_gib"]


F3_GIB = {8: 167.9, 16: 138.8, 32: 124.6, 64: 117.5, 128: 114.8}


def test_f3_moe_under_fsdp() -> None:
    peaks = {n: run("qwen3-30b-a3b", "b200-sxm", gpus=n, mbs=8, gbs=8 * n, seq_len=4096,
                    framework="fsdp")["peak_memory_bytes"] / GIB for n in F3_GIB}
    for few, many in pairwise(F3_GIB):
        measured = F3_GIB[few] - F3_GIB[many]
        assert abs(peaks[few] - peaks[many] - measured) <= 0.15 * measured + 1.0


F4 = {
    "tp4-pp4-vpp5": ({"tp": 4, "pp": 4, "vpp": 5}, 704, 58.8),
    "tp4-pp8-vpp5": ({"tp": 4, "pp": 8, "vpp": 5}, 668, 53.2),
    "tp8-pp4-vpp5": ({"tp": 8, "pp": 4, "vpp": 5}, 509, 50.2),
    "vpp10": ({"tp": 4, "pp": 4, "vpp": 10}, None, 60.2),
    "mlp": ({"tp": 4, "pp": 4, "vpp": 5, "recompute": "mlp"}, 594, 55.6),
}


def f4(name: str) -> Prediction:
    """Predict one layout of the fine-tune; NeMo keeps its weights in fp8."""
    return run("llama3-70b", "h100-sxm", gpus=32, mbs=1, gbs=32, seq_len=4096,
               framework="nemo-megatron", precision="fp8-ds", **F4[name][0])


@pytest.mark.xfail(strict=True, reason="tp8 at 639 TFLOP/s, reported 509; the others within 4 %")
def test_f4_order_of_speeds() -> None:
    speed = {name: f4(name)["model_tflops_per_gpu"] for name, row in F4.items() if row[1]}
    wanted = sorted(speed, key=lambda name: -F4[name][1])
    assert sorted(speed, key=lambda name: -speed[name]) == wanted


@pytest.mark.parametrize("name", F4)
def test_f4_peaks(name: str) -> None:
    # The log is the last rank's: vpp 10 reports 1.4 GB more than 5, as the last stage holds (6
    # more layers of activations), while the first holds 6 fewer; and with `mlp` recomputed the
    # figure is the last stage's optimizer step, whose gradients are cast to fp32.
    last = f4(name).to_dict()["memory"]["stages"][-1]
    assert last["peak_memory_gib"] * GIB / GB == pytest.approx(F4[name][2], rel=0.10)


FULLEST_OVER = {"tp4-pp4-vpp5", "tp4-pp8-vpp5", "vpp10"}
"""Layouts whose fullest rank is predicted more than a tenth over the reported figure."""


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.xfail(
        strict=True, reason="the fullest rank is 11 to 17 % over, if it is what was reported"))
    if name in FULLEST_OVER else name for name in F4])
def test_f4_peaks_of_the_fullest_rank(name: str) -> None:
    assert f4(name)["peak_memory_bytes"] / GB == pytest.approx(F4[name][2], rel=0.10)


def test_f4_more_chunks_cost_the_last_stage_memory() -> None:
    few, many = (f4(name).to_dict()["memory"]["stages"] for name in ("tp4-pp4-vpp5", "vpp10"))
    more = (many[-1]["peak_memory_gib"] - few[-1]["peak_memory_gib"]) * GIB / GB
    assert more == pytest.approx(60.2 - 58.8, abs=0.2)


def test_f4_verdict() -> None:
    assert f4("tp4-pp4-vpp5").verdict in ("fits", "marginal")


F5 = {"none": 36.62, "core_attn": 36.61, "mla_up_proj": 35.90, "moe_act": 35.94,
      "layernorm+moe_act": 35.95}


def f5(recompute: str) -> Prediction:
    """Predict Moonlight with one choice of recomputation."""
    return run("moonlight-16b-a3b", "h100-sxm", gpus=8, tp=2, ep=8, etp=1, mbs=1, gbs=4,
               seq_len=4096, framework="megatron-bridge", grad_dtype="bf16",
               exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16", recompute=recompute)


@pytest.mark.parametrize("recompute", F5)
def test_f5_peaks(recompute: str) -> None:
    assert f5(recompute)["peak_memory_bytes"] / GB == pytest.approx(F5[recompute], rel=0.10)


def test_f5_core_attention_saves_nothing() -> None:
    none, core = f5("none"), f5("core_attn")
    assert 0.99 * none["peak_memory_bytes"] < core["peak_memory_bytes"] <= (
        none["peak_memory_bytes"])
    assert core["step_time_s"] > none["step_time_s"]


def test_f6_recompute_counts_and_memory_is_linear_in_tokens() -> None:
    case = {"gpus": 8, "tp": 4, "mbs": 1, "gbs": 2, "seq_len": 32768}
    levels = [run("gemma2-27b", "h100-sxm", **case, recompute=level)
              for level in ("none", "mlp+layernorm", "full")]
    saved = [max(s.activations[0] for s in level.predictions.stages) for level in levels]
    times = [level["step_time_s"] for level in levels]
    assert saved[0] > saved[1] > saved[2]
    assert times[0] < times[1] < times[2]
    half = run("gemma2-27b", "h100-sxm", **{**case, "seq_len": 16384})
    kept = max(s.activations[0] for s in half.predictions.stages)
    assert saved[0] == pytest.approx(2 * kept, rel=1e-3)


def test_f7_routing_drift_has_a_price() -> None:
    case = {"gpus": 32, "ep": 8, "mbs": 1, "gbs": 32, "seq_len": 4096}
    even, skewed = (run("mixtral-8x7b", "h100-sxm", **case, expert_imbalance=factor)
                    for factor in (1.0, 1.5))
    assert skewed["peak_memory_bytes"] > even["peak_memory_bytes"]
    assert skewed["step_time_s"] > even["step_time_s"]
    # Dropless experts leave room for drift at the high end, padded ones need none.
    padded = run("mixtral-8x7b", "h100-sxm", **case, capacity_factor=1.0, pad_to_capacity=True)
    room = [p["device_memory_high_bytes"] / p["device_memory_bytes"] for p in (even, padded)]
    assert room[0] > room[1]


def test_l12_tp_16_leaves_the_node() -> None:
    inside, beyond = (run("llama3-70b", "h100-sxm", gpus=32, tp=tp, gbs=32, seq_len=8192)
                      for tp in (8, 16))
    assert beyond["tp_comm_s"] > 2.5 * inside["tp_comm_s"]
    rack = run("llama3-70b", "gb200-nvl72", gpus=32, tp=16, gbs=32, seq_len=8192)
    assert rack["tp_comm_s"] < 0.5 * beyond["tp_comm_s"]
