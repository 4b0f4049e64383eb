"""Predictions side by side: read from whatever holds one, and how they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.report.digest import PARTS, TIME_TERMS, binding, layout_text
from simcore.errors import InputError, Issue
from simcore.inputs.fields import FIELD_NAMES
from simcore.inputs.load import load_model, load_strategy_file, load_system
from simcore.inputs.yaml_io import read_data
from simcore.prediction import predict

Data = Mapping[str, Any]
FIGURES = ("step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu",
           "peak_memory_gib", "device_memory_gib")
_NEEDED = ("strategy", "time", "memory", "step_time_s", "verdict", "model", "system")


@dataclass(frozen=True)
class Side:
    """One of the things compared.

    Parameters
    ----------
    name : str
        As the user named it.
    prediction : mapping
        The JSON of ``predict``.
    """

    name: str
    prediction: Data


def read_side(source: str) -> Side:
    """Read a prediction.

    Parameters
    ----------
    source : str
        A strategy file, the JSON of ``predict`` or of ``search`` (its best), or a folder that
        ``search --out`` wrote, with ``#RANK`` behind it for another rank than the first.

    Raises
    ------
    InputError
        It is none of these.
    """
    name, _, rank = source.rpartition("#") if "#" in source and not Path(
        source).exists() else (source, "", "")
    path = Path(name)
    if rank and not (rank.isdigit() and len(rank) < 7 and int(rank) > 0):
        raise InputError(Issue(source, f"'{rank[:20]}' is no rank", "write FOLDER#2"))
    if path.is_dir():
        path = path / "summary.json"
        if not path.is_file():
            raise InputError(Issue(source, "holds no summary.json",
                                   "name a folder that 'autotune search --out' wrote"))
    if not path.exists():
        raise InputError(Issue(source, "does not exist", "name strategy files, the JSON of "
                               "'predict', or folders of 'search --out'"))
    data = read_data(path)
    if not isinstance(data, dict):
        raise InputError(Issue(source, "holds no mapping"))
    if "ranked" in data:
        return Side(source, _whole(_ranked(data, int(rank or 1), source), source))
    if "step_time_s" in data:
        return Side(source, _whole(data, source))
    file = load_strategy_file(path)
    if file.model is None:
        raise InputError(Issue(source, "names no model", "add 'model: NAME'"))
    found = predict(load_model(file.model), load_system(file.system or "h100-sxm"), file.strategy)
    return Side(source, found.to_dict())


def _ranked(data: Data, rank: int, source: str) -> Data:
    ranked = data["ranked"]
    if not isinstance(ranked, list) or not 1 <= rank <= len(ranked):
        count = len(ranked) if isinstance(ranked, list) else 0
        raise InputError(Issue(source, f"has no rank {rank}", f"it has ranks 1 to {count}"))
    found: Data = ranked[rank - 1]
    return found


def _whole(data: Data, source: str) -> Data:
    missing = [key for key in _NEEDED if not isinstance(data, dict) or key not in data]
    if missing:
        raise InputError(Issue(source, f"is no prediction: {', '.join(missing)} missing"))
    # What is not a prediction of ours fails here, in words, and not in the middle of a table.
    try:
        json.dumps([binding(data), layout_text(data["strategy"]),
                    [float(data[name]) for name in FIGURES],
                    [float(data["time"][f"{term}_s"]) for term in TIME_TERMS]])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(Issue(source, f"is no prediction: {error!r} in it")) from error
    return data


def compare(sides: Sequence[Side]) -> dict[str, Any]:
    """Compare predictions with the first of them.

    Returns
    -------
    dict
        ``sides`` with their figures, ``fields`` that are not the same everywhere, ``time`` and
        ``memory`` (of the fullest stage) with the differences to the first.
    """
    base = sides[0].prediction
    fields = {name: [s.prediction["strategy"].get(name) for s in sides]
              for name in (*FIELD_NAMES, "dp", "num_microbatches")}
    differing = {name: values for name, values in fields.items()
                 if any(value != values[0] for value in values)}
    subjects = {key: [s.prediction[key]["name"] for s in sides] for key in ("model", "system")}
    return {
        "sides": [{
            "name": s.name, "model": s.prediction["model"]["name"],
            "system": s.prediction["system"]["name"],
            "layout": layout_text(s.prediction["strategy"]), "verdict": s.prediction["verdict"],
            **{name: s.prediction[name] for name in FIGURES},
            "step_time_pct": 100.0 * (s.prediction["step_time_s"] / base["step_time_s"] - 1.0),
        } for s in sides],
        "fields": {**{k: v for k, v in subjects.items() if len(set(v)) > 1}, **differing},
        "time": {f"{term}_s": [s.prediction["time"][f"{term}_s"] for s in sides]
                 for term in TIME_TERMS},
        "memory": _memory(sides),
    }


def _memory(sides: Sequence[Side]) -> dict[str, Any]:
    fullest = []
    for side in sides:
        stage = binding(side.prediction).stage
        stages = side.prediction["memory"]["stages"]
        fullest.append(next(s for s in stages if s["stage"] == stage))
    return {"stage": [s["stage"] for s in fullest],
            **{f"{part}_gib": [s[f"{part}_gib"] for s in fullest] for part in PARTS},
            "peak_memory_gib": [s["peak_memory_gib"] for s in fullest],
            "device_memory_gib": [s["device_memory_gib"] for s in fullest]}
