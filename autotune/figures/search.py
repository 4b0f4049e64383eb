"""Figures of a search: trade-offs, the map of layouts, what was rejected."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.figures.base import (
    BLUE,
    VERDICT_COLOURS,
    Data,
    Spec,
    axis,
    colours,
    figure,
    values,
)

REASONS_SHOWN = 20


def pareto(points: Sequence[Data], limit_gib: float) -> Spec:
    """Memory against throughput; one point a strategy.

    Parameters
    ----------
    points : sequence of mapping
        ``layout``, ``device_memory_gib``, ``tokens_per_s_per_gpu``, ``step_time_s``,
        ``verdict`` and ``pareto``.
    limit_gib : float
        Memory limit, drawn as a line [GiB].
    """
    rows = [{**p, "verdict": str(p["verdict"]).replace("_", " "),
             "set": "best trade-offs" if p.get("pareto") else "best of a layout"}
            for p in points]
    best = max((p["tokens_per_s_per_gpu"] for p in rows), default=0.0)
    tooltip = [axis("layout", "layout", "nominal"),
               axis("tokens_per_s_per_gpu", "tokens/s/GPU", format=",.0f"),
               axis("step_time_s", "step [s]", format=".4g"),
               axis("device_memory_gib", "memory [GiB]", format=".1f"),
               axis("verdict", "verdict", "nominal")]
    return figure(
        "Memory against throughput",
        f"{len(rows)} strategies; the fastest reaches {best:,.0f} tokens a second and GPU. "
        f"The dashed line is the memory limit of {limit_gib:.1f} GiB.",
        height=340, layer=[
            {"data": values(rows),
             "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.85},
             "encoding": {
                 "x": axis("device_memory_gib", "memory in use on the fullest GPU [GiB]",
                           scale={"zero": False}),
                 "y": axis("tokens_per_s_per_gpu", "tokens/s/GPU", scale={"zero": False}),
                 "color": axis("verdict", "verdict", "nominal",
                               scale=colours(VERDICT_COLOURS, [r["verdict"] for r in rows])),
                 "shape": axis("set", "shown as", "nominal"),
                 "tooltip": tooltip}},
            {"data": values([{"limit": limit_gib}]),
             "mark": {"type": "rule", "strokeDash": [6, 4], "color": "#888"},
             "encoding": {"x": axis("limit", "")}}])


def heat_map(cells: Sequence[Data]) -> Spec:
    """Best step time of every tp and pp.

    Parameters
    ----------
    cells : sequence of mapping
        ``tp``, ``pp``, ``tokens_per_s_per_gpu``, ``layout``; several of one (tp, pp) give the
        best.
    """
    best: dict[tuple[int, int], Data] = {}
    for entry in cells:
        key = (int(entry["tp"]), int(entry["pp"]))
        if key not in best or (entry["tokens_per_s_per_gpu"]
                               > best[key]["tokens_per_s_per_gpu"]):
            best[key] = entry
    rows = [dict(entry) for _, entry in sorted(best.items())]
    top = max((r["tokens_per_s_per_gpu"] for r in rows), default=1.0)
    for row in rows:
        row["of_best"] = row["tokens_per_s_per_gpu"] / top
    top_low = min((r["of_best"] for r in rows), default=1.0)
    common = {"x": axis("pp", "pipeline parallel", "ordinal", axis={"labelAngle": 0}),
              "y": axis("tp", "tensor parallel", "ordinal", sort="descending")}
    return figure(
        "Best throughput by tensor and pipeline parallelism",
        "Of the best: " + "; ".join(f"tp{r['tp']} pp{r['pp']} {r['of_best']:.0%}"
                                    for r in rows) + ".",
        height=max(46 * len({r["tp"] for r in rows}), 80), data=values(rows), layer=[
            {"mark": "rect", "encoding": {
                **common, "color": axis("of_best", "of the best", legend={"format": ".0%"},
                                        scale={"scheme": "viridis"}),
                "tooltip": [axis("layout", "layout", "nominal"),
                            axis("tokens_per_s_per_gpu", "tokens/s/GPU", format=",.0f"),
                            axis("of_best", "of the best", format=".1%")]}},
            {"mark": {"type": "text", "fontWeight": "bold"}, "encoding": {
                **common, "text": axis("of_best", "", format=".0%"),
                "color": {"condition": {"test": f"datum.of_best > {(top_low + 1) / 2:.3f}",
                                        "value": "#111"}, "value": "#fff"}}}])


def rejected(reasons: Sequence[Data]) -> Spec:
    """Candidates by the reason for which they were dropped, the most frequent first.

    Parameters
    ----------
    reasons : sequence of mapping
        ``reason`` and ``candidates``.
    """
    rows = sorted(reasons, key=lambda r: -int(r["candidates"]))[:REASONS_SHOWN]
    return figure(
        "Rejected candidates by reason",
        "; ".join(f"{r['reason']}: {r['candidates']}" for r in rows) or "Nothing was rejected.",
        height={"step": 20}, data=values(rows),
        mark={"type": "bar", "color": BLUE},
        encoding={
            "y": axis("reason", "", "nominal", sort="-x", axis={"labelLimit": 320}),
            "x": axis("candidates", "candidates (logarithmic)", scale={"type": "symlog"}),
            "tooltip": [axis("reason", "reason", "nominal"),
                        axis("candidates", "candidates", format=",")]})
