"""Search by Optuna's samplers, for spaces past enumeration.

A trial fixes the structure (degrees, stages); the inner axes (micro-batch, recomputation,
sharding, overlaps) are exhausted for it by one exact search, so that a trial's value is the
best that its structure can do.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.result import Entry
from autotune.search.axes import STRUCTURE, Axis, Grid
from autotune.search.engine import Engine
from autotune.search.enumerate import Block, Enumerator, domain
from autotune.search.exact import Outcome, Progress, combine, search_grid
from autotune.search.pool import Wanted
from autotune.search.problem import Problem
from autotune.search.study import attributes, create, excess_gib
from simcore.errors import InputError, Issue, nearest
from simcore.inputs.codec import decode
from simcore.inputs.fields import FIELD, UNSET
from simcore.units import GIB

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import Trial

COUNT_LIMIT = 3_000_000
TRIES_PER_TRIAL = 5
"""Trials asked for at most for each legal structure; illegal and known ones cost little."""
_BAD = 1e30


@dataclass(frozen=True)
class Budget:
    """When a sampler stops.

    Parameters
    ----------
    trials : int
        Legal structures.
    max_candidates : int, optional
        Candidates bounded.
    max_seconds : float, optional
    """

    trials: int = 200
    max_candidates: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True)
class Sampled:
    """What a sampler found, its study, and an estimate of the space's legal candidates."""

    outcome: Outcome
    study: Study
    candidates: int


def _tpe(seed: int) -> BaseSampler:
    from optuna.samplers import TPESampler
    return TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=20)


