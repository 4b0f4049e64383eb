"""``autotune codesign``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from autotune.commands.failures import DONE
from autotune.commands.inputs import Problems, number, output_format, text
from simcore.errors import InputError, Issue, NoFeasibleStrategyError


def run(values: Mapping[str, object]) -> int:
    """Search the figures of a system under a cost model."""
    style = output_format(values)
    problems = Problems()
    source = text(values, "design")
    if not source:
        problems.add("DESIGN", "is needed", "name a design file (YAML)")
    trials = number(values, "trials", problems, minimum=1, maximum=100_000, whole=True)
    seed = number(values, "seed", problems, minimum=0, maximum=2**32 - 1, whole=True)
    sampler = text(values, "sampler")
    if sampler is not None and sampler not in ("tpe", "nsga2", "random"):
        problems.add("--sampler", f"must be tpe, nsga2 or random, got '{sampler[:60]}'")
    problems.settle()
    from autotune.hardware.codesign import Bench, codesign, read_design

    path = Path(str(source))
    if not path.is_file():
        raise InputError(Issue("DESIGN", f"'{source}' is no file", "name a design file (YAML)"))
    bench = Bench(read_design(path), path.parent)
    from autotune.report.progress import progress_bar

    with progress_bar("designing") or nullcontext() as progress:
        found = codesign(bench, trials=int(trials or 100), seed=int(seed or 0), sampler=sampler,
                         storage=text(values, "storage"), progress=progress)
    if not found["pareto"]:
        raise NoFeasibleStrategyError(
            f"none of {found['trials']} designs keeps the constraints "
            f"({'; '.join(bench.design.constraints)}): widen the figures' ranges or the limits")
    _emit(found, style)
    return DONE


def _emit(found: Mapping[str, Any], style: str) -> None:
    from autotune.report.emit import emit

    def table() -> None:
        from autotune.report.codesign import print_codesign
        print_codesign(found)

    emit(found, style=style, table=table, rows=lambda: [
        {**{k: v for k, v in p.items() if k not in ("figures", "strategies")}, **p["figures"],
         "strategies": "; ".join(p["strategies"])} for p in found["pareto"]])
