"""The table of ``predict --explain memory``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.report.console import Column, cell, console, show
from autotune.report.prediction import print_headline

Data = Mapping[str, Any]


def _shape(tensor: Data) -> str:
    return " x ".join(f"{side:,.10g}" for side in tensor["shape"])


def print_listing(data: Data) -> None:
    """Print every tensor that is alive at the peak of a stage, largest first.

    Parameters
    ----------
    data : mapping
        The JSON of ``predict`` with ``explain.memory``.
    """
    out, found = console(), data["explain"]["memory"]
    print_headline(out, data)
    columns = [Column("GiB"), Column("share", keep=2), Column("part", right=False, keep=3),
               Column("tensor", right=False, wrap=40), Column("shape", keep=1),
               Column("dtype", right=False, keep=2), Column("count"),
               Column("source", right=False, keep=4, wrap=44)]
    peak = found["peak_memory_gib"]
    rows = [(f"{t['gib']:.3f}", f"{t['gib'] / peak:.1%}", t["part"], t["name"], _shape(t),
             t["dtype"], f"{t['count']:,.6g}", t["source"]) for t in found["tensors"]]
    rows.append((f"{peak:.3f}", "100.0%", "", "peak", "", "", "", ""))
    out.print()
    show(out, columns, rows, title=f"Alive at the peak of stage {found['stage']}, in "
         f"{found['phase']}: {found['operator']} (count: layers x micro-batches in flight)")
    out.print(cell("Gigabytes of the device beyond these are the allocator's, the context's and "
                   "the communication libraries' (device_memory_gib)."))
