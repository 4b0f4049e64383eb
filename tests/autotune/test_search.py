"""Exact search against brute force, with a small simulator of its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from search_fake import FakeEngine, make_model, make_system

from autotune.pareto import pareto_mask
from autotune.search import exact as exact_module
from autotune.search import run as run_module
from autotune.search.axes import build_grid
from autotune.search.enumerate import Block, Enumerator, domain
from autotune.search.exact import combine, search_grid
from autotune.search.nothing import NothingFitsError
from autotune.search.pool import Pool, Wanted
from autotune.search.problem import Problem, default_gbs
from autotune.search.run import search
from autotune.space import SearchSpace
from simcore.batch import Batch
from simcore.errors import InputError
from simcore.inputs.fields import UNSET

FIELDS = ("tp", "cp", "pp", "vpp", "first_stage_layers", "last_stage_layers", "mbs", "sp", "zero",
          "recompute", "recompute_layers", "overlap_grad_reduce", "overlap_param_gather")


def problem(axes: dict[str, object], *, experts: int = 0, memory_gib: float = 40.0,
            layers: int = 12, **more: object) -> Problem:
    space = SearchSpace("test", {}).override({"gbs": 64, **axes})
    return Problem(make_model(layers=layers, experts=experts), make_system(memory_gib=memory_gib),
                   space, **more)  # type: ignore[arg-type]


def leaves(p: Problem, engine: FakeEngine) -> list[dict[str, float]]:
    """Every leaf of the grid, by plain loops."""
    grid = build_grid(p.checked(), engine)
    rows: list[dict[str, float]] = [{}]
    for axis in grid.axes:
        rows = [{**row, **dict(zip(axis.fields, option, strict=True))} for row in rows
                for option in axis.options({q: row.get(q, grid.base.get(q, UNSET))
                                            for q in axis.parents})]
    return rows


def brute(p: Problem, engine: FakeEngine) -> tuple[Batch, np.ndarray, int]:
    """Legal rows as a batch, whether they fit, and the number of leaves."""
    p = p.checked()
    grid = build_grid(p, engine)
    rows = leaves(p, engine)
    columns = {n: np.array([r[n] for r in rows]) for n in grid.fields}
    batch = Batch.from_columns({**grid.fixed, **columns}, texts=grid.texts, size=len(rows))
    batch = engine.resolve(p.model, p.system, batch)
    context = engine.context(p.model, p.system, batch)
    bad = np.zeros(len(rows), np.bool_)
    for rule in engine.rules:
        bad |= np.broadcast_to(rule.violated(context), bad.shape)
    legal = batch.take(~bad)
    memory = engine.bound(p.model, p.system, legal).device_memory_bytes
    return legal, memory <= p.memory_limit_bytes, len(rows)


SOME = ("tp", "pp", "vpp", "first_stage_layers", "last_stage_layers", "mbs", "zero",
        "recompute", "recompute_layers")


def small_spaces() -> list[dict[str, object]]:
    rng = np.random.default_rng(7)
    spaces = []
    for i in range(56):
        axes: dict[str, object] = {"gpus": int(rng.choice([8, 16, 24, 32]))}
        for name in FIELDS:
            if rng.random() < 0.45:
                axes[name] = "auto"
        axes.setdefault("tp", [1, 2, 3])
        if i % 3 == 0:
            axes.update(ep="auto", etp="auto")
        spaces.append(axes)
    return spaces


@pytest.mark.parametrize("number", range(56))
def test_exact_equals_brute_force(number: int) -> None:
    axes = small_spaces()[number]
    engine = FakeEngine(tightness=(0.5, 0.9, 1.0)[number % 3])
    p = problem(axes, experts=4 if "ep" in axes else 0, memory_gib=(12.0, 30.0)[number % 2],
                top=5)
    legal, fits, raw = brute(p, engine)
    if not fits.any():
        with pytest.raises(NothingFitsError):
            search(p, engine=engine, method="exact")
        return
    result = search(p, engine=engine, method="exact")
    exact = engine.evaluate(p.model, p.system, legal.take(fits))
    times = np.sort(exact.columns["step_time_s"])
    assert result.exact
    assert result.candidates == len(legal)
    assert result.feasible == fits.sum()
    assert result.candidates + sum(
        v for k, v in result.rejected.items() if k not in ("memory", "marginal")) == raw
    assert result.rejected.get("memory", 0) == (~fits).sum()
    assert result.best.column("step_time_s") == times[0]
    found = [e.column("step_time_s") for e in result.entries]
    assert found[:40] == times[:40].tolist()
    points = np.stack([exact.columns["step_time_s"], exact.columns["device_memory_bytes"]], 1)
    want = np.unique(points[pareto_mask(points)], axis=0)
    got = np.array([[e.column("step_time_s"), e.column("device_memory_bytes")]
                    for e in result.pareto])
    assert np.array_equal(np.unique(got, axis=0), want)
    assert len(got) == len(want)
    cells = {}
    for tp, pp, ep, t in zip(*(exact.batch[n] for n in ("tp", "pp", "ep")),
                             exact.columns["step_time_s"], strict=True):
        cells[tp, pp, ep] = min(t, cells.get((tp, pp, ep), np.inf))
    assert {(e.strategy.tp, e.strategy.pp, e.strategy.ep): e.column("step_time_s")
            for e in result.cells} == cells


@pytest.mark.parametrize("objective", ["tokens_per_s,memory_headroom", "cost,memory_headroom",
                                       "tokens_per_s,cost,memory_headroom"])
def test_pareto_set_of_several_goals(objective: str) -> None:
    engine = FakeEngine(tightness=0.6)
    p = problem({"gpus": [8, 16], "tp": "auto", "pp": "auto", "mbs": "auto", "zero": "auto",
                 "recompute": "auto"}, objective=objective, top=1000)
    legal, fits, _ = brute(p, engine)
    exact = engine.evaluate(p.model, p.system, legal.take(fits))
    losses = p.objectives.losses(
        step_time_s=exact.columns["step_time_s"],
        tokens_per_step=exact.batch.real("gbs") * exact.batch.real("seq_len"),
        gpus=exact.batch.real("gpus"),
        device_memory_bytes=exact.columns["device_memory_bytes"])
    want = np.unique(losses[pareto_mask(losses)], axis=0)
    result = search(p, engine=engine)
    got = np.unique(np.array([e.found.losses[e.index] for e in result.pareto]), axis=0)
    assert np.array_equal(got, want)
    assert sum(1 + r.duplicates for r in result.ranked) == len(result.pareto)


def test_chunk_size_and_parts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(tightness=0.7)
    p = problem({"gpus": 16, **dict.fromkeys(SOME, "auto")}, top=8)
    want = search(p, engine=engine).to_dict()
    want.pop("wall_s")
    for chunk in (64, 500):
        got = search(p, engine=engine, chunk=chunk).to_dict()
        got.pop("wall_s")
        assert got == want
    monkeypatch.setattr(run_module, "WORTH_S", 0.0)
    monkeypatch.setattr(exact_module, "PARTS", 4)
    by_jobs = []
    for jobs in (1, 2):
        got = search(p, engine=engine, jobs=jobs).to_dict()
        got.pop("wall_s")
        by_jobs.append(dict(got))
        got.pop("simulated")
        assert got == {k: v for k, v in want.items() if k != "simulated"}
    assert by_jobs[0] == by_jobs[1]


def test_small_pools_find_the_same() -> None:
    engine = FakeEngine(tightness=0.7)
    p = problem({"gpus": 16, **dict.fromkeys(SOME, "auto")}).checked()
    grid = build_grid(p, engine)
    results = []
    for limit in (100, 10**6):
        enumerator = Enumerator(p, engine, grid, chunk=256)
        pool = Pool(p, engine, enumerator, Wanted(top=20), limit=limit)
        for block, batch in enumerator.chunks():
            pool.offer(block, batch)
        pool.settle()
        assert pool.found is not None
        results.append((pool.found.rows.tolist(), pool.found.losses.tolist()))
    assert results[0] == results[1]


def test_parts_are_disjoint_and_complete() -> None:
    engine = FakeEngine()
    p = problem({"gpus": 16, **dict.fromkeys(SOME, "auto")}).checked()
    grid = build_grid(p, engine)
    whole = Enumerator(p, engine, grid)
    rows = sorted(map(tuple, np.concatenate(
        [np.stack([b.columns[n] for n in grid.fields], 1) for b, _ in whole.chunks()]).tolist()))
    parts, tally = [], {}
    for i in range(5):
        one = Enumerator(p, engine, grid, part=(i, 5))
        parts += [tuple(r) for b, _ in one.chunks()
                  for r in np.stack([b.columns[n] for n in grid.fields], 1).tolist()]
        for name, count in one.tally.counts.items():
            tally[name] = tally.get(name, 0) + count
    assert sorted(parts) == rows
    assert tally == whole.tally.counts
    outcomes = [search_grid(p, engine, grid, Wanted(top=9), part=(i, 5)) for i in range(5)]
    assert combine(outcomes, Wanted(top=9)).counts.bounded == len(rows)


def test_counts_and_domain_agree_with_the_leaves() -> None:
    engine = FakeEngine()
    p = problem({"gpus": 24, **dict.fromkeys(SOME, "auto")}).checked()
    grid = build_grid(p, engine)
    rows = leaves(p, engine)
    enumerator = Enumerator(p, engine, grid)
    assert enumerator.leaves(Block({}, 1), 0) == len(rows)
    assert enumerator.count() == len(brute(p, engine)[0])
    for name, values in domain(grid).items():
        assert set(values) == {r[name] for r in rows}


def test_rows_keep_the_order_of_nested_loops() -> None:
    engine = FakeEngine()
    p = problem({"gpus": 16, "tp": [2, 1], "mbs": [4, 1], "zero": [1, 0]}).checked()
    grid = build_grid(p, engine)
    rows = [tuple(r) for b, _ in Enumerator(p, engine, grid, chunk=3).chunks()
            for r in np.stack([b.columns[n] for n in grid.fields], 1).tolist()]
    assert rows == list(itertools.product((2.0, 1.0), (4.0, 1.0), (1.0, 0.0)))


def test_nothing_legal_says_why() -> None:
    with pytest.raises(InputError, match="heads"):
        search(problem({"gpus": 8, "tp": 8, "mbs": "auto"}), engine=FakeEngine())
    with pytest.raises(InputError, match="gbs"):
        search(problem({"gpus": 8, "gbs": 7, "mbs": "auto"}), engine=FakeEngine())


def test_nothing_fits_names_the_nearest_miss() -> None:
    p = problem({"gpus": 8, **dict.fromkeys(SOME, "auto")}, memory_gib=1.0)
    with pytest.raises(NothingFitsError, match="nearest miss needs") as caught:
        search(p, engine=FakeEngine())
    engine = FakeEngine()
    legal, _, _ = brute(p, engine)
    memory = engine.bound(p.model, p.system, legal).device_memory_bytes
    assert caught.value.details["device_memory_gib"] == pytest.approx(memory.min() / 2**30)
    assert caught.value.nearest.gpus == 8


def test_marginal_can_be_dropped_and_limits_bite() -> None:
    axes: dict[str, object] = {"gpus": 16, **dict.fromkeys(FIELDS, "auto")}
    engine = FakeEngine()
    loose = search(problem(axes, memory_gib=14.0), engine=engine)
    strict = search(problem(axes, memory_gib=14.0, marginal=False), engine=engine)
    assert strict.feasible == loose.feasible - strict.rejected["marginal"]
    assert {r.entry.verdict for r in strict.ranked} == {"fits"}
    tight = search(problem(axes, memory_gib=14.0, memory_reserve_gib=2, memory_utilisation=0.9),
                   engine=engine)
    assert tight.feasible < loose.feasible
    assert all(e.column("device_memory_bytes") <= (14 * 0.9 - 2) * 2**30 for e in tight.entries)


@pytest.mark.parametrize(("gpus", "gbs"), [(1024, 1024), (8, 1024), (96, 1536), (1000, 2000),
                                           (65536, 1024), (72, 1152)])
def test_default_batch_size_suits_the_cluster(gpus: int, gbs: int) -> None:
    assert default_gbs(gpus) == gbs


@pytest.mark.parametrize("options", [{"memory_utilisation": 1.5}, {"memory_reserve_gib": 99},
                                     {"objective": "speed"}, {"objective": "time_to_train"},
                                     {"top": 0}, {"objective": "cost,cost"},
                                     {"price_per_gpu_hour": -1.0}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        search(problem({"gpus": 8, "tp": "auto"}, **options), engine=FakeEngine())
