"""``autotune search`` as a command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from autotune.__main__ import main

SMALL = ("search", "--model", "llama3-8b", "--gpus", "8", "--gbs", "32", "--tp", "1,2,4,8",
         "--recompute", "none,full", "--vpp", "1")
KEYS = {"model", "system", "objective", "space", "candidates", "evaluated", "simulated",
        "feasible", "rejected", "exact", "wall_s", "ranked"}


def test_json_has_the_keys_that_others_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--format", "json", "--top", "3"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert set(data) >= KEYS
    assert data["exact"] is True
    assert [p["rank"] for p in data["ranked"]] == [1, 2, 3]
    assert set(data["space"]["tp"]) <= {1, 2, 4, 8}
    assert err == ""
    times = [p["step_time_s"] for p in data["ranked"]]
    assert times == sorted(times)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_table(width: int, capsys: pytest.CaptureFixture[str],
               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*SMALL]) == 0
    out = capsys.readouterr().out
    assert "exact      yes" in out
    # The command to repeat the best stays on one line, to be copied.
    assert max(len(line) for line in out.splitlines() if not line.startswith("repeat")) <= width


@pytest.mark.parametrize("options", [[], ["--pp", "2", "--first-stage-layers", "auto"],
                                     ["--zero", "3", "--precision", "fp8-cs"]])
def test_the_command_shown_predicts_the_same(options: list[str],
                                             capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--format", "json", *options]) == 0
    for entry in json.loads(capsys.readouterr().out)["ranked"]:
        assert main([*shlex.split(entry["command"])[1:], "--format", "json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["strategy"] == entry["strategy"]
        assert again["step_time_s"] == entry["step_time_s"]


def test_saved_best_predicts_to_the_last_digit(tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert main([*SMALL, "--format", "json", "--out", str(folder)]) == 0
    best = json.loads(capsys.readouterr().out)["ranked"][0]
    strategy = folder / "top" / "1" / "strategy.yaml"
    assert main(["predict", "--strategy", str(strategy), "--format", "json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for key in ("step_time_s", "peak_memory_gib", "device_memory_gib", "mfu"):
        assert again[key] == best[key]


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", "--model", "llama3-70b", "--gpus", "1", "--vpp", "1"]
    assert main(arguments) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: nothing fits")
    assert "nearest miss" in err
    assert main([*arguments, "--format", "json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["ranked"] == []
    assert data["nearest_miss"]["excess_gib"] > 0


def test_memory_options_shrink_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--format", "json", "--memory-limit-gib", "70",
                 "--memory-utilisation", "0.9", "--memory-reserve-gib", "3"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["memory_limit_gib"] == pytest.approx(60.0)
    assert all(p["device_memory_gib"] <= 60.0 for p in data["ranked"])


def test_goals_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    goals = ["--objective", "cost,time_to_train", "--tokens", "1e12",
             "--price-per-gpu-hour", "2.5"]
    assert main([*SMALL, *goals, "--format", "json"]) == 0
    for entry in json.loads(capsys.readouterr().out)["ranked"]:
        seconds = 1e12 / entry["tokens_per_s"]
        gpus = entry["strategy"]["gpus"]
        assert entry["objectives"]["time_to_train_s"] == pytest.approx(seconds, rel=1e-12)
        assert entry["objectives"]["cost_usd"] == pytest.approx(
            gpus * 2.5 * seconds / 3600, rel=1e-12)
    assert main([*SMALL, *goals]) == 0
    assert "training" in capsys.readouterr().out
