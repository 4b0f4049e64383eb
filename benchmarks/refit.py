"""Fit the constants of `benchmarks.constants` on four folds, report errors on the fifth.

    PYTHONPATH=. python -m benchmarks.refit FOLDER [PROBLEM...]

FOLDER holds the tables of measured runs and ``folds.csv``. A constant moves by a ratio of what
is shipped, within its physical range; doubtful rows are never fitted to. The result is written
to ``benchmarks/results/refit.json``, the errors also to where `autotune validate` reads them.
"""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import autotune.kept
import simcore.profiles
from autotune.compare import Library, compare
from autotune.runs import Run, read_tables
from benchmarks.constants import PROBLEMS, Constant, Problem
from simcore.inputs.framework import FrameworkSpec
from simcore.inputs.load import load_framework
from simcore.inputs.system import SystemSpec
from simcore.local_costs import _remembered
from simcore.typing import BoolArray, FloatArray, IntArray

RESULT = Path(__file__).with_name("results") / "refit.json"
KEPT = Path(autotune.kept.__file__).with_name("data") / autotune.kept.LEFT_OUT
STEP, ROUNDS, PRIOR = 0.02, 5, 0.5
"""Finite difference and Gauss-Newton rounds; how far a logarithm strays before the rows count."""
ROBUST = 0.04
"""Errors far above this count less."""


class _Changed(Library):
    """Systems with other figures."""

    changes: Mapping[tuple[str, str, str], float] = {}

    def system(self, run: Run) -> SystemSpec:
        system = super().system(run)
        own: dict[str, dict[str, float]] = defaultdict(dict)
        for (name, section, field), ratio in self.changes.items():
            if name == system.name:
                own[section][field] = getattr(getattr(system, section), field) * ratio
        if not own:
            return system
        key = f"changed {id(system)} {sorted(self.changes.items())}"
        if key not in self._systems:
            self._systems[key] = system.model_copy(update={
                section: getattr(system, section).model_copy(update=update)
                for section, update in own.items()})
        return self._systems[key]


def _scaled(value: Any, ratio: float) -> Any:
    return {k: v * ratio for k, v in value.items()} if isinstance(value, Mapping) else (
        value * ratio)


@contextmanager
def changed(constants: Sequence[Constant], ratios: FloatArray) -> Iterator[_Changed]:
    """Predict with each constant times its ratio."""
    profiles: dict[str, dict[str, float]] = defaultdict(dict)
    systems: dict[tuple[str, str, str], float] = {}
    modules = []
    for constant, ratio in zip(constants, ratios.tolist(), strict=True):
        kind, name, *rest = constant.place.split()
        if kind == "framework":
            profiles[name][rest[0]] = ratio
        elif kind == "system":
            systems |= {(one, rest[0], rest[1]): ratio for one in name.split("+")}
        else:
            module = importlib.import_module(name)
            modules.append((module, rest[0], getattr(module, rest[0])))
            setattr(module, rest[0], getattr(module, rest[0]) * ratio)

    def load(name: str) -> FrameworkSpec:
        spec = load_framework(name)
        return spec.model_copy(update={"profiles": tuple(
            p.model_copy(update={f: _scaled(getattr(p, f), r)
                                 for f, r in profiles[name].items()})
            for p in spec.profiles)}) if name in profiles else spec

    library = _Changed()
    library.changes = systems
    simcore.profiles.load_framework = load
    _remembered.cache_clear()
    try:
        yield library
    finally:
        simcore.profiles.load_framework = load_framework
        for module, name, value in modules:
            setattr(module, name, value)
        _remembered.cache_clear()


def errors(runs: Sequence[Run], constants: Sequence[Constant], ratios: FloatArray) -> FloatArray:
    """Logarithm of predicted over measured step time; NaN where either is missing, (n,)."""
    with changed(constants, ratios) as library:
        return np.array([
            np.log(float(o.predicted["step_time_s"]) / o.step_time_s)
            if o.predicted and o.step_time_s else np.nan for o in compare(runs, library)])


def fit(runs: Sequence[Run], constants: Sequence[Constant], start: FloatArray,
        rounds: int = ROUNDS) -> FloatArray:
    """Ratios that make the errors least, robustly, within the constants' ranges, (k,)."""
    low = np.array([np.log(max(c.low, 1e-9) / max(min(c.values()), 1e-9)) for c in constants])
    high = np.array([np.log(c.high / max(c.values())) for c in constants])
    x = np.log(start)
    ridge = np.eye(len(x)) * (ROBUST / PRIOR) ** 2
    for _ in range(rounds):
        base = errors(runs, constants, np.exp(x))
        slopes = np.stack([(errors(runs, constants, np.exp(x + STEP * row)) - base) / STEP
                           for row in np.eye(len(x))], axis=1)
        told = np.isfinite(base)
        base, slopes = base[told], slopes[told]
        weighted = slopes / (1.0 + np.abs(base) / ROBUST)[:, None]
        move = -np.linalg.solve(weighted.T @ slopes + ridge, weighted.T @ base + ridge @ x)
        x, before = np.clip(x + np.clip(move, -0.5, 0.5), low, high), x
        if np.abs(x - before).max() < 0.003:
            break
    return np.exp(x)


