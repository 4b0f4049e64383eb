"""The published measured runs that ship with the program, in a form of our own.

``autotune/data/measured_runs.csv`` holds a run a row, with what is the same in a whole table
and its source in ``measured_sources.yaml``, and the models in ``measured_models.json``.
`benchmarks/derive/measured_runs.py` makes all three.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from importlib.resources import files

from autotune.runs import Run, Tables, pairs, problem_of
from simcore.errors import InputError, Issue
from simcore.inputs.model import ModelSpec
from simcore.inputs.yaml_io import parse_yaml, require_mapping

RUNS, SOURCES, MODELS = "measured_runs.csv", "measured_sources.yaml", "measured_models.json"
FOLDS = "measured_folds.csv"
LEFT_OUT = "left_out_errors.json"
CONDITIONS = ("kernel", "padded_vocab", "dense_layers", "hw", "microbatch_level_recompute")
"""Conditions that a prediction or a ranking group depends on; no others are kept."""
COLUMNS = ("file", "id", "model", "num_layers", "system", "strategy", "conditions", "figure",
           "measured", "peak_memory_gib", "oom", "doubtful")


def _text(name: str) -> str:
    place = files("autotune") / "data" / name
    try:
        return place.read_text("utf-8")
    except OSError as error:
        raise InputError(Issue(f"autotune/data/{name}", "is missing from the installation",
                               "install again, or name tables of runs")) from error


def kept_sources() -> dict[str, dict[str, object]]:
    """Return for each kept table its source and what all its rows share."""
    data = require_mapping(parse_yaml(_text(SOURCES), where=SOURCES), where=SOURCES)
    return {name: require_mapping(entry, where=f"{SOURCES}: {name}")
            for name, entry in data.items()}


def kept_models() -> dict[str, ModelSpec]:
    """Return the models of the kept runs by name."""
    return {name: ModelSpec.model_validate_json(json.dumps(spec))
            for name, spec in json.loads(_text(MODELS)).items()}


def _run(row: Mapping[str, str], common: Mapping[str, str]) -> Run:
    measured = {row["figure"]: float(row["measured"])} if row["figure"] else {}
    if row["peak_memory_gib"]:
        measured["peak_memory_gib"] = float(row["peak_memory_gib"])
    conditions = pairs(row["conditions"])
    return Run(file=row["file"], id=row["id"], model=row["model"], system=row["system"],
               num_layers=int(row["num_layers"]) if row["num_layers"] else None,
               fields={**common, **pairs(row["strategy"])}, conditions=conditions,
               measured=measured, oom={"0": False, "1": True}.get(row["oom"]),
               problem=problem_of(conditions), doubtful=row["doubtful"])


def kept_runs() -> Tables:
    """Read the kept runs."""
    common = {name: pairs(str(entry.get("common", "")))
              for name, entry in kept_sources().items()}
    rows = csv.DictReader(_text(RUNS).splitlines())
    return Tables(tuple(_run(row, common[row["file"]]) for row in rows))


def kept_left_out() -> dict[str, dict[str, float]]:
    """Return errors of step time on the fold left out when constants are fitted to the others.

    By set of tables; `benchmarks.refit` makes them, some minutes a set, whenever constants are
    fitted anew.
    """
    found: dict[str, dict[str, float]] = json.loads(_text(LEFT_OUT))
    return found


def kept_folds() -> dict[tuple[str, str], int]:
    """Return the fold of every kept run by table and id: groups of like runs stay together."""
    digits = {row["file"]: iter(row["folds"]) for row in csv.DictReader(_text(FOLDS).splitlines())}
    return {(run.file, run.id): int(next(digits[run.file])) for run in kept_runs().runs}
