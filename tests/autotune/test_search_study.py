"""The Optuna study of a search, and samplers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import optuna
import pytest
from search_fake import FakeEngine, make_model, make_system

from autotune.search.problem import Problem
from autotune.search.run import search
from autotune.search.sampled import Budget, make_sampler
from autotune.space import SearchSpace
from simcore.errors import InputError

AXES = {"gpus": 16, "gbs": 64, "tp": "auto", "pp": "auto", "vpp": "auto", "mbs": "auto",
        "first_stage_layers": "auto", "last_stage_layers": "auto", "zero": "auto",
        "recompute": "auto"}


def problem(**more: object) -> Problem:
    return Problem(make_model(), make_system(), SearchSpace("s", {}).override(AXES),
                   **more)  # type: ignore[arg-type]


def test_exact_study_names_everything() -> None:
    result = search(problem(top=5), engine=FakeEngine())
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        study = result.study()
    assert study.user_attrs["candidates"] == result.candidates
    assert study.user_attrs["exact"] is True
    assert study.best_value == result.best.values[0]
    trials = study.get_trials(deepcopy=False)
    assert len(trials) == len(result.entries)
    first = trials[0]
    assert first.user_attrs["rank"] == 1
    assert first.user_attrs["verdict"] in ("fits", "marginal")
    assert {"step_time_s", "bubble_s", "device_memory_gib"} <= set(first.user_attrs)
    assert all(t.constraints["memory_excess_gib"] <= 0 for t in trials)
    assert {f for f, v in result.space.items() if len(v) > 1} == set(first.params)
    cells = {(t.params["tp"], t.params["pp"]) for t in trials if t.user_attrs["best_of_cell"]}
    assert cells == {(e.strategy.tp, e.strategy.pp) for e in result.cells}
    assert sum(t.user_attrs["pareto"] for t in trials) == len(result.pareto)


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_study_is_stored(kind: str, tmp_path: Path) -> None:
    result = search(problem(top=3), engine=FakeEngine())
    url = str(tmp_path / "s.log") if kind == "journal" else f"sqlite:///{tmp_path}/s.db"
    result.study(url)
    result.study(url)
    if kind == "journal":
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(url))
    else:
        storage = url
    assert sorted(optuna.get_all_study_names(storage)) == ["autotune", "autotune-2"]
    study = optuna.load_study(study_name="autotune", storage=storage)
    assert len(study.trials) == len(result.entries)


@pytest.mark.parametrize("url", ["nosuch://x/y", "/nosuch/folder/file", "sqlite:////no/such/d.b"])
def test_bad_storage_is_refused(url: str) -> None:
    result = search(problem(top=3), engine=FakeEngine())
    with pytest.raises(InputError, match="storage"):
        result.study(url)


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "NSGAIIISampler"])
def test_samplers_find_good_structures(sampler: str) -> None:
    engine = FakeEngine()
    best = search(problem(), engine=engine, method="exact").best.column("step_time_s")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        result = search(problem(seed=3), engine=engine, method=sampler,
                        budget=Budget(trials=60))
    assert not result.exact
    assert result.method == sampler
    assert result.best.column("step_time_s") <= best * 1.2
    assert result.evaluated <= result.candidates
    study = result.study()
    assert len(study.trials) >= 60
    fit = [t for t in study.trials if all(c <= 0 for c in t.constraints.values())]
    assert fit
    assert max(t.value for t in fit) == result.best.values[0]
    for t in fit:
        assert t.value > 0
    assert study.user_attrs["evaluated"] == result.evaluated
    illegal = [t for t in study.trials if t.user_attrs.get("verdict") == "illegal"]
    assert illegal
    for t in illegal:
        assert t.state is optuna.trial.TrialState.PRUNED
        assert t.constraints["rules_violated"] >= 1
        assert t.user_attrs["reason"]
        assert t.value is None


def test_what_does_not_fit_is_pruned_with_its_excess() -> None:
    tight = Problem(make_model(), make_system(memory_gib=6.0),
                    SearchSpace("s", {}).override(AXES))
    study = search(tight, engine=FakeEngine(), method="random", budget=Budget(trials=40)).study()
    unfit = [t for t in study.trials if t.user_attrs.get("verdict") == "does_not_fit"]
    assert unfit
    for t in unfit:
        assert t.state is optuna.trial.TrialState.PRUNED
        assert t.constraints["memory_excess_gib"] > 0
        assert "GiB too much" in t.user_attrs["reason"]


def test_a_storage_gets_every_finished_trial(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = search(problem(), engine=FakeEngine(), method="tpe", storage=url,
                    budget=Budget(trials=15))
    study = optuna.load_study(study_name="autotune", storage=url)
    assert study.best_value == result.best.values[0]
    assert study.user_attrs["method"] == "tpe"
    assert all(t.state.is_finished() for t in study.trials)
    assert {"screen"} <= {t.user_attrs.get("proposed_by") for t in study.trials}


def test_the_guide_counts_what_it_looks_at() -> None:
    result = search(problem(), engine=FakeEngine(), method="tpe", budget=Budget(trials=5))
    trials = result.study().trials
    own = {tuple(sorted(t.params.items())): t.user_attrs["evaluated"] for t in trials
           if "evaluated" in t.user_attrs}
    assert result.evaluated > sum(own.values())


def test_same_seed_same_answer() -> None:
    runs = [search(problem(seed=5), engine=FakeEngine(), method="tpe",
                   budget=Budget(trials=12)).to_dict() for _ in range(2)]
    for run in runs:
        run.pop("wall_s")
    assert runs[0] == runs[1]


def test_samplers_with_several_goals() -> None:
    result = search(problem(objective="tokens_per_s,memory_headroom"), engine=FakeEngine(),
                    method="nsga2", budget=Budget(trials=20))
    assert len(result.pareto) > 1
    assert len(result.study().best_trials) >= 1


def test_budget_stops() -> None:
    result = search(problem(), engine=FakeEngine(), method="random",
                    budget=Budget(trials=1000, max_candidates=300))
    assert 300 <= result.evaluated < 900


def test_unknown_sampler_is_refused() -> None:
    with pytest.raises(InputError, match="tpe"):
        make_sampler("tpee", 0)


def test_exact_search_does_not_import_optuna() -> None:
    code = """import sys
sys.path.insert(0, 'tests/autotune')
from search_fake import FakeEngine, make_model, make_system
from autotune.search.run import search
from autotune.search.problem import Problem
from autotune.space import SearchSpace
space = SearchSpace('s', {}).override({'gpus': 8, 'tp': 'auto'})
search(Problem(make_model(), make_system(), space), engine=FakeEngine())
sys.exit('optuna' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True,
                          text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
