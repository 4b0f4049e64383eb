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
PHASES = ("forward", "recompute", "backward", "head", "optimizer")


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


def print_marginal(out: Console, data: Data) -> None:
    """Say why a fit is uncertain, and what would make it sure."""
    found = data.get("marginal")
    if not found:
        return
    terms = ", ".join(f"{t['term']} {t['gib']:.1f} GiB" for t in found["terms"])
    out.print(cell(f"risk       {found['crossed_by']} on stage {found['stage']} crosses the limit "
                   f"at worst ({terms})"))
    if found["expandable_segments"]:
        out.print(cell("helps      PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, against "
                       "fragmentation"))
    for change in found["would_fit"][:3]:
        out.print(cell(f"helps      {change['change']}: up to "
                       f"{change['device_memory_high_gib']:.1f} GiB, step "
                       f"{duration(change['step_time_s'])}"
                       + (", alters training" if change["alters_training"] else "")))


def _experts(out: Console, data: Data) -> None:
    found = data.get("experts")
    if not found:
        return
    line = (f"experts    {found['rows_per_rank']:,.0f} rows a rank, layer and micro-batch at "
            f"imbalance {found['imbalance']:g}; ")
    if found["headroom_rows_per_rank"] is None:
        line += "no routing that is possible exceeds the memory"
    else:
        line += (f"the memory is full at {found['imbalance_at_limit']:.2f}, "
                 f"{found['headroom_rows_per_rank']:+,.0f} rows")
    out.print(cell(line))


def _some(data: Data) -> tuple[list[Data], str]:
    """Choose the stages to show, and say how many are left out."""
    stages = data["memory"]["stages"]
    if len(stages) <= MAX_STAGES:
        return list(stages), ""
    kept = {*range(6), binding(data).stage, len(stages) - 2, len(stages) - 1}
    shown = [s for s in stages if s["stage"] in kept]
    return shown, f"; {len(stages) - len(shown)} stages between not shown"


def _phases(out: Console, data: Data) -> None:
    """Memory and busy time of every stage by phase."""
    shown, note = _some(data)
    times = {entry["stage"]: entry for entry in data["phases"]}
    columns = [Column("stage"), *(Column(f"{p} GiB", keep=1) for p in PHASES),
               *(Column(f"{p} s") for p in PHASES), Column("dp comm s")]
    rows = []
    for s in shown:
        sizes = [s["phases"][f"{p}_gib"] for p in PHASES]
        seconds = [times[s["stage"]][f"{p}_s"] for p in (*PHASES, "dp_comm")]
        rows.append([s["stage"], *("-" if x is None else f"{x:.2f}" for x in sizes),
                     *(f"{x:.3f}" for x in seconds)])
    out.print()
    show(out, columns, rows, title=f"Peak and busy seconds of a rank by stage and phase{note}")


def _memory(out: Console, data: Data) -> None:
    shown, note = _some(data)
    fullest = binding(data).stage
    columns = [Column("stage"), *(Column(part, keep=2) for part in PARTS), Column("peak"),
               Column("device"), Column("peak phase", right=False, keep=1)]
    rows = []
    for s in shown:
        name = f"{s['stage']} *" if s["stage"] == fullest else f"{s['stage']}  "
        rows.append([name, *(f"{s[f'{p}_gib']:.2f}" for p in PARTS),
                     f"{s['peak_memory_gib']:.2f}", f"{s['device_memory_gib']:.2f}",
                     s.get("peak_phase", "")])
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
    out.print(cell(f"sure       8 of 10 runs like it took {duration(data['step_time_s_p10'])} to "
                   f"{duration(data['step_time_s_p90'])}, by the errors on measured runs"))
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
    print_marginal(out, data)
    _experts(out, data)
    _memory(out, data)
    _phases(out, data)
    _time(out, data)
    _fields(out, data["strategy"], given)


def print_check(data: Data, changes: Sequence[Data]) -> None:
    """Print the verdict of one strategy, and what would make it fit."""
    out = console()
    print_headline(out, data)
    print_marginal(out, data)
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
