"""The search with the simulator itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.pareto import pareto_mask
from autotune.search.auto import DERIVED_FROM
from autotune.search.axes import build_grid
from autotune.search.engine import SimcoreEngine
from autotune.search.enumerate import Block, Enumerator
from autotune.search.nothing import NothingFitsError
from autotune.search.problem import Problem
from autotune.search.run import search
from autotune.space import default_space, load_space
from simcore.batch import Batch
from simcore.inputs.fields import FIELD, FIELD_NAMES, UNSET, Kind
from simcore.inputs.load import load_model, load_strategy_file, load_system
from simcore.prediction import predict
from simcore.resolve import resolve
from simcore.rules import check

ENGINE = SimcoreEngine()
CASES = (("llama3-8b", "h100-sxm", 16, {}), ("mixtral-8x7b", "h100-sxm", 32, {"tp": "1,2"}),
         ("llama3-70b", "a100-sxm-80g", 48, {"mbs": "1,2"}),
         ("llama3-8b", "h100-sxm", 8, {"framework": "fsdp", "pp": 1, "vpp": 1}),
         ("llama3-8b", "h100-sxm", 16, {"precision": "auto", "fp8_param_gather": "true,false"}),
         ("llama3-8b", "h100-sxm", 16, {"framework": "megatron,megatron-bridge", "cp": 1}))


def problem(model: str, system: str, gpus: int, given: dict[str, object],
            **more: object) -> Problem:
    spec = load_model(model)
    space = default_space(spec).override({"gpus": gpus, "gbs": 64, "seq_len": 4096, **given})
    return Problem(spec, load_system(system), space, **more).checked()  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[2]}-{','.join(c[3])}")
def test_every_enumerated_strategy_passes_check(case: tuple[str, str, int, dict]) -> None:
    p = problem(*case)
    grid = build_grid(p, ENGINE)
    enumerator = Enumerator(p, ENGINE, grid)
    legal = 0
    for _, batch in enumerator.chunks():
        report = check(p.model, p.system, batch)
        assert report.ok.all(), report.tally()
        legal += len(batch)
    assert legal == Enumerator(p, ENGINE, grid).count()
    assert legal + sum(enumerator.tally.counts.values()) == enumerator.leaves(Block({}, 1), 0)
    assert legal


def test_refused_strategies_break_a_rule() -> None:
    p = problem("llama3-8b", "h100-sxm", 12, {"recompute": "none,full", "tp": "1,2,3",
                                              "tp_comm_overlap": "true,false"})
    grid = build_grid(p, ENGINE)
    rows: list[dict[str, float]] = [{}]
    for axis in grid.axes:
        rows = [{**row, **dict(zip(axis.fields, option, strict=True))} for row in rows
                for option in axis.options({q: row.get(q, grid.base.get(q, UNSET))
                                            for q in axis.parents})]
    columns = {n: np.array([r[n] for r in rows]) for n in grid.fields}
    batch = Batch.from_columns({**grid.fixed, **columns}, texts=grid.texts, size=len(rows))
    report = check(p.model, p.system, resolve(p.model, p.system, batch))
    assert Enumerator(p, ENGINE, grid).count() == report.ok.sum()
    assert 0 < report.ok.sum() < len(rows)


def _values(name: str) -> list[float]:
    field = FIELD[name]
    if field.kind is Kind.BOOL:
        return [0, 1]
    if field.kind is Kind.ENUM:
        return [i for i, c in enumerate(field.choices) if c not in field.not_modelled]
    if field.kind is Kind.MODULES:
        return [0, 1, 2, 4]
    if field.kind is Kind.FLOAT:
        return [max(0.0, field.minimum), 1.0]
    return [v for v in (0, 1, 2, 4, 8) if field.minimum <= v <= field.maximum]


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2-lite"])
def test_defaults_depend_on_nothing_but_what_the_table_says(model: str) -> None:
    """Rules are asked once for all that they depend on: a missing entry would be unsound."""
    spec, system = load_model(model), load_system("h100-sxm")
    free = ("framework", "framework_version")
    rng = np.random.default_rng(0)
    for name in FIELD_NAMES:
        if FIELD[name].kind is Kind.TEXT or name in free:
            continue
        values = _values(name)
        for _ in range(12):
            given = {n: float(rng.choice(_values(n))) for n in FIELD_NAMES
                     if FIELD[n].kind is not Kind.TEXT and rng.random() < 0.4 and n != name}
            given["gpus"] = 64
            base = {**given, name: np.array(values, float)}
            out = resolve(spec, system, Batch.from_columns(base, size=len(values)))
            for other in FIELD_NAMES:
                if other in given or other == name or FIELD[other].kind is Kind.TEXT:
                    continue
                column = out.columns[other]
                if (column != column[0]).any():
                    assert name in _closure(other, given), (name, other, given)


def _closure(name: str, given: dict[str, float]) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        for parent in DERIVED_FROM.get(todo.pop(), ()):
            if parent not in found:
                found.add(parent)
                if parent not in given:
                    todo.append(parent)
    return found


@pytest.mark.parametrize("name", ["dense", "moe", "long_context"])
def test_shipped_spaces_are_large(name: str) -> None:
    model = {"dense": "llama3-70b", "moe": "mixtral-8x22b", "long_context": "llama3-8b"}[name]
    space = load_space(name).override({"gpus": 256, "seq_len": 131072 if "long" in name else 8192})
    p = Problem(load_model(model), load_system("h100-sxm"), space).checked()
    assert Enumerator(p, ENGINE, build_grid(p, ENGINE)).count() > 100_000


SMALL = (
    ("llama3-8b", "h100-sxm", 8, {"recompute": "none,full", "cp": "1,2"}, {}),
    ("llama3-8b", "a100-sxm-40g", 16, {"tp": "2,4", "mbs": "1,2", "cp": 1}, {"top": 30}),
    ("llama3-70b", "h100-sxm", 64, {"tp": "4,8", "cp": 1, "mbs": 1, "sp": "true"},
     {"memory_reserve_gib": 4.0}),
    ("mixtral-8x7b", "h100-sxm", 32, {"tp": "1,2", "cp": 1, "mbs": 1, "recompute": "none,full",
                                      "etp": 1, "vpp": "1,2,4"}, {"marginal": False}),
    ("deepseek-v2-lite", "h200-sxm", 16, {"tp": 1, "cp": 1, "mbs": "1,2", "zero": 1,
                                          "recompute": "none,moe_act"}, {}),
    ("llama3-8b", "h100-sxm", 8, {"framework": "fsdp", "pp": 1, "vpp": 1}, {}),
    ("llama3-8b", "h100-sxm", 8, {"recompute": "none,full", "cp": 1, "zero": 1},
     {"objective": "tokens_per_s,memory_headroom", "top": 500}),
)


@pytest.mark.parametrize("case", SMALL, ids=lambda c: f"{c[0]}-{c[2]}-{','.join(c[4])}")
def test_exact_equals_running_every_candidate(case: tuple) -> None:
    *what, more = case
    p = problem(*what, **more)
    exact = [ENGINE.evaluate(p.model, p.system, batch) for _, batch in
             Enumerator(p, ENGINE, build_grid(p, ENGINE)).chunks()]
    step = np.concatenate([e.columns["step_time_s"] for e in exact])
    memory = np.concatenate([e.columns["device_memory_bytes"] for e in exact])
    high = np.concatenate([e.columns["device_memory_high_bytes"] for e in exact])
    fits = (memory if p.marginal else high) <= p.memory_limit_bytes
    result = search(p, engine=ENGINE, method="exact")
    assert result.candidates == len(step)
    assert result.feasible == fits.sum()
    points = np.stack([step, memory], axis=1)[fits]
    want = np.unique(points[pareto_mask(points)], axis=0)
    got = np.array([[e.column("step_time_s"), e.column("device_memory_bytes")]
                    for e in result.pareto])
    # Rows of a batch equal single predictions to 1e-12, not to the last bit.
    assert np.unique(got, axis=0) == pytest.approx(want, rel=1e-11)
    if len(p.objectives.goals) == 1:
        best = np.sort(step[fits])[:64]
        assert [e.column("step_time_s") for e in result.entries[:len(best)]] == pytest.approx(
            best, rel=1e-11)


def test_nothing_fits_says_what_would() -> None:
    p = problem("llama3-70b", "h100-sxm", 8, {"tp": "4,8", "cp": 1, "mbs": 1})
    with pytest.raises(NothingFitsError, match="nearest miss") as caught:
        search(p)
    details = caught.value.details
    assert details["excess_gib"] > 0
    more = details["fits_on_gpus"]
    if more is not None:
        # More GPUs grow data parallelism, the pipeline, or both: pp and vpp are free.
        nearest = {k: v for k, v in details["nearest"].items()
                   if k in ("tp", "cp", "mbs", "sp", "zero", "recompute")}
        again = search(problem("llama3-70b", "h100-sxm", more,
                               {**nearest, "gbs": 64 * more // 8}))
        assert again.feasible


def test_a_saved_strategy_is_predicted_to_the_last_digit(tmp_path: Path) -> None:
    result = search(problem("llama3-8b", "h100-sxm", 16, {"cp": 1, "recompute": "none"}))
    result.save(tmp_path / "out")
    for ranked in result.ranked:
        file = load_strategy_file(tmp_path / "out" / "top" / str(ranked.rank) / "strategy.yaml")
        assert file.model is not None
        assert file.system is not None
        again = predict(load_model(file.model), load_system(file.system), file.strategy)
        assert again.to_dict() == ranked.entry.prediction


def test_a_saved_strategy_brings_its_own_model(tmp_path: Path) -> None:
    p = problem("llama3-8b", "h100-sxm", 16, {"cp": 1, "recompute": "none", "tp": 2})
    p = replace(p, model=p.model.with_layers(20).model_copy(update={"name": "proxy"}))
    search(p).save(tmp_path)
    file = load_strategy_file(tmp_path / "top" / "1" / "strategy.yaml")
    assert load_model(str(file.model)) == p.model
