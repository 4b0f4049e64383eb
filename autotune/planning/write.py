"""A plan's answer as Markdown, HTML, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.planning.cases import write_atomic
from autotune.report.emit import plain

Row = Mapping[str, Any]
COLUMNS = ("model", "cluster", "system", "workload", "gpus", "fits", "verdict", "layout", "gbs",
           "step_time_s", "tokens_per_s_per_gpu", "mfu", "goodput_frac", "days", "gpu_hours",
           "cost_usd", "energy_mwh", "meets_deadline", "meets_budget", "device_memory_gib",
           "hours_between_failures", "checkpoint_minutes", "reason")


def save_plan(answer: Row, folder: Path, *, html: str | None) -> None:
    """Write plan.json, plan.csv, plan.md and, where its package is there, plan.html.

    Each file is whole or as it was before; plan.json comes last, since the next night compares
    with it.

    Raises
    ------
    ResourceError
        The folder cannot be written.
    """
    write_atomic(folder / "plan.csv", table(answer["rows"]))
    write_atomic(folder / "plan.md", markdown(answer))
    if html is not None:
        write_atomic(folder / "plan.html", html)
    write_atomic(folder / "plan.json", json.dumps(plain(answer), indent=1, allow_nan=False) + "\n")


def table(rows: Sequence[Row]) -> str:
    """Return the rows as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", restval="",
                            lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: _plain_cell(row.get(k)) for k in COLUMNS})
    return stream.getvalue()


def _plain_cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    # A spreadsheet would run a name that starts like a formula.
    return "'" + value if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


def number(value: Any, digits: int = 1) -> str:
    """Return a number for people; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def yes_no(value: Any) -> str:
    """Return yes, NO, or a dash where nothing was asked."""
    return "-" if value is None else "yes" if value else "NO"


def _cell(text: Any) -> str:
    """Keep a name from ending a cell, or starting markup, of a Markdown table."""
    safe = "".join(" " if c in "\r\n" else c for c in str(text))
    for mark in "\\|<>`*_[]":
        safe = safe.replace(mark, "\\" + mark)
    return safe


def _lines(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head),
            *("| " + " | ".join(_cell(v) for v in row) + " |" for row in rows), ""]


def question_cells(answer: Row) -> list[tuple[str, ...]]:
    """Return one line a question: what to run, how long it takes and what it costs."""
    rows = {(r["model"], r["cluster"], r["workload"], r["gpus"]): r for r in answer["rows"]}
    out: list[tuple[str, ...]] = []
    for q in answer["questions"]:
        key = (q["model"], q["cluster"], q["workload"])
        if not q["fits"]:
            out.append((*key, "-", q.get("reason", "does not fit"), "-", "-", "-", "-", "-", "-"))
            continue
        gpus = q["chosen_gpus"] or q["fastest_gpus"]
        r = rows[(*key, gpus)]
        out.append((*key, f"{gpus:,}", r["layout"], number(r["days"]), number(r["cost_usd"], 0),
                    number(r["energy_mwh"]), yes_no(q["meets_deadline"]),
                    yes_no(q["meets_budget"]), f"{q['min_gpus']:,} to {q['knee_gpus']:,}"))
    return out


QUESTION_HEAD = ("model", "cluster", "workload", "GPUs", "layout", "days", "USD", "MWh",
                 "deadline", "budget", "least to knee")


def markdown(answer: Row) -> str:
    """Return the answer as a page of Markdown."""
    lines = [f"# {_cell(answer['plan'])}", ""]
    found = answer.get("changes")
    if found:
        lines += ["## What changed", ""]
        for title, items in (("Newly broken", found["broken"]), ("Mended", found["mended"])):
            lines += [f"- **{title}:** {_cell(item)}" for item in items]
        if found["inputs"]:
            lines.append(f"- Inputs that changed: {_cell(', '.join(found['inputs']))}")
        lines.append(f"- {len(found['moved'])} answers moved, {len(found['added'])} are new, "
                     f"{len(found['removed'])} gone")
        lines.append("")
        if found["moved"]:
            lines += _lines(("model", "cluster", "workload", "GPUs", "what", "why"), [
                (m["model"], m["cluster"], m["workload"], m["gpus"], m["what"],
                 ", ".join(m["why"])) for m in found["moved"][:200]])
    lines += ["## Answers", "", *_lines(QUESTION_HEAD, question_cells(answer))]
    for split in answer["splits"]:
        lines += [f"## Split of {_cell(split['cluster'])}, by {split['objective']}", ""]
        if not split["jobs"]:
            lines += [_cell(split["reason"]), ""]
            continue
        lines += _lines(("model", "workload", "GPUs", "days", "USD", "layout"), [
            (j["model"], j["workload"], j["gpus"], number(j["days"]), number(j["cost_usd"], 0),
             j["layout"]) for j in split["jobs"]])
        lines += [f"{split['gpus_used']:,} of {split['available_gpus']:,} GPUs.", ""]
    return "\n".join(lines)
