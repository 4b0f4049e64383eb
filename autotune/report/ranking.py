"""The table of ``search``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.report.console import VERDICT_STYLE, Column, cell, clean, console, duration, show
from autotune.report.digest import VERDICT_TEXT, binding, bounds, layout_text, recompute_text

Data = Mapping[str, Any]
SIZES = ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs")
SHOWN = {*SIZES, "recompute", "recompute_layers"}
"""Fields that have a column."""
GOALS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "training": ("time_to_train_s", lambda seconds: f"{seconds / 86400:,.2f} d"),
    "cost": ("cost_usd", lambda usd: f"${usd:,.0f}"),
    "headroom": ("memory_headroom_gib", lambda gib: f"{gib:.1f} GiB"),
}
"""Columns of the goals that have none otherwise."""
REASONS = 6
"""Reasons that are listed one by one; the others as a sum."""
MEANING = {"memory": "needs more memory than the limit",
           "marginal": "fits only without fragmentation, and --no-marginal was asked for"}
"""What reasons mean that are no rule's; a rule gives an example of its own."""
MARK = {"fits": "", "marginal": " ?", "does_not_fit": " !"}


def _limit_gib(data: Data) -> float:
    limit = data.get("memory_limit_gib")
    if limit is None:
        limit = data["ranked"][0]["system"]["memory_gib"]
    return float(limit)


def difference(best: Data, other: Data) -> str:
    """Say in which fields a runner-up differs from the best."""
    one, two = best["strategy"], other["strategy"]
    # What follows from the columns by default needs no mention.
    told = {*best.get("given", one), *other.get("given", two)}
    names = [n for n in two if n in told and n not in SHOWN and two[n] != one.get(n)]
    return ", ".join(f"{n}={_short(two[n])}" for n in names[:3]) + (" ..." if len(names) > 3
                                                                      else "")


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)


def _size_columns(ranked: Sequence[Data]) -> list[str]:
    """Return the sizes worth a column: all that differ from 1 somewhere, dp and mbs always."""
    return [name for name in SIZES if name in ("tp", "pp", "dp", "mbs")
            or any(p["strategy"].get(name, 1) != 1 for p in ranked)]


def _ranked(out: Console, data: Data) -> None:
    ranked = data["ranked"]
    limit = _limit_gib(data)
    sizes = _size_columns(ranked)
    best = ranked[0]
    # A size that all share stands in the line on the best: it may go first.
    same = {name: len({p["strategy"].get(name, 1) for p in ranked}) == 1 for name in sizes}
    goals = {title: (key, text) for title, (key, text) in GOALS.items()
             if key in best.get("objectives", {})}
    columns = [Column("#"), *(Column(name, keep=3 if same[name] else 0) for name in sizes),
               Column("recompute", right=False, keep=1, wrap=12),
               Column("peak GiB", keep=4), Column(f"device of {limit:.1f}"),
               Column("fullest", right=False, keep=5),
               Column("step"), Column("tok/s/GPU"), Column("MFU", keep=2),
               Column("to best", keep=1), *(Column(title) for title in goals),
               Column("also differs in", right=False, keep=1, wrap=22),
               Column("bound by", right=False, keep=4, wrap=22)]
    rows = []
    for p in ranked:
        s, full, verdict = p["strategy"], binding(p), p["verdict"]
        device = Text(f"{p['device_memory_gib']:.1f}{MARK[verdict]}",
                      style=VERDICT_STYLE[verdict] if verdict != "fits" else "")
        slower = p["step_time_s"] / best["step_time_s"] * best["strategy"]["gbs"] / s["gbs"] - 1
        rows.append([p["rank"], *(s.get(name, 1) for name in sizes), recompute_text(s),
                     f"{p['peak_memory_gib']:.1f}", device, f"s{full.stage} {full.part}",
                     duration(p["step_time_s"]), f"{p['tokens_per_s_per_gpu']:,.0f}",
                     f"{p['mfu']:.1%}", "best" if p is best else f"{slower:+.1%}",
                     *(show_goal(p["objectives"][key]) for key, show_goal in goals.values()),
                     difference(best, p), bounds(p)])
    show(out, columns, rows)
    if any(p["verdict"] == "marginal" for p in ranked):
        out.print(cell("? marginal: fragmentation, workspaces or imbalance decide whether it "
                       "fits (--no-marginal leaves these out)"))


