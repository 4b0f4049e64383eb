"""Search the figures of a chip and its network, with the best strategy for each design."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from autotune.hardware.candidates import Candidates
from autotune.hardware.figures import base_value, changed, figure_name
from autotune.hardware.formulas import Formula
from autotune.pareto import pareto_mask
from autotune.report.digest import layout_text, recompute_text
from autotune.search.problem import Problem
from autotune.space import default_space, load_space
from simcore.errors import InputError, Issue
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import Frozen
from simcore.inputs.system import SystemSpec
from simcore.inputs.yaml_io import read_data, require_mapping, validate

Name = Annotated[str, Field(min_length=1, max_length=200)]
Direction = Literal["maximize", "minimize"]
THROUGHPUT = "throughput"


class Range(Frozen):
    """Values between two, evenly or by ratio."""

    low: Annotated[float, Field(gt=0, le=1e12)]
    high: Annotated[float, Field(gt=0, le=1e12)]
    log: bool = True


class Load(Frozen):
    """A training job that the design is for."""

    model: Name
    gpus: Annotated[int, Field(ge=1, le=1_048_576)]
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    fields: dict[str, str | int | float | bool] = {}
    """Strategy fields that are fixed, such as gbs or precision."""
    space: Name | None = None


class Design(Frozen):
    """What ``autotune codesign`` takes."""

    name: Name = "design"
    system: Name = "h100-sxm"
    figures: Annotated[dict[str, Range | tuple[float, ...]], Field(min_length=1, max_length=32)]
    """Figures that are chosen: a range, or the values to choose from."""
    derived: dict[str, str] = {}
    """Figures that follow from the chosen ones, by formula."""
    formulas: dict[str, str] = {}
    """Named quantities, such as area, power and cost."""
    constraints: tuple[str, ...] = ()
    """Conditions on them."""
    minimise: tuple[Name, ...] = ("cost",)
    """Formulas to keep small, beside the throughput, which is made large."""
    workloads: Annotated[tuple[Load, ...], Field(min_length=1, max_length=16)]
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"


@dataclass(frozen=True)
class Point:
    """One design that was looked at.

    Parameters
    ----------
    figures : mapping
        Chosen and derived, by full name.
    quantities : mapping
        The named formulas.
    throughput : float
        Weighted geometric mean over the workloads of tokens/s against the starting system.
    strategies : tuple of str
        What each workload would run.
    """

    figures: Mapping[str, float]
    quantities: Mapping[str, float]
    throughput: float
    strategies: tuple[str, ...]


class Bench:
    """Evaluates designs.

    Parameters
    ----------
    design : Design
    where : Path
        Folder that files are relative to.

    Raises
    ------
    InputError
        With what is wrong with names, ranges or formulas.
    """

    def __init__(self, design: Design, where: Path) -> None:
        self.design = design
        self.system: SystemSpec = load_system(_beside(design.system, where))
        self.chosen = {figure_name(k): v for k, v in design.figures.items()}
        for name, values in self.chosen.items():
            if isinstance(values, Range) and values.high <= values.low:
                raise InputError(Issue(f"figures.{name}", "high must be above low"))
            if not isinstance(values, Range) and len(values) < 2:
                raise InputError(Issue(f"figures.{name}", "needs at least two values"))
        own = frozenset({*self._names(self.chosen), "gpus"})
        self.derived = {figure_name(k): Formula(v, where=f"derived.{k}", names=own)
                        for k, v in design.derived.items()}
        known = own | self._names(self.derived)
        self.formulas: dict[str, Formula] = {}
        for name, text in design.formulas.items():
            self.formulas[name] = Formula(text, where=f"formulas.{name}", names=known)
            known |= {name}
        self.constraints = [Formula(text, where="constraints", names=known, is_condition=True)
                            for text in design.constraints]
        for name in design.minimise:
            if name not in self.formulas:
                raise InputError(Issue("minimise", f"'{name}' is no formula of the design",
                                       f"it has {', '.join(self.formulas) or 'none'}"))
        self.candidates = [self._candidates(load, where) for load in design.workloads]
        self.base = [self._speed(c, {}) for c in self.candidates]
        self._seen: dict[tuple[float, ...], Point] = {}

    @staticmethod
    def _names(figures: Mapping[str, object]) -> frozenset[str]:
        return frozenset(name.split(".")[1] for name in figures)

    def _candidates(self, load: Load, where: Path) -> Candidates:
        model = load_model(_beside(load.model, where))
        seq_len = load.fields.get("seq_len")
        space = load_space(_beside(load.space, where)) if load.space else default_space(
            model, int(seq_len) if seq_len else None)
        return Candidates(Problem(model, self.system, space.override(
            {"gpus": load.gpus, **load.fields}), top=1, marginal=False))

    def _speed(self, candidates: Candidates, figures: dict[str, float]) -> tuple[float, str]:
        best = candidates.best(figures)
        if best is None:
            return 0.0, "nothing fits"
        strategy = best.strategy_dict()
        return best["tokens_per_s"], f"{layout_text(strategy)}, {recompute_text(strategy)}"

    def quantities(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Evaluate the named formulas of a design."""
        values = {name.split(".")[1]: value for name, value in figures.items()}
        values["gpus"] = float(self.design.workloads[0].gpus)
        for name, formula in self.formulas.items():
            values[name] = formula(values)
        return values

    def complete(self, chosen: Mapping[str, float]) -> dict[str, float]:
        """Add the figures that follow from the chosen ones."""
        short = {name.split(".")[1]: value for name, value in chosen.items()}
        short["gpus"] = float(self.design.workloads[0].gpus)
        return {**chosen, **{name: formula(short) for name, formula in self.derived.items()}}

    def excess(self, figures: Mapping[str, float]) -> list[float]:
        """By how much each constraint is broken; at most zero where it holds."""
        values = self.quantities(figures)
        return [c.excess(values) for c in self.constraints]

    def evaluate(self, chosen: Mapping[str, float]) -> Point:
        """Search the best strategy of every workload on a design; remembered."""
        key = tuple(chosen[name] for name in self.chosen)
        if key not in self._seen:
            figures = self.complete(chosen)
            changed(self.system, figures)
            total, weights, told = 0.0, 0.0, []
            for load, candidates, (base, _) in zip(self.design.workloads, self.candidates,
                                                   self.base, strict=True):
                speed, strategy = self._speed(candidates, dict(figures))
                told.append(strategy)
                # A workload that does not fit is worth next to nothing, not an error.
                total += load.weight * log(max(speed, 1e-9) / (base or 1.0))
                weights += load.weight
            quantities = self.quantities(figures)
            self._seen[key] = Point(figures, {n: quantities[n] for n in self.formulas},
                                    exp(total / weights), tuple(told))
        return self._seen[key]

    @property
    def directions(self) -> list[Direction]:
        """Of the objectives: the throughput first."""
        small: list[Direction] = ["minimize"] * len(self.design.minimise)
        return ["maximize", *small]

    def values(self, point: Point) -> list[float]:
        """The objectives of a design."""
        return [point.throughput, *(point.quantities[n] for n in self.design.minimise)]


