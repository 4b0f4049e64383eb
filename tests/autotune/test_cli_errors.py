"""Bad input: one line a problem on stderr, nothing on stdout, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.__main__ import main

BASE = ("--model", "llama3-8b", "--gpus", "8", "--tp", "2", "--gbs", "32")

BAD = [
    (["serch"], "did you mean 'search'"),
    (["predict", *BASE, "--tpp", "2"], "--tpp: is not an option of 'autotune predict'"),
    (["predict", *BASE, "--tp"], "--tp: needs a value"),
    (["predict", *BASE, "--tp", "0"], "tp: must be a whole number from 1"),
    (["predict", *BASE, "--tp", "-2"], "tp: must be"),
    (["predict", *BASE, "--tp", "two"], "got 'two'"),
    (["predict", *BASE, "--tp", "1e99"], "tp: must be"),
    (["predict", *BASE, "--mbs", "nan"], "mbs: must be"),
    (["predict", *BASE, "--precision", "bf17"], "did you mean 'bf16'"),
    (["predict", *BASE, "--schedule", "dualpipe"], "needs pp > 1"),
    (["predict", *BASE, "--cp", "4", "--cp-comm", "a2a+p2p"], "cp_comm"),
    (["predict", *BASE, "--sp", "maybe"], "sp: must be true or false"),
    (["predict", *BASE, "--format", "xml"], "--format: must be one of table"),
    (["predict", "--gpus", "8"], "--model: is needed"),
    (["predict", "--model", "llama3-8b"], "gpus: is needed"),
    (["predict", "--model", "llama70c", "--gpus", "8"], "did you mean 'llama70b'"),
    (["predict", *BASE, "--system", "h100-smx"], "did you mean 'h100-sxm'"),
    (["predict", *BASE, "--system", "/"], "/"),
    (["predict", "--strategy", "/nowhere/strategy.yaml"], "/nowhere/strategy.yaml"),
    (["predict", *BASE, "extra"], "'extra': is not expected"),
    (["check", *BASE, "--gbs", "33"], "gbs"),
    (["search", "--model", "llama3-8b", "--gpus", "8", "--top", "0"], "--top: must be"),
    (["search", "--model", "llama3-8b", "--gpus", "8", "--tp", "1,x"], "got 'x'"),
    (["search", "--model", "llama3-8b", "--gpus", "8", "--objective", "speed"], "objective"),
    (["search", "--model", "llama3-8b", "--gpus", "8", "--sampler", "tpee"], "sampler"),
    (["search", "--model", "llama3-8b"], "gpus: is needed"),
    (["search", "--model", "llama3-8b", "--gpus", "8", "--memory-limit-gib", "1000"],
     "--memory-limit-gib: must be"),
    (["models", "nonesuch"], "nonesuch"),
    (["validate", "/nowhere.csv"], "/nowhere.csv"),
    (["validate", "--models", "/nowhere"], "--models: must be a folder"),
]


@pytest.mark.parametrize(("arguments", "part"), BAD, ids=[" ".join(a)[-40:] for a, _ in BAD])
def test_bad_input_ends_in_2(arguments: list[str], part: str,
                             capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert part.lower() in err.lower()
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert "Traceback" not in err


def test_all_problems_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "x1", "--system", "x2", "--tp", "0", "--pp", "z"]) == 2
    err = capsys.readouterr().err
    for word in ("'x1'", "'x2'", "tp:", "pp:"):
        assert word in err


@pytest.mark.parametrize("text", [
    "", "[]", "gpus: 8\ngpus: 8\n", "gpus: [1\n", "a: &x [*x]\n", "gpus: 8\ntpp: 2\n",
    "model: llama3-8b\ngpus: eight\n", "\x00", "model: {a: 1}\ngpus: 8\n", "!!python/name:os.x {}",
])
def test_bad_strategy_files(text: str, tmp_path: Path,
                            capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert main(["predict", "--strategy", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert "s.yaml" in err or "model" in err


def test_hostile_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "x\x1b[31m[bold]\n\rname"
    assert main(["predict", "--model", hostile, "--gpus", "8"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "[bold]" in err
    assert len(err.splitlines()) == 1
    path = tmp_path / "m.yaml"
    path.write_text(f"name: {_quoted('[red]x' + chr(27) + '[2J')}\n" + TINY)
    assert main(["predict", "--model", str(path), "--gpus", "1", "--gbs", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]x" in out


TINY = """source: test
num_layers: 2
hidden_size: 128
num_attention_heads: 2
num_query_groups: 2
head_dim: 64
ffn_hidden_size: 256
vocab_size: 1000
seq_len: 128
max_position_embeddings: 128
"""


def _quoted(text: str) -> str:
    return '"' + text.replace("\x1b", "\\e") + '"'


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), KeyError("x"), IndexError("i")])
def test_a_bug_says_that_it_is_one(error: Exception, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    import simcore.prediction

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(simcore.prediction, "evaluate", broken)
    monkeypatch.setattr(simcore.prediction, "predict", broken)
    assert main(["predict", *BASE]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: this is a bug in autotune: {type(error).__name__}")
    assert len(err.splitlines()) == 1
    assert main(["predict", *BASE, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_nothing_is_written_on_bad_input(tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result"
    assert main(["search", "--model", "llama3-8b", "--gpus", "8", "--out", str(out),
                 "--tp", "zero"]) == 2
    assert not out.exists()
    file = tmp_path / "file"
    file.write_text("x")
    assert main(["search", "--model", "llama3-8b", "--gpus", "8", "--out", str(file)]) == 2
    assert file.read_text() == "x"
    assert re.search("--out: must be a folder", capsys.readouterr().err)
