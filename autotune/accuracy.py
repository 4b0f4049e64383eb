"""How far predictions are from measured runs: errors, verdicts and ranking."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autotune.compare import Outcome, files
from simcore.typing import FloatArray

MIN_RAN = 5
"""Runs that a ranking group needs at least."""
GROUP_FIELDS = ("gpus", "seq_len", "gbs", "precision", "recompute", "sp")
QUESTION_FIELDS = ("gpus", "seq_len", "gbs", "precision", "framework", "framework_version")
"""Fields that a search is given; what else a strategy chooses is its answer."""
COMPOSED = ("vtrain2024/single.csv",)
"""Tables whose times are linear in micro-batches and layers to 0.03 %, as if composed by formula:
they say nothing of how real layouts differ."""
NEAR = 0.12
"""Pairs nearer than this in predicted time (logarithm) are the ones that errors can turn over."""


def _error_summary(outcomes: Sequence[Outcome], name: str) -> dict[str, Any]:
    errors = [e for o in outcomes if (e := o.error_pct(name)) is not None]
    if not errors:
        return {"n": 0, "mean_abs_pct": None, "median_abs_pct": None, "p90_abs_pct": None,
                "max_abs_pct": None, "bias_pct": None}
    sizes = np.abs(errors)
    return {"n": len(errors), "mean_abs_pct": float(sizes.mean()),
            "median_abs_pct": float(np.median(sizes)),
            "p90_abs_pct": float(np.percentile(sizes, 90)),
            "max_abs_pct": float(sizes.max()), "bias_pct": float(np.mean(errors))}


def memory_by_kind(outcomes: Sequence[Outcome], is_moe: Mapping[str, bool]
                   ) -> list[tuple[str, str, dict[str, Any]]]:
    """Errors of peak memory by table, dense models and those with experts apart.

    Parameters
    ----------
    outcomes : sequence of Outcome
    is_moe : mapping of str to bool
        Whether a model has experts, by its name.

    Returns
    -------
    list of (table, "dense" or "MoE", summary)
        Those with a measured peak, in order; "all tables" last.
    """
    found: list[tuple[str, str, dict[str, Any]]] = []
    for name in (*files(outcomes), ""):
        for kind, experts in (("dense", False), ("MoE", True)):
            own = [o for o in outcomes if (not name or o.run.file == name)
                   and is_moe[o.run.model] is experts]
            summary = _error_summary(own, "peak_memory")
            if summary["n"]:
                found.append((name or "all tables", kind, summary))
    return found


def _fits(outcome: Outcome) -> bool:
    return outcome.predicted["verdict"] != "does_not_fit"


def _oom_summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Count verdicts: a row that ran fits, ``oom=1`` does not; marginal counts as fitting."""
    told = [o for o in outcomes if o.predicted and (o.run.ran or o.run.oom)]
    ran = [o for o in told if o.run.ran]
    failed = [o for o in told if not o.run.ran]
    false_oom = sum(not _fits(o) for o in ran)
    false_fit = sum(_fits(o) for o in failed)
    right = len(told) - false_oom - false_fit
    return {"n": len(told), "ran": len(ran), "failed": len(failed),
            "accuracy": right / len(told) if told else None, "false_fit": false_fit,
            "false_oom": false_oom,
            "marginal": sum(o.predicted["verdict"] == "marginal" for o in told)}


def ranks(values: Sequence[float]) -> FloatArray:
    """Rank values from 1, ties at their mean rank."""
    array = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], dtype=np.float64)


