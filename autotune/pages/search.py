"""What the page shows of a search that was saved with ``search --out``."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.figures import search as draw
from autotune.pages.html import Cell, Column, Section, code, facts, figure, table
from autotune.report.digest import VERDICT_TEXT, bounds, layout_text, recompute_text
from simcore.errors import InputError, Issue

MAX_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Saved:
    """A folder that ``search --out`` wrote.

    Parameters
    ----------
    folder : Path
    summary : mapping
        The JSON of ``search``.
    pareto, cells, rejected : tuple of mapping
        Rows of the tables beside it, numbers as numbers.
    """

    folder: Path
    summary: Mapping[str, Any]
    pareto: tuple[dict[str, Any], ...]
    cells: tuple[dict[str, Any], ...]
    rejected: tuple[dict[str, Any], ...]

    @property
    def best(self) -> Path:
        """The best strategy's file."""
        return self.folder / "top" / "1" / "strategy.yaml"


def read_saved(folder: Path) -> Saved:
    """Read a folder that ``search --out`` wrote.

    Raises
    ------
    InputError
        A file is missing or is not what a search writes.
    """
    path = folder / "summary.json"
    if not path.is_file():
        raise InputError(Issue(str(folder), "holds no summary.json",
                               "name a folder that 'autotune search --out' wrote"))
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(Issue(str(path), f"is larger than {MAX_BYTES >> 20} MiB"))
        summary = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(Issue(str(path), f"cannot be read: {error}")) from error
    needed = ("model", "system", "ranked", "rejected", "candidates")
    missing = [k for k in needed if not isinstance(summary, dict) or k not in summary]
    if missing:
        raise InputError(Issue(str(path), f"is not a search's: {', '.join(missing)} missing"))
    return Saved(folder, summary, _rows(folder / "pareto.csv"), _rows(folder / "cells.csv"),
                 tuple({"reason": k, "candidates": v} for k, v in summary["rejected"].items()))


def _rows(path: Path) -> tuple[dict[str, Any], ...]:
    """Read a table; numbers become numbers, a missing table has no rows."""
    if not path.is_file():
        return ()
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return tuple({k: _number(v) for k, v in row.items() if k is not None}
                         for row in csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(Issue(str(path), f"cannot be read: {error}")) from error


def _number(text: Any) -> Any:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return text
    return int(value) if value.is_integer() and "." not in str(text) else value


def _point(row: Mapping[str, Any], *, pareto: bool) -> dict[str, Any]:
    """One strategy of a table as a point of the figures."""
    return {"layout": f"{layout_text(row)}, {recompute_text(row)}", "tp": row["tp"],
            "pp": row["pp"], "device_memory_gib": row["device_memory_gib"],
            "tokens_per_s_per_gpu": row["tokens_per_s_per_gpu"],
            "step_time_s": row["step_time_s"], "verdict": row["verdict"], "pareto": pareto}


def search_figures(saved: Saved) -> dict[str, dict[str, Any]]:
    """Return the figures of a search by name."""
    try:
        points = [_point(r, pareto=True) for r in saved.pareto]
        cells = [_point(r, pareto=False) for r in saved.cells]
    except KeyError as error:
        raise InputError(Issue(str(saved.folder), f"a table has no column {error}")) from error
    ranked = [_point({**r, **r["strategy"]}, pareto=False) for r in saved.summary["ranked"]]
    limit = float(saved.summary.get("memory_limit_gib", 0.0))
    return {"pareto": draw.pareto([*points, *cells, *ranked], limit),
            "heat_map": draw.heat_map([*cells, *points, *ranked]),
            "rejected": draw.rejected(saved.rejected)}


def show_search(saved: Saved, figures: Mapping[str, Mapping[str, Any]]) -> tuple[Section, ...]:
    """Return the sections of a search."""
    ranked = saved.summary["ranked"]
    return (Section("summary", "The answer", _summary(saved)),
            Section("ranking", "Ranking", ranking_table(ranked)),
            Section("trade-offs", "Trade-offs", figure("pareto", figures["pareto"])
                    + figure("heat_map", figures["heat_map"])),
            Section("rejected", "What was rejected, and why",
                    figure("rejected", figures["rejected"]) + _rejected(saved)))


def _summary(saved: Saved) -> str:
    summary = saved.summary
    best = summary["ranked"][0]
    text = facts((
        ("best", f"{layout_text(best['strategy'])}, recompute "
                 f"{recompute_text(best['strategy'])}"),
        ("speed", f"{best['step_time_s']:.4g} s a step, "
                  f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU, MFU {best['mfu']:.1%}"),
        ("memory", f"{VERDICT_TEXT[best['verdict']]}: {best['device_memory_gib']:.1f} GiB in use "
                   f"of {summary.get('memory_limit_gib', 0):.1f}"),
        ("candidates", f"{summary['candidates']:,} legal, {summary['evaluated']:,} evaluated, "
                       f"{summary['simulated']:,} simulated, {summary['feasible']:,} fit"),
        ("exact", "yes: no legal candidate of the space is better" if summary["exact"]
         else "no: the best of what was tried"),
        ("objective", summary.get("objective", "")),
    ))
    return text + (code(best["command"]) if best.get("command") else "")


def ranking_table(ranked: Sequence[Mapping[str, Any]]) -> str:
    """Return ranked strategies, as in the JSON of ``search``, as a table."""
    names = [n for n in ("tp", "cp", "pp", "vpp", "ep", "dp", "mbs")
             if n in ("tp", "pp", "dp", "mbs") or any(r["strategy"][n] != 1 for r in ranked)]
    columns = [Column("#"), *(Column(n) for n in names), Column("recompute", True),
               Column("peak GiB"), Column("device GiB"), Column("verdict", True), Column("step s"),
               Column("tokens/s/GPU"), Column("MFU"), Column("to best"),
               Column("bound by", True), Column("differs in", True)]
    best = ranked[0]["step_time_s"] if ranked else 1.0
    rows = []
    for entry in ranked:
        s = entry["strategy"]
        slower = entry["step_time_s"] / best - 1.0
        differs = "; ".join(f"{k} {v}" for k, v in entry.get("differs", {}).items()
                            if k not in names)
        rows.append([
            Cell(str(entry["rank"]), entry["rank"]),
            *(Cell(str(s[n]), float(s[n])) for n in names), Cell(recompute_text(s)),
            Cell(f"{entry['peak_memory_gib']:.1f}", entry["peak_memory_gib"]),
            Cell(f"{entry['device_memory_gib']:.1f}", entry["device_memory_gib"]),
            Cell(VERDICT_TEXT[entry["verdict"]], None, str(entry["verdict"])),
            Cell(f"{entry['step_time_s']:.4g}", entry["step_time_s"]),
            Cell(f"{entry['tokens_per_s_per_gpu']:,.0f}", entry["tokens_per_s_per_gpu"]),
            Cell(f"{entry['mfu']:.1%}", entry["mfu"]), Cell(f"{slower:+.1%}", slower),
            Cell(bounds(entry)), Cell(differs)])
    return table(columns, rows, name="ranking-table", filtered=True,
                 caption="Ranked strategies; click a heading to sort")


def _rejected(saved: Saved) -> str:
    rows = [[Cell(str(r["reason"])), Cell(f"{int(r['candidates']):,}", float(r["candidates"]))]
            for r in saved.rejected]
    return table([Column("reason", True), Column("candidates")], rows, name="rejected-table",
                 caption="Candidates by the first reason that dropped them")
