"""A search result as a folder of files."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from simcore.errors import InputError, Issue
from simcore.inputs.fields import FIELD_NAMES

if TYPE_CHECKING:
    from autotune.result import Entry, SearchResult

STUDY = "study.journal"


def save(result: SearchResult, folder: Path) -> None:
    """Write summary, tables, inputs, strategies and the study.

    Everything is written beside the folder first and then moved, so that a failure leaves
    nothing behind. An earlier result in the folder is replaced, other files are kept.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    target = folder.absolute()
    try:
        if target.exists() and not target.is_dir():
            raise InputError(Issue("out", f"'{folder}' is a file, a directory is needed"))
        existing = next(p for p in (target, *target.parents) if p.exists())
        _clean(existing)
        scratch = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=existing))
    except OSError as error:
        raise InputError(Issue("out", f"cannot write '{folder}': {error.strerror}")) from error
    try:
        _write(result, scratch)
        target.mkdir(parents=True, exist_ok=True)
        for part in sorted(scratch.iterdir()):
            place = target / part.name
            if place.is_dir():
                shutil.rmtree(place)
            os.replace(part, place)
    except OSError as error:
        raise InputError(Issue("out", f"cannot write '{folder}': {error.strerror}")) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _prefix() -> str:
    host = re.sub(r"[^A-Za-z0-9]", "", platform.node())[:40]
    return f".autotune-{host or 'host'}-"


def _clean(folder: Path) -> None:
    """Remove what runs of this host left behind that were killed while they wrote."""
    for place in folder.glob(f"{_prefix()}*-*"):
        owner = place.name.removeprefix(_prefix()).split("-")[0]
        if owner.isdigit() and place.is_dir() and not place.is_symlink() \
                and not _alive(int(owner)):
            shutil.rmtree(place, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _write(result: SearchResult, folder: Path) -> None:
    summary = json.dumps(result.to_dict(), indent=1, allow_nan=False)
    (folder / "summary.json").write_text(summary + "\n", "utf-8")
    _table(folder / "ranked.csv",
           ({"rank": r.rank, "duplicates": r.duplicates, **_flat(r.entry)}
            for r in result.ranked))
    _table(folder / "pareto.csv", (_flat(e) for e in result.pareto))
    _table(folder / "cells.csv", (_flat(e) for e in result.cells))
    _table(folder / "rejected.csv",
           ({"reason": k, "candidates": v, "example": result.examples.get(k, "")}
            for k, v in result.rejected.items()), header=("reason", "candidates", "example"))
    _inputs(result, folder / "inputs")
    for ranked in result.ranked:
        place = folder / "top" / str(ranked.rank)
        place.mkdir(parents=True)
        _yaml(place / "strategy.yaml", {
            "model": _source(result.problem.model, "model"),
            "system": _source(result.problem.system, "system"),
            "strategy": ranked.entry.strategy.given()})
    study = result.study(str(folder / STUDY))
    del study
    # The lock beside a journal is of no use to readers.
    for leftover in folder.glob(STUDY + ".*"):
        leftover.unlink()


def _flat(entry: Entry) -> dict[str, Any]:
    """One row of a table: fields, then what was predicted, under the names of `predict`."""
    prediction = entry.prediction
    row = {name: getattr(entry.strategy, name) for name in FIELD_NAMES}
    for key, value in prediction.items():
        if isinstance(value, Mapping):
            if key in ("time", "strategy"):
                row.update({k: v for k, v in value.items() if not isinstance(v, (dict, list))})
        elif not isinstance(value, list):
            row[key] = value
    return row


def _table(path: Path, rows: Iterable[Mapping[str, Any]],
           header: tuple[str, ...] | None = None) -> None:
    rows = list(rows)
    names = header or tuple(rows[0]) if rows or header else ()
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _yaml(path: Path, data: object) -> None:
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), "utf-8")


def _inputs(result: SearchResult, folder: Path) -> None:
    folder.mkdir()
    problem = result.problem
    _yaml(folder / "model.yaml", problem.model.model_dump(mode="json", exclude_defaults=True))
    _yaml(folder / "system.yaml", problem.system.model_dump(mode="json", exclude_defaults=True))
    axes = {name: "auto" if values is None else list(values) if len(values) > 1 else values[0]
            for name, values in problem.space.axes.items()}
    _yaml(folder / "space.yaml", {"name": problem.space.name, "axes": axes})
    _yaml(folder / "problem.yaml", {
        "objective": problem.objective, "memory_reserve_gib": problem.memory_reserve_gib,
        "memory_utilisation": problem.memory_utilisation, "marginal": problem.marginal,
        "tokens": problem.tokens, "price_per_gpu_hour": problem.price_per_gpu_hour,
        "seed": problem.seed, "top": problem.top, "method": result.method})


def _source(spec: Any, kind: str) -> str:
    """Name a built-in model or system; for any other, the copy among the inputs."""
    from simcore.inputs import load

    loader = load.load_model if kind == "model" else load.load_system
    try:
        if loader(spec.name) == spec:
            return str(spec.name)
    except InputError:
        pass
    return f"../../inputs/{kind}.yaml"
