"""The tables of ``plan``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.planning.write import QUESTION_HEAD, number, question_cells
from autotune.report.console import Column, cell, console, show

TEXTS = {"model", "cluster", "workload", "layout", "deadline", "budget"}


def print_plan(answer: Mapping[str, Any]) -> None:
    """Print one line a question, the splits, and what changed."""
    out = console()
    columns = [Column(h, right=h not in TEXTS, keep=2 if h in ("MWh", "least to knee") else 0,
                      wrap=36 if h == "layout" else 0) for h in QUESTION_HEAD]
    show(out, columns, question_cells(answer), title=f"{answer['plan']}: the cheapest GPU count "
         "that meets deadline and budget, else the fastest")
    for split in answer["splits"]:
        out.print()
        if not split["jobs"]:
            out.print(cell(f"{split['cluster']}: {split['reason']}"))
            continue
        rows = [(j["model"], j["workload"], f"{j['gpus']:,}", number(j["days"], 2),
                 number(j["cost_usd"], 0), j["layout"]) for j in split["jobs"]]
        show(out, [Column("model", right=False), Column("workload", right=False), Column("GPUs"),
                   Column("days"), Column("USD"), Column("layout", right=False)], rows,
             title=f"{split['cluster']} shared: {split['gpus_used']:,} of "
                   f"{split['available_gpus']:,} GPUs, by {split['objective']}")
    found = answer.get("changes")
    if found:
        out.print()
        out.print(cell(f"since the last plan: {len(found['moved'])} moved, {len(found['added'])} "
                       f"new, {len(found['removed'])} gone"
                       + (f"; changed: {', '.join(found['inputs'])}" if found["inputs"] else "")))
        for m in found["moved"][:20]:
            out.print(cell(f"  {m['model']} on {m['gpus']} of {m['cluster']}: {m['what']} "
                           f"({', '.join(m['why'])})"))
