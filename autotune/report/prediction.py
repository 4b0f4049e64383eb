"""The tables of ``predict`` and ``check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from autotune.report.console import VERDICT_STYLE, Column, cell, console, duration, show
from autotune.report.digest import (
    PARTS,
    VERDICT_TEXT,
    binding,
    bounds,
    label,
    layout_text,
    recompute_text,
    time_shares,
)
from simcore.inputs.fields import FIELD_NAMES

Data = Mapping[str, Any]
MAX_STAGES = 16


def print_headline(out: Console, data: Data) -> None:
    """Print what is trained where, its layout, its verdict and what binds."""
    strategy, model, system = data["strategy"], data["model"], data["system"]
    size = f"{model['parameters'] / 1e9:.1f} B parameters"
    if model["active_parameters"] != model["parameters"]:
        size += f", {model['active_parameters'] / 1e9:.1f} B active"
    out.print(cell(f"{model['name']} ({size}) on {strategy['gpus']} x {system['name']} "
                   f"({system['memory_gib']:.1f} GiB)"))
    out.print(cell(f"layout     {layout_text(strategy)}, {strategy['num_microbatches']} "
                   f"micro-batches, gbs {strategy['gbs']}, seq_len {strategy['seq_len']}, "
                   f"zero {strategy['zero']}, recompute {recompute_text(strategy)}, "
                   f"{strategy['precision']}"))
    _verdict(out, data)


def _verdict(out: Console, data: Data) -> None:
    verdict = data["verdict"]
    line = Text("verdict    ")
    line.append(VERDICT_TEXT[verdict], style=VERDICT_STYLE[verdict])
    line.append(f": the device has {data['device_memory_gib']:.2f} GiB in use "
                f"(up to {data['device_memory_high_gib']:.2f}) of "
                f"{data['system']['memory_gib']:.2f}, tensors {data['peak_memory_gib']:.2f}")
    out.print(line)
    found = binding(data)
    out.print(cell(f"binding    stage {found.stage}, {found.part}"
                   + (f", in {found.phase}" if found.phase else "")))


def _memory(out: Console, data: Data) -> None:
    stages = data["memory"]["stages"]
    fullest = binding(data).stage
    shown = list(stages)
    if len(stages) > MAX_STAGES:
        kept = {*range(6), fullest, len(stages) - 2, len(stages) - 1}
        shown = [s for s in stages if s["stage"] in kept]
    columns = [Column("stage"), *(Column(part, keep=2) for part in PARTS), Column("peak"),
               Column("device"), Column("peak phase", right=False, keep=1)]
    rows = []
    for s in shown:
        name = f"{s['stage']} *" if s["stage"] == fullest else f"{s['stage']}  "
        rows.append([name, *(f"{s[f'{p}_gib']:.2f}" for p in PARTS),
                     f"{s['peak_memory_gib']:.2f}", f"{s['device_memory_gib']:.2f}",
                     s.get("peak_phase", "")])
    left = len(stages) - len(shown)
    note = f"; {left} stages between not shown" if left else ""
    out.print()
    show(out, columns, rows,
         title=f"Memory in GiB of a rank by pipeline stage (* fullest{note})")


def _time(out: Console, data: Data) -> None:
    rows = [(label(name), duration(seconds), f"{share:.1%}")
            for name, seconds, share in time_shares(data)]
    rows.append(("step", duration(data["step_time_s"]), "100.0%"))
    out.print()
    show(out, [Column("term", right=False), Column("exposed"), Column("share")], rows,
         title="Time of a step, on its busiest stage")
    out.print()
    out.print(cell(f"speed      {data['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU, "
                   f"{data['tokens_per_s']:,.0f} tokens/s, "
                   f"{data['model_tflops_per_gpu']:.1f} model TFLOP/s/GPU"))
    out.print(cell(f"MFU        {data['mfu']:.1%}, HFU {data['hfu']:.1%}"))
    out.print(cell(f"bound by   {bounds(data)}"))


def _fields(out: Console, strategy: Data, given: Sequence[str]) -> None:
    def shown(names: Sequence[str], style: str) -> Columns:
        return Columns([cell(f"{n}={_value(strategy[n])}", style) for n in names if n in strategy],
                       padding=(0, 2, 0, 0))

    first = [name for name in FIELD_NAMES if name in given]
    rest = [name for name in FIELD_NAMES if name not in given]
    if first:
        out.print()
        out.print(cell("Fields given"))
        out.print(shown(first, ""))
    out.print()
    out.print(cell("Fields resolved to defaults"))
    out.print(shown(rest, "dim"))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)


def print_prediction(data: Data, *, given: Sequence[str]) -> None:
    """Print one prediction: layout, verdict, memory, time, speed, fields.

    Parameters
    ----------
    data : mapping
        The JSON of ``predict``.
    given : sequence of str
        Fields that the user set; they are listed first.
    """
    out = console()
    print_headline(out, data)
    _memory(out, data)
    _time(out, data)
    _fields(out, data["strategy"], given)


def print_check(data: Data, changes: Sequence[Data]) -> None:
    """Print the verdict of one strategy, and what would make it fit."""
    out = console()
    print_headline(out, data)
    if data["verdict"] == "marginal":
        out.print(cell("risk       fragmentation, workspaces or imbalance may use the rest of "
                       "the memory"))
    if data["verdict"] == "does_not_fit":
        _memory(out, data)
        rows = [(c["change"], f"{c['device_memory_gib']:.1f}", duration(c["step_time_s"]))
                for c in changes]
        out.print()
        if rows:
            show(out, [Column("change", right=False), Column("device GiB"), Column("step")], rows,
                 title="It would fit with one of these changes")
        else:
            out.print(cell("No single change makes it fit; 'autotune search' looks at all."))