def _best(out: Console, data: Data, limit_gib: float) -> None:
    ranked = data["ranked"]
    best = ranked[0]
    strategy, full = best["strategy"], binding(best)
    out.print(cell(f"best       {layout_text(strategy)}, recompute {recompute_text(strategy)}"))
    out.print(cell(f"memory     {VERDICT_TEXT[best['verdict']]}: {best['device_memory_gib']:.1f} "
                   f"of {limit_gib:.1f} GiB in use, tensors {best['peak_memory_gib']:.1f}; most "
                   f"on stage {full.stage}, by {full.part}"))
    out.print(cell(f"speed      {duration(best['step_time_s'])} a step, "
                   f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU, MFU {best['mfu']:.1%}; "
                   f"{bounds(best)}"))
    safe = next((p for p in ranked if p["verdict"] == "fits"), None)
    if best["verdict"] == "marginal" and safe is not None:
        slower = safe["step_time_s"] / best["step_time_s"] - 1
        out.print(cell(f"safe       #{safe['rank']} fits beyond doubt, {slower:+.1%}: "
                       f"{layout_text(safe['strategy'])}, "
                       f"recompute {recompute_text(safe['strategy'])}"))
    alike = data.get("not_told_apart", ())
    if len(alike) > 1:
        out.print(cell(f"alike      {len(alike)} of the {len(ranked)} ranked cannot be told "
                       f"apart: of measured layouts {best['told_apart_pct']:.1f} % apart, the "
                       "predicted order is right in 8 of 10 pairs"))
    if "command" in best:
        # One line, however long: it is there to be copied.
        out.print(cell(f"repeat     {best['command']}"), soft_wrap=True)
    if best.get("export_command"):
        out.print(cell(f"launch     {best['export_command']}"), soft_wrap=True)


def _totals(out: Console, data: Data) -> None:
    out.print()
    out.print(cell(f"candidates {data['candidates']:,} legal, {data['evaluated']:,} evaluated, "
                   f"{data['simulated']:,} simulated, {data['feasible']:,} fit"))
    rejected = sorted(data["rejected"].items(), key=lambda item: -item[1])
    if rejected:
        examples = {**MEANING, **data.get("rejected_examples", {})}
        for i, (name, count) in enumerate(rejected[:REASONS]):
            words = examples.get(name, "")
            line = Text(f"{'' if i else 'rejected':<11}{count:>12,}  {clean(name)}"
                        + (f": {clean(words)}" if words else ""))
            out.print(line, no_wrap=True, overflow="ellipsis")
        if len(rejected) > REASONS:
            rest = rejected[REASONS:]
            out.print(cell(f"{'':<11}{sum(n for _, n in rest):>12,}  by {len(rest)} more rules "
                           "(rejected.csv of --out, or --format json, names them)"))
    exact = ("yes: no legal candidate of the space is better" if data["exact"]
             else "no: candidates were sampled")
    out.print(cell(f"exact      {exact}"))
    out.print(cell(f"time       {data['wall_s']:.2f} s"))


def print_search(data: Data) -> None:
    """Print the ranked strategies and the totals of a search.

    Parameters
    ----------
    data : mapping
        The JSON of ``search``.
    """
    out = console()
    model = data["model"]["name"] if isinstance(data["model"], Mapping) else data["model"]
    system = data["system"]["name"] if isinstance(data["system"], Mapping) else data["system"]
    objective = data["objective"]
    if not isinstance(objective, str):
        objective = ", ".join(objective)
    ranked = data["ranked"]
    if not ranked:
        out.print(cell(f"{model} on {system}: nothing fits"))
        _totals(out, data)
        return
    first = ranked[0]["strategy"]
    out.print(cell(f"{model} on {first['gpus']} x {system}, by {objective}: gbs {first['gbs']}, "
                   f"seq_len {first['seq_len']}, {first['precision']}, {first['framework']} "
                   f"{first['framework_version']}"))
    _best(out, data, _limit_gib(data))
    out.print()
    _ranked(out, data)
    _totals(out, data)
