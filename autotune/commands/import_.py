"""``autotune import``: another program's file as a model, a strategy and a system."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.commands.inputs import Problems, number, output_format, text
from autotune.formats.imported import Imported
from simcore.errors import InputError, Issue


def run(values: Mapping[str, object]) -> int:
    """Read the file, check what came out, write it."""
    style = output_format(values)
    problems = Problems()
    source = text(values, "file")
    if not source:
        problems.add("FILE", "is needed", "use - for standard input")
    vocab = number(values, "vocab_size", problems, minimum=1, maximum=10_000_000, whole=True)
    gpus = number(values, "gpus", problems, minimum=1, maximum=2**20, whole=True)
    out = text(values, "out")
    if out is not None and (not out or (Path(out).exists() and not Path(out).is_dir())):
        problems.add("--out", f"must be a folder, got '{out[:200]}'")
    problems.settle()
    from autotune.formats.sniff import read_file

    imported = read_file(str(source), kind=(text(values, "from_kind") or "").strip().lower(),
                         recipe=text(values, "recipe") or "", model=text(values, "model") or "",
                         vocab_size=int(vocab) if vocab else None)
    if gpus and imported.strategy:
        imported.strategy = {**imported.strategy, "gpus": int(gpus)}
    data = checked(imported, where=str(source))
    for item in data["ignored"]:
        shown = f" {item['value']}" if item["value"] else ""
        sys.stderr.write(f"warning: ignored {item['name']}{shown}: {item['reason']}\n")
    if out is not None:
        save(data, Path(out))
    from autotune.report.emit import emit, emit_yaml
    emit(data, style=style, table=lambda: emit_yaml(data),
         rows=lambda: [{"field": key, "value": value} for key, value in data["strategy"].items()])
    return 0


def checked(imported: Imported, *, where: str) -> dict[str, Any]:
    """Return the JSON of an import, its parts checked against their specs.

    Raises
    ------
    InputError
        A part that the simulator would refuse, with everything that is wrong.
    """
    from simcore.inputs.load import load_model
    from simcore.inputs.model import ModelSpec
    from simcore.inputs.strategy import Strategy
    from simcore.inputs.system import SystemSpec
    from simcore.inputs.yaml_io import validate

    problems = Problems()
    model: dict[str, Any] = {}
    if imported.model_name:
        model = load_model(imported.model_name).model_dump(mode="json", exclude_defaults=True)
    elif imported.model:
        spec = problems.collect(lambda: validate(ModelSpec, imported.model,
                                                 where=f"{where}: model"))
        model = spec.model_dump(mode="json", exclude_defaults=True) if spec else {}
    strategy = problems.collect(lambda: Strategy.from_mapping(imported.strategy,
                                                              where=f"{where}: "))
    if imported.system:
        problems.collect(lambda: validate(SystemSpec, imported.system, where=f"{where}: system"))
    problems.settle()
    data: dict[str, Any] = {"kind": imported.kind, "model": model,
                            "strategy": strategy.given() if strategy else {}}
    if imported.system:
        data["system"] = imported.system
    data["ignored"] = [{"name": i.name, "value": i.value, "reason": i.reason}
                       for i in imported.ignored]
    return data


def save(data: Mapping[str, Any], folder: Path) -> None:
    """Write ``model.yaml``, ``strategy.yaml`` and ``system.yaml``, those that there are."""
    import yaml

    strategy = dict(data["strategy"])
    parts = {"model.yaml": data["model"], "system.yaml": data.get("system")}
    if strategy:
        named = {"model": "model.yaml"} if data["model"] else {}
        parts["strategy.yaml"] = {**named, **strategy}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            if part:
                (folder / name).write_text(yaml.safe_dump(part, sort_keys=False, width=99))
    except OSError as error:
        raise InputError(Issue("--out", f"cannot be written: {error.strerror}")) from error
