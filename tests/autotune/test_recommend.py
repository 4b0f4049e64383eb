"""``recommend``: fewest GPUs, largest micro-batch, longest sequence, cheapest memory."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from autotune.__main__ import main
from autotune.recommend import Question, max_mbs, max_seq_len, min_gpus
from autotune.search.engine import SimcoreEngine
from autotune.search.run import search
from simcore.errors import NoFeasibleStrategyError
from simcore.inputs.load import load_model, load_system

ENGINE = SimcoreEngine()


def question(model: str, system: str = "h100-sxm", **given: object) -> Question:
    return Question(load_model(model), load_system(system), given)


def test_reported_70b_needs_more_than_16() -> None:
    # Users: never on 16 GPUs of 80 GB in any layout; nothing promises it there.
    asked = replace(question("llama3-70b", seq_len=128), marginal=False)
    found = min_gpus(asked, ENGINE)
    assert found
    assert 16 < found[0] <= 32
    assert found[1].verdict == "fits"


def test_reported_7b_does_not_fit_40_gb_unsharded() -> None:
    # Weights and fp32 gradients alone are 40 GB, however many ranks share the optimizer.
    fixed = question("llama2-7b", "a100-sxm-40g", seq_len=64, tp=1, pp=1, cp=1, zero="0,1")
    assert min_gpus(fixed, ENGINE) is None
    assert min_gpus(question("llama2-7b", "a100-sxm-40g", seq_len=64), ENGINE)


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_the_search_agrees(model: str) -> None:
    asked = question(model)
    found = min_gpus(asked, ENGINE)
    assert found
    fewest, held = found
    assert held.device_memory_gib <= 79.65
    assert held.strategy.gpus == fewest
    # The whole space, without what `frugal` leaves out, fits there and on no half as many.
    assert search(asked.problem(gpus=fewest)).best
    with pytest.raises(NoFeasibleStrategyError):
        search(asked.problem(gpus=fewest // 2))


def test_largest_micro_batch_and_longest_sequence_are_the_edge() -> None:
    asked = question("llama3-8b", tp="1,2", recompute="none,full")
    mbs, longest = max_mbs(asked, ENGINE, 8), max_seq_len(asked, ENGINE, 8)
    assert mbs
    assert longest
    assert search(asked.problem(gpus=8, mbs=mbs[0])).best
    assert search(asked.problem(gpus=8, seq_len=longest[0])).best
    for more in ({"mbs": 2 * mbs[0]}, {"seq_len": 2 * longest[0]}):
        with pytest.raises(NoFeasibleStrategyError):
            search(asked.problem(gpus=8, **more))


def test_more_gpus_hold_longer_sequences() -> None:
    asked = question("llama3-8b")
    few, many = (max_seq_len(asked, ENGINE, n) for n in (8, 16))
    assert few
    assert many
    assert few[0] < many[0]


def run(capsys: pytest.CaptureFixture[str], *options: str, status: int = 0) -> str:
    assert main(["recommend", "--model", "llama3-8b", *options]) == status
    return capsys.readouterr().out


def test_json_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    data: dict[str, Any] = json.loads(run(capsys, "--gpus", "8", "--format", "json"))
    assert {"min_gpus", "max_mbs", "max_seq_len", "best", "changes"} <= set(data)
    assert data["min_gpus"] <= data["min_gpus_fits"] <= 8
    assert data["min_gpus_held_by"]["verdict"] in ("fits", "marginal")
    best = data["best"]
    assert data["changes"]
    for change in data["changes"]:
        assert change["saves_gib"] == pytest.approx(
            best["device_memory_gib"] - change["device_memory_gib"])
        assert change["saves_gib"] > 0
        slower = change["step_time_s"] / best["step_time_s"] - 1
        assert change["slower_pct"] == pytest.approx(100 * slower)
    saves = {c["change"]: c["saves_gib"] for c in data["changes"]}
    # Fused attention keeps next to nothing that its recomputation could free.
    assert saves.get("--recompute core_attn", 0.0) < 1.0
    free = [c["slower_pct"] <= 0 for c in data["changes"]]
    assert free == sorted(free, reverse=True)
    costly = [c["gib_per_pct"] for c in data["changes"] if c["slower_pct"] > 0]
    assert costly == sorted(costly, reverse=True)


def test_table_and_csv(capsys: pytest.CaptureFixture[str],
                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    table = run(capsys, "--gpus", "8")
    assert "fewest GPUs that hold it" in table
    rows = list(csv.DictReader(io.StringIO(run(capsys, "--gpus", "8", "--format", "csv"))))
    assert [row["question"] for row in rows] == ["min_gpus", "min_gpus_fits", "max_mbs",
                                            "max_seq_len"]


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--model", "llama3-70b", "--gpus", "8", "--format", "json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["max_mbs"] is None
    assert json.loads(out)["min_gpus"] > 8
    assert "nearest miss" in err


@pytest.mark.parametrize(("options", "message"), [
    (("--gpus", "8", "--tp", "7"), "tp:"), (("--gpus", "x"), "--gpus"),
    (("--gpus", "8", "--mbs", "two"), "mbs: must be")])
def test_bad_input(options: tuple[str, ...], message: str,
                   capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--model", "llama3-8b", *options]) == 2
    assert message in capsys.readouterr().err
