"""Why a fit is uncertain, what would help, and how far routing may drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.__main__ import main
from simcore.headroom import expert_headroom
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import Prediction, predict
from simcore.units import GIB

ROOT = Path(__file__).parents[2]
CASE = ("--model", "llama3-70b", "--gpus", "32", "--tp", "4", "--pp", "4", "--vpp", "5",
        "--seq-len", "4096", "--gbs", "32", "--framework", "nemo-megatron", "--precision",
        "fp8-ds")
"""A reported fine-tune of which a third of the runs failed from fragmentation."""


@pytest.fixture
def marginal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, ...]:
    """The case on a device whose memory ends between what is likely and the worst."""
    data = found(capsys, "predict", *CASE)
    middle = (data["device_memory_gib"] + data["device_memory_high_gib"]) / 2
    spec = yaml.safe_load((ROOT / "simcore" / "data" / "systems" / "h100-sxm.yaml").read_text())
    spec["accelerator"]["memory_gib"] = middle
    path = tmp_path / "system.yaml"
    path.write_text(yaml.safe_dump(spec))
    return (*CASE, "--system", str(path))


def found(capsys: pytest.CaptureFixture[str], command: str, *options: str) -> dict[str, Any]:
    assert main([command, *options, "--format", "json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_fragmentation_is_named_where_runs_failed_from_it(
        marginal: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    data = found(capsys, "predict", *marginal)
    assert data["verdict"] == "marginal"
    why = data["marginal"]
    assert why["crossed_by"] == "fragmentation"
    assert why["expandable_segments"]
    stage = data["memory"]["stages"][why["stage"]]
    assert stage["device_memory_gib"] + sum(t["gib"] for t in why["terms"]) == pytest.approx(
        stage["device_memory_high_gib"])
    assert stage["device_memory_gib"] <= why["limit_gib"] < stage["device_memory_high_gib"]
    assert why["would_fit"]
    for change in why["would_fit"]:
        assert change["verdict"] == "fits"
        assert change["device_memory_high_gib"] <= why["limit_gib"]
    assert found(capsys, "check", *marginal)["marginal"]["crossed_by"] == "fragmentation"
    assert main(["predict", *marginal]) == 0
    out = capsys.readouterr().out
    assert "expandable_segments:True" in out


def test_what_helps_can_be_asked_for(marginal: tuple[str, ...],
                                     capsys: pytest.CaptureFixture[str]) -> None:
    change = found(capsys, "predict", *marginal)["marginal"]["would_fit"][0]
    again = found(capsys, "predict", *marginal, *change["change"].split())
    assert again["verdict"] == "fits"
    assert again["marginal"] is None
    assert again["step_time_s"] == pytest.approx(change["step_time_s"])


def test_phases_of_memory_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    data = found(capsys, "predict", "--model", "llama3-8b", "--gpus", "16", "--pp", "4",
                 "--gbs", "32", "--recompute", "full")
    for stage, times in zip(data["memory"]["stages"], data["phases"], strict=True):
        peaks = {name: size for name, size in stage["phases"].items() if size is not None}
        assert max(peaks.values()) == pytest.approx(stage["peak_memory_gib"])
        assert max(peaks, key=peaks.__getitem__) == f"{stage['peak_phase']}_gib"
        assert (stage["phases"]["head_gib"] is None) is (stage["stage"] < 3)
        # All layers run forward twice.
        assert times["recompute_s"] == pytest.approx(times["forward_s"], rel=0.05)
        assert (times["head_s"] > 0) is (stage["stage"] == 3)
        assert min(times.values()) >= 0
        busy = sum(value for name, value in times.items() if name != "stage")
        assert busy < data["step_time_s"]


def mixtral(**given: Any) -> Prediction:
    case = {"gpus": 32, "ep": 8, "etp": 1, "pp": 4, "mbs": 1, "gbs": 32, "seq_len": 4096, **given}
    return predict(load_model("mixtral-8x7b"), load_system("h100-sxm"),
                   Strategy.from_mapping(case))


def test_headroom_is_where_the_memory_is_full() -> None:
    room = expert_headroom(mixtral())
    assert room
    # 4096 tokens to two experts each.
    assert room.rows == 8192
    assert room.imbalance_at_limit
    assert room.headroom_rows == pytest.approx(8192 * (room.imbalance_at_limit - 1))
    limit = load_system("h100-sxm").accelerator.memory_gib * GIB
    at_limit = mixtral(expert_imbalance=room.imbalance_at_limit)["device_memory_bytes"]
    assert at_limit == pytest.approx(limit, rel=1e-3)


def test_headroom_shrinks_with_imbalance_and_ends() -> None:
    even, skewed, over = (expert_headroom(mixtral(expert_imbalance=x)) for x in (1.0, 1.3, 2.5))
    assert even
    assert skewed
    assert over
    assert even.imbalance_at_limit == pytest.approx(skewed.imbalance_at_limit)
    assert even.headroom_rows > skewed.headroom_rows > 0 > over.headroom_rows


def test_capacity_bounds_the_rows() -> None:
    padded = expert_headroom(mixtral(capacity_factor=1.0, pad_to_capacity=True))
    assert padded
    assert padded.headroom_rows is None
    dense = predict(load_model("llama3-8b"), load_system("h100-sxm"),
                    Strategy.from_mapping({"gpus": 8}))
    assert expert_headroom(dense) is None


def test_headroom_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", "mixtral-8x7b", "--gpus", "32", "--ep", "8", "--etp", "1", "--pp", "4",
               "--gbs", "32", "--seq-len", "4096")
    data = found(capsys, "predict", *options)
    assert data["experts"]["imbalance"] == 1.0
    assert data["experts"]["headroom_rows_per_rank"] > 0
    assert main(["predict", *options]) == 0
    assert "8,192 rows a rank" in capsys.readouterr().out
