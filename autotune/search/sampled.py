"""Search by Optuna's samplers, for spaces past enumeration.

A trial fixes the structure (degrees, stages); the inner axes (micro-batch, recomputation,
sharding, overlaps) are exhausted for it by one exact search, so that a trial's value is the
best that its structure can do.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.objectives import DIRECTION
from autotune.result import Entry
from autotune.search.axes import Grid
from autotune.search.engine import Engine
from autotune.search.enumerate import Block, Enumerator
from autotune.search.exact import Outcome, Progress, combine, search_grid
from autotune.search.guide import EVERY, Guide
from autotune.search.pool import Wanted
from autotune.search.problem import Problem
from autotune.search.structures import Key, Structures
from autotune.search.study import Mirror, attributes, quiet
from autotune.search.study import excess_gib as excess_gib_of
from simcore.errors import InputError, Issue, nearest
from simcore.units import GIB

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import Trial

COUNT_LIMIT = 300_000
TRIES_PER_TRIAL = 5
"""Trials asked for at most for each legal structure; illegal and known ones cost little."""


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


class _Run:
    """One search while it goes on."""

    def __init__(self, problem: Problem, engine: Engine, grid: Grid, sampler: str) -> None:
        import optuna

        self.problem, self.engine, self.grid, self.sampler = problem, engine, grid, sampler
        quiet()
        self.study = optuna.create_study(
            directions=[DIRECTION[g] for g in problem.objectives.goals],
            sampler=make_sampler(sampler, problem.seed))
        self.structures = Structures(grid, problem.seed)
        self.guide = Guide(problem, engine, grid, self.structures)
        self.outcomes: dict[Key, Outcome] = {}
        self.legal = 0
        self._guided = not sampler.lower().startswith("random") and self.guide.useful
        self._looked = 0

    @property
    def bounded(self) -> int:
        """Candidates bounded or simulated so far, those of the guide too."""
        return sum(o.counts.bounded for o in (*self.outcomes.values(), *self.guide.outcomes))

    def start(self) -> None:
        """Queue what the guide names before the first trial."""
        if self._guided:
            self._queue(self.guide.start(), "screen")

    def step(self) -> bool:
        """Run a trial; False where no structure is left."""
        trial = self.study.ask()
        try:
            picked, mended = self.structures.ask(trial)
        except ImportError as error:
            # Some samplers load their own dependencies at the first suggestion.
            raise InputError(Issue("sampler", f"{self.sampler} cannot be used: {error}",
                                   "install it, or use " + ", ".join(FACTORIES))) from error
        if picked != mended:
            differs = [n for n in picked if picked[n] != mended[n]]
            _tell_illegal(self.study, trial, ", ".join(differs), violations=len(differs))
            if tuple(mended.values()) not in self.outcomes:
                self._queue([tuple(mended.values())], "mended")
            return True
        key = tuple(picked.values())
        again = key in self.outcomes
        if not again:
            self.outcomes[key] = _exhaust(self.problem, self.engine, self.grid, picked)
            self.legal += self.outcomes[key].counts.bounded > 0
        _tell(self.study, trial, self.outcomes[key], self.problem)
        return self._guide_on(again=again)

    def _guide_on(self, *, again: bool) -> bool:
        """Queue what lies near the best, where it is time; False where nothing is left."""
        if self._guided and self.legal - self._looked >= EVERY:
            self._looked = self.legal
            self._queue(self.guide.around(self.outcomes), "around the best")
        elif again and not self.sampler.lower().startswith("random"):
            other = self.structures.untried(self.outcomes)
            if other is None:
                # Every structure that moves of one axis reach has been tried.
                return False
            self._queue([other], "beside the best")
        return True

    def _queue(self, keys: list[Key], origin: str) -> None:
        for key in keys:
            self.study.enqueue_trial(self.structures.params(key),
                                     user_attrs={"proposed_by": origin})


def search_sampled(problem: Problem, engine: Engine, grid: Grid, sampler: str, budget: Budget,
                   *, storage: str | None = None, progress: Progress | None = None) -> Sampled:
    """Search with a sampler until the budget is spent.

    Where a trial's fields do not go together, it is pruned, and the nearest structure that is
    on offer is the next trial. Where a trial was there before, a neighbour of the best that was
    not is the next one. A guide names structures to begin with, and others near the best from
    time to time. The random sampler does without the latter two.
    """
    goals = problem.objectives.goals
    run = _Run(problem, engine, grid, sampler)
    mirror = Mirror(storage, goals) if storage else None
    start = time.perf_counter()
    try:
        run.start()
        for _ in range(budget.trials * TRIES_PER_TRIAL):
            more = run.step()
            if mirror is not None:
                mirror.update(run.study)
            if progress is not None:
                progress(run.legal, budget.trials)
            if (not more or run.legal >= budget.trials
                    or run.bounded >= (budget.max_candidates or np.inf)
                    or time.perf_counter() - start >= (budget.max_seconds or np.inf)):
                break
    finally:
        if mirror is not None:
            mirror.update(run.study, last=True)
    total = Wanted(top=0 if len(goals) > 1 else max(8 * problem.top, 64))
    outcome = combine([*run.outcomes.values(), *run.guide.outcomes], total)
    candidates = max(_estimate(problem, engine, grid), run.bounded)
    return Sampled(outcome, mirror.study if mirror is not None else run.study, candidates)


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
    """Report a structure that no rule allows: pruned, with the rules as a constraint."""
    from optuna.trial import TrialState

    trial.set_constraint("rules_violated", violations)
    trial.set_constraint("memory_excess_gib", 0.0)
    trial.set_user_attr("verdict", "illegal")
    trial.set_user_attr("reason", reason)
    study.tell(trial, state=TrialState.PRUNED)


def _tell(study: Study, trial: Trial, outcome: Outcome, problem: Problem) -> None:
    """Report the best of a structure's inner axes."""
    from optuna.trial import TrialState

    if outcome.counts.bounded == 0:
        names = list(outcome.tally.counts)
        _tell_illegal(study, trial, ", ".join(names), violations=max(1, len(names)))
        return
    trial.set_constraint("rules_violated", 0.0)
    trial.set_user_attr("evaluated", outcome.counts.bounded)
    if outcome.found is None or not len(outcome.found):
        excess_gib = outcome.miss.excess_bytes / GIB
        trial.set_constraint("memory_excess_gib", excess_gib)
        trial.set_user_attr("verdict", "does_not_fit")
        trial.set_user_attr("reason", f"memory: {excess_gib:.2f} GiB too much at best")
        study.tell(trial, state=TrialState.PRUNED)
        return
    values = problem.objectives.values(outcome.found.losses)
    best = Entry(outcome.found, 0, tuple(values[0].tolist()), problem.memory_limit_bytes)
    trial.set_constraint("memory_excess_gib", excess_gib_of(best))
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
