"""The tables of ``whatif``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.report.console import Column, cell, console, duration, show
from autotune.report.pictures import bar

Data = Mapping[str, Any]


def print_whatif(found: Data) -> None:
    """Print a table a figure, or one of all combinations, and where the best strategy changes."""
    out = console()
    base = found["base"]
    told = (f"{base['layout']}, recompute {base['recompute']}: {duration(base['step_time_s'])}, "
            f"{base['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU" if base["fits"]
            else "nothing fits")
    out.print(cell(f"{found['model']} on {found['system']}, {found['candidates']:,} legal "
                   "strategies at every point"))
    out.print(cell(f"as it is   {told}"))
    points = found["points"]
    names = list(dict.fromkeys(name for p in points for name in p["figures"]))
    curves = {c["figure"]: c for c in found.get("curves", ())}
    for own in ([[n] for n in names] if curves else [names]):
        rows = [p for p in points if set(p["figures"]) == set(own)]
        most = max((p["tokens_per_s_per_gpu"] for p in rows if p["fits"]), default=0.0)
        out.print()
        show(out, [*(Column(n) for n in own), Column("step"), Column("tokens/s/GPU"),
                   Column("to base"), Column("", right=False, keep=2),
                   Column("best", right=False), Column("bound by", right=False, keep=1)],
             [_row(p, own, most) for p in rows],
             title=f"{own[0]} (now {curves[own[0]]['base']:g})" if curves else "")
        if curves:
            _changes(out, curves[own[0]])


def _row(point: Data, names: list[str], most: float) -> list[Any]:
    values = [f"{point['figures'][n]:g}" for n in names]
    if not point["fits"]:
        return [*values, "", "", "", "", "nothing fits", ""]
    pct = point.get("throughput_pct")
    return [*values, duration(point["step_time_s"]), f"{point['tokens_per_s_per_gpu']:,.0f}",
            "" if pct is None else f"{pct:+.1f}%", bar(point["tokens_per_s_per_gpu"], most, 16),
            f"{point['layout']}, {point['recompute']}", point["bound_by"]]


def _changes(out: Any, curve: Data) -> None:
    parts = curve["elasticities"]
    if parts:
        strongest = max(parts, key=lambda e: abs(e["elasticity"]))
        here = [e for e in parts if e["from"] <= curve["base"] <= e["to"]]
        told = f"{here[0]['elasticity']:+.3f} here, " if here else ""
        out.print(cell(f"elasticity {told}at most {strongest['elasticity']:+.3f} from "
                       f"{strongest['from']:g} to {strongest['to']:g}"))
    for change in curve["break_even"]:
        at = (f"from {change['value']:.4g}" if change["value"] is not None
              else f"between {change['between'][0]:g} and {change['between'][1]:g}")
        out.print(cell(f"{at} on: {change['to']} (before: {change['from']})"))
