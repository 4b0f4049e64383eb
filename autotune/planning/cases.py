"""The searches of a plan: what each needs, what it finds, and results kept by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autotune.files import replacing
from autotune.parallel import run_all
from autotune.planning.spec import Plan
from simcore.errors import InputError, Issue, NoFeasibleStrategyError, ResourceError
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec

Found = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One search: a model on some GPUs of a kind, with what a workload fixes.

    Parameters
    ----------
    model : ModelSpec
    system : SystemSpec
    gpus : int
    fields : tuple of pairs
        Strategy fields that are fixed.
    space : str or None
        Space file or name.
    marginal : bool
    """

    model: ModelSpec
    system: SystemSpec
    gpus: int
    fields: tuple[tuple[str, object], ...]
    space: str | None
    marginal: bool

    def key(self, tool: str) -> str:
        """Return the hash of everything that the answer depends on."""
        text = json.dumps([tool, self.model.model_dump(mode="json"),
                           self.system.model_dump(mode="json"), self.gpus, self.fields,
                           _space_text(self.space), self.marginal], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@cache
def _space_text(space: str | None) -> str:
    if space is None:
        return ""
    path = Path(space)
    return path.read_text("utf-8") if path.is_file() else space


@cache
def tool_hash() -> str:
    """Return a hash of the program and its data, so that a change of either is a new answer."""
    import autotune
    import search_spaces
    import simcore

    digest = hashlib.sha256()
    for package in (autotune, search_spaces, simcore):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".yaml", ".csv", ".json") and path.is_file():
                    digest.update(str(path.relative_to(folder)).encode())
                    digest.update(path.read_bytes())
    return digest.hexdigest()


def solve(case: Case) -> Found:
    """Search for the best strategy of a case.

    Returns
    -------
    dict
        ``fits``; the best strategy's figures and fields, or ``reason``.
    """
    from autotune.commands.repeat import fields_to_give
    from autotune.report.digest import layout_text, recompute_text
    from autotune.search.problem import Problem
    from autotune.search.run import search
    from autotune.space import default_space, load_space

    fixed = dict(case.fields)
    seq_len = fixed.get("seq_len")
    space = load_space(case.space) if case.space else default_space(
        case.model, int(str(seq_len)) if seq_len else None)
    problem = Problem(case.model, case.system, space.override({"gpus": case.gpus, **fixed}),
                      marginal=case.marginal, top=1)
    try:
        result = search(problem)
    except NoFeasibleStrategyError as error:
        return {"fits": False, "reason": str(error).splitlines()[0][:400]}
    except InputError as error:
        return {"fits": False, "reason": str(error.issues[0])[:400]}
    best = result.best.prediction
    strategy = best["strategy"]
    return {
        "fits": True, "layout": f"{layout_text(strategy)}, recompute {recompute_text(strategy)}",
        "given": fields_to_give(case.model, case.system, strategy), "gbs": strategy["gbs"],
        "seq_len": strategy["seq_len"], "candidates": result.candidates, "exact": result.exact,
        **{name: best[name] for name in (
            "verdict", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
            "peak_memory_gib", "device_memory_gib")}}


class Kept:
    """Results on disk, one file each, named by the hash of what they depend on.

    Parameters
    ----------
    folder : Path
        Made when the first result is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def read(self, key: str) -> Found | None:
        """Return a result; None where there is none, or the file is damaged."""
        try:
            data = json.loads(self._path(key).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) and "fits" in data else None

    def write(self, key: str, found: Mapping[str, Any]) -> None:
        """Keep a result: a reader sees the whole file or none.

        Raises
        ------
        ResourceError
            The folder cannot be written.
        """
        write_atomic(self._path(key), json.dumps(found))


def write_atomic(path: Path, text: str) -> None:
    """Write a file beside its place and move it there.

    Raises
    ------
    ResourceError
        It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise ResourceError(f"cannot write '{path}': {error.strerror}") from error


@dataclass(frozen=True)
class _Task:
    """A case with where its result is kept; what a worker process gets."""

    case: Case
    key: str
    folder: Path


def _run(task: _Task) -> Found:
    found = solve(task.case)
    # Written by the worker, so that what is done stays done whatever happens to the others.
    Kept(task.folder).write(task.key, found)
    return found


def solve_all(cases: Iterable[Case], kept: Kept, *, jobs: int,
              backend: AbstractContextManager[object] | None = None,
              progress: Callable[[int, int], None] | None = None) -> dict[Case, Found]:
    """Solve every case once, those not kept from before in parallel.

    Parameters
    ----------
    cases : iterable of Case
        Equal ones are solved once.
    kept : Kept
    jobs : int
        Processes; the answer does not depend on it.
    backend : context manager, optional
        Selects joblib's backend.
    progress : callable, optional
        Called with how many are done and how many there are.

    Raises
    ------
    ResourceError
        A result cannot be written.
    """
    tool = tool_hash()
    keys = {case: case.key(tool) for case in cases}
    known = {case: kept.read(key) for case, key in keys.items()}
    missing = [case for case, found in known.items() if found is None]
    # The largest first, so that no core waits long for the last.
    missing.sort(key=lambda case: -_weight(case))
    done = len(known) - len(missing)

    def one_more() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(known))

    with backend or nullcontext():
        found = run_all(_run, [_Task(case, keys[case], kept.folder) for case in missing],
                        jobs=jobs, done=one_more)
    known.update(zip(missing, found, strict=True))
    return {case: result for case, result in known.items() if result is not None}


def _weight(case: Case) -> float:
    return case.gpus * case.model.num_layers * (20.0 if case.model.is_moe else 1.0)


def cases_of(plan: Plan, where: Path) -> dict[tuple[str, str, str, int], Case]:
    """Return the searches of a plan by model, cluster, workload and GPUs.

    Parameters
    ----------
    plan : Plan
    where : Path
        Folder that files are relative to.

    Raises
    ------
    InputError
        With every model, system or space that cannot be read.
    """
    issues: list[Issue] = []
    models = {name: _read(load_model, name, where, issues) for name in plan.models}
    systems = {c.system: _read(load_system, c.system, where, issues) for c in plan.clusters}
    space = _relative(plan.space, where) if plan.space else None
    if space is not None:
        from autotune.space import load_space
        try:
            load_space(space)
        except InputError as error:
            issues.extend(error.issues)
    if issues:
        raise InputError(issues)
    found = {}
    for cluster in plan.clusters:
        for workload in plan.workloads:
            for name in workload.models or plan.models:
                for gpus in cluster.counts:
                    found[name, cluster.name, workload.name, gpus] = Case(
                        models[name], systems[cluster.system], gpus,
                        tuple(sorted(workload.fields().items())), space, plan.marginal)
    return found


def _relative(source: str, where: Path) -> str:
    """A file beside the plan; else what the user wrote."""
    beside = where / source
    return str(beside) if beside.exists() else source


def _read(load: Callable[[str], Any], source: str, where: Path, issues: list[Issue]) -> Any:
    try:
        return load(_relative(source, where))
    except InputError as error:
        issues.extend(error.issues)
        return None
