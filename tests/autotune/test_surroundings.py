"""What the system around the program refuses is told in words, and is no bug."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autotune.__main__ import main
from autotune.objectives import Goal
from autotune.search.study import create

ONE = ["predict", "--model", "llama3-8b", "--gpus", "16"]


def run(arguments: list[str], **more: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "autotune", *arguments], timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **more)


LONG = "x" * 5000


@pytest.mark.parametrize("arguments", [
    ["report", LONG], ["compare", LONG, LONG], ["import", LONG], ["codesign", LONG],
    ["plan", "p.yaml", "--out", LONG], ["trace", *ONE[1:], "--out", LONG],
    ["search", "--model", "llama3-8b", "--gpus", "8", "--tp", "8", "--out", LONG],
    ["search", "--model", "llama3-8b", "--gpus", "8", "--space", LONG],
    ["whatif", "--model", "llama3-8b", "--gpus", "8", "--vary", "memory_gib=x1", "--page", LONG]])
def test_long_names_are_bad_input(arguments: list[str],
                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "bug" not in said
    assert len(said) < 2000


def test_a_full_disk_is_no_bug() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        done = run([*ONE, "--format", "json"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"bug" not in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_closed_stdout_is_no_bug() -> None:
    script = f"{sys.executable} -m autotune {' '.join(ONE)} >&-"
    done = subprocess.run(["sh", "-c", script], timeout=120, check=False, capture_output=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0
    assert b"bug" not in done.stderr


@pytest.mark.parametrize("command", ["import", "report", "compare", "export"])
def test_a_pipe_is_no_file(command: str, tmp_path: Path,
                           capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main([command, *[str(pipe)] * (2 if command == "compare" else 1)]) == 2
    assert "regular file" in capsys.readouterr().err


def test_two_at_once_get_a_study_each(tmp_path: Path) -> None:
    storage = str(tmp_path / "s.journal")
    with ThreadPoolExecutor(6) as pool:
        studies = list(pool.map(
            lambda _: create(storage, [Goal.TOKENS_PER_S], name="autotune").study_name, range(6)))
    assert len(set(studies)) == 6
