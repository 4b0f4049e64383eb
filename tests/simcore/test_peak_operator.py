"""The operator that causes a peak, at the moments that SimuMax's B200 totals tell apart."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.explain import explain_memory
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict

CASES = [
    # First stage of a dense pipeline, its last; pp 1; experts (`tests/published/test_b200_memory`
    # holds the same layouts' bytes).
    ("llama3-70b", 12, {"pp": 2, "gbs": 16}, 0, "backward", "backward of the MLP activation"),
    ("llama3-70b", 12, {"pp": 2, "gbs": 16}, 1, "head", "backward of the output layer"),
    ("llama3-70b", 12, {"tp": 4, "gbs": 8}, 0, "head", "backward of the output layer"),
    ("llama3-70b", 12, {"tp": 4, "gbs": 8, "cross_entropy": "unfused"}, 0, "head",
     "loss on fp32 logits"),
    ("llama3-70b", 12, {"pp": 2, "gbs": 16, "recompute": "full"}, 0, "recompute",
     "backward of the MLP activation of a recomputed layer"),
    ("deepseek-v2", 4, {"ep": 8, "etp": 1, "gbs": 32, "capacity_factor": 1.0,
                        "pad_to_capacity": True}, 0, "forward",
     "un-permute of the experts' rows"),
    ("llama3-70b", 4, {"gbs": 8, "seq_len": 64, "exp_avg_dtype": "bf16",
                       "exp_avg_sq_dtype": "bf16"}, 0, "optimizer",
     "casts of gradients and moments"),
]


@pytest.mark.parametrize(("model", "layers", "layout", "stage", "phase", "operator"), CASES)
def test_moment_and_operator(model: str, layers: int, layout: dict[str, Any], stage: int,
                             phase: str, operator: str) -> None:
    found = predict(load_model(model).with_layers(layers), load_system("b200-sxm"),
                    Strategy.from_mapping({"gpus": 8, "seq_len": 4096, "framework_version": "0.14",
                                           **layout}))
    listing = explain_memory(found, stage)
    assert (listing.phase, listing.operator) == (phase, operator)
