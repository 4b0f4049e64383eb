"""Bytes of Megatron-LM's functional tests (gpt3_7b memory and speed cases, golden values)."""

from __future__ import annotations

import pytest

from autotune.compare import Library, ready_strategy, run_model
from autotune.kept import kept_models, kept_runs
from simcore.inputs.load import load_system
from simcore.prediction import Prediction, predict

TABLE = "papers/megatron_functional_tests.csv"
BETWEEN_STEPS_GIB = {
    "tp1_pp4": {"a100": 22.8275, "h100": 23.1052, "gb200": 22.8548},
    "tp4_pp1": {"a100": 19.2170, "h100": 19.2444, "gb200": 19.2444}}
"""Allocated on the last rank at the end of a step: parameters, gradients, optimizer, buffers."""
PEAK_GIB = {
    "tp1_pp4": {"a100": 56.3348, "h100": 56.5507, "gb200": 56.3630},
    "tp4_pp1": {"a100": 54.1919, "h100": 53.2193, "gb200": 54.2192}}
"""Most allocated on the last rank."""
UNEXPLAINED = 1025 / 1024
"""Between the steps of tp1 pp4, on all three: 1025 MiB, as many bytes as the output head has in
bf16, which tp4 pp1 does not show; on H100 256 MiB more (four boundary tensors) [GiB]."""
CASES = [(case, gpu) for case, found in PEAK_GIB.items() for gpu in found]


def run(case: str, gpu: str) -> Prediction:
    wanted = f"gpt3_7b_{case}-{gpu}"
    found = next(r for r in kept_runs().runs if r.file == TABLE and r.id == wanted)
    model = run_model(Library(kept=kept_models()).model(found), found)
    return predict(model, load_system(found.system), ready_strategy(found, model))


@pytest.mark.parametrize(("case", "gpu"), CASES)
def test_peak_of_the_last_rank(case: str, gpu: str) -> None:
    stage = run(case, gpu).to_dict()["memory"]["stages"][-1]
    # 0.1 to 0.7 %, but GB200's tp4: deterministic kernels are FlashAttention's there too, which
    # keep 1 GiB of outputs twice as on A100.
    assert stage["peak_memory_gib"] == pytest.approx(PEAK_GIB[case][gpu], rel=0.02)


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_second_copy_of_attention_outputs(gpu: str) -> None:
    """FlashAttention on A100 keeps its output batch first, cuDNN on H100 does not: 1 GiB."""
    peak = run("tp4_pp1", gpu)["peak_memory_bytes"] / 2**30
    assert peak == pytest.approx(PEAK_GIB["tp4_pp1"][gpu], rel=0.002)


def held_gib(case: str, gpu: str) -> float:
    stage = run(case, gpu).predictions.stages[-1]
    return float((stage.peak - stage.dynamic)[0]) / 2**30


@pytest.mark.parametrize("gpu", ["a100", "h100", "gb200"])
def test_held_between_steps(gpu: str) -> None:
    assert held_gib("tp4_pp1", gpu) == pytest.approx(BETWEEN_STEPS_GIB["tp4_pp1"][gpu], rel=0.01)


def test_held_between_steps_of_a_pipeline_lacks_what_is_not_explained() -> None:
    mean = sum(BETWEEN_STEPS_GIB["tp1_pp4"].values()) / 3
    ours = sum(held_gib("tp1_pp4", gpu) for gpu in BETWEEN_STEPS_GIB["tp1_pp4"]) / 3
    assert ours + UNEXPLAINED == pytest.approx(mean, rel=0.01)
    assert ours == pytest.approx(mean, rel=0.05)