def spearman(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one side does not vary."""
    a, b = ranks(one), ranks(two)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale else None


def ranking_groups(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group rows that answer the same question, at least five of which ran."""
    found: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        run = outcome.run
        if outcome.predicted:
            key = (run.file, run.model, run.system, run.conditions.get("kernel", ""),
                   *(str(run.fields.get(name, "")) for name in GROUP_FIELDS))
            found[key].append(outcome)
    return [group for group in found.values()
            if sum(o.run.ran and o.step_time_s is not None for o in group) >= MIN_RAN]


class Pair(NamedTuple):
    """Two measured strategies that answer one question."""

    first: Outcome
    second: Outcome
    question: tuple[str, ...]
    gap: float
    """ln(second / first) of the predicted step time."""
    error: float
    """How much that differs from the measured one: ln ratio of measured less `gap`."""

    @property
    def right(self) -> bool:
        """Whether the predicted order is the measured one."""
        return self.gap * (self.gap + self.error) > 0.0


def question_pairs(outcomes: Sequence[Outcome]) -> list[Pair]:
    """Pairs of measured runs that differ in what a search chooses, and in predicted time.

    Doubtful rows and `COMPOSED` tables are left out.
    """
    found: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        run = outcome.run
        if (outcome.predicted and outcome.step_time_s is not None and not run.doubtful
                and run.file not in COMPOSED):
            key = (run.file, run.model, str(run.num_layers or ""), run.system,
                   run.conditions.get("kernel", ""),
                   *(str(run.fields.get(name, "")) for name in QUESTION_FIELDS))
            found[key].append(outcome)
    pairs = []
    for key, group in found.items():
        for one, two in itertools.combinations(group, 2):
            gap = float(np.log(float(two.predicted["step_time_s"])
                               / float(one.predicted["step_time_s"])))
            measured = float(np.log(float(two.step_time_s or 0.0)
                                    / float(one.step_time_s or 0.0)))
            if abs(gap) > 1e-6:
                pairs.append(Pair(one, two, key, gap, measured - gap))
    return pairs


def order_summary(told: Sequence[tuple[Pair, float]]) -> dict[str, Any]:
    """Count how often the order of pairs that are said to be told apart is right.

    Parameters
    ----------
    told : sequence of (Pair, float)
        Each with the logarithm of the ratio below which it is not told apart.

    Returns
    -------
    dict
        ``pairs``, ``told`` (share told apart) and ``right`` (share of these in the right order),
        and the same of `NEAR` pairs.
    """
    result: dict[str, Any] = {}
    for prefix, limit in (("", np.inf), ("near_", NEAR)):
        own = [(p, least) for p, least in told if abs(p.gap) <= limit]
        apart = [p for p, least in own if abs(p.gap) > least]
        result |= {f"{prefix}pairs": len(own),
                   f"{prefix}told": len(apart) / len(own) if own else None,
                   f"{prefix}right": (float(np.mean([p.right for p in apart]))
                                      if apart else None)}
    return result


def _order_summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same with each prediction's ``told_apart_pct``, as a search takes it."""
    return order_summary([
        (p, float(np.log1p(max(float(o.predicted["told_apart_pct"])
                               for o in (p.first, p.second)) / 100.0)))
        for p in question_pairs([o for o in outcomes if "told_apart_pct" in o.predicted])])


def _ranking_summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    groups = ranking_groups(outcomes)
    correlations: list[float] = []
    regrets: list[float] = []
    failed_picks = 0
    for group in groups:
        timed = [(float(o.predicted["step_time_s"]), o.step_time_s) for o in group
                 if o.run.ran and o.step_time_s is not None]
        measured = [m for _, m in timed]
        correlation = spearman([p for p, _ in timed], measured)
        if correlation is not None:
            correlations.append(correlation)
        # What the prediction puts first: the fastest of what it says fits, if anything does.
        choice = [o for o in group if o.run.oom or o.step_time_s is not None]
        pick = min(choice, key=lambda o: (not _fits(o), float(o.predicted["step_time_s"])))
        if not pick.run.ran or pick.step_time_s is None:
            failed_picks += 1
        else:
            regrets.append(100.0 * (pick.step_time_s / min(measured) - 1.0))
    return {"groups": len(groups),
            "spearman_median": float(np.median(correlations)) if correlations else None,
            "regret_mean_pct": float(np.mean(regrets)) if regrets else None,
            "regret_p90_pct": float(np.percentile(regrets, 90)) if regrets else None,
            "regret_max_pct": float(np.max(regrets)) if regrets else None,
            "failed_picks": failed_picks}


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Summarise errors of time and memory, verdicts and ranking."""
    return {"rows": len(outcomes), "skipped": sum(o.skipped is not None for o in outcomes),
            "step_time": _error_summary(outcomes, "step_time"),
            "interval": _interval_summary(outcomes), "told_apart": _order_summary(outcomes),
            "peak_memory": _error_summary(outcomes, "peak_memory"),
            "oom": _oom_summary(outcomes), "ranking": _ranking_summary(outcomes)}


def _row(outcome: Outcome) -> dict[str, Any]:
    run = outcome.run
    measured = {**run.measured, "step_time_s": outcome.step_time_s,
                "peak_memory_gib": outcome.peak_memory_gib,
                "oom": None if run.oom is None else int(run.oom)}
    nothing = {"step_time_s": None, "step_time_s_p10": None, "step_time_s_p90": None,
               "told_apart_pct": None, "peak_memory_gib": None,
               "device_memory_gib": None, "verdict": None}
    row: dict[str, Any] = {
        "file": run.file, "id": run.id, "model": run.model, "system": run.system,
        "measured": measured, "predicted": dict(outcome.predicted) or nothing,
        "error_pct": {name: outcome.error_pct(name) for name in ("step_time", "peak_memory")},
        "skipped": outcome.skipped}
    if outcome.notes:
        row["notes"] = list(outcome.notes)
    if run.doubtful:
        row["doubtful"] = run.doubtful
    return row


def _interval_summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """How often the measured step lies between ``step_time_s_p10`` and ``_p90``."""
    told = [o for o in outcomes
            if "step_time_s_p10" in o.predicted and o.step_time_s is not None]
    held = [float(o.predicted["step_time_s_p10"]) <= float(o.step_time_s or 0.0)
            <= float(o.predicted["step_time_s_p90"]) for o in told]
    widths = [100.0 * (float(o.predicted["step_time_s_p90"])
                       - float(o.predicted["step_time_s_p10"]))
              / float(o.predicted["step_time_s"]) for o in told]
    return {"n": len(told), "held": float(np.mean(held)) if held else None,
            "median_width_pct": float(np.median(widths)) if widths else None}


def report(outcomes: Sequence[Outcome],
           folds: Mapping[tuple[str, str], int] | None = None) -> dict[str, Any]:
    """Build the JSON of ``validate``.

    Parameters
    ----------
    outcomes : sequence of Outcome
    folds : mapping, optional
        Fold of each row by table and id, for errors by fold.

    Returns
    -------
    dict
        `rows`, `summary`, `by_file`; also `by_system`, `by_fold` where folds are given, and
        `without_doubtful` where rows are named as doubtful.
    """
    systems = list(dict.fromkeys(o.run.system for o in outcomes))
    result: dict[str, Any] = {
        "rows": [_row(outcome) for outcome in outcomes],
        "summary": summarise(outcomes),
        "by_file": {name: summarise([o for o in outcomes if o.run.file == name])
                    for name in files(outcomes)},
        "by_system": {name: summarise([o for o in outcomes if o.run.system == name])
                      for name in systems},
    }
    if folds is not None:
        result["by_fold"] = {
            str(fold): summarise([o for o in outcomes if folds[o.run.file, o.run.id] == fold])
            for fold in sorted(set(folds.values()))}
    if any(o.run.doubtful for o in outcomes):
        result["without_doubtful"] = summarise([o for o in outcomes if not o.run.doubtful])
    return result
