"""How few GPUs hold a model, how large a micro-batch and how long a sequence they hold.

Each question is whether any strategy of a space fits, asked of more and more GPUs, sequences or
tokens. A space is enumerated in chunks until one strategy fits. What changes only time is left at
its default, and so is what only adds memory (`FRUGAL`), unless the user gives it. Doubling
brackets an answer and a finer walk ends it, since what divides the model into equal parts does
not grow evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.changes import (
    Changed,
    other_changes,
    parallel_changes,
    recompute_changes,
    resolved,
    try_changes,
)
from autotune.commands.repeat import fields_to_give
from autotune.search.axes import build_grid
from autotune.search.engine import Engine, SimcoreEngine
from autotune.search.enumerate import Enumerator
from autotune.search.problem import Problem
from autotune.search.run import search
from autotune.space import SearchSpace, default_space
from simcore.errors import InputError
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.prediction import TIME_ONLY_FIELDS
from simcore.units import GIB

MOST_GPUS = 2**17
NO_ANSWER_AT = 4096
"""GPUs at which a nearest miss is sought where no number holds the model."""
MOST_TOKENS = 2**24
"""A sequence is not tried beyond, nor a micro-batch."""
SHORTEST = 128
FRUGAL: Mapping[str, object] = {
    "mbs": "1", "vpp": "1", "recompute": "none,full", "recompute_layers": None,
    "recompute_method": None}
"""Values that need least memory: a larger micro-batch saves more, interleaving keeps more chunks
in flight, and recomputing all layers leaves their inputs only (or, of a single layer, nothing is
won); None: the default."""
PARTS = 8
"""Steps of the finer walk between an answer and its double."""


@dataclass(frozen=True)
class Held:
    """A strategy that fits."""

    strategy: Strategy
    device_memory_gib: float
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"strategy": dict(self.strategy.items()),
                "device_memory_gib": self.device_memory_gib, "verdict": self.verdict}


@dataclass(frozen=True)
class Question:
    """A model, a system, and the fields that the user holds fixed.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    given : mapping
        Field to value, list or `auto`, as for a search.
    marginal : bool
        Whether a marginal fit counts.
    """

    model: ModelSpec
    system: SystemSpec
    given: Mapping[str, object]
    marginal: bool = True

    def problem(self, **fixed: object) -> Problem:
        """Return what is searched with some fields fixed."""
        given = {**self.given, **{name: str(value) for name, value in fixed.items()}}
        length = str(given.get("seq_len", ""))
        space = default_space(self.model, int(length) if length.isdigit() else None)
        return Problem(self.model, self.system, space.override(given),
                       marginal=self.marginal, top=1).checked()

    def frugal(self, **fixed: object) -> Problem:
        """Return the same with only those values that can need least memory."""
        asked = {*self.given, *fixed}
        found = self.problem(**fixed, **{name: value for name, value in FRUGAL.items()
                                         if name not in asked and value is not None})
        dropped = {*TIME_ONLY_FIELDS, *(n for n, v in FRUGAL.items() if v is None)} - asked
        axes = {n: values for n, values in found.space.axes.items() if n not in dropped}
        return replace(found, space=SearchSpace(found.space.name, axes, found.space.source))

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence, where one is given, else the model's."""
        length = str(self.given.get("seq_len", ""))
        return int(length) if length.isdigit() else self.model.seq_len


def first_that_fits(problem: Problem, engine: Engine) -> Held | None:
    """Find a strategy that fits: of the first chunk that has some, the one with most room."""
    enumerator = Enumerator(problem, engine, build_grid(problem, engine))
    if enumerator.base_issues():
        return None
    limit = problem.memory_limit_bytes
    for _, batch in enumerator.chunks():
        found = engine.bound(problem.model, problem.system, batch)
        used = found.device_memory_bytes if problem.marginal else found.device_memory_high_bytes
        least = int(np.argmin(used))
        if used[least] <= limit:
            high = float(found.device_memory_high_bytes[least])
            return Held(batch.row(least), float(found.device_memory_bytes[least]) / GIB,
                        "fits" if high <= limit else "marginal")
    return None


def _largest(holds: Callable[[int], Held | None], start: int, most: int,
             least: int) -> tuple[int, Held] | None:
    """Find about the largest number that holds: by halves, doubles, then eighths."""
    now, found = start, holds(start)
    while found is None and now // 2 >= least:
        now //= 2
        found = holds(now)
    if found is None:
        return None
    while 2 * now <= most and (more := holds(2 * now)) is not None:
        now, found = 2 * now, more
    if now % PARTS:
        return now, found
    low, high, unit = PARTS, 2 * PARTS, now // PARTS
    while high - low > 1:
        middle = (low + high) // 2
        more = holds(middle * unit) if middle * unit <= most else None
        if more is None:
            high = middle
        else:
            low, found = middle, more
    return low * unit, found


