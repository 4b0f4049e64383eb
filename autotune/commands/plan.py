"""``autotune plan``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from autotune.commands.failures import DONE, say, warn
from autotune.commands.inputs import Problems, number, output_format, text
from simcore.errors import InputError, Issue

BROKEN = 4
"""A deadline, budget or fit is newly broken."""


def run(values: Mapping[str, object]) -> int:
    """Answer a plan, compare it with the last answer, and save both."""
    style = output_format(values)
    problems = Problems()
    source, out = text(values, "plan"), text(values, "out")
    if not source:
        problems.add("PLAN", "is needed", "name a plan file (YAML)")
    if not out or (Path(out).exists() and not Path(out).is_dir()):
        problems.add("--out", f"is a file, got '{out[:200]}'" if out else "is needed",
                     "name a folder")
    jobs = number(values, "jobs", problems, minimum=1, maximum=1024, whole=True)
    backend = (text(values, "backend") or "processes").strip().lower()
    if backend not in ("processes", "dask"):
        problems.add("--backend", f"must be processes or dask, got '{backend[:60]}'")
    if (backend == "dask") != (text(values, "scheduler") is not None):
        problems.add("--scheduler", "belongs to --backend dask",
                     "give --backend dask --scheduler tcp://HOST:PORT")
    problems.settle()
    from autotune.planning.spec import read_plan

    path, folder = Path(str(source)), Path(str(out))
    plan = read_plan(path)
    from autotune.planning.cases import Kept, cases_of, solve_all

    cases = cases_of(plan, path.parent)
    before = _earlier(text(values, "against"), folder)
    from autotune.parallel import dask_backend, default_jobs

    chosen: AbstractContextManager[object] | None = None
    if backend == "dask":
        chosen = dask_backend(str(text(values, "scheduler")))
    from autotune.report.progress import progress_bar

    with progress_bar("searching") or nullcontext() as progress:
        found = solve_all(cases.values(), Kept(_kept_folder(values, folder)),
                          jobs=int(jobs or default_jobs()), backend=chosen, progress=progress)
    from autotune.planning.answer import answer
    from autotune.planning.changes import changes

    result = answer(plan, cases, found)
    if before is not None:
        result["changes"] = changes(before, result)
    from autotune.planning.write import save_plan

    save_plan(result, folder, html=_html(result))
    _emit(result, style)
    broken = result.get("changes", {}).get("broken", [])
    for line in broken:
        say(f"broken: {line}")
    return BROKEN if broken else DONE


def _kept_folder(values: Mapping[str, object], folder: Path) -> Path:
    named = text(values, "kept")
    return Path(named) if named else folder / "kept"


def _earlier(against: str | None, folder: Path) -> dict[str, Any] | None:
    """Read the answer to compare with: the one named, else the folder's last."""
    path = folder / "plan.json" if against is None else Path(against)
    if path.is_dir():
        path = path / "plan.json"
    if not path.is_file():
        if against is not None:
            raise InputError(Issue("--against", f"'{against[:200]}' does not exist",
                                   "name a plan.json or the folder of an earlier plan"))
        return None
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(Issue(str(path), f"cannot be read: {error}")) from error
    if not isinstance(data, dict) or not {"rows", "questions", "inputs"} <= set(data):
        raise InputError(Issue(str(path), "is no answer of a plan"))
    return data


def _html(result: Mapping[str, Any]) -> str | None:
    from autotune.pages.html import MissingExtraError
    from autotune.pages.plan import plan_page

    try:
        return plan_page(result)
    except MissingExtraError as error:
        warn(f"no plan.html: {error}")
        return None


def _emit(result: Mapping[str, Any], style: str) -> None:
    from autotune.report.emit import emit

    def table() -> None:
        from autotune.report.plan import print_plan
        print_plan(result)

    emit(result, style=style, table=table, rows=lambda: result["rows"])
