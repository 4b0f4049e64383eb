"""From the best strategies to days, dollars, energy, deadlines and scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.planning.cases import Case, Found, tool_hash
from autotune.planning.spec import Cluster, Plan, Workload
from autotune.planning.split import solve_split
from simcore.goodput import daly_interval_s, goodput_frac, time_between_failures_s
from simcore.inputs.system import SystemSpec
from simcore.units import DAY_S, HOUR_S

Row = dict[str, Any]
KNEE_FRAC = 0.5
"""Beyond the knee, a GPU more brings less than half of what the first ones bring each."""


def rows_of(plan: Plan, cases: Mapping[tuple[str, str, str, int], Case],
            found: Mapping[Case, Found]) -> list[Row]:
    """Return one row for each model, cluster, workload and GPU count."""
    clusters = {c.name: c for c in plan.clusters}
    workloads = {w.name: w for w in plan.workloads}
    return [_row(plan, model, clusters[cluster], workloads[workload], gpus, case.system,
                 found[case])
            for (model, cluster, workload, gpus), case in cases.items()]


def _row(plan: Plan, model: str, cluster: Cluster, workload: Workload, gpus: int,
         system: SystemSpec, found: Found) -> Row:
    row: Row = {"model": model, "cluster": cluster.name, "system": system.name,
                "workload": workload.name, "gpus": gpus, **found}
    if not found["fits"]:
        return row
    row.update(_goodput(plan, gpus))
    train_s = workload.tokens / found["tokens_per_s"] / row["goodput_frac"]
    price = cluster.price_per_gpu_hour or system.accelerator.price_per_hour_usd or None
    power = cluster.power_w or system.accelerator.power_w
    row["effective_tokens_per_s"] = found["tokens_per_s"] * row["goodput_frac"]
    row["days"] = train_s / DAY_S
    row["gpu_hours"] = gpus * train_s / HOUR_S
    row["cost_usd"] = None if price is None else gpus * train_s / HOUR_S * price
    row["energy_mwh"] = gpus * power * cluster.pue * train_s / HOUR_S / 1e6
    row["meets_deadline"] = (None if workload.deadline_days is None
                             else row["days"] <= workload.deadline_days)
    row["meets_budget"] = (None if workload.budget_usd is None or row["cost_usd"] is None
                           else row["cost_usd"] <= workload.budget_usd)
    return row


def _goodput(plan: Plan, gpus: int) -> Row:
    failures = plan.failures
    if failures.per_gpu_hour == 0:
        return {"goodput_frac": 1.0, "hours_between_failures": None, "checkpoint_minutes": None}
    between = float(time_between_failures_s(gpus, failures.per_gpu_hour))
    return {
        "goodput_frac": float(goodput_frac(gpus, checkpoint_s=failures.checkpoint_s,
                                           restart_s=failures.restart_s,
                                           pause_s=failures.pause_s,
                                           failures_per_gpu_hour=failures.per_gpu_hour)),
        "hours_between_failures": between / HOUR_S,
        "checkpoint_minutes": float(daly_interval_s(failures.pause_s, between)) / 60.0}


def answer(plan: Plan, cases: Mapping[tuple[str, str, str, int], Case],
           found: Mapping[Case, Found]) -> Row:
    """Return everything that a plan says.

    Returns
    -------
    dict
        ``rows`` (one a model, cluster, workload and GPU count), ``questions`` (one a model,
        cluster and workload: fewest GPUs, for the deadline, cheapest, scaling and knee),
        ``splits``, and ``inputs``: hashes of what the answers depend on.
    """
    rows = rows_of(plan, cases, found)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["cluster"], row["workload"]), []).append(row)
    workloads = {w.name: w for w in plan.workloads}
    return {"plan": plan.name, "rows": rows,
            "questions": [_question(key, members, workloads[key[2]])
                          for key, members in groups.items()],
            "splits": [solve_split(split, plan, rows) for split in plan.splits],
            "inputs": _inputs(plan, cases)}


def _inputs(plan: Plan, cases: Mapping[tuple[str, str, str, int], Case]) -> Row:
    """Short hashes by input, to say what moved an answer."""
    import hashlib

    def short(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    return {"tool": tool_hash()[:16], "plan": short(plan.model_dump_json()),
            "models": {key[0]: short(case.model.model_dump_json())
                       for key, case in cases.items()},
            "systems": {case.system.name: short(case.system.model_dump_json())
                        for case in cases.values()}}


def _question(key: tuple[str, str, str], rows: Sequence[Row], workload: Workload) -> Row:
    model, cluster, name = key
    fits = sorted((r for r in rows if r["fits"]), key=lambda r: r["gpus"])
    out: Row = {"model": model, "cluster": cluster, "workload": name, "fits": bool(fits),
                "min_gpus": fits[0]["gpus"] if fits else None}
    if not fits:
        out["reason"] = rows[-1]["reason"]
        return out
    in_time = [r for r in fits if r["meets_deadline"]]
    paid = [r for r in fits if r["meets_budget"]]
    out["fastest_gpus"] = min(fits, key=lambda r: r["days"])["gpus"]
    priced = [r for r in fits if r["cost_usd"] is not None]
    out["cheapest_gpus"] = min(priced, key=lambda r: r["cost_usd"])["gpus"] if priced else None
    out["deadline_gpus"] = in_time[0]["gpus"] if in_time else None
    out["meets_deadline"] = bool(in_time) if workload.deadline_days is not None else None
    out["meets_budget"] = (bool(paid) if workload.budget_usd is not None and priced else None)
    both = [r for r in fits if r["meets_deadline"] is not False
            and r["meets_budget"] is not False]
    out["chosen_gpus"] = _choose(both)
    out["scaling"] = _scaling(fits)
    out["knee_gpus"] = _knee(fits)
    return out


def _choose(rows: Sequence[Row]) -> int | None:
    """The cheapest that meets deadline and budget; without prices the one with fewest GPUs."""
    if not rows:
        return None
    chosen = min(rows, key=lambda r: (r["cost_usd"] if r["cost_usd"] is not None else 0.0,
                                      r["gpus"]))
    return int(chosen["gpus"])


def _scaling(rows: Sequence[Row]) -> list[Row]:
    """Effective throughput against the smallest count, by GPU, at the workload's batch."""
    base = rows[0]
    each = base["effective_tokens_per_s"] / base["gpus"]
    return [{"gpus": r["gpus"], "speedup": r["effective_tokens_per_s"]
             / base["effective_tokens_per_s"],
             "efficiency": r["effective_tokens_per_s"] / r["gpus"] / each, "gbs": r["gbs"]}
            for r in rows]


def _knee(rows: Sequence[Row]) -> int:
    """The largest count up to which every GPU more is worth half of one at the start."""
    each = rows[0]["effective_tokens_per_s"] / rows[0]["gpus"]
    knee = rows[0]["gpus"]
    for before, after in zip(rows, rows[1:], strict=False):
        gained = (after["effective_tokens_per_s"] - before["effective_tokens_per_s"]) / (
            after["gpus"] - before["gpus"])
        if gained < KNEE_FRAC * each:
            break
        knee = after["gpus"]
    return int(knee)