def min_gpus(question: Question, engine: Engine) -> tuple[int, Held] | None:
    """Find the fewest GPUs that hold the model: powers of two, then nodes between them.

    Between a power of two and the next at most `PARTS` numbers are tried, each whole nodes.
    """
    node, count, failed = question.system.network.gpus_per_node, 1, 0
    while count <= MOST_GPUS:
        held = first_that_fits(question.frugal(gpus=count), engine)
        if held is not None:
            break
        failed, count = count, 2 * count
    else:
        return None
    step = max(node, -(-(count - failed) // PARTS // node) * node)
    for fewer in range(failed // node * node + step, count, step):
        if fewer > failed >= node:
            other = first_that_fits(question.frugal(gpus=fewer), engine)
            if other is not None:
                return fewer, other
    return count, held


def max_mbs(question: Question, engine: Engine, gpus: int) -> tuple[int, Held] | None:
    """Find the largest micro-batch, a power of two, that any strategy holds."""
    best: tuple[int, Held] | None = None
    mbs = 1
    while mbs * question.seq_len <= MOST_TOKENS:
        try:
            held = first_that_fits(question.frugal(gpus=gpus, mbs=mbs), engine)
        except InputError:
            break
        if held is None:
            break
        best, mbs = (mbs, held), 2 * mbs
    return best


def max_seq_len(question: Question, engine: Engine, gpus: int) -> tuple[int, Held] | None:
    """Find the longest sequence that any strategy holds, to an eighth of a power of two."""
    def holds(length: int) -> Held | None:
        return first_that_fits(question.frugal(gpus=gpus, seq_len=length), engine)

    return _largest(holds, question.seq_len, MOST_TOKENS, SHORTEST)


def best_changes(model: ModelSpec, system: SystemSpec, strategy: Strategy, *,
                 device_memory_gib: float, step_time_s: float) -> list[dict[str, Any]]:
    """Rank single changes of a strategy by the memory they free for the time they cost.

    First those that free memory and cost no time, by what they free; then by GiB a percent.
    """
    now = resolved(model, system, strategy)
    changes = recompute_changes(now, model) + parallel_changes(now, model) + other_changes(now)
    rows = []
    for found in try_changes(model, system, strategy, changes):
        saves = device_memory_gib - found.device_memory_gib
        slower = 100.0 * (found.step_time_s / step_time_s - 1.0)
        if saves > 0.0:
            rows.append(_priced(found, saves, slower))
    return sorted(rows, key=lambda r: (r["slower_pct"] > 0.0,
                                       -(r["gib_per_pct"] or r["saves_gib"])))


def _priced(found: Changed, saves_gib: float, slower_pct: float) -> dict[str, Any]:
    price = saves_gib / slower_pct if slower_pct > 0 else None
    return {**found.to_dict(), "saves_gib": saves_gib, "slower_pct": slower_pct,
            "gib_per_pct": price}


def recommend(question: Question, gpus: int | None, *,
              engine: Engine | None = None) -> dict[str, Any]:
    """Answer all of it.

    Parameters
    ----------
    question : Question
    gpus : int, optional
        GPUs that micro-batch, sequence and changes are asked of; the fewest that hold the model
        where it is left out.

    Returns
    -------
    dict
        The JSON of ``autotune recommend``; `min_gpus_fits` leaves marginal fits out.

    Raises
    ------
    NoFeasibleStrategyError
        Nothing fits on `gpus`, or on any number of them.
    """
    engine = SimcoreEngine() if engine is None else engine
    fewest = min_gpus(question, engine)
    sure = fewest if fewest is None or fewest[1].verdict == "fits" else min_gpus(
        replace(question, marginal=False), engine)
    if fewest is None or (gpus is not None and gpus < fewest[0]):
        # Raises, with what is illegal or the nearest miss, where nothing fits.
        search(question.frugal(gpus=gpus or NO_ANSWER_AT), engine=engine)
    count = gpus or (fewest[0] if fewest else NO_ANSWER_AT)
    best = search(question.problem(gpus=count), engine=engine).best
    prediction = best.prediction
    largest, longest = max_mbs(question, engine, count), max_seq_len(question, engine, count)
    # What differs from the defaults alone, so that defaults follow a change.
    given = fields_to_give(question.model, question.system, prediction["strategy"])
    chosen = Strategy.from_mapping(given)
    return {
        "model": question.model.name, "system": question.system.name, "gpus": count,
        "seq_len": int(prediction["strategy"]["seq_len"]),
        **_answer("min_gpus", fewest), **_answer("min_gpus_fits", sure),
        **_answer("max_mbs", largest),
        **_answer("max_seq_len", longest),
        "best": prediction,
        "changes": best_changes(question.model, question.system, chosen,
                                device_memory_gib=prediction["device_memory_gib"],
                                step_time_s=prediction["step_time_s"]),
    }


def _answer(name: str, found: tuple[int, Held] | None) -> dict[str, Any]:
    return {name: found[0] if found else None,
            f"{name}_held_by": found[1].to_dict() if found else None}
