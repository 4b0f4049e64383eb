"""Figures of a plan: scaling, and time against money."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.figures.base import Data, Spec, axis, figure, values


def scaling(rows: Sequence[Data]) -> Spec:
    """Effective throughput of a GPU by GPU count, one line a model, cluster and workload.

    Parameters
    ----------
    rows : sequence of mapping
        ``series``, ``gpus``, ``efficiency`` and ``speedup``.
    """
    return figure(
        "Strong scaling", f"{len({r['series'] for r in rows})} lines: throughput of a GPU, "
        "failures and restarts included, against the smallest count at which the model fits.",
        height=340, data=values(rows), mark={"type": "line", "point": True},
        encoding={
            "x": axis("gpus", "GPUs", scale={"type": "log", "base": 2}),
            "y": axis("efficiency", "of the smallest count", axis={"format": ".0%"},
                      scale={"zero": False}),
            "color": axis("series", "", "nominal", legend={"labelLimit": 260}),
            "tooltip": [axis("series", "", "nominal"), axis("gpus", "GPUs", format=","),
                        axis("efficiency", "of the smallest", format=".1%"),
                        axis("speedup", "speed-up", format=".2f")]})


def time_and_money(rows: Sequence[Data]) -> Spec:
    """Days against dollars, one point a GPU count.

    Parameters
    ----------
    rows : sequence of mapping
        ``series``, ``gpus``, ``days``, ``cost_usd`` and ``layout``.
    """
    return figure(
        "Time against money", f"{len(rows)} plans with a price.", height=340,
        data=values(rows), mark={"type": "line", "point": True},
        encoding={
            "x": axis("days", "days", scale={"type": "log"}),
            "y": axis("cost_usd", "USD", scale={"type": "log"}),
            "color": axis("series", "", "nominal", legend={"labelLimit": 260}),
            "order": axis("gpus", ""),
            "tooltip": [axis("series", "", "nominal"), axis("gpus", "GPUs", format=","),
                        axis("days", "days", format=".2f"),
                        axis("cost_usd", "USD", format=",.0f"),
                        axis("layout", "layout", "nominal")]})