def summary(logs: FloatArray) -> dict[str, float | int]:
    """Errors in percent."""
    pct = 100.0 * (np.exp(logs[np.isfinite(logs)]) - 1.0)
    sizes = np.abs(pct)
    return {"n": len(pct), "mean": round(float(sizes.mean()), 2),
            "p90": round(float(np.percentile(sizes, 90)), 2),
            "max": round(float(sizes.max()), 2), "bias": round(float(pct.mean()), 2)}


def read(folder: Path, problem: Problem) -> tuple[list[Run], IntArray]:
    """Rows of a problem that went through, with their folds (-1: none)."""
    with (folder / "folds.csv").open() as file:
        lines = (line for line in file if not line.startswith("#"))
        fold = {(r["file"], r["id"]): int(r["fold"]) for r in csv.DictReader(lines)}
    runs = [r for r in read_tables(folder / t for t in problem.tables).runs
            if r.ran and not r.problem]
    root = folder.resolve()
    return runs, np.array([fold.get((str(r.path.relative_to(root)) if r.path else "", r.id), -1)
                           for r in runs])


def is_moe(run: Run) -> bool:
    """Whether a run of Megatron-Bridge has experts."""
    return run.model.startswith(("deepseek", "gpt-oss", "qwen3", "kimi"))


def solve(folder: Path, problem: Problem) -> dict[str, Any]:
    """Fit one problem on all rows and on each four folds."""
    runs, fold = read(folder, problem)
    constants = problem.constants
    sure: BoolArray = np.array([not r.doubtful for r in runs])
    one = np.ones(len(constants))
    shipped = errors(runs, constants, one)
    whole = fit([r for r, s in zip(runs, sure, strict=True) if s], constants, one)
    left_out, ratios = np.full(len(runs), np.nan), []
    for number in np.unique(fold[fold >= 0]).tolist():
        own = fold == number
        rest = [r for r, take in zip(runs, sure & ~own, strict=True) if take]
        found = fit(rest, constants, whole, rounds=3) if rest else one
        ratios.append(found)
        left_out[own] = errors([r for r, o in zip(runs, own, strict=True) if o], constants,
                               found)
    parts = {problem.name: np.ones(len(runs), np.bool_)}
    if problem.name == "nvidia_megatron_bridge":
        moe = np.array([is_moe(r) for r in runs])
        parts |= {"dense": ~moe, "MoE": moe}
    return {
        "errors": {name: {"shipped": summary(shipped[p]), "left_out": summary(left_out[p]),
                          "left_out_without_doubtful": summary(left_out[p & sure])}
                   for name, p in parts.items()},
        "constants": [{
            "place": c.place, "why": c.why, "range": [c.low, c.high],
            "shipped": [round(v, 5) for v in c.values()], "refitted_ratio": round(float(w), 4),
            "fold_ratios": [round(float(r[i]), 4) for r in ratios]}
            for i, (c, w) in enumerate(zip(constants, whole, strict=True))]}


def keep(result: Mapping[str, Any]) -> None:
    """Write the errors on rows left out where `validate` reads them."""
    KEPT.write_text(json.dumps({
        part: {"n": e["left_out_without_doubtful"]["n"],
               "shipped_mean_pct": e["shipped"]["mean"],
               "mean_pct": e["left_out_without_doubtful"]["mean"],
               "p90_pct": e["left_out_without_doubtful"]["p90"],
               "with_doubtful_n": e["left_out"]["n"],
               "with_doubtful_mean_pct": e["left_out"]["mean"]}
        for name, found in result.items()
        for part, e in ((p if p == name else f"{name}, {p}", e)
                        for p, e in found["errors"].items())}, indent=1) + "\n", "utf-8")


def main(argv: Sequence[str]) -> int:
    """Solve the problems that are named, or all."""
    folder, names = Path(argv[0]), argv[1:]
    result = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    for problem in PROBLEMS:
        if names and problem.name not in names:
            continue
        result[problem.name] = solve(folder, problem)
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
        keep(result)
        for part, found in result[problem.name]["errors"].items():
            print(part, found)
        for row in result[problem.name]["constants"]:
            print("  ", row["place"], row["shipped"][-1], row["refitted_ratio"],
                  row["fold_ratios"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
