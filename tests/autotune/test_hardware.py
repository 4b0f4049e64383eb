"""`autotune whatif` and `codesign`: the same answers as searches, and what is worth what."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import yaml

from autotune.__main__ import main
from autotune.hardware.candidates import Candidates
from autotune.hardware.codesign import Bench, Design, codesign, front
from autotune.hardware.figures import changed, combinations, parse_varied
from autotune.hardware.formulas import Formula
from autotune.hardware.whatif import whatif
from autotune.search.problem import Problem
from autotune.search.run import search
from autotune.space import default_space, load_space
from simcore.errors import InputError
from simcore.inputs.load import load_model, load_system

SPACE = {"name": "small", "axes": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "mbs": [1, 2],
                                   "recompute": ["none", "full"]}}


def problem(model="llama3-8b", gpus=64, **fields):
    spec = load_model(model)
    return Problem(spec, load_system("h100-sxm"),
                   default_space(spec).override({"gpus": gpus, **fields}), top=1)


@pytest.mark.parametrize("figures", [
    {}, {"network.nic_gb_per_s": 10.0}, {"accelerator.peak_bf16_tflops": 3000.0},
    {"accelerator.memory_gib": 30.0}, {"network.domain_size": 4.0},
    {"accelerator.memory_bandwidth_gb_per_s": 1000.0, "network.scale_up_gb_per_s": 100.0}])
@pytest.mark.parametrize(("model", "gpus"), [("llama3-8b", 64), ("mixtral-8x7b", 64)])
def test_the_best_is_what_a_search_of_that_system_finds(model, gpus, figures):
    asked = problem(model, gpus, tp=[1, 2, 8], pp=[1, 4], vpp=[1, 2, 4], mbs=[1, 2],
                    recompute_layers=0)
    got = Candidates(asked).best(figures)
    want = search(Problem(asked.model, changed(asked.system, figures), asked.space, top=1)).best
    assert got["step_time_s"] == want.column("step_time_s")


def test_faster_hardware_is_never_slower():
    found = whatif(problem(tp=[1, 2, 8], pp=[1, 4], mbs=[1, 2], recompute_layers=0), [
        parse_varied(f"{name}=x0.25..x4:6", load_system("h100-sxm"))
        for name in ("nic_gb_per_s", "peak_bf16_tflops", "memory_gib",
                     "memory_bandwidth_gb_per_s")])
    for curve in found["curves"]:
        rates = [p["tokens_per_s_per_gpu"] for p in found["points"]
                 if curve["figure"] in p["figures"] and p["fits"]]
        assert rates == sorted(rates)
        assert all(0 <= e["elasticity"] <= 1.001 for e in curve["elasticities"]
                   if curve["figure"] != "accelerator.memory_gib")


def test_at_a_break_even_point_both_strategies_are_as_fast():
    asked = problem("llama3-70b", 256, tp=[1, 2, 4, 8], cp=1, pp=[2, 4, 8], mbs=1,
                    recompute_layers=0)
    found = whatif(asked, [parse_varied("scale_up_gb_per_s=20..2000:6", asked.system)])
    breaks = [b for c in found["curves"] for b in c["break_even"] if b["value"]]
    assert breaks
    points = {p["figures"]["network.scale_up_gb_per_s"]: p for p in found["points"]}
    for b in breaks:
        low, high = b["between"]
        assert low < b["value"] < high
        fixed = [{k: v for k, v in points[x]["strategy"].items()
                  if k not in ("dp", "num_microbatches")} for x in b["between"]]
        system = changed(asked.system, {"network.scale_up_gb_per_s": b["value"]})
        from simcore.inputs.strategy import Strategy
        from simcore.prediction import predict
        one, two = (predict(asked.model, system, Strategy.from_mapping(f))["tokens_per_s"]
                    for f in fixed)
        assert one == pytest.approx(two, rel=1e-5)


def test_values_of_a_figure():
    system = load_system("h100-sxm")
    assert parse_varied("nic_gb_per_s=25,x2", system).values == (25.0, 100.0)
    found = parse_varied("network.nic_gb_per_s=10..160:5", system)
    assert found.values == pytest.approx((10, 20, 40, 80, 160))
    assert parse_varied("domain_size=x1..x8:4", system).values == (8, 16, 32, 64)
    two = [found, parse_varied("memory_gib=40,80", system)]
    assert len(combinations(two, together=True)) == 10
    assert len(combinations(two, together=False)) == 7


@pytest.mark.parametrize(("vary", "words"), [
    ("nic_gb=1", "nic_gb"), ("nic_gb_per_s", "no values"), ("nic_gb_per_s=a", "no number"),
    ("nic_gb_per_s=9..3:4", "no range"), ("nic_gb_per_s=-1", "no number"),
    ("memory_frac=0.5,3", "memory_frac"), ("nic_gb_per_s=nan", "no number"),
    ("nic_gb_per_s=1..2:99999", "no number")])
def test_bad_figures_are_told(vary, words, capsys):
    assert main(["whatif", "--model", "llama3-8b", "--gpus", "8", "--vary", vary]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "bug" not in said


def test_the_command_shows_and_writes(tmp_path, capsys):
    pytest.importorskip("vl_convert", reason="needs the extra 'report'")
    arguments = ["whatif", "--model", "llama3-8b", "--gpus", "16", "--tp", "1,2", "--pp", "1",
                 "--vary", "nic_gb_per_s=x0.5,x1"]
    assert main([*arguments, "--page", str(tmp_path / "w.html")]) == 0
    assert "elasticity" in capsys.readouterr().out
    assert "Throughput over network.nic_gb_per_s" in (tmp_path / "w.html").read_text()
    assert main([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["points"][1]["throughput_pct"] == pytest.approx(0.0)
    assert main(["whatif", "--model", "llama3-70b", "--gpus", "1", "--vary",
                 "memory_gib=20,40"]) == 3


@pytest.mark.parametrize("text", [
    "__import__('os').system('x')", "().__class__", "x[0]", "lambda: 1", "'a' * 9",
    "x if x else 1", "open('f')", "x; y", "", "x.real", "9**9**9**9 and 1", "True"])
def test_formulas_can_only_compute(text):
    with pytest.raises(InputError):
        Formula(text, where="f", names=frozenset({"x"}))({"x": 1.0})


def test_formulas_compute():
    names = frozenset({"x", "y"})
    assert Formula("2 * x ** 2 - y / 4", where="f", names=names)({"x": 3, "y": 8}) == 16
    assert Formula("max(x, sqrt(y))", where="f", names=names)({"x": 1, "y": 9}) == 3
    limit = Formula("x + y <= 10", where="f", names=names, is_condition=True)
    assert limit({"x": 4, "y": 6}) == 1.0
    assert limit.excess({"x": 4, "y": 9}) == 3.0
    for text, values in (("x / y", {"x": 1, "y": 0}), ("10 ** x", {"x": 999, "y": 0}),
                         ("sqrt(x)", {"x": -1, "y": 0})):
        with pytest.raises(InputError, match="f: "):
            Formula(text, where="f", names=names)(values)


@pytest.fixture
def design(tmp_path):
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    data = {
        "system": "h100-sxm",
        "figures": {"peak_bf16_tflops": [500.0, 1000.0, 2000.0], "memory_gib": [40.0, 80.0],
                    "nic_gb_per_s": [25.0, 50.0, 100.0]},
        "derived": {"peak_fp8_tflops": "2 * peak_bf16_tflops"},
        "formulas": {"cost": "1000 + 6 * peak_bf16_tflops + 20 * memory_gib + 30 * nic_gb_per_s"},
        "constraints": ["peak_bf16_tflops * memory_gib <= 100000"],
        "workloads": [{"model": "llama3-8b", "gpus": 32, "space": "space.yaml"},
                      {"model": "qwen3-4b", "gpus": 32, "weight": 2.0, "space": "space.yaml"}]}
    (tmp_path / "design.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "design.yaml"


def bench_of(path):
    from autotune.hardware.codesign import read_design
    return Bench(read_design(path), path.parent)


def test_all_designs_tried_give_the_exhaustive_front(design):
    bench = bench_of(design)
    grids = np.meshgrid(*(np.array(v) for v in bench.chosen.values()), indexing="ij")
    points = []
    for row in np.stack([g.ravel() for g in grids], 1).tolist():
        chosen = dict(zip(bench.chosen, row, strict=True))
        if max(bench.excess(bench.complete(chosen))) <= 0:
            points.append(bench.evaluate(chosen))
    whole = front(bench, points)
    found = codesign(bench, trials=150, seed=0)
    assert found["feasible"] <= 150
    got = {(round(p["throughput"], 12), p["cost"]) for p in found["pareto"]}
    want = {(round(p.throughput, 12), p.quantities["cost"]) for p in whole}
    assert len(got & want) >= len(want) - 1
    rates = [p["throughput"] for p in found["pareto"]]
    costs = [p["cost"] for p in found["pareto"]]
    assert rates == sorted(rates, reverse=True)
    assert costs == sorted(costs, reverse=True)


def test_throughput_is_the_weighted_mean_against_the_system(design):
    bench = bench_of(design)
    point = bench.evaluate({"accelerator.peak_bf16_tflops": 2000.0,
                            "accelerator.memory_gib": 40.0, "network.nic_gb_per_s": 50.0})
    system = changed(load_system("h100-sxm"), point.figures)
    logs = []
    for name, weight in (("llama3-8b", 1.0), ("qwen3-4b", 2.0)):
        space = load_space(str(design.parent / "space.yaml")).override({"gpus": 32})
        new, old = (search(Problem(load_model(name), s, space, top=1, marginal=False)).best
                    for s in (system, load_system("h100-sxm")))
        logs.append(weight * math.log(new.column("tokens_per_s") / old.column("tokens_per_s")))
    assert point.throughput == pytest.approx(math.exp(sum(logs) / 3.0))


def test_the_same_seed_gives_the_same_designs(design):
    first, second = (codesign(bench_of(design), trials=15, seed=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("changes", "words"), [
    ({"figures": {"peak_tflops": [1.0, 2.0]}}, "peak_tflops"),
    ({"formulas": {"cost": "area * 2"}}, "area"),
    ({"constraints": ["memory_gib"]}, "must compare"),
    ({"minimise": ["power"]}, "power"),
    ({"figures": {"memory_gib": {"low": 80.0, "high": 40.0}}}, "high must be above low"),
    ({"workloads": []}, "workloads"), ({"sampler": "best"}, "sampler")])
def test_bad_designs_are_told(design, changes, words, capsys):
    data = yaml.safe_load(design.read_text())
    design.write_text(yaml.safe_dump({**data, **changes}))
    assert main(["codesign", str(design), "--trials", "2"]) == 2
    assert words in capsys.readouterr().err


def test_constraints_that_nothing_keeps_are_status_3(design, capsys):
    data = yaml.safe_load(design.read_text())
    design.write_text(yaml.safe_dump({**data, "constraints": ["memory_gib <= 1"]}))
    assert main(["codesign", str(design), "--trials", "3"]) == 3
    assert "memory_gib <= 1" in capsys.readouterr().err


def test_a_design_is_a_mapping_of_known_keys():
    assert Design.model_fields["minimise"].default == ("cost",)
