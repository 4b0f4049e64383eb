"""Ranking, JSON, files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from search_fake import FakeEngine, make_model, make_system

from autotune.result import SearchResult, _alike
from autotune.search.problem import Problem
from autotune.search.run import search
from autotune.space import SearchSpace
from simcore.errors import InputError


@pytest.fixture(scope="module")
def result() -> SearchResult:
    space = SearchSpace("s", {}).override(
        {"gpus": 16, "gbs": 64, "tp": "auto", "pp": "auto", "vpp": "auto", "mbs": "auto",
         "zero": "auto", "recompute": "auto", "overlap_p2p": [True, False]})
    return search(Problem(make_model(), make_system(), space, top=6), engine=FakeEngine())


def test_json_has_the_keys_and_is_plain(result: SearchResult) -> None:
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    for key in ("model", "system", "objective", "space", "candidates", "evaluated", "simulated",
                "feasible", "rejected", "exact", "wall_s", "ranked"):
        assert key in data
    assert [r["rank"] for r in data["ranked"]] == list(range(1, 7))
    times = [r["step_time_s"] for r in data["ranked"]]
    assert times == sorted(times)
    assert data["space"]["zero"] == [1, 0]
    assert data["space"]["gpus"] == [16]


def test_near_duplicates_are_grouped(result: SearchResult) -> None:
    assert all(r.duplicates >= 1 for r in result.ranked)
    leaders = [r.entry for r in result.ranked]
    layouts = [(e.strategy.tp, e.strategy.pp, e.strategy.vpp) for e in leaders]
    for i, a in enumerate(leaders):
        for j, b in enumerate(leaders[:i]):
            assert layouts[i] != layouts[j] or not _alike(b, a)
    assert result.ranked[0].differences == {}
    assert all(r.differences for r in result.ranked[1:])


def test_columns_line_up_with_entries(result: SearchResult) -> None:
    assert np.array_equal(result.columns["step_time_s"],
                          [e.column("step_time_s") for e in result.entries])


def test_folder(result: SearchResult, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    result.save(out)
    assert json.loads((out / "summary.json").read_text())["ranked"][0]["rank"] == 1
    rows = list(csv.DictReader((out / "ranked.csv").open()))
    assert len(rows) == 6
    assert float(rows[0]["step_time_s"]) == result.best.column("step_time_s")
    assert len(list(csv.DictReader((out / "pareto.csv").open()))) == len(result.pareto)
    rejected = {r["reason"]: int(r["candidates"])
                for r in csv.DictReader((out / "rejected.csv").open())}
    assert rejected == dict(result.rejected)
    best = yaml.safe_load((out / "top" / "1" / "strategy.yaml").read_text())
    assert best["strategy"] == result.best.strategy.given()
    assert {p.name for p in (out / "inputs").iterdir()} == {"model.yaml", "system.yaml",
                                                            "space.yaml", "problem.yaml"}
    assert {p.name for p in out.iterdir()} == {
        "summary.json", "ranked.csv", "pareto.csv", "cells.csv", "rejected.csv", "inputs", "top",
        "study.journal"}
    assert not list(tmp_path.glob(".autotune-*"))
    result.save(out)
    assert len(list((out / "top").iterdir())) == 6


def test_nothing_is_written_where_saving_fails(result: SearchResult, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "file"
    taken.write_text("x")
    with pytest.raises(InputError, match="is a file"):
        result.save(taken)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("autotune.search.save._inputs", fail)
    with pytest.raises(InputError, match="No space left"):
        result.save(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
