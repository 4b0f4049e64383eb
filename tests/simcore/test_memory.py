"""Peak memory: what sits on which stage, and the moments of a recomputed layer."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict
from simcore.units import GIB


def stages(model: str, layers: int = 0, **given: Any) -> list[dict[str, Any]]:
    spec = load_model(model).with_layers(layers) if layers else load_model(model)
    found = predict(spec, load_system("b200-sxm"), Strategy.from_mapping(given))
    return found.to_dict()["memory"]["stages"]


def test_dummy_gradients_sit_where_their_layers_do() -> None:
    # Only the first stage has the dense layer, whose two shapes no other layer shares.
    case = {"gpus": 8, "seq_len": 4096, "gbs": 16, "pp": 2, "ep": 4, "etp": 1,
            "capacity_factor": 1.0, "pad_to_capacity": True}
    with_dummy, without = (
        [float(stage.fixed[0]) for stage in predict(
            load_model("deepseek-v2").with_layers(4), load_system("b200-sxm"),
            Strategy.from_mapping({**case, "grad_accumulation_fusion": fused})
        ).predictions.stages] for fused in (True, False))
    beside = [a - b for a, b in zip(with_dummy, without, strict=True)]
    dense, head = 2 * 3 * 12288 * 5120, 2 * 102400 * 5120
    assert beside[0] - beside[1] == pytest.approx(dense - head, abs=1024)


def test_states_of_the_distributed_optimizer() -> None:
    one = stages("llama3-8b", gpus=8, seq_len=1024, gbs=8)[0]
    parameters = 8_030_261_248
    assert one["weights_gib"] * GIB == pytest.approx(2 * parameters, rel=1e-3)
    assert one["gradients_gib"] * GIB == pytest.approx(4 * parameters, rel=1e-3)
    assert one["optimizer_gib"] * GIB == pytest.approx(12 * parameters / 8, rel=1e-3)


def test_units_of_recomputation_keep_one_input_each() -> None:
    case = {"gpus": 8, "seq_len": 8192, "gbs": 8, "recompute": "full"}
    kept = {unit: stages("llama3-8b", **case, recompute_unit_layers=unit)[0]["activations_gib"]
            for unit in (1, 2, 8)}
    assert kept[1] == pytest.approx(32 * 2 * 4096 * 8192 / GIB)
    assert kept[2] == pytest.approx(kept[1] / 2)
    assert kept[8] == pytest.approx(kept[1] / 8)
