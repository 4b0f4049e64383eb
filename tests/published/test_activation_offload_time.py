"""Steps that send activations to the host against NVIDIA's published ones."""

from __future__ import annotations

import pytest

from simcore import Strategy, load_model, load_system, predict

MEASURED_S = (("gb200-nvl72", 40, 7.521), ("gb300-nvl72", 20, 6.25))
"""Megatron-Bridge 26.02.01, performance summary: llama3-70b, fp8-cs, 64 GPUs, FSDP."""


def step_s(system: str, layers: int) -> float:
    strategy = Strategy.from_mapping({
        "framework": "megatron-bridge", "framework_version": "26.02.01", "gpus": 64, "gbs": 256,
        "mbs": 2, "seq_len": 8192, "zero": 3, "precision": "fp8-cs", "recompute": "none",
        "activation_offload_layers": layers})
    return float(predict(load_model("llama3-70b"), load_system(system), strategy)["step_time_s"])


@pytest.mark.parametrize(("system", "layers", "measured_s"), MEASURED_S)
def test_offloaded_step_is_as_published(system: str, layers: int, measured_s: float) -> None:
    assert step_s(system, layers) == pytest.approx(measured_s, rel=0.05)


def test_way_to_the_host_costs_time_for_every_layer() -> None:
    """What nothing hides grows with the layers; less than the whole way at the link's rate."""
    none, some, more = (step_s("gb200-nvl72", layers) for layers in (0, 20, 40))
    assert more - some == pytest.approx(some - none, rel=1e-6)
    assert none < some
