"""One cluster shared among several jobs: which GPU count each gets, by integer programming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.planning.spec import Job, Plan, Split
from simcore.errors import SimcoreError

Row = dict[str, Any]
EXTRA = "pip install 'autotune[plan]'"


class MissingSolverError(SimcoreError):
    """The package that solves a split is not installed."""


def solve_split(split: Split, plan: Plan, rows: Sequence[Row]) -> Row:
    """Choose a GPU count for every job, all together at most what the cluster has.

    Parameters
    ----------
    split : Split
    plan : Plan
    rows : sequence of dict
        Of `autotune.planning.answer.rows_of`.

    Returns
    -------
    dict
        ``jobs`` with their count, days and cost, ``gpus_used``, ``available_gpus``, ``value`` of
        the objective; or ``reason`` where no split exists.

    Raises
    ------
    MissingSolverError
        SciPy is not installed.

    Notes
    -----
    One binary variable for each job and count, exactly one a job, solved by HiGHS to optimality
    (``scipy.optimize.milp``).
    """
    cluster = next(c for c in plan.clusters if c.name == split.cluster)
    available = cluster.available_gpus or max(cluster.counts)
    options = [_options(job, split, rows) for job in split.jobs]
    out: Row = {"cluster": split.cluster, "objective": split.objective,
                "available_gpus": available}
    for job, found in zip(split.jobs, options, strict=True):
        if not found:
            return {**out, "jobs": [], "reason": f"{job.model} / {job.workload} fits on none of "
                                                 "the cluster's GPU counts, or misses its "
                                                 "deadline on all"}
    chosen = _solve(split, options, available)
    if chosen is None:
        least = sum(min(r["gpus"] for r in found) for found in options)
        return {**out, "jobs": [], "reason": f"the jobs need {least} GPUs at least, the cluster "
                                             f"has {available}"}
    jobs = [{"model": job.model, "workload": job.workload, "weight": job.weight,
             **{k: row[k] for k in ("gpus", "days", "cost_usd", "layout",
                                    "effective_tokens_per_s")}}
            for job, row in zip(split.jobs, chosen, strict=True)]
    return {**out, "jobs": jobs, "gpus_used": sum(j["gpus"] for j in jobs),
            "value": _value(split, jobs)}


def _options(job: Job, split: Split, rows: Sequence[Row]) -> list[Row]:
    found = [r for r in rows if r["fits"] and r["cluster"] == split.cluster
             and r["model"] == job.model and r["workload"] == job.workload]
    if split.objective == "cost":
        found = [r for r in found if r["meets_deadline"] is not False]
    return found


def _cost(row: Row) -> float:
    """Dollars, or GPU hours where no price is known."""
    return float(row["cost_usd"] if row["cost_usd"] is not None else row["gpu_hours"])


def _value(split: Split, jobs: Sequence[Row]) -> float:
    match split.objective:
        case "makespan":
            return float(max(j["days"] for j in jobs))
        case "weighted_throughput":
            return float(sum(j["weight"] * j["effective_tokens_per_s"] for j in jobs))
        case _:
            return float(sum(_cost({"gpu_hours": j["gpus"] * j["days"] * 24, **j})
                             for j in jobs))


def _solve(split: Split, options: Sequence[Sequence[Row]], available: int) -> list[Row] | None:
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError as error:
        raise MissingSolverError(f"a split needs a solver that is not installed: {EXTRA}"
                                 ) from error
    flat = [(j, row) for j, found in enumerate(options) for row in found]
    count = len(flat)
    gpus = np.array([row["gpus"] for _, row in flat], np.float64)
    # The last variable is the makespan, in days.
    one_each = np.zeros((len(options), count + 1))
    ends = np.zeros((len(options), count + 1))
    for i, (j, row) in enumerate(flat):
        one_each[j, i] = 1.0
        ends[j, i] = row["days"]
    ends[:, -1] = -1.0
    goal = np.zeros(count + 1)
    match split.objective:
        case "makespan":
            goal[-1] = 1.0
        case "weighted_throughput":
            goal[:-1] = [-split.jobs[j].weight * row["effective_tokens_per_s"]
                         for j, row in flat]
        case _:
            goal[:-1] = [_cost(row) for _, row in flat]
    scale = np.abs(goal).max()
    found = milp(goal / (scale or 1.0), integrality=np.append(np.ones(count), 0.0),
                 bounds=Bounds(0.0, np.append(np.ones(count), np.inf)),
                 constraints=[LinearConstraint(one_each, 1.0, 1.0),
                              LinearConstraint(np.append(gpus, 0.0)[None], 0.0, available),
                              LinearConstraint(ends, -np.inf, 0.0)])
    if found.x is None:
        return None
    return [max(((found.x[i], i, row) for i, (k, row) in enumerate(flat) if k == j),
                key=lambda entry: (entry[0], -entry[1]))[2] for j in range(len(options))]
