"""``autotune search --start-from``: the neighbours of what runs today."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from autotune.commands.failures import DONE
from autotune.commands.inputs import (
    Problems,
    given_fields,
    number,
    output_format,
    read_case,
    text,
)
from simcore.errors import InputError, NoFeasibleStrategyError
from simcore.inputs.fields import FIELD, FIELD_NAMES

_FIXED = ("gpus", "seq_len", "gbs", "framework", "precision")
_APART = ("sampler", "trials", "storage", "jobs", "seed", "out", "tokens", "price_per_gpu_hour",
          "pictures")


def run(values: Mapping[str, object]) -> int:
    """Rank the strategies that differ from today's in one or two axes.

    A field with one value is set in today's strategy, a list or ``auto`` is an axis.
    """
    from autotune.commands.search import memory_limits, read_space
    from autotune.search.neighbours import neighbours
    from autotune.search.problem import Problem

    style = output_format(values)
    problems = Problems()
    for name in _APART:
        if values.get(name):
            problems.add("--" + name.replace("_", "-"), "is not used with --start-from",
                         "leave it out: every neighbour is predicted")
    if (text(values, "objective") or "tokens_per_s") != "tokens_per_s":
        problems.add("--objective", "must be tokens_per_s with --start-from",
                     "leave it out: neighbours are ranked by step time")
    problems.settle()
    axes = {name: value for name, value in given_fields(values).items()
            if "," in str(value) or str(value).strip().lower() == "auto"}
    kept = {k: v for k, v in values.items() if k not in axes}
    case = read_case({**kept, "strategy": values["start_from"]})
    now = _resolved(case)
    rest = {k: v for k, v in kept.items() if k not in FIELD_NAMES}
    fixed = {name: str(now[name]) for name in _FIXED if name not in axes}
    space = problems.collect(lambda: read_space({**rest, **axes, **fixed}, case.model))
    limits = memory_limits(values, case.system, problems)
    top = number(values, "top", problems, minimum=1, maximum=10_000, whole=True)
    problems.settle()
    if space is None:
        raise InputError(problems.issues)
    problem = Problem(case.model, case.system, space, marginal=not values.get("no_marginal"),
                      top=int(top or 10),
                      memory_utilisation=limits["memory_utilisation"],
                      memory_reserve_gib=limits["memory_reserve_gib"]).checked()
    found = neighbours(problem, case.strategy)
    own = {name: kept[name] for name in given_fields(kept)}
    for row in (*found.ranked, *found.single):
        row["command"] = _command(values, {**own, **row["set"]})
    data: dict[str, Any] = {
        "model": case.model.name, "system": case.system.name, "start": found.start,
        "candidates": found.tried, "feasible": found.fitting, "ranked": found.ranked,
        "single": found.single}
    from autotune.report.emit import emit
    if found.ranked or style != "table":
        emit(data, style=style, table=lambda: print_neighbours(data), rows=lambda: [
            {**row, "change": changed(row)} for row in found.ranked])
    if not found.ranked:
        raise NoFeasibleStrategyError(
            f"neither today's strategy ({found.start['device_memory_gib']:.2f} GiB) nor any of "
            f"its {found.tried} neighbours fits; 'autotune search' looks further")
    return DONE


def _command(values: Mapping[str, object], fields: Mapping[str, object]) -> str:
    """Write the command that predicts a neighbour: today's file and what differs from it."""
    words = ["autotune", "predict", "--strategy", str(values["start_from"])]
    for name in ("model", "system"):
        if values.get(name):
            words += [f"--{name}", str(values[name])]
    for name, value in fields.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        words += [FIELD[name].option, shown]
    return shlex.join(words)


def _resolved(case: Any) -> Mapping[str, Any]:
    from simcore.batch import Batch
    from simcore.resolve import resolve
    return dict(resolve(case.model, case.system,
                        Batch.from_strategies([case.strategy])).row(0).items())


def changed(row: Mapping[str, Any]) -> str:
    """Say in one line what differs from today."""
    return ", ".join(f"{name} {c['from']} -> {c['to']}" for name, c in row["change"].items()) or (
        "(today)")


def print_neighbours(data: Mapping[str, Any]) -> None:
    """Print the ranking, and the best value of each axis alone."""
    from autotune.report.console import Column, cell, console, duration, show
    from autotune.report.digest import VERDICT_TEXT

    out = console()
    start = data["start"]
    out.print(cell(f"{data['model']} on {data['system']}: today {duration(start['step_time_s'])} "
                   f"a step, {start['device_memory_gib']:.2f} GiB, "
                   f"{VERDICT_TEXT[start['verdict']]}; {data['candidates']} neighbours, "
                   f"{data['feasible']} fit"), soft_wrap=True)

    def cells(row: Mapping[str, Any]) -> list[str]:
        return [duration(row["step_time_s"]), f"{row['step_time_pct']:+.1f}%",
                f"{row['device_memory_gib']:.2f}", f"{row['device_memory_delta_gib']:+.2f}",
                VERDICT_TEXT[row["verdict"]], changed(row)]
    columns = [Column("step"), Column("against today"), Column("GiB"), Column("more GiB"),
               Column("verdict", right=False), Column("change", right=False)]
    out.print()
    rows = [[str(row["rank"]), *cells(row)] for row in data["ranked"]]
    if not start["fits"]:
        rows.append(["-", *cells(start)])
    show(out, [Column("rank"), *columns], rows,
         title="Neighbours in one or two axes, fastest first")
    if data["single"]:
        out.print()
        show(out, columns, [cells(row) for row in data["single"]],
             title="Best change of each axis alone")
