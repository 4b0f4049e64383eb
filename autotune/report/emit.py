"""Write what a command found to stdout, in the format asked for."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.errors import Issue

Data = Mapping[str, Any]

METRICS = ("verdict", "peak_memory_gib", "device_memory_gib", "device_memory_high_gib",
           "step_time_s", "step_time_s_p10", "step_time_s_p90", "tokens_per_s",
           "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu")


def plain(value: Any) -> Any:
    """Turn a value into what JSON has; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    item = getattr(value, "item", None)
    return plain(item()) if item is not None else str(value)


def _write(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def emit_json(data: Data) -> None:
    """Write JSON, indented, in plain ASCII."""
    _write(json.dumps(plain(data), indent=2, allow_nan=False))


def emit_yaml(data: Data) -> None:
    """Write YAML, keys in their order."""
    import yaml
    _write(yaml.safe_dump(plain(data), sort_keys=False, width=99))


def emit_csv(rows: Iterable[Data], columns: Sequence[str] | None = None) -> None:
    """Write a table with a header; the columns are those of the first row where not given."""
    rows = list(rows)
    names = list(columns if columns is not None else (rows[0] if rows else ()))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, extrasaction="ignore", restval="",
                            lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    _write(stream.getvalue())


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value[:1] in "=+-@\t\r":
        # A spreadsheet would run a name that starts like a formula.
        return "'" + value
    return value


def flat(prediction: Data) -> dict[str, Any]:
    """Flatten a prediction into one row of a table: fields, figures, time terms."""
    row: dict[str, Any] = {}
    if "rank" in prediction:
        row["rank"] = prediction["rank"]
    row["model"] = prediction.get("model", {}).get("name")
    row["system"] = prediction.get("system", {}).get("name")
    row.update(prediction["strategy"])
    row.update({name: prediction.get(name) for name in METRICS})
    row.update(prediction["time"])
    return row


def emit(data: Data, *, style: str, table: Callable[[], None],
         rows: Callable[[], Iterable[Data]]) -> None:
    """Write a result in one of the four formats.

    Parameters
    ----------
    data : mapping
        What JSON and YAML hold.
    style : str
        ``table``, ``json``, ``csv`` or ``yaml``.
    table : callable
        Prints the table for people.
    rows : callable
        Gives the rows of the CSV.
    """
    match style:
        case "json":
            emit_json(data)
        case "yaml":
            emit_yaml(data)
        case "csv":
            emit_csv(rows())
        case _:
            table()


def emit_prediction(data: Data, *, style: str, given: Sequence[str]) -> None:
    """Write what ``predict`` found."""
    def table() -> None:
        from autotune.report.prediction import print_prediction
        print_prediction(data, given=given)

    emit(data, style=style, table=table, rows=lambda: [flat(data)])


def emit_explained(data: Data, *, style: str) -> None:
    """Write what ``predict --explain memory`` found: a prediction and its listing of tensors."""
    def table() -> None:
        from autotune.report.memory import print_listing
        print_listing(data)

    def rows() -> list[Data]:
        found = data["explain"]["memory"]
        return [{"stage": found["stage"], "phase": found["phase"], **tensor,
                 "shape": "x".join(f"{side:.10g}" for side in tensor["shape"])}
                for tensor in found["tensors"]]

    emit(data, style=style, table=table, rows=rows)


def emit_recommendation(data: Data, *, style: str) -> None:
    """Write what ``recommend`` found; its CSV has a row a question."""
    def table() -> None:
        from autotune.report.recommendation import print_recommendation
        print_recommendation(data)

    def rows() -> list[Data]:
        found: list[Data] = []
        for name in ("min_gpus", "min_gpus_fits", "max_mbs", "max_seq_len"):
            held = data[f"{name}_held_by"] or {"strategy": {}}
            found.append({"question": name, "answer": data[name], "model": data["model"],
                          "system": data["system"], "verdict": held.get("verdict"),
                          "device_memory_gib": held.get("device_memory_gib"),
                          **{n: held["strategy"].get(n) for n in data["best"]["strategy"]}})
        return found

    emit(data, style=style, table=table, rows=rows)


def emit_check(data: Data, changes: Sequence[Data], *, style: str) -> None:
    """Write what ``check`` found: the verdict, what binds and what would make it fit."""
    from autotune.report.digest import binding

    stage = binding(data)
    kept = ("model", "system", "strategy", "verdict", "peak_memory_gib", "device_memory_gib",
            "device_memory_high_gib")
    result = {**{key: data[key] for key in kept}, "legal": True,
              "binding": {"stage": stage.stage, "part": stage.part, "phase": stage.phase},
              "would_fit": list(changes), "marginal": data.get("marginal")}

    def table() -> None:
        from autotune.report.prediction import print_check
        print_check(data, changes)

    row = {"model": data["model"]["name"], "system": data["system"]["name"],
           **data["strategy"], **{k: data[k] for k in kept[3:]},
           "binding_stage": stage.stage, "binding_part": stage.part}
    emit(result, style=style, table=table, rows=lambda: [row])


def emit_illegal(model: str, system: str, strategy: Data, issues: Sequence[Issue], *,
                 style: str) -> None:
    """Write why a strategy is illegal, for programs; people read it on stderr."""
    rows = [{"where": i.where, "message": i.message, "fix": i.fix} for i in issues]
    data = {"model": {"name": model}, "system": {"name": system}, "strategy": dict(strategy),
            "legal": False, "issues": rows}
    emit(data, style=style, table=lambda: None, rows=lambda: rows)


def emit_search(data: Data, *, style: str) -> None:
    """Write what ``search`` found."""
    def table() -> None:
        from autotune.report.ranking import print_search
        print_search(data)

    emit(data, style=style, table=table, rows=lambda: [flat(p) for p in data["ranked"]])
