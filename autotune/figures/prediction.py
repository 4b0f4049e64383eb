"""Figures of one strategy: memory, time, the step as it runs, and each operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.figures.base import (
    BLUE,
    GREEN,
    ORANGE,
    PART_COLOURS,
    TERM_COLOURS,
    VERMILION,
    Data,
    Spec,
    axis,
    colours,
    figure,
    values,
)
from autotune.report.digest import PARTS, binding, label, time_shares


def memory_by_stage(prediction: Data) -> Spec:
    """Memory of each pipeline stage by part, against what the device has."""
    stages = prediction["memory"]["stages"]
    rows = [{"stage": s["stage"], "part": part, "order": i, "gib": s[f"{part}_gib"]}
            for s in stages for i, part in enumerate(PARTS)]
    beside = [{"stage": s["stage"], "device": s["device_memory_gib"]} for s in stages]
    limit = prediction["system"]["memory_gib"]
    fullest = binding(prediction)
    return figure(
        "Memory by pipeline stage",
        f"Stage {fullest.stage} is the fullest: {fullest.device_memory_gib:.1f} GiB in use of "
        f"{limit:.1f}, most of it {fullest.part}, at its peak in {fullest.phase}.",
        height=300, layer=[
            {"data": values(rows), "mark": "bar", "encoding": {
                "x": axis("stage", "pipeline stage", "ordinal", axis={"labelAngle": 0}),
                "y": axis("gib", "GiB of a GPU", stack="zero"),
                "color": axis("part", "held by", "nominal",
                              scale=colours(PART_COLOURS, list(PARTS))),
                "order": axis("order", ""),
                "tooltip": [axis("stage", "stage", "ordinal"), axis("part", "part", "nominal"),
                            axis("gib", "GiB", format=".2f")]}},
            {"data": values(beside), "mark": {"type": "tick", "thickness": 3, "color": "#888"},
             "encoding": {"x": axis("stage", "pipeline stage", "ordinal"),
                          "y": axis("device", "GiB of a GPU"),
                          "tooltip": [axis("device", "in use on the device [GiB]",
                                           format=".2f")]}},
            {"data": values([{"limit": limit, "label": f"device: {limit:.1f} GiB"}]),
             "encoding": {"y": axis("limit", "GiB of a GPU")}, "layer": [
                 {"mark": {"type": "rule", "strokeDash": [6, 4], "color": VERMILION, "size": 2}},
                 {"mark": {"type": "text", "align": "left", "dy": -7, "dx": 4, "x": 0,
                           "color": VERMILION}, "encoding": {
                               "text": axis("label", "", "nominal")}}]}])


def waterfall(prediction: Data) -> Spec:
    """The step's terms one upon the other, up to the step time."""
    rows: list[dict[str, Any]] = []
    at = 0.0
    for name, seconds, share in time_shares(prediction):
        if seconds <= 0:
            continue
        rows.append({"term": label(name), "order": len(rows), "from": at, "to": at + seconds,
                     "seconds": seconds, "share": share})
        at += seconds
    rows.append({"term": "step", "order": len(rows), "from": 0.0,
                 "to": prediction["step_time_s"], "seconds": prediction["step_time_s"],
                 "share": 1.0})
    scale = colours({**TERM_COLOURS, "step": "#666"}, [r["term"] for r in rows])
    return figure(
        "Where the step's time goes, on its busiest stage",
        "; ".join(f"{r['term']} {r['seconds']:.4g} s ({r['share']:.1%})" for r in rows),
        height={"step": 24}, data=values(rows), mark={"type": "bar"},
        encoding={
            "y": axis("term", "", "nominal", sort={"field": "order"}),
            "x": axis("from", "seconds"), "x2": {"field": "to"},
            "color": axis("term", "", "nominal", scale=scale, legend=None),
            "tooltip": [axis("term", "term", "nominal"),
                        axis("seconds", "seconds", format=".4g"),
                        axis("share", "of the step", format=".1%")]})


def timeline(operations: Sequence[Data], *, shown: str, pp: int) -> Spec:
    """Forwards and backwards of every pipeline rank over time.

    Parameters
    ----------
    operations : sequence of mapping
        ``stage``, ``start_s``, ``end_s``, ``kind``, ``name`` and ``panel``.
    shown : str
        What part of the step that is, in words.
    pp : int
        Pipeline ranks.
    """
    kinds = {"forward": BLUE, "backward": ORANGE, "weight gradient": GREEN}
    panels = list(dict.fromkeys(str(o["panel"]) for o in operations))
    width = 640 if len(panels) == 1 else 300
    unit: Spec = {
        "width": width, "height": max(18 * pp, 60),
        "mark": {"type": "bar", "stroke": "#fff", "strokeWidth": 0.3},
        "encoding": {
            "y": axis("stage", "pipeline stage", "ordinal"),
            "x": axis("start_s", "seconds", scale={"zero": False, "nice": False}),
            "x2": {"field": "end_s"},
            "color": axis("kind", "", "nominal",
                          scale=colours(kinds, [str(o["kind"]) for o in operations])),
            "tooltip": [axis("name", "operation", "nominal"), axis("stage", "stage", "ordinal"),
                        axis("start_s", "from [s]", format=".5g"),
                        axis("end_s", "to [s]", format=".5g")]}}
    whole = figure("Pipeline timeline", f"Forwards and backwards of {pp} pipeline ranks; "
                                        f"{shown}.", data=values(operations))
    del whole["width"]
    if len(panels) == 1:
        return {**whole, **unit}
    return {**whole, "facet": {"column": axis("panel", "", "nominal", sort=panels)},
            "spec": unit, "resolve": {"scale": {"x": "independent"}}}


