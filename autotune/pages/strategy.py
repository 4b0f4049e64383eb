"""What the page shows of one strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.figures import prediction as draw
from autotune.pages.html import Cell, Column, Section, code, facts, figure, table
from autotune.report.digest import (
    VERDICT_TEXT,
    binding,
    bounds,
    label,
    layout_text,
    recompute_text,
    time_shares,
)
from simcore.events import Step, memory_track, operator_spans, simulate_step
from simcore.events.queue import FORWARD
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.prediction import Prediction, predict
from simcore.sensitivity import sensitivity
from simcore.units import GIB

MAX_BARS = 3000
"""Operations in the timeline; a longer step is shown by its beginning and its end."""
MAX_POINTS = 4000
Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Shown:
    """Sections and figures of a strategy."""

    sections: tuple[Section, ...]
    figures: Figures


def timeline_rows(step: Step) -> tuple[list[dict[str, Any]], str]:
    """Return the operations that the timeline shows, and what part of the step they are."""
    total = step.run.num_operations
    whole = total <= MAX_BARS
    each = MAX_BARS // 2 // step.pp
    rows = []
    for stage, order in enumerate(step.run.orders):
        count = order.shape[1]
        chosen = range(count) if whole else [*range(min(each, count)),
                                             *range(max(count - each, each), count)]
        for i in chosen:
            kind, chunk, microbatch = order[:, i].tolist()
            rows.append({
                "stage": stage, "start_s": float(step.run.start_s[stage][i]),
                "end_s": float(step.run.end_s[stage][i]),
                "kind": "forward" if kind == FORWARD else "backward",
                "name": f"micro-batch {microbatch}, chunk {chunk}",
                "panel": "the step" if whole else "beginning" if i < each else "end"})
    words = "the whole pipeline phase" if whole else (
        f"the first and the last {each} of {count} operations of each rank")
    return rows, words


def memory_rows(step: Step) -> tuple[list[dict[str, Any]], float]:
    """Return memory over time by stage, thinned where there are many points, and the peak."""
    rows: list[dict[str, Any]] = []
    peak = 0.0
    each = max(MAX_POINTS // step.pp, 50)
    for stage in range(step.pp):
        track = memory_track(step, stage)
        peak = max(peak, track.peak_bytes)
        count = len(track.time_s)
        # Of every bundle of points the highest stays, so that no peak is lost.
        width = -(-count // each)
        for at in range(0, count, width):
            best = at + int(track.bytes[at:at + width].argmax())
            rows.append({"stage": stage, "time_s": float(track.time_s[best]),
                         "gib": float(track.bytes[best]) / GIB})
    return rows, peak / GIB


def operator_rows(step: Step) -> list[dict[str, Any]]:
    """Return every operator of a step: seconds, rate and share, all stages together."""
    total: dict[tuple[str, str, str], list[float]] = {}
    m, vpp = float(step.frame.microbatches[0]), max(int(step.frame.batch["vpp"][0]), 1)
    for rank in range(step.pp):
        for kind in (0, 1):
            for chunk in range(vpp):
                for op in operator_spans(step, kind=kind, rank=rank, chunk=chunk):
                    entry = total.setdefault((op.name, op.phase, op.stream), [0.0, 0.0, 0.0])
                    for i, value in enumerate((op.duration_s, op.flops, op.bytes)):
                        entry[i] += m * value / step.pp
    return [{"name": name, "phase": phase, "stream": stream, "seconds": seconds,
             "share": seconds / step.end_s, "tflops": flops / seconds / 1e12,
             "gb_per_s": moved / seconds / 1e9,
             "intensity": flops / moved if moved else 0.0}
            for (name, phase, stream), (seconds, flops, moved) in
            sorted(total.items(), key=lambda item: -item[1][0])]


def show_strategy(model: ModelSpec, system: SystemSpec, strategy: Strategy, *,
                  heading: str = "") -> Shown:
    """Predict a strategy and lay out everything that can be said of it.

    Raises
    ------
    InputError
        Illegal strategy.
    """
    prediction = predict(model, system, strategy)
    data = prediction.to_dict()
    step = simulate_step(prediction)
    figures = strategy_figures(model, system, strategy, prediction, step)
    operators = operator_rows(step)
    sections = (
        Section("strategy", heading or "Strategy", _summary(data)),
        Section("memory", "Memory", figure("memory", figures["memory"])
                + figure("memory_over_time", figures["memory_over_time"])),
        Section("time", "Time", figure("waterfall", figures["waterfall"])
                + figure("timeline", figures["timeline"])),
        Section("operators", "Operators", figure("roofline", figures["roofline"])
                + _operator_table(operators)),
        Section("sensitivity", "What the step depends on",
                figure("sensitivity", figures["sensitivity"])),
        Section("fields", "Every field of the strategy", _fields(data["strategy"])))
    return Shown(sections, figures)


def strategy_figures(model: ModelSpec, system: SystemSpec, strategy: Strategy,
                     prediction: Prediction, step: Step) -> Figures:
    """Return the figures of a strategy by name."""
    data = prediction.to_dict()
    bars, words = timeline_rows(step)
    points, peak = memory_rows(step)
    chip = system.accelerator
    units = [("bf16", chip.peak_bf16_tflops), ("fp8", chip.peak_fp8_tflops)]
    changes = [{"figure": c.figure, "change": "10 % better" if c.is_better else "10 % worse",
                "step_pct": c.step_pct} for c in sensitivity(model, system, strategy)]
    return {
        "memory": draw.memory_by_stage(data),
        "memory_over_time": draw.memory_over_time(points, chip.memory_gib, peak),
        "waterfall": draw.waterfall(data),
        "timeline": draw.timeline(bars, shown=words, pp=step.pp),
        "roofline": draw.roofline(
            [o for o in operator_rows(step) if o["stream"] == "compute"],
            peaks=[{"name": name, "tflops": rate} for name, rate in units if rate],
            bandwidth_gb_per_s=chip.memory_bandwidth_gb_per_s),
        "sensitivity": draw.sensitivity(changes)}


def _summary(data: Mapping[str, Any]) -> str:
    fullest = binding(data)
    s = data["strategy"]
    limit = data["system"]["memory_gib"]
    return facts((
        ("layout", f"{layout_text(s)}, recompute {recompute_text(s)}, {s['precision']}"),
        ("verdict", f"{VERDICT_TEXT[data['verdict']]}: {data['device_memory_gib']:.2f} GiB in "
                    f"use (up to {data['device_memory_high_gib']:.2f}) of {limit:.2f}; tensors "
                    f"{data['peak_memory_gib']:.2f}"),
        ("fullest", f"stage {fullest.stage}, by {fullest.part}, in {fullest.phase}"),
        ("step", f"{data['step_time_s']:.4g} s"),
        ("speed", f"{data['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU, "
                  f"{data['model_tflops_per_gpu']:.1f} model TFLOP/s/GPU, MFU "
                  f"{data['mfu']:.1%}, HFU {data['hfu']:.1%}"),
        ("bound by", bounds(data)),
        ("time", "; ".join(f"{label(n)} {v:.4g} s" for n, v, _ in time_shares(data) if v > 0)),
    ))


def _operator_table(operators: list[dict[str, Any]]) -> str:
    columns = [Column("operator", True), Column("phase", True), Column("stream", True),
               Column("ms a step"), Column("of the step"), Column("TFLOP/s"), Column("GB/s"),
               Column("FLOP/B")]
    rows = [[Cell(o["name"]), Cell(o["phase"]), Cell(o["stream"]),
             Cell(f"{o['seconds'] * 1e3:,.2f}", o["seconds"]),
             Cell(f"{o['share']:.2%}", o["share"]), Cell(f"{o['tflops']:,.1f}", o["tflops"]),
             Cell(f"{o['gb_per_s']:,.0f}", o["gb_per_s"]),
             Cell(f"{o['intensity']:,.1f}", o["intensity"])] for o in operators]
    return table(columns, rows, name="operator-table", filtered=True,
                 caption="Operators of a step, mean of the pipeline stages, exposed time")


def _fields(strategy: Mapping[str, Any]) -> str:
    rows = [[Cell(str(key)), Cell("true" if value is True else "false" if value is False
                                  else "-" if value is None else str(value))]
            for key, value in strategy.items()]
    return table([Column("field", True), Column("value", True)], rows, name="field-table",
                 caption="As resolved; what was left out has its default", filtered=True)


def command(text: str) -> str:
    """Return a command to copy."""
    return code(text)
