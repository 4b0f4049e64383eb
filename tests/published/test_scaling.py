"""Step times that grow with the number of nodes, and software's part in them."""

from __future__ import annotations

import pytest

from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict


def _step_s(model: str, system: str, **fields: object) -> float:
    return predict(load_model(model), load_system(system),
                   Strategy.from_mapping(fields))["step_time_s"]


@pytest.mark.parametrize(("gpus", "measured_s"), [(128, 14.70), (512, 14.80), (2048, 14.84)])
def test_weak_scaling_of_nemo(gpus: int, measured_s: float) -> None:
    """DGX Cloud benchmarking v25.04, llama3-70b bf16: 14.61 s on 64 H100, 14.84 s on 2,048."""
    fields = {"framework": "nemo-megatron", "tp": 4, "cp": 2, "pp": 4, "vpp": 5, "mbs": 1,
              "seq_len": 8192, "precision": "bf16"}
    small = _step_s("llama3-70b", "h100-sxm", gpus=64, gbs=128, **fields)
    large = _step_s("llama3-70b", "h100-sxm", gpus=gpus, gbs=2 * gpus, **fields)
    assert large / small == pytest.approx(measured_s / 14.61, abs=0.012)
    assert large > small


def test_one_node_has_no_stragglers_to_wait_for() -> None:
    """A step on one node is its own work; on two it is longer by the share of one doubling."""
    fields = {"framework": "megatron", "tp": 8, "mbs": 1, "seq_len": 4096, "gbs": 16,
              "zero": 0, "overlap_grad_reduce": False, "overlap_param_gather": False}
    one = _step_s("llama3-8b", "h100-sxm", gpus=8, **fields)
    two = _step_s("llama3-8b", "h100-sxm", gpus=16, **{**fields, "gbs": 32})
    assert one < two < 1.1 * one
