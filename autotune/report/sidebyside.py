"""The tables of ``compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.console import VERDICT_STYLE, Column, cell, console, duration, show
from autotune.report.digest import PARTS, TIME_TERMS, VERDICT_TEXT, label
from autotune.report.pictures import signed_bar

Data = Mapping[str, Any]


def print_comparison(found: Data) -> None:
    """Print what differs, what it costs, and where the time and memory went."""
    out = console()
    sides = found["sides"]
    letters = [chr(ord("A") + i) for i in range(len(sides))]
    for letter, side in zip(letters, sides, strict=True):
        out.print(cell(f"{letter}  {side['name']}: {side['model']} on {side['system']}, "
                       f"{side['layout']}"))
    heads = [Column("", right=False), *(Column(letter) for letter in letters)]
    out.print()
    show(out, heads, _figures(sides), title="What comes out")
    out.print()
    if found["fields"]:
        show(out, heads, [[name, *(_value(v) for v in values)]
                          for name, values in found["fields"].items()], title="What differs")
    else:
        out.print(cell("No field differs."))
    _split(out, heads, "Where the time went, on the busiest stage (against A)", [
        (label(term), found["time"][f"{term}_s"]) for term in TIME_TERMS], duration)
    _split(out, heads, "Where the memory went, on the fullest stage, GiB (against A)", [
        (part, found["memory"][f"{part}_gib"]) for part in PARTS], lambda v: f"{v:.2f}")


def _figures(sides: Sequence[Data]) -> list[list[Any]]:
    return [
        ["step", *(duration(s["step_time_s"]) for s in sides)],
        ["against A", *(f"{s['step_time_pct']:+.2f}%" for s in sides)],
        ["tokens/s/GPU", *(f"{s['tokens_per_s_per_gpu']:,.0f}" for s in sides)],
        ["MFU", *(f"{s['mfu']:.1%}" for s in sides)],
        ["peak GiB", *(f"{s['peak_memory_gib']:.2f}" for s in sides)],
        ["device GiB", *(f"{s['device_memory_gib']:.2f}" for s in sides)],
        ["verdict", *(cell(VERDICT_TEXT[s["verdict"]], VERDICT_STYLE[s["verdict"]])
                      for s in sides)]]


def _split(out: Any, heads: Sequence[Column], title: str,
           parts: Sequence[tuple[str, Sequence[float]]], text: Any) -> None:
    """Print the parts of each side; of two sides also the difference as a bar."""
    kept = [(name, values) for name, values in parts if any(values)]
    pair = len(heads) == 3
    most = max((abs(values[-1] - values[0]) for _, values in kept), default=0.0)
    rows = []
    for name, values in kept:
        row: list[Any] = [name, *(text(v) for v in values)]
        if pair:
            change = values[1] - values[0]
            row += [("+" if change > 0 else "") + text(change) if change else "",
                    signed_bar(change, most)]
        rows.append(row)
    out.print()
    show(out, [*heads, *([Column("difference"), Column("", right=False, keep=1)] if pair else [])],
         rows, title=title)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)