def _nsga2(seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIISampler
    return NSGAIISampler(seed=seed, population_size=20)


def _random(seed: int) -> BaseSampler:
    from optuna.samplers import RandomSampler
    return RandomSampler(seed=seed)


FACTORIES: Mapping[str, Callable[[int], Any]] = {"tpe": _tpe, "nsga2": _nsga2,
                                                 "random": _random}


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Build a sampler: a sampler object may not serve two studies.

    Raises
    ------
    InputError
        Optuna has no such sampler, or it cannot be built from a seed alone.
    """
    import inspect

    import optuna

    if name.lower() in FACTORIES:
        return FACTORIES[name.lower()](seed)  # type: ignore[no-any-return]
    known = [n for n in optuna.samplers.__all__ if n.endswith("Sampler")
             and not n.startswith("Base")]
    found = next((n for n in known if n.lower() == name.lower()), None)
    if found is None:
        raise InputError(Issue("sampler", f"'{name[:60]}' is not known",
                               nearest(name, ["exact", *FACTORIES, *known])))
    kind = getattr(optuna.samplers, found)
    options = {"seed": seed} if "seed" in inspect.signature(kind).parameters else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(**options)  # type: ignore[no-any-return]
    except (TypeError, ImportError) as error:
        raise InputError(Issue("sampler", f"{found} cannot be used: {error}",
                               "use " + ", ".join(FACTORIES))) from error


class _Structures:
    """Asks trials for structures, and mends those whose fields do not go together."""

    def __init__(self, grid: Grid, seed: int) -> None:
        self.axes = [a for a in grid.axes if set(a.fields) <= set(STRUCTURE)]
        self._grid = grid
        choices = domain(grid)
        self._choices = {
            name: {decode(FIELD[name], c, grid.texts): c for c in choices[name]}
            for axis in self.axes for name in axis.fields}
        self._names = tuple(n for axis in self.axes for n in axis.fields)
        self._random = np.random.default_rng(seed)
        self._spent: set[tuple[float, ...]] = set()
        self._memory: dict[object, tuple[tuple[float, ...], ...]] = {}

    def ask(self, trial: Trial) -> tuple[dict[str, float], dict[str, float]]:
        """Return the codes that a trial suggests, and the nearest that are on offer.

        A field is suggested only where, given the fields before it, there is a choice.
        """
        picked: dict[str, float] = {}
        mended: dict[str, float] = {}
        for axis in self.axes:
            options = self._options(axis, mended)
            if len(options) == 1:
                own = options[0]
            else:
                own = tuple(self._choices[n][trial.suggest_categorical(
                    n, list(self._choices[n]))] for n in axis.fields)
            picked.update(zip(axis.fields, own, strict=True))
            mended.update(zip(axis.fields, _closest(own, options), strict=True))
        return picked, mended

    def mend(self, wish: Mapping[str, float]) -> dict[str, float]:
        """Return the structure nearest to a wish, axis by axis."""
        mended: dict[str, float] = {}
        for axis in self.axes:
            own = tuple(wish[n] for n in axis.fields)
            mended.update(zip(axis.fields, _closest(own, self._options(axis, mended)),
                              strict=True))
        return mended

    def untried(self, outcomes: Mapping[tuple[float, ...], Outcome]) -> dict[str, float] | None:
        """Return a structure not tried yet, one axis from the best that still has one.

        Axes behind the one that moves keep their values as far as those are still on offer.
        """
        ranked = sorted((k for k in outcomes if k not in self._spent),
                        key=lambda k: (_loss(outcomes[k]), k))
        for key in ranked:
            wish = self._neighbour(dict(zip(self._names, key, strict=True)), outcomes)
            if wish is not None:
                return wish
            self._spent.add(key)
        return None

    def _neighbour(self, chosen: Mapping[str, float],
                   known: Mapping[tuple[float, ...], object]) -> dict[str, float] | None:
        moves = [(axis, option) for axis in self.axes
                 for option in self._options(axis, chosen)]
        for i in self._random.permutation(len(moves)):
            axis, option = moves[i]
            wish = self.mend({**chosen, **dict(zip(axis.fields, option, strict=True))})
            if tuple(wish.values()) not in known:
                return wish
        return None

    def params(self, chosen: Mapping[str, float]) -> dict[str, Any]:
        """Return a structure as the parameters of a trial."""
        return {n: decode(FIELD[n], c, self._grid.texts) for n, c in chosen.items()}

    def _options(self, axis: Axis, before: Mapping[str, float]) -> tuple[tuple[float, ...], ...]:
        given = {p: before.get(p, self._grid.base.get(p, UNSET)) for p in axis.parents}
        key = (axis.fields, tuple(given.values()))
        if key not in self._memory:
            self._memory[key] = axis.options(given)
        return self._memory[key]


def _loss(outcome: Outcome) -> float:
    found = outcome.found
    return float(found.losses[0, 0]) if found is not None and len(found) else math.inf


def _closest(own: tuple[float, ...],
             options: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    """Return the option that is nearest by ratio; the first of those that are equally near."""
    if own in options:
        return own
    return min(options, key=lambda o: sum(
        abs(math.log2((a + 2) / (b + 2))) for a, b in zip(own, o, strict=True)))


def search_sampled(problem: Problem, engine: Engine, grid: Grid, sampler: str, budget: Budget,
                   *, storage: str | None = None, progress: Progress | None = None) -> Sampled:
    """Search with a sampler until the budget is spent.

    Where a trial's fields do not go together, it counts as infeasible, and the nearest
    structure that is on offer is the next trial. Where a trial was there before, a neighbour of
    the best that was not is the next one; the random sampler does without.
    """
    goals = problem.objectives.goals
    study = create(storage, goals, name="autotune",
                   sampler=make_sampler(sampler, problem.seed))
    structures = _Structures(grid, problem.seed)
    total = Wanted(top=0 if len(goals) > 1 else max(8 * problem.top, 64))
    outcomes: dict[tuple[float, ...], Outcome] = {}
    start, legal, bounded = time.perf_counter(), 0, 0
    for _ in range(budget.trials * TRIES_PER_TRIAL):
        trial = study.ask()
        try:
            picked, mended = structures.ask(trial)
        except ImportError as error:
            # Some samplers load their own dependencies at the first suggestion.
            raise InputError(Issue("sampler", f"{sampler} cannot be used: {error}",
                                   "install it, or use " + ", ".join(FACTORIES))) from error
        key = tuple(picked.values())
        if picked != mended:
            differs = [n for n in picked if picked[n] != mended[n]]
            _tell_illegal(study, trial, ", ".join(differs), violations=len(differs))
            if tuple(mended.values()) not in outcomes:
                study.enqueue_trial(structures.params(mended))
            continue
        if key not in outcomes:
            outcomes[key] = _exhaust(problem, engine, grid, picked)
            bounded += outcomes[key].counts.bounded
            legal += outcomes[key].counts.bounded > 0
        elif not sampler.lower().startswith("random"):
            other = structures.untried(outcomes)
            if other is None:
                # Every structure that moves of one axis reach has been tried.
                _tell(study, trial, outcomes[key], problem)
                break
            study.enqueue_trial(structures.params(other))
        _tell(study, trial, outcomes[key], problem)
        if progress is not None:
            progress(legal, budget.trials)
        if (legal >= budget.trials or bounded >= (budget.max_candidates or np.inf)
                or time.perf_counter() - start >= (budget.max_seconds or np.inf)):
            break
    outcome = combine(list(outcomes.values()), total)
    candidates = max(_estimate(problem, engine, grid), bounded)
    return Sampled(outcome, study, candidates)


def _exhaust(problem: Problem, engine: Engine, grid: Grid,
             chosen: dict[str, float]) -> Outcome:
    """Search the inner axes of one structure."""
    inner = grid.narrowed(chosen)
    broken = Enumerator(problem, engine, inner).base_issues()
    if broken:
        outcome = Outcome(None)
        for issue in broken:
            outcome.tally.add(issue.where, 1)
        return outcome
    several = len(problem.objectives.goals) > 1
    outcome = search_grid(problem, engine, inner,
                          Wanted(top=0 if several else 1, cells=several, pareto=several))
    _widen(outcome, grid, inner)
    return outcome


def _widen(outcome: Outcome, grid: Grid, inner: Grid) -> None:
    """Write the structure's codes into rows that hold the inner fields alone."""
    names = inner.fields
    fill = [inner.fixed.get(n, np.nan) for n in grid.fields]
    places = [grid.fields.index(n) for n in names]
    if outcome.found is not None:
        rows = np.tile(np.array(fill), (len(outcome.found), 1))
        rows[:, places] = outcome.found.rows
        outcome.found.rows = rows
    if outcome.counts.bounded and not outcome.counts.feasible:
        row = np.array(fill)
        row[places] = outcome.miss.row
        outcome.miss.row = tuple(row.tolist())


def _tell_illegal(study: Study, trial: Trial, reason: str, *, violations: float) -> None:
    """Report a structure that no rule allows: infeasible, and bad by any goal."""
    trial.set_constraint("rules_violated", violations)
    trial.set_constraint("memory_excess_gib", 0.0)
    trial.set_user_attr("verdict", "illegal")
    trial.set_user_attr("reason", reason)
    study.tell(trial, _worst(study))


def _worst(study: Study) -> list[float]:
    return [0.0 if d.name == "MAXIMIZE" else _BAD for d in study.directions]


def _tell(study: Study, trial: Trial, outcome: Outcome, problem: Problem) -> None:
    """Report the best of a structure's inner axes."""
    if outcome.counts.bounded == 0:
        names = list(outcome.tally.counts)
        _tell_illegal(study, trial, ", ".join(names), violations=max(1, len(names)))
        return
    trial.set_constraint("rules_violated", 0.0)
    if outcome.found is None or not len(outcome.found):
        trial.set_constraint("memory_excess_gib", outcome.miss.excess_bytes / GIB)
        trial.set_user_attr("verdict", "does_not_fit")
        study.tell(trial, _worst(study))
        return
    values = problem.objectives.values(outcome.found.losses)
    best = Entry(outcome.found, 0, tuple(values[0].tolist()), problem.memory_limit_bytes)
    trial.set_constraint("memory_excess_gib", excess_gib(best))
    for key, value in attributes(best).items():
        trial.set_user_attr(key, value)
    trial.set_user_attr("strategy", best.strategy.given())
    study.tell(trial, list(best.values))


def _estimate(problem: Problem, engine: Engine, grid: Grid) -> int:
    """Count the legal candidates; past a limit, extrapolate from the share seen so far."""
    enumerator = Enumerator(problem, engine, grid)
    counted, seen = 0, 0
    for block in enumerator.blocks(enumerator.last_level):
        counted += enumerator.leaves(block, enumerator.last_level)
        seen += block.size
        if seen > COUNT_LIMIT:
            refused = sum(enumerator.tally.counts.values())
            raw = enumerator.leaves(Block({}, 1), 0)
            return round(raw * (counted / (counted + refused)))
    return counted
