"""What runs today and its neighbours: against single predictions and against the exact search."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from autotune.__main__ import main

TODAY = "model: llama3-8b\ngpus: 16\ntp: 2\nsp: true\ngbs: 128\nrecompute: full\n"


@pytest.fixture
def today(tmp_path: Path) -> str:
    path = tmp_path / "today.yaml"
    path.write_text(TODAY)
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_neighbour_is_what_predict_says(today: str,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "search", "--start-from", today, "--top", "5")
    base = ask(capsys, "predict", "--strategy", today)
    assert found["start"]["step_time_s"] == pytest.approx(base["step_time_s"])
    assert [row["rank"] for row in found["ranked"][:5]] == [1, 2, 3, 4, 5]
    mine, = (row for row in found["ranked"] if not row["change"])
    assert mine["rank"] > 5  # recomputing everything where all fits is far from the fastest
    for row in (*found["ranked"], *found["single"]):
        alone = ask(capsys, *shlex.split(row["command"])[1:])
        assert alone["step_time_s"] == pytest.approx(row["step_time_s"])
        assert alone["device_memory_gib"] == pytest.approx(row["device_memory_gib"])
        assert row["step_time_pct"] == pytest.approx(
            100 * (alone["step_time_s"] / base["step_time_s"] - 1))
        assert row["device_memory_delta_gib"] == pytest.approx(
            alone["device_memory_gib"] - base["device_memory_gib"])
        differs = {k for k, v in alone["strategy"].items() if base["strategy"][k] != v}
        assert set(row["change"]) == differs - {"dp", "num_microbatches"}
    assert sorted(r["step_time_s"] for r in found["ranked"]) == [
        r["step_time_s"] for r in found["ranked"]]


def test_nothing_near_the_best_is_better(tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    best = ask(capsys, "search", "--model", "llama3-8b", "--gpus", "16", "--gbs", "128",
               "--out", str(tmp_path))
    found = ask(capsys, "search", "--start-from", str(tmp_path / "top" / "1" / "strategy.yaml"))
    assert best["exact"]
    assert found["ranked"][0]["change"] == {}
    assert found["ranked"][0]["step_time_s"] == pytest.approx(best["ranked"][0]["step_time_s"])


def test_fields_are_set_or_are_axes(today: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "search", "--start-from", today, "--recompute", "none", "--mbs", "2,4",
                "--top", "1000")
    assert found["start"]["strategy"]["recompute"] == "none"
    assert {row["strategy"]["mbs"] for row in found["ranked"]} <= {1, 2, 4}


def test_the_table_shows_today(today: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--start-from", today]) == 0
    assert "(today)" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "more", "status", "part"), [
    ("model: llama3-405b\ngpus: 8\ntp: 8\n", [], 3, "neighbours fits"),
    (TODAY + "cp: 3\n", [], 2, "cp"),
    (TODAY, ["--sampler", "tpe"], 2, "--sampler"),
    (TODAY, ["--objective", "cost"], 2, "--objective"),
    ("tp: 2\n", [], 2, "--model"),
])
def test_what_cannot_be_done_is_said(tmp_path: Path, text: str, more: list[str], status: int,
                                     part: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(text)
    assert main(["search", "--start-from", str(tmp_path / "s.yaml"), *more]) == status
    assert part in capsys.readouterr().err
