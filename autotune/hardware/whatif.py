"""What a figure of the hardware is worth, with the best strategy searched anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

from autotune.commands.repeat import fields_to_give
from autotune.hardware.candidates import Candidates
from autotune.hardware.figures import Varied, base_value, changed, combinations
from autotune.report.digest import bounds, layout_text, recompute_text
from autotune.search.problem import Problem
from simcore.inputs.fields import FIELD_NAMES
from simcore.inputs.strategy import Strategy
from simcore.prediction import Prediction, predict

Point = dict[str, Any]
BISECTIONS = 24
"""Halvings of the ratio between two values: a break-even point to a part in ten million."""
PLAIN = ("gpus", "gbs", "seq_len")


def whatif(problem: Problem, varied: Sequence[Varied], *, together: bool = False,
           progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Search the best strategy at every value of some figures.

    Parameters
    ----------
    problem : Problem
        Model, GPUs and system that are started from.
    varied : sequence of Varied
    together : bool
        Every combination of the values, instead of one figure at a time.
    progress : callable, optional
        Called with how many points are done and how many there are.

    Returns
    -------
    dict
        ``base``; ``points`` with the values, the best strategy and how it compares; and for each
        figure that was varied alone its ``curves``: elasticity at the base and break-even
        points, where another strategy becomes the best.
    """
    candidates = Candidates(problem)
    base = candidates.best({})
    values = combinations(varied, together=together)
    points: list[Point] = []
    predictions: list[Prediction | None] = []
    for i, figures in enumerate(values):
        best = candidates.best(figures)
        predictions.append(best)
        points.append(_point(figures, best, base))
        if progress is not None:
            progress(i + 1, len(values))
    out: dict[str, Any] = {
        "model": problem.model.name, "system": problem.system.name,
        "candidates": candidates.legal, "base": _point({}, base, base), "points": points}
    if not together:
        at = 0
        curves = []
        for v in varied:
            part = slice(at, at + len(v.values))
            curves.append(_curve(problem, v, points[part], predictions[part]))
            at += len(v.values)
        out["curves"] = curves
    return out


def _point(figures: dict[str, float], best: Prediction | None,
           base: Prediction | None) -> Point:
    if best is None:
        return {"figures": figures, "fits": False}
    data = best.to_dict()
    strategy = data["strategy"]
    point: Point = {
        "figures": figures, "fits": True, "layout": layout_text(strategy),
        "recompute": recompute_text(strategy), "step_time_s": data["step_time_s"],
        "tokens_per_s_per_gpu": data["tokens_per_s_per_gpu"], "mfu": data["mfu"],
        "device_memory_gib": data["device_memory_gib"], "bound_by": bounds(data),
        "strategy": strategy}
    if base is not None:
        point["throughput_pct"] = 100.0 * (best["tokens_per_s"] / base["tokens_per_s"] - 1.0)
        point["differs"] = differing(base, best)
    return point


def differing(one: Prediction, two: Prediction) -> dict[str, Any]:
    """Return the fields of the second in which it differs from the first, without those that
    follow from the others by default."""
    told = given_fields(one).keys() | given_fields(two).keys()
    return {name: getattr(two.strategy, name) for name in FIELD_NAMES
            if name in told and name not in PLAIN
            and getattr(one.strategy, name) != getattr(two.strategy, name)}


def given_fields(prediction: Prediction) -> dict[str, Any]:
    """Return the fields that have to be given for a strategy, defaults filling in the rest."""
    found = prediction.predictions
    return fields_to_give(found.model, found.system, prediction.strategy_dict())


def _curve(problem: Problem, varied: Varied, points: Sequence[Point],
           predictions: Sequence[Prediction | None]) -> dict[str, Any]:
    base = base_value(problem.system, varied.name)
    breaks: list[Point] = []
    for i in range(len(points) - 1):
        one, two = predictions[i], predictions[i + 1]
        if one is None or two is None:
            if (one is None) != (two is None):
                breaks.append({"between": [varied.values[i], varied.values[i + 1]],
                               "value": None, "from": "nothing fits" if one is None else "fits",
                               "to": "fits" if one is None else "nothing fits"})
            continue
        changes = differing(one, two)
        if changes:
            breaks.append({
                "between": [varied.values[i], varied.values[i + 1]],
                "value": break_even(problem, varied.name, (varied.values[i],
                                                           varied.values[i + 1]),
                                    one.strategy, two.strategy),
                "from": _told(one, changes), "to": _told(two, changes)})
    return {"figure": varied.name, "base": base, "elasticities": _elasticities(varied, points),
            "break_even": breaks}


def _told(prediction: Prediction, changes: dict[str, Any]) -> str:
    """The fields that change, with the values of one side."""
    return ", ".join(f"{name} {getattr(prediction.strategy, name)}" for name in changes)


def _elasticities(varied: Varied, points: Sequence[Point]) -> list[Point]:
    """Relative change of the throughput over that of the figure, between neighbouring values."""
    found = []
    for i in range(len(points) - 1):
        low, high = varied.values[i], varied.values[i + 1]
        if low > 0 and points[i]["fits"] and points[i + 1]["fits"]:
            found.append({"from": low, "to": high, "elasticity": log(
                points[i + 1]["tokens_per_s_per_gpu"] / points[i]["tokens_per_s_per_gpu"])
                / log(high / low)})
    return found


def break_even(problem: Problem, name: str, between: tuple[float, float], one: Strategy,
               two: Strategy) -> float | None:
    """Return the value of a figure from which one strategy is as fast as the other.

    None where the difference has one sign over the whole interval, as where memory decides.
    """
    def lead(value: float) -> float:
        system = changed(problem.system, {name: value})
        a = predict(problem.model, system, one)["tokens_per_s"]
        return a - predict(problem.model, system, two)["tokens_per_s"]

    low, high = between
    if low <= 0 or lead(low) * lead(high) > 0:
        return None
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5
        if lead(middle) >= 0:
            low = middle
        else:
            high = middle
    return float((low * high) ** 0.5)
