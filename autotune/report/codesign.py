"""The table of ``codesign``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.report.console import Column, cell, console, show

MOST = 30


def print_codesign(found: Mapping[str, Any]) -> None:
    """Print the designs that no other beats, the fastest first."""
    out = console()
    out.print(cell(f"{found['design']}: {found['trials']} designs by {found['sampler']}, "
                   f"{found['feasible']} within the constraints, {len(found['pareto'])} that no "
                   f"other beats in {' and '.join(found['objectives'])}"))
    shown = found["pareto"][:MOST]
    names = list(shown[0]["figures"])
    others = [k for k in shown[0] if k not in ("throughput", "figures", "strategies")]
    columns = [Column("throughput"), *(Column(n) for n in others),
               *(Column(n.split(".")[1]) for n in names),
               Column("strategies", right=False, wrap=40)]
    rows = [[f"{p['throughput']:.3f}x", *(f"{p[n]:,.4g}" for n in others),
             *(f"{p['figures'][n]:,.4g}" for n in names), "; ".join(p["strategies"])]
            for p in shown]
    out.print()
    show(out, columns, rows, title=f"Throughput against {found['system']}, mean of the workloads")
    if len(found["pareto"]) > MOST:
        out.print(cell(f"... and {len(found['pareto']) - MOST} more (--format json)"))