def _beside(source: str, where: Path) -> str:
    return str(where / source) if (where / source).exists() else source


def read_design(path: Path) -> Design:
    """Read a design file.

    Raises
    ------
    InputError
        With every problem of the file.
    """
    return validate(Design, require_mapping(read_data(path), where=str(path)), where=str(path))


def codesign(bench: Bench, *, trials: int, seed: int = 0, sampler: str | None = None,
             storage: str | None = None,
             progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Search designs with Optuna.

    Parameters
    ----------
    bench : Bench
    trials : int
        Designs that are looked at.
    seed : int
        Same seed, same answer.
    sampler : str, optional
        tpe, nsga2 or random; the design file's where left out.
    storage : str, optional
        Where the study is kept.
    progress : callable, optional

    Returns
    -------
    dict
        ``pareto``: designs that no other beats in all objectives, the fastest first; ``trials``,
        ``feasible``, ``base``.
    """
    import optuna

    from autotune.search.study import open_storage, quiet

    quiet()
    name = sampler or bench.design.sampler
    study = optuna.create_study(directions=bench.directions, storage=open_storage(storage),
                                sampler=_sampler(optuna, name, seed),
                                study_name=bench.design.name, load_if_exists=True)
    points: list[Point] = []

    def objective(trial: Any) -> Any:
        chosen = {n: _suggest(trial, n, values) for n, values in bench.chosen.items()}
        figures = bench.complete(chosen)
        excess = bench.excess(figures)
        trial.set_user_attr("excess", excess)
        if any(e > 0 for e in excess):
            # Out of bounds: not worth a search, and the sampler learns by how much.
            raise optuna.TrialPruned
        point = bench.evaluate(chosen)
        points.append(point)
        trial.set_user_attr("strategies", list(point.strategies))
        return bench.values(point)

    for done in range(trials):
        study.optimize(objective, n_trials=1)
        if progress is not None:
            progress(done + 1, trials)
    return {"design": bench.design.name, "system": bench.system.name, "sampler": name,
            "trials": trials, "feasible": len(points),
            "objectives": [THROUGHPUT, *bench.design.minimise],
            "base": {"figures": {n: base_value(bench.system, n) for n in bench.chosen},
                     "strategies": [told for _, told in bench.base]},
            "pareto": [_shown(p) for p in front(bench, points)]}


def _sampler(optuna: Any, name: str, seed: int) -> Any:
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if name == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=20)
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=12)


def _suggest(trial: Any, name: str, values: Range | tuple[float, ...]) -> float:
    if isinstance(values, Range):
        return float(trial.suggest_float(name, values.low, values.high, log=values.log))
    # An index keeps the order of the values, which a category would not.
    index = trial.suggest_int(name, 0, len(values) - 1)
    return float(sorted(values)[index])


def front(bench: Bench, points: list[Point]) -> list[Point]:
    """Return the designs that no other beats in all objectives, the fastest first."""
    if not points:
        return []
    losses = np.array([[-p.throughput, *bench.values(p)[1:]] for p in points])
    _, first = np.unique(losses, axis=0, return_index=True)
    kept = first[pareto_mask(losses[first])]
    return sorted((points[i] for i in kept), key=lambda p: -p.throughput)


def _shown(point: Point) -> dict[str, Any]:
    return {"throughput": point.throughput, **point.quantities, "figures": dict(point.figures),
            "strategies": list(point.strategies)}
