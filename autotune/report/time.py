"""The tables of ``predict --explain time`` and ``efficiency``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.console import Column, console, show
from autotune.report.emit import emit
from autotune.report.prediction import print_headline
from simcore.errors import InputError, Issue

Data = Mapping[str, Any]


def of_stage(found: Mapping[str, Any], stage: int | None) -> dict[str, Any]:
    """Keep one pipeline rank's operators, where one is asked for.

    Raises
    ------
    InputError
        There is no such rank.
    """
    if stage is None:
        return dict(found)
    last = max(row["stage"] for row in found["operators"])
    if stage > last:
        raise InputError(Issue("--stage", f"must be a pipeline rank from 0 to {last}, got "
                                          f"{stage}", f"use 0 to {last}"))
    return {**found, "operators": [r for r in found["operators"] if r["stage"] == stage]}


def emit_time(data: Data, *, style: str) -> None:
    """Write a prediction and where its time goes."""
    emit(data, style=style, table=lambda: print_time(data),
         rows=lambda: data["explain"]["time"]["operators"])


def busiest(rows: Sequence[Data]) -> int:
    """Pipeline rank that idles least."""
    idle = dict.fromkeys((int(row["stage"]) for row in rows), 0.0)
    for row in rows:
        if row["operator"] == "bubble":
            idle[int(row["stage"])] = float(row["time_s"])
    return min(idle, key=lambda stage: idle[stage])


def print_time(data: Data) -> None:
    """Print the operators of the busiest rank, largest first, and what resources would gain."""
    out, found = console(), data["explain"]["time"]
    print_headline(out, data)
    step, stage = found["step_time_s"], busiest(found["operators"])
    own = sorted((r for r in found["operators"] if r["stage"] == stage),
                 key=lambda row: -row["time_s"])
    columns = [Column("ms"), Column("share"), Column("part", right=False, keep=2),
               Column("operator", right=False), Column("phase", right=False),
               Column("term", right=False, keep=3), Column("count"), Column("each us", keep=2)]
    rows = [(f"{1e3 * r['time_s']:,.3f}", f"{r['time_s'] / step:.1%}", r["part"], r["operator"],
             r["phase"], r["term"], f"{r['count']:,.6g}", f"{1e6 * r['each_s']:,.1f}")
            for r in own]
    rows.append((f"{1e3 * step:,.3f}", "100.0%", "", "step", "", "", "", ""))
    out.print()
    show(out, columns, rows, title=f"Time of a step on stage {stage}, the busiest")
    out.print()
    show(out, [Column("infinitely fast", right=False), Column("step"), Column("gain")],
         [(g["resource"], f"{1e3 * g['step_time_s']:,.1f} ms", f"{g['gain_pct']:.1f}%")
          for g in found["gains"]], title="What the step would gain, predicted anew")


def emit_efficiency(data: Data, *, style: str) -> None:
    """Write the operators of one strategy, or of a grid of them."""
    def rows() -> list[Data]:
        return [{**point["varied"], **row} for point in data["strategies"]
                for row in point["operators"]]

    emit(data, style=style, table=lambda: print_efficiency(data), rows=rows)


def print_efficiency(data: Data) -> None:
    """Print the operators of every strategy."""
    out = console()
    columns = [Column("operator", right=False), Column("phase", right=False, keep=2),
               Column("shape", right=False), Column("layout", right=False, keep=3),
               Column("count", keep=2), Column("us"), Column("GFLOP", keep=2),
               Column("MB", keep=2), Column("FLOP/B", keep=3), Column("TFLOP/s", keep=1),
               Column("GB/s", keep=1), Column("bound by", right=False), Column("eff."),
               Column("of step"), Column("source", right=False, keep=1)]
    for point in data["strategies"]:
        varied = " ".join(f"{k} {v}" for k, v in point["varied"].items())
        out.print()
        show(out, columns, [_cells(row) for row in point["operators"]],
             title=f"{data['model']['name']} on {data['system']['name']}"
             + (f", {varied}" if varied else "") + f": step {point['step_time_s']:.4g} s")


def _cells(row: Data) -> tuple[str, ...]:
    def some(value: float | None, form: str) -> str:
        return "" if not value else format(value, form)

    return (row["operator"], row["phase"], row["shape"], row["layout"], f"{row['count']:,.6g}",
            f"{1e6 * row['time_s']:,.1f}", some(row["flop"] / 1e9, ",.1f"),
            some(row["bytes"] / 1e6, ",.1f"), some(row["flop_per_byte"], ",.0f"),
            some(row["tflops"], ",.0f"), some(row["gb_per_s"], ",.0f"), row["bound_by"],
            some(row["efficiency"], ".0%"), f"{row['share_of_step']:.1%}", row["source"])
