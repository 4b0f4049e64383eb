"""``autotune search`` as a command."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.__main__ import main
from autotune.commands.options import SEARCHED
from autotune.search.save import _prefix
from autotune.space import load_space

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
    # The commands to repeat and to launch the best stay on one line, to be copied.
    assert max(len(line) for line in out.splitlines()
               if not line.startswith(("repeat", "launch"))) <= width


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


def test_a_second_study_in_a_storage_is_told(tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    storage = str(tmp_path / "study.journal")
    assert main([*SMALL, "--storage", storage]) == 0
    assert "called" not in capsys.readouterr().err
    assert main([*SMALL, "--storage", storage]) == 0
    assert "'autotune-2'" in capsys.readouterr().err


def test_reasons_come_with_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--gbs", "12"]) == 0
    assert "gbs_divides: gbs: must be a multiple of" in capsys.readouterr().out


def test_gpus_are_named_where_many_more_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Mixed-precision Adam needs 18 bytes a parameter: 405e9 of them fill 86 H100 at least."""
    assert main(["search", "--model", "llama3.1-405b", "--gpus", "1", "--gbs", "16"]) == 3
    err = capsys.readouterr().err
    found = re.search(r"it would fit on (\d+) GPUs", err)
    assert found
    assert 86 <= int(found[1]) <= 1024


def test_help_names_what_is_searched_by_default() -> None:
    """The list in the options is what the shipped default spaces vary."""
    axes = {name for kind in ("dense", "moe", "long_context")
            for name, values in load_space(kind).axes.items() if name != "cp_comm"}
    assert axes == set(SEARCHED)


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True,
                          capture_output=True, text=True)
    stale = tmp_path / f"{_prefix()}{done.stdout.strip()}-abc"
    live = tmp_path / f"{_prefix()}{os.getpid()}-abc"
    foreign = tmp_path / ".autotune-notes"
    for folder in (stale, live, foreign):
        folder.mkdir()
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    assert not stale.exists()
    assert live.exists()
    assert foreign.exists()
