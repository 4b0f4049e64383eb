"""What to say when nothing fits: the nearest miss, and what would make it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autotune.search.engine import Engine
from autotune.search.exact import Outcome
from autotune.search.problem import Problem
from simcore.batch import Batch
from simcore.errors import NoFeasibleStrategyError
from simcore.inputs.fields import FIELD
from simcore.inputs.strategy import Strategy
from simcore.typing import IntArray
from simcore.units import GIB

LAYOUT = ("tp", "cp", "pp", "vpp", "ep", "etp", "mbs", "zero", "recompute")
_MAX_FACTOR = 4096


class NothingFitsError(NoFeasibleStrategyError):
    """No legal strategy fits.

    Parameters
    ----------
    message : str
    nearest : Strategy
        The legal strategy that exceeds the limit by least, resolved.
    details : dict
        The same for machines: memory, limit, excess, candidates and reasons.
    """

    def __init__(self, message: str, nearest: Strategy, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.nearest = nearest
        self.details = details


def nothing_fits(problem: Problem, engine: Engine, nearest: Batch,
                 outcome: Outcome) -> NothingFitsError:
    """Build the error for a search in which every legal candidate was too large.

    Parameters
    ----------
    nearest : Batch
        The nearest miss as a resolved batch of one.
    outcome : Outcome
    """
    limit = problem.memory_limit_bytes
    bounds = engine.bound(problem.model, problem.system, nearest)
    memory = bounds.device_memory_bytes if problem.marginal else bounds.device_memory_high_bytes
    needed = float(memory[0])
    row = nearest.row(0)
    gpus = _more_gpus(problem, engine, nearest)
    fixes = [f"it would fit on {gpus} GPUs"] if gpus else []
    fixes.append(f"a device with {needed / GIB:.1f} GiB free would hold it")
    if problem.memory_utilisation < 1 or problem.memory_reserve_gib > 0:
        fixes.append("so might a smaller reserve")
    layout = " ".join(f"{n}={getattr(row, n)}" for n in LAYOUT
                      if getattr(row, n) not in (None, 1, "none"))
    message = (f"nothing fits: none of {outcome.counts.bounded:,} legal strategies for "
               f"{problem.model.name} on {row.gpus} x {problem.system.name} fits in "
               f"{limit / GIB:.1f} GiB. The nearest miss needs {needed / GIB:.1f} GiB, "
               f"{(needed - limit) / GIB:.1f} GiB too much ({layout or 'no parallelism'}); "
               + ", and ".join(fixes))
    details = {"nearest": row.given(), "device_memory_gib": needed / GIB,
               "limit_gib": limit / GIB, "excess_gib": (needed - limit) / GIB,
               "fits_on_gpus": gpus, "candidates": outcome.counts.bounded,
               "rejected": {**outcome.tally.counts, **outcome.counts.unfit}}
    return NothingFitsError(message, row, details)


def _more_gpus(problem: Problem, engine: Engine, nearest: Batch) -> int | None:
    """Find the number of GPUs, by doubling, at which the miss fits.

    Data parallelism grows, or a deeper pipeline, or both; stages are even, and the batch grows
    with the GPUs.
    """
    gpus = int(nearest["gpus"][0])
    pairs = [(2**i, 2**a) for i in range(1, _MAX_FACTOR.bit_length()) for a in range(i + 1)
             if gpus * 2**i <= FIELD["gpus"].maximum]
    if not pairs:
        return None
    grow, deeper = np.array(pairs, np.int64).T
    even = {"vpp": 1, "first_stage_layers": None, "last_stage_layers": None, "pp_layout": "auto",
            "schedule": None, "microbatch_group_size": None, "overlap_p2p": None,
            "overlap_grad_reduce": None, "overlap_param_gather": None,
            "recompute_layers": None, "recompute_method": None}
    own = nearest.row(0)
    keeps = Batch.from_strategies([own] * len(pairs))
    changed = Batch.from_strategies([replace(own, **even)] * len(pairs))  # type: ignore[arg-type]
    by_gpus = [_fitting(problem, engine, rows, grow, deeper) for rows in (keeps, changed)]
    return min((n for n in by_gpus if n), default=None)


def _fitting(problem: Problem, engine: Engine, rows: Batch, grow: IntArray,
             deeper: IntArray) -> int | None:
    """Return the fewest GPUs among grown rows that are legal and fit."""
    gpus = rows["gpus"] * grow
    batch = rows.with_columns({"gpus": gpus, "gbs": rows["gbs"] * grow,
                               "pp": rows["pp"] * deeper})
    batch = engine.resolve(problem.model, problem.system, batch)
    context = engine.context(problem.model, problem.system, batch)
    legal = np.ones(len(grow), np.bool_)
    for rule in engine.rules:
        legal &= ~np.broadcast_to(rule.violated(context), (len(grow),))
    if not legal.any():
        return None
    bounds = engine.bound(problem.model, problem.system, batch.take(legal))
    memory = bounds.device_memory_bytes if problem.marginal else bounds.device_memory_high_bytes
    fits = memory <= problem.memory_limit_bytes
    return int(gpus[legal][fits].min()) if fits.any() else None
