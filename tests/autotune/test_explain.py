"""``predict --explain memory``: every tensor alive at the peak, in every format."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
import yaml

from autotune.__main__ import main

CASE = ("predict", "--model", "llama3-70b", "--gpus", "1024", "--tp", "8", "--pp", "4",
        "--seq-len", "8192", "--gbs", "1024", "--explain", "memory")


def run(capsys: pytest.CaptureFixture[str], *options: str, style: str = "json") -> str:
    assert main([*CASE, *options, "--format", style]) == 0
    return capsys.readouterr().out


def tensors(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, Any]]:
    found = json.loads(run(capsys, *options))["explain"]["memory"]
    return {tensor["name"]: tensor for tensor in found["tensors"]}


def test_tensors_of_a_dense_stage(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys))
    found = data["explain"]["memory"]
    assert found["stage"] == 0
    assert sum(t["bytes"] for t in found["tensors"]) == pytest.approx(
        found["peak_memory_bytes"], rel=1e-12)
    assert found["peak_memory_gib"] == data["peak_memory_gib"]
    sizes = [t["bytes"] for t in found["tensors"]]
    assert sizes == sorted(sizes, reverse=True)
    by_name = {t["name"]: t for t in found["tensors"]}
    # 20 layers with 4 micro-batches in flight each keep fc1's output: gate and up of 28672.
    output = by_name["mlp.linear_fc1.output"]
    assert (output["shape"], output["dtype"], output["count"]) == ([8192, 7168], "bf16", 80)
    assert output["bytes"] == 80 * 2 * 8192 * 7168
    weight = by_name["layers.linear_qkv.weight"]
    assert (weight["shape"], weight["count"]) == ([1280, 8192], 20)
    assert "dist_optimizer.md" in by_name["exp_avg (dense)"]["source"]


def test_what_is_freed_by_then_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    # One stage of a short pipeline peaks in backward, where one fc2 input is gone.
    found = tensors(capsys, "--cross-entropy", "fused", "--tp", "8", "--pp", "8", "--mbs", "4")
    assert found["mlp.linear_fc2.input"]["count"] == found["mlp.linear_fc1.output"]["count"] - (
        "mlp.linear_fc1.output_gradient" in found)
    assert all(tensor["bytes"] > 0 for tensor in found.values())


def test_another_stage(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys, "--stage", "3"))
    assert data["explain"]["memory"]["peak_memory_gib"] == pytest.approx(
        data["memory"]["stages"][3]["peak_memory_gib"])
    names = {t["name"] for t in data["explain"]["memory"]["tensors"]}
    assert "output_layer.logits" in names
    assert "embedding.word_embeddings.weight" not in names


def test_other_formats(capsys: pytest.CaptureFixture[str],
                       monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(csv.DictReader(io.StringIO(run(capsys, style="csv"))))
    listed = yaml.safe_load(run(capsys, style="yaml"))["explain"]["memory"]["tensors"]
    assert len(rows) == len(listed)
    assert rows[0]["shape"] == "8192x7168"
    monkeypatch.setenv("COLUMNS", "160")
    table = run(capsys, style="table")
    assert "mlp.linear_fc1.output" in table
    assert "100.0%" in table


@pytest.mark.parametrize(("options", "message"), [
    (("--stage", "4"), "stage: must be a pipeline rank, 0 to 3, got 4"),
    (("--stage", "x"), "--stage: must be a whole number"),
    (("--explain", "speed"), "--explain: must be memory or time, got 'speed'")])
def test_bad_questions(options: tuple[str, ...], message: str,
                       capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE, *options]) == 2
    assert message in capsys.readouterr().err
