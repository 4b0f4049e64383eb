"""``autotune trace``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.commands.failures import DONE, warn
from autotune.commands.inputs import Problems, number, output_format, read_case, text
from autotune.files import save_text
from simcore.errors import InputError, Issue

MAX_RANKS = 4096


def run(values: Mapping[str, object]) -> int:
    """Simulate a step and write it as a trace."""
    style = output_format(values)
    problems = Problems()
    out, snapshot = text(values, "out"), text(values, "memory_snapshot")
    if not out:
        problems.add("--out", "is needed", "name a file, such as trace.json or trace.json.gz")
    for option, path in (("--out", out), ("--memory-snapshot", snapshot)):
        if path and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
            problems.add(option, f"'{path[:200]}' is a folder, or its folder does not exist",
                         "name a file in a folder that exists")
    limit = number(values, "max_events", problems, minimum=100, maximum=50_000_000, whole=True)
    merged = dict(values)
    if text(values, "file") is not None:
        merged["strategy"] = values["file"]
    case = problems.collect(lambda: read_case(merged))
    problems.settle()
    if case is None or out is None:
        raise InputError(Issue("--out", "is needed"))
    from simcore.events import simulate_step
    from simcore.prediction import predict

    step = simulate_step(predict(case.model, case.system, case.strategy))
    from autotune.trace.chrome import MAX_EVENTS, StepTrace, about, stage_ranks, write_trace

    most = int(limit or MAX_EVENTS)
    ranks = _ranks(text(values, "ranks") or "stages", step.num_ranks, stage_ranks(step))
    try:
        trace = StepTrace(step, ranks, max_events=most)
    except ValueError as error:
        if (text(values, "ranks") or "stages") != "all":
            raise InputError(Issue("--ranks", str(error), "draw fewer ranks, or raise "
                                   "--max-events")) from error
        warn(f"{error}; one rank of each pipeline stage is drawn, the others do the same")
        trace = StepTrace(step, stage_ranks(step), max_events=most)
    count = save_text(Path(out), lambda stream: write_trace(stream, trace.lines(), about(trace)))
    found = {"file": out, "events": count, "ranks": len(trace.plan.ranks),
             "microbatches_in_detail": trace.plan.opened, "step_time_s": step.end_s}
    if snapshot:
        from autotune.trace.snapshot import write_snapshot
        found["memory_snapshot"] = snapshot
        found["snapshot_events"] = write_snapshot(Path(snapshot), step)
    from autotune.report.emit import emit
    emit(found, style=style, table=lambda: _say(found), rows=lambda: [found])
    return DONE


def _say(found: Mapping[str, object]) -> None:
    from autotune.report.console import cell, console

    out = console()
    out.print(cell(f"{found['file']}: {found['events']:,} events of {found['ranks']} ranks, "
                   f"operators of {found['microbatches_in_detail']} micro-batches; open it at "
                   "ui.perfetto.dev or chrome://tracing"))
    if "memory_snapshot" in found:
        out.print(cell(f"{found['memory_snapshot']}: open it at pytorch.org/memory_viz"))


def _ranks(asked: str, total: int, stages: tuple[int, ...]) -> tuple[int, ...]:
    """Read ``stages``, ``all`` or a list such as ``0,8-15``.

    Raises
    ------
    InputError
        It is none of these, or names ranks that do not exist.
    """
    word = asked.strip().lower()
    if word == "stages":
        return stages
    if word == "all":
        return tuple(range(total))
    found: list[int] = []
    for part in word.split(","):
        low, _, high = part.strip().partition("-")
        if not low.isdigit() or (high and not high.isdigit()) or max(len(low), len(high)) > 9:
            raise InputError(Issue("--ranks", f"must be stages, all or a list, got '{asked[:60]}'",
                                   "write it as 0,8-15"))
        first, last = int(low), int(high or low)
        if not first <= last < total:
            raise InputError(Issue("--ranks", f"'{part.strip()}' is not within 0 to {total - 1}",
                                   f"use ranks 0 to {total - 1}"))
        if last - first >= MAX_RANKS:
            raise InputError(Issue("--ranks", f"'{part.strip()}' are over {MAX_RANKS} ranks",
                                   "draw fewer; ranks of a stage do the same"))
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))
