"""A search as an Optuna study that optuna-dashboard can open."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.objectives import DIRECTION, Goal
from simcore.errors import InputError, Issue
from simcore.units import GIB

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from autotune.result import Entry, SearchResult
    from simcore.inputs.codec import Value

ATTRIBUTES = ("peak_memory_bytes", "device_memory_bytes", "device_memory_high_bytes",
              "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "hfu",
              "model_tflops_per_gpu", "compute_s", "recompute_s", "tp_comm_s", "cp_comm_s",
              "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s", "optimizer_s", "other_s")

WRITE_EVERY_S = 2.0


def quiet() -> None:
    """Keep Optuna from logging every trial; what matters is raised as an error."""
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def open_storage(storage: str | None) -> Any:
    """Open what `--storage` names.

    Parameters
    ----------
    storage : str, optional
        A URL with ``://`` (SQLite or another database), else the path of a journal file. None:
        in memory.

    Raises
    ------
    InputError
        The storage cannot be opened.
    """
    if storage is None:
        return None
    try:
        if "://" in storage:
            from optuna.storages import get_storage
            return get_storage(storage)
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
        if Path(storage).is_dir():
            raise InputError(Issue("storage", f"'{storage}' is a directory", "name a file"))
        if not Path(storage).absolute().parent.is_dir():
            raise InputError(Issue("storage", f"the folder of '{storage}' does not exist"))
        return JournalStorage(JournalFileBackend(storage))
    except InputError:
        raise
    except Exception as error:
        # Optuna and the databases behind it raise errors of many kinds for a bad URL.
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(Issue("storage", f"'{storage[:100]}' cannot be opened: {reason}",
                               "give a file for a journal, or sqlite:///FILE")) from error


def create(storage: str | None, goals: Sequence[Goal], *, name: str, sampler: Any = None) -> Study:
    """Create a study under the first free name: `name`, `name-2`, ..."""
    import optuna

    quiet()
    directions = [DIRECTION[g] for g in goals]
    metrics = [g.value for g in goals]
    opened = open_storage(storage)
    while True:
        taken: Iterable[str] = () if opened is None else optuna.get_all_study_names(opened)
        free = next(n for n in (name if i == 1 else f"{name}-{i}" for i in range(1, 10**6))
                    if n not in set(taken))
        try:
            study = optuna.create_study(storage=opened, study_name=free, directions=directions,
                                        sampler=sampler or optuna.samplers.RandomSampler(seed=0))
            break
        except optuna.exceptions.DuplicatedStudyError:
            # Another process took the name in the meantime: the next one is free.
            continue
    with warnings.catch_warnings():
        # Experimental to Optuna, and nothing depends on it but the dashboard's labels.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(metrics)
    return study


class Mirror:
    """Copies a study's finished trials to a storage, several in one go.

    A sampler reads and writes its study many times a trial: in memory that costs nothing, in a
    database more than the simulation. What is stored lags by `WRITE_EVERY_S` at most.
    """

    def __init__(self, storage: str, goals: Sequence[Goal], *, name: str = "autotune") -> None:
        self.study = create(storage, goals, name=name)
        self._copied: set[int] = set()
        self._written_s = time.monotonic()

    def update(self, study: Study, *, last: bool = False) -> None:
        """Copy what has finished since, where it is time or the search ends."""
        if not last and time.monotonic() - self._written_s < WRITE_EVERY_S:
            return
        done = [t for t in study.get_trials(deepcopy=False)
                if t.state.is_finished() and t.number not in self._copied]
        self.study.add_trials(done)
        self._copied.update(t.number for t in done)
        self._written_s = time.monotonic()


def totals(result: SearchResult) -> dict[str, Any]:
    """Return what the study as a whole says."""
    return {"model": result.problem.model.name, "system": result.problem.system.name,
            "objective": result.problem.objectives.text, "method": result.method,
            "seed": result.problem.seed, "candidates": result.candidates,
            "evaluated": result.evaluated, "simulated": result.simulated,
            "feasible": result.feasible, "rejected": dict(result.rejected),
            "exact": result.exact, "memory_limit_gib": result.problem.memory_limit_bytes / GIB}


def describe(study: Study, result: SearchResult) -> None:
    """Write what the search as a whole found into a study."""
    for key, value in totals(result).items():
        study.set_user_attr(key, value)


def record(result: SearchResult, storage: str | None, *, name: str) -> Study:
    """Write the best, the Pareto set and the best of every cell as trials."""
    if result.recorded is not None and storage is None:
        return result.recorded  # type: ignore[return-value]
    study = create(storage, result.problem.objectives.goals, name=name)
    describe(study, result)
    if result.recorded is not None:
        study.add_trials(result.recorded.get_trials(deepcopy=False))  # type: ignore[attr-defined]
    else:
        study.add_trials(_trials(result))
    return study


def _trials(result: SearchResult) -> list[FrozenTrial]:
    from optuna.trial import create_trial

    fields = [name for name, values in result.space.items() if len(values) > 1]
    params = [{name: getattr(e.strategy, name) for name in fields} for e in result.entries]
    distributions = _distributions(result, params)
    ranks = {id(r.entry): r.rank for r in result.ranked}
    pareto, cells = ({id(e) for e in part} for part in (result.pareto, result.cells))
    trials = []
    for entry, chosen in zip(result.entries, params, strict=True):
        attrs = attributes(entry)
        attrs["pareto"], attrs["best_of_cell"] = id(entry) in pareto, id(entry) in cells
        if id(entry) in ranks:
            attrs["rank"] = ranks[id(entry)]
        trials.append(create_trial(
            params=chosen, distributions=distributions, values=list(entry.values),
            user_attrs=attrs, constraints={"memory_excess_gib": excess_gib(entry)}))
    return trials


def excess_gib(entry: Entry) -> float:
    """Device memory above the limit; at most zero where it fits."""
    return float(entry.found.memory_bytes[entry.index] - entry.limit_bytes) / GIB


def attributes(entry: Entry) -> dict[str, Any]:
    """Return what a trial says about its strategy: verdict, memory and time terms."""
    out: dict[str, Any] = {"verdict": entry.verdict}
    predictions, i = entry.found.origin[entry.index]
    for name in ATTRIBUTES:
        if name in predictions.columns:
            value = float(predictions.columns[name][i])
            if name.endswith("_bytes"):
                out[name.removesuffix("_bytes") + "_gib"] = value / GIB
            else:
                out[name] = value
    return out


def _distributions(result: SearchResult,
                   params: list[dict[str, Value | None]]) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution

    # Fields left to their default show the value that the default became.
    return {name: CategoricalDistribution(tuple(dict.fromkeys(
        [v for v in result.space[name] if v is not None] + [p[name] for p in params])))
        for name in (params[0] if params else ())}