def memory_over_time(points: Sequence[Data], limit_gib: float, peak_gib: float) -> Spec:
    """Bytes that tensors hold over a step, one line a pipeline stage.

    Parameters
    ----------
    points : sequence of mapping
        ``stage``, ``time_s`` and ``gib``.
    limit_gib, peak_gib : float
        What the device has, and the highest point [GiB].
    """
    return figure(
        "Memory over the step",
        f"What tensors hold on each pipeline stage; the highest point is {peak_gib:.2f} GiB of "
        f"{limit_gib:.1f}.", height=280, data=values(points),
        mark={"type": "line", "interpolate": "step-after", "strokeWidth": 1.2},
        encoding={
            "x": axis("time_s", "seconds"),
            "y": axis("gib", "GiB held by tensors", scale={"zero": False}),
            "color": axis("stage", "stage", "ordinal", scale={"scheme": "viridis"}),
            "tooltip": [axis("stage", "stage", "ordinal"), axis("time_s", "s", format=".5g"),
                        axis("gib", "GiB", format=".2f")]})


def roofline(operators: Sequence[Data], *, peaks: Sequence[Data],
             bandwidth_gb_per_s: float) -> Spec:
    """Rate of every operator against its intensity, below memory's and the units' limits.

    Parameters
    ----------
    operators : sequence of mapping
        ``name``, ``intensity`` [FLOP/B], ``tflops`` and ``share`` of the step; those without
        FLOP or bytes are left out.
    peaks : sequence of mapping
        ``name`` and ``tflops`` of each kind of unit.
    bandwidth_gb_per_s : float
        Of the device memory.
    """
    rows = [o for o in operators if o["intensity"] > 0 and o["tflops"] > 0]
    top = max((p["tflops"] for p in peaks), default=1.0)
    low = min([o["intensity"] for o in rows] + [1.0]) / 2
    high = max([o["intensity"] for o in rows] + [1000 * top / bandwidth_gb_per_s]) * 2
    roofs = []
    for peak in peaks:
        ridge = 1e3 * peak["tflops"] / bandwidth_gb_per_s
        roofs += [{"roof": peak["name"], "x": low, "y": low * bandwidth_gb_per_s / 1e3},
                  {"roof": peak["name"], "x": ridge, "y": peak["tflops"]},
                  {"roof": peak["name"], "x": max(high, ridge), "y": peak["tflops"]}]
    log = {"type": "log"}
    return figure(
        "Operators below the roofline",
        f"{len(rows)} operators; the memory gives {bandwidth_gb_per_s:,.0f} GB/s, "
        + ", ".join(f"{p['name']} {p['tflops']:,.0f} TFLOP/s" for p in peaks) + ".",
        height=340, layer=[
            {"data": values(roofs), "mark": {"type": "line", "color": "#888"}, "encoding": {
                "x": axis("x", "FLOP a byte", scale=log), "y": axis("y", "TFLOP/s", scale=log),
                "detail": axis("roof", "", "nominal")}},
            {"data": values(rows), "mark": {"type": "circle", "opacity": 0.75}, "encoding": {
                "x": axis("intensity", "FLOP a byte", scale=log),
                "y": axis("tflops", "TFLOP/s", scale=log),
                "size": axis("share", "share of the step", legend={"format": ".0%"}),
                "color": axis("phase", "", "nominal", scale={"range": [BLUE, ORANGE, GREEN]}),
                "tooltip": [axis("name", "operator", "nominal"),
                            axis("tflops", "TFLOP/s", format=".4g"),
                            axis("intensity", "FLOP/B", format=".4g"),
                            axis("share", "of the step", format=".2%")]}}])


def sensitivity(changes: Sequence[Data]) -> Spec:
    """How much the step changes where one figure of the system is a tenth better or worse.

    Parameters
    ----------
    changes : sequence of mapping
        ``figure``, ``change`` ('10 % better' or '10 % worse') and ``step_pct``.
    """
    return figure(
        "What the step depends on",
        "; ".join(f"{c['figure']} {c['change']}: {c['step_pct']:+.2f} %" for c in changes),
        height={"step": 13}, data=values(changes), mark="bar",
        encoding={
            "y": axis("figure", "", "nominal", sort=None, axis={"labelLimit": 240}),
            "yOffset": axis("change", "", "nominal"),
            "x": axis("step_pct", "change of the step time [%]"),
            "color": axis("change", "", "nominal",
                          scale={"domain": ["10 % better", "10 % worse"],
                                 "range": [GREEN, VERMILION]}),
            "tooltip": [axis("figure", "figure", "nominal"), axis("change", "", "nominal"),
                        axis("step_pct", "step [%]", format="+.2f")]})
