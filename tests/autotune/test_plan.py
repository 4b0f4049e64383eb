"""`autotune plan`: what it answers, what it keeps, what changed, and being stopped."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from autotune.__main__ import main
from autotune.planning.cases import Kept
from autotune.planning.spec import Cluster, GpuRange, Plan, Split
from autotune.planning.split import solve_split
from simcore.units import DAY_S

PLAN = {
    "name": "test", "models": ["llama3-8b", "qwen3-4b"],
    "clusters": [{"name": "h", "system": "h100-sxm", "gpus": [8, 16, 32],
                  "price_per_gpu_hour": 2.0}],
    "workloads": [{"name": "w", "tokens": 1e10, "gbs": 128, "deadline_days": 30.0,
                   "budget_usd": 1e6}],
    "space": "space.yaml"}
SPACE = {"name": "small", "axes": {"tp": [1, 2, 4], "pp": [1, 2], "mbs": [1, 2]}}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    write(tmp_path)
    return tmp_path


def write(folder, **changes):
    (folder / "plan.yaml").write_text(yaml.safe_dump({**PLAN, **changes}))


def run(folder, *more):
    return main(["plan", str(folder / "plan.yaml"), "--out", str(folder / "out"), "--jobs", "1",
                 "--format", "json", *more])


def answered(folder, capsys, *more, status=0):
    assert run(folder, *more) == status
    return json.loads(capsys.readouterr().out)


def test_days_and_dollars_follow_from_the_search(folder, capsys):
    found = answered(folder, capsys)
    assert len(found["rows"]) == 6
    for row in found["rows"]:
        days = 1e10 / row["tokens_per_s"] / row["goodput_frac"] / DAY_S
        assert row["days"] == pytest.approx(days)
        assert row["cost_usd"] == pytest.approx(days * 24 * row["gpus"] * 2.0)
        # 700 W an H100 (NVIDIA's data sheet), 1.2 for the building.
        assert row["energy_mwh"] == pytest.approx(days * 24 * row["gpus"] * 700 * 1.2 / 1e6)
    best = found["rows"][0]
    assert main(["search", "--model", "llama3-8b", "--gpus", "8", "--gbs", "128", "--space",
                 str(folder / "space.yaml"), "--no-marginal", "--format", "json"]) == 0
    ranked = json.loads(capsys.readouterr().out)["ranked"][0]
    assert best["step_time_s"] == ranked["step_time_s"]
    with (folder / "out" / "plan.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 6
    assert "llama3-8b" in (folder / "out" / "plan.md").read_text()


def test_kept_results_are_not_searched_again(folder, capsys, monkeypatch):
    first = answered(folder, capsys)
    monkeypatch.setattr("autotune.planning.cases.solve", lambda case: pytest.fail("searched"))
    second = answered(folder, capsys)
    assert second["rows"] == first["rows"]
    assert second["changes"]["moved"] == []
    # A price is no part of a search; a batch size is.
    write(folder, clusters=[{**PLAN["clusters"][0], "price_per_gpu_hour": 4.0}])
    assert answered(folder, capsys)["rows"][0]["cost_usd"] == pytest.approx(
        2 * first["rows"][0]["cost_usd"])
    write(folder, workloads=[{**PLAN["workloads"][0], "gbs": 256}])
    with pytest.raises(pytest.fail.Exception, match="searched"):
        run(folder)


def test_a_damaged_kept_result_is_made_again(folder, capsys):
    first = answered(folder, capsys)
    for path in (folder / "out" / "kept").rglob("*.json"):
        path.write_text(path.read_text()[:20])
    assert answered(folder, capsys)["rows"] == first["rows"]


def test_a_missed_deadline_is_status_4_and_named_once(folder, capsys):
    answered(folder, capsys)
    write(folder, workloads=[{**PLAN["workloads"][0], "deadline_days": 1e-3}])
    assert run(folder) == 4
    said = capsys.readouterr()
    assert "broken: llama3-8b on h, w misses its deadline" in said.err
    changes = json.loads(said.out)["changes"]
    assert changes["inputs"] == ["the plan"]
    assert answered(folder, capsys)["changes"]["broken"] == []
    write(folder)
    assert answered(folder, capsys)["changes"]["mended"]


def test_a_slower_system_is_named_as_the_cause(folder, capsys):
    from simcore.inputs.load import load_system
    data = load_system("h100-sxm").model_dump(mode="json", exclude_defaults=True)
    data["name"] = "own"
    (folder / "own.yaml").write_text(yaml.safe_dump(data))
    write(folder, clusters=[{**PLAN["clusters"][0], "system": "own.yaml"}])
    answered(folder, capsys)
    data["accelerator"]["peak_bf16_tflops"] *= 0.5
    (folder / "own.yaml").write_text(yaml.safe_dump(data))
    changes = answered(folder, capsys)["changes"]
    assert len(changes["moved"]) == 6
    assert all(m["why"] == ["system own"] and m["step_pct"] > 20 for m in changes["moved"])


def test_what_fits_nowhere_is_said(folder, capsys):
    write(folder, models=["llama3.1-405b"])
    found = answered(folder, capsys)
    question, = found["questions"]
    assert question["fits"] is False
    assert question["min_gpus"] is None
    assert question["reason"]


def test_the_knee_and_the_fewest_gpus(folder, capsys):
    for question in answered(folder, capsys)["questions"]:
        points = {p["gpus"]: p for p in question["scaling"]}
        assert question["min_gpus"] == min(points)
        assert points[min(points)]["efficiency"] == pytest.approx(1.0)
        assert question["knee_gpus"] in points
        assert question["cheapest_gpus"] in points


def options(job, days):
    return [{"fits": True, "cluster": "c", "model": job, "workload": "w", "gpus": gpus,
             "days": d, "gpu_hours": gpus * d * 24, "cost_usd": gpus * d * 48.0,
             "meets_deadline": d <= 20, "layout": "", "effective_tokens_per_s": 1e6 / d}
            for gpus, d in days.items()]


@pytest.mark.parametrize("objective", ["makespan", "weighted_throughput", "cost"])
@pytest.mark.parametrize("available", [48, 80, 128, 200])
def test_a_split_is_the_best_of_all(objective, available):
    pytest.importorskip("scipy", reason="needs the extra 'plan'")
    table = {"a": {8: 40.0, 16: 21.0, 32: 12.0, 64: 8.0}, "b": {16: 30.0, 32: 16.0, 64: 9.0},
             "d": {8: 19.0, 64: 3.0, 128: 2.0}}
    rows = [row for job, days in table.items() for row in options(job, days)]
    plan = Plan(models=tuple(table), clusters=(Cluster(
        name="c", system="h100-sxm", gpus=(8, 16, 32, 64, 128), available_gpus=available),),
        workloads=({"name": "w", "tokens": 1e12},))
    split = Split(cluster="c", objective=objective, jobs=tuple(
        {"model": job, "workload": "w", "weight": weight}
        for job, weight in (("a", 1.0), ("b", 2.0), ("d", 1.0))))
    got = solve_split(split, plan, rows)

    def value(chosen):
        match objective:
            case "makespan":
                return max(r["days"] for r in chosen)
            case "cost":
                return sum(r["cost_usd"] for r in chosen)
            case _:
                return -sum(w * r["effective_tokens_per_s"]
                            for w, r in zip((1.0, 2.0, 1.0), chosen, strict=True))

    allowed = [[r for r in rows if r["model"] == job
                and (objective != "cost" or r["meets_deadline"])] for job in table]
    legal = [c for c in itertools.product(*allowed) if sum(r["gpus"] for r in c) <= available]
    if not legal:
        assert got["jobs"] == []
        assert str(available) in got["reason"]
        return
    want = min(map(value, legal))
    assert abs(got["value"]) == pytest.approx(abs(want))
    assert got["gpus_used"] <= available


def test_ranges_of_gpus():
    assert GpuRange(min=8, max=64).counts == (8, 16, 32, 64)
    assert GpuRange(min=8, max=40, step=16).counts == (8, 24, 40)


@pytest.mark.parametrize(("changes", "words"), [
    ({"models": ["lama9"]}, "lama9"), ({"models": []}, "models"),
    ({"clusters": [{"name": "h", "system": "h100", "gpus": 0}]}, "gpus"),
    ({"workloads": [{"name": "w", "tokens": -1}]}, "tokens"),
    ({"workloads": [{"name": "w", "tokens": 1e9, "speed": 1}]}, "speed"),
    ({"splits": [{"cluster": "x", "jobs": [{"model": "llama3-8b", "workload": "w"}]}]},
     "cluster x"),
    ({"space": "none.yaml"}, "none.yaml")])
def test_bad_plans_are_told(folder, changes, words, capsys):
    write(folder, **changes)
    assert run(folder) == 2
    assert words in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_a_folder_that_cannot_be_written_is_status_1(folder, capsys):
    (folder / "file").write_text("")
    assert main(["plan", str(folder / "plan.yaml"), "--out", str(folder / "out"), "--kept",
                 str(folder / "file" / "kept"), "--jobs", "1"]) == 1
    said = capsys.readouterr().err
    assert "cannot write" in said
    assert "bug" not in said


def start(folder, out):
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", "plan", str(folder / "plan.yaml"), "--out", str(out),
         "--jobs", "1", "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_killed_plan_goes_on_where_it_was(folder, capsys):
    whole = answered(folder, capsys)
    out = folder / "again"
    for _ in range(4):
        process = start(folder, out)
        seen = len(list(out.rglob("*/*.json")))
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if len(list(out.rglob("kept/*/*.json"))) > seen:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in out.rglob("kept/*/*.json"):
            json.loads(path.read_text())
    process = start(folder, out)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(text)["rows"] == whole["rows"]
    assert len(list(out.rglob("kept/*/*.json"))) == 6


@pytest.fixture
def cluster():
    """A Dask scheduler with two worker processes; yields its address and the workers."""
    distributed = pytest.importorskip("distributed", reason="needs the extra 'dask'")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None,
                                  host="127.0.0.1") as running:
        yield running


def test_dask_gives_the_same_answer_with_a_worker_killed(folder, capsys, cluster):
    whole = answered(folder, capsys)
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "plan", str(folder / "plan.yaml"), "--out",
         str(folder / "dask"), "--backend", "dask", "--scheduler", cluster.scheduler_address,
         "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    kept = folder / "dask" / "kept"
    deadline = time.monotonic() + 60
    while not list(kept.rglob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
    text, said = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()
    assert json.loads(text)["rows"] == whole["rows"]


def test_no_scheduler_is_told(folder, capsys):
    pytest.importorskip("distributed", reason="needs the extra 'dask'")
    assert run(folder, "--backend", "dask") == 2
    assert "--scheduler" in capsys.readouterr().err


def test_kept_is_whole_or_not_there(tmp_path):
    kept = Kept(tmp_path)
    assert kept.read("ab" * 32) is None
    kept.write("ab" * 32, {"fits": True, "x": 1.5})
    assert kept.read("ab" * 32) == {"fits": True, "x": 1.5}
    assert [p.suffix for p in Path(tmp_path).rglob("*") if p.is_file()] == [".json"]
