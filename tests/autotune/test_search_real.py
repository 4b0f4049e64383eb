"""The search with the simulator itself."""

from __future__ import annotations

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
from simcore.inputs.load import load_model, load_system
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
