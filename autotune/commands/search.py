"""``autotune search``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.commands.failures import DONE, say
from autotune.commands.inputs import (
    Problems,
    given_fields,
    number,
    output_format,
    read_model,
    read_system,
    text,
    warn_of_version,
)
from simcore.errors import InputError, NoFeasibleStrategyError
from simcore.inputs.fields import DEFAULT_GBS
from simcore.inputs.strategy import Strategy

if TYPE_CHECKING:
    from autotune.search.problem import Problem
    from autotune.space import SearchSpace
    from simcore.inputs.model import ModelSpec
    from simcore.inputs.system import SystemSpec


def run(values: Mapping[str, object]) -> int:
    """Search, print the ranking and save it where asked."""
    if values.get("start_from"):
        from autotune.commands.start_from import run as run_from
        return run_from(values)
    style = output_format(values)
    problem, options = read_problem(values)
    result = _search(problem, options, style=style)
    from autotune.report.emit import emit_search

    if options["storage"]:
        study = result.recorded if _own_storage(options) else result.study(options["storage"])
        _note_study(study.study_name, options["storage"])
    if options["out"]:
        result.save(options["out"])
    data = result.to_dict()
    if style == "table":
        _note_gbs(values, data)
    emit_search(_with_commands(data, problem, values), style=style)
    if values.get("pictures") and style == "table":
        from autotune.report.pictures import print_search_pictures
        print_search_pictures([{
            "tp": e.strategy.tp, "pp": e.strategy.pp,
            "tokens_per_s_per_gpu": e.column("tokens_per_s_per_gpu")}
            for e in (*result.cells, *result.entries)])
    return DONE


def _with_commands(data: dict[str, Any], problem: Problem,
                   values: Mapping[str, object]) -> dict[str, Any]:
    """Add to each ranked strategy its goals, the fields to give and the command that predicts
    it again."""
    from autotune.commands.repeat import export_command, fields_to_give, predict_command

    name, system = str(values["model"]), str(values.get("system") or problem.system.name)
    saved = text(values, "out")

    for entry in data["ranked"]:
        given = fields_to_give(problem.model, problem.system, entry["strategy"])
        entry["given"] = given
        entry["objectives"] = problem.objectives.of_entry(entry)
        entry["command"] = predict_command(name, system, given)
        entry["export_command"] = export_command(
            name, system, given, entry["strategy"]["framework"],
            f"{saved}/top/{entry['rank']}/strategy.yaml" if saved else "")
    return data


def _note_gbs(values: Mapping[str, object], data: Mapping[str, Any]) -> None:
    """Say which batch was taken where the user gave none and the usual one does not divide."""
    ranked = data["ranked"]
    if ranked and not values.get("gbs") and ranked[0]["strategy"]["gbs"] != DEFAULT_GBS:
        say(f"note: gbs {ranked[0]['strategy']['gbs']}, since {DEFAULT_GBS} sequences do not "
            "divide over every data-parallel size of these GPUs; --gbs sets another")


def _warn_of_versions(space: SearchSpace) -> None:
    for framework in space.axes.get("framework") or (None,):
        for version in space.axes.get("framework_version") or (None,):
            warn_of_version(Strategy(
                framework=None if framework is None else str(framework),
                framework_version=None if version is None else str(version)))


def _note_study(name: str, storage: str) -> None:
    """Say under which name a study is stored where its usual one was taken."""
    if name != "autotune":
        say(f"note: '{storage}' held studies before; this one is called '{name}'")


def _own_storage(options: Mapping[str, Any]) -> bool:
    """Tell whether the search itself writes its trials to the storage."""
    return str(options["method"]) not in ("auto", "exact")


def read_problem(values: Mapping[str, object]) -> tuple[Problem, dict[str, Any]]:
    """Load what is searched, and how.

    Raises
    ------
    InputError
        With every problem of the options and files.
    """
    from autotune.search.problem import Problem

    problems = Problems()
    model = problems.collect(lambda: read_model(values))
    system = problems.collect(lambda: read_system(values))
    space = problems.collect(lambda: read_space(values, model))
    limits = memory_limits(values, system, problems)
    figures = {name: value for name, value in {
        "tokens": number(values, "tokens", problems, minimum=1, maximum=1e20),
        "price_per_gpu_hour": number(values, "price_per_gpu_hour", problems, minimum=1e-6,
                                     maximum=1e6),
    }.items() if value is not None}
    whole = {name: number(values, name, problems, minimum=low, maximum=high, whole=True)
             for name, low, high in (("seed", 0, 2**32 - 1), ("top", 1, 10_000),
                                     ("jobs", 1, 1024), ("trials", 1, 1_000_000))}
    out = text(values, "out")
    if out is not None and (not out or (Path(out).exists() and not Path(out).is_dir())):
        problems.add("--out", f"must be a folder, got '{out[:200]}'")
    problems.settle()
    if model is None or system is None or space is None:
        raise InputError(problems.issues)
    problem = Problem(
        model, system, space, objective=text(values, "objective") or "tokens_per_s",
        marginal=not values.get("no_marginal"), seed=int(whole["seed"] or 0),
        top=int(whole["top"] or 10), **limits, **figures)
    _warn_of_versions(space)
    # The rest of what can be wrong is said before anything is searched.
    problem.checked()
    return problem, {"method": (text(values, "sampler") or "auto").strip().lower(),
                     "jobs": int(whole["jobs"] or 1), "trials": whole["trials"],
                     "storage": text(values, "storage"), "out": out}


def read_space(values: Mapping[str, object], model: ModelSpec | None) -> SearchSpace:
    """Read the space and put the options over it."""
    from autotune.space import default_space, load_space

    problems = Problems()
    given = given_fields(values)
    source = text(values, "space")
    space = None
    if source is not None:
        space = problems.collect(lambda: load_space(source))
    elif model is not None:
        seq_len = str(given.get("seq_len", ""))
        space = default_space(model, int(seq_len) if seq_len.isdigit() else None)
    else:
        # Which space it will be is not known, what is wrong with the options is.
        space = load_space("dense")
    if "gpus" not in given and not (space and space.axes.get("gpus")):
        problems.add("gpus", "is needed", "use --gpus N, the number of GPUs of the run")
    over = problems.collect(lambda: space.override(given)) if space is not None else None
    problems.settle()
    if over is None:
        raise InputError(problems.issues)
    return over


def memory_limits(values: Mapping[str, object], system: SystemSpec | None,
                  problems: Problems) -> dict[str, float]:
    """Turn the three options on memory into a utilisation and a reserve."""
    share = number(values, "memory_utilisation", problems, minimum=0.01, maximum=1)
    reserve = number(values, "memory_reserve_gib", problems, minimum=0, maximum=1e6)
    utilisation = 1.0 if share is None else share
    free = 0.0 if reserve is None else reserve
    if system is not None:
        memory = system.accelerator.memory_gib
        limit = number(values, "memory_limit_gib", problems, minimum=0.1, maximum=memory)
        if limit is not None:
            # The limit stands for the memory; utilisation and reserve apply to it.
            free += utilisation * (memory - limit)
    return {"memory_utilisation": utilisation, "memory_reserve_gib": free}


def _search(problem: Problem, options: Mapping[str, Any], *, style: str) -> Any:
    from autotune.report.progress import progress_bar
    from autotune.search.run import search

    budget = None
    if options["trials"]:
        from autotune.search.sampled import Budget
        budget = Budget(trials=int(options["trials"]))
    storage = options["storage"] if _own_storage(options) else None
    try:
        with progress_bar("searching") or nullcontext() as bar:
            return search(problem, method=options["method"], jobs=options["jobs"],
                          budget=budget, storage=storage, progress=bar)
    except NoFeasibleStrategyError as error:
        details = getattr(error, "details", None)
        if details is not None and style in ("json", "yaml"):
            from autotune.report.emit import emit_json, emit_yaml
            nothing = {"model": problem.model.name, "system": problem.system.name,
                       "objective": problem.objective, "feasible": 0, "ranked": [],
                       "nearest_miss": details}
            (emit_json if style == "json" else emit_yaml)(nothing)
        raise
