"""The tables of ``recommend``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.report.console import Column, cell, console, duration, show
from autotune.report.digest import VERDICT_TEXT, layout_text, recompute_text

Data = Mapping[str, Any]
QUESTIONS = {"min_gpus": "fewest GPUs that hold it",
             "min_gpus_fits": "fewest GPUs beyond doubt", "max_mbs": "largest micro-batch",
             "max_seq_len": "longest sequence"}
SHOWN = 10


def _layout(strategy: Data) -> str:
    degrees = {**strategy, "dp": strategy["gpus"] // (strategy["tp"] * strategy["cp"]
                                                      * strategy["pp"])}
    return f"{layout_text(degrees)}, recompute {recompute_text(strategy)}"


def print_recommendation(data: Data) -> None:
    """Print the answers, the fastest strategy and what each change of it would buy."""
    out, best = console(), data["best"]
    memory_gib = best["system"]["memory_gib"]
    out.print(cell(f"{data['model']} on {data['system']} ({memory_gib:.1f} GiB), seq_len "
                   f"{data['seq_len']}; micro-batch, sequence and changes on {data['gpus']} GPUs"))
    rows = []
    for name, text in QUESTIONS.items():
        held = data[f"{name}_held_by"]
        rows.append([text, f"{data[name]:,}" if held else "none",
                     f"{held['device_memory_gib']:.1f}" if held else "",
                     VERDICT_TEXT[held["verdict"]] if held else "",
                     _layout(held["strategy"]) if held else ""])
    out.print()
    show(out, [Column("question", right=False), Column("answer"), Column("device GiB"),
               Column("verdict", right=False), Column("held by", right=False)], rows)
    out.print()
    out.print(cell(f"fastest    {_layout(best['strategy'])}: {best['device_memory_gib']:.1f} GiB, "
                   f"step {duration(best['step_time_s'])}, "
                   f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU"))
    out.print()
    changes = [(c["change"], f"{c['saves_gib']:.1f}", f"{c['slower_pct']:+.1f} %",
                f"{c['device_memory_gib']:.1f}", VERDICT_TEXT[c["verdict"]],
                "alters training" if c["alters_training"] else "")
               for c in data["changes"][:SHOWN]]
    if not changes:
        out.print(cell("No single change of it frees memory."))
        return
    show(out, [Column("change", right=False), Column("saves GiB"), Column("time"),
               Column("device GiB"), Column("verdict", right=False), Column("", right=False)],
         changes, title="Single changes of it, most memory for least time first")
