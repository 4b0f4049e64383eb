"""``autotune export``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from autotune.commands.failures import DONE
from autotune.commands.inputs import Case, Problems, output_format, read_case, text
from autotune.formats.exported import Exported
from autotune.formats.launchers import LAUNCHERS, add_launcher
from autotune.formats.targets import OWN_PROGRAM, PROGRAMS, TARGETS, write
from simcore.errors import InputError, Issue, nearest


def run(values: Mapping[str, object]) -> int:
    """Write a strategy in a framework's own terms."""
    style = output_format(values)
    problems = Problems()
    target, launcher = text(values, "to"), text(values, "launcher")
    if target not in TARGETS:
        problems.add("--to", f"must be one of {', '.join(TARGETS)}, got '{str(target)[:60]}'",
                     nearest(str(target), TARGETS))
    if launcher is not None and launcher not in LAUNCHERS:
        problems.add("--launcher", f"must be one of {', '.join(LAUNCHERS)}, got "
                     f"'{launcher[:60]}'", nearest(launcher, LAUNCHERS))
    elif launcher is not None and target not in PROGRAMS:
        problems.add("--launcher", f"needs a framework that has a program, got --to {target}",
                     f"use --to {', '.join(PROGRAMS)}")
    merged = dict(values)
    if text(values, "file") is not None:
        merged["strategy"] = values["file"]
    case = problems.collect(lambda: read_case(merged))
    problems.settle()
    if case is None or target is None:
        raise InputError(Issue("--to", "is needed"))
    out = export(case, target, launcher=launcher, with_model=bool(values.get("with_model")))
    folder = text(values, "out")
    if folder:
        _save(Path(folder), out)
    from autotune.report.emit import emit
    found = out.to_dict()
    emit(found, style=style, table=lambda: _say(out, folder),
         rows=lambda: [{"argument": " ".join(line.words), "why": line.why}
                       for line in out.lines])
    return DONE


def export(case: Case, target: str, *, launcher: str | None = None,
           with_model: bool = False) -> Exported:
    """Write a strategy for a target.

    Raises
    ------
    InputError
        The strategy is illegal, or the target cannot express it.
    """
    from simcore.prediction import predict

    row = predict(case.model, case.system, case.strategy).to_dict()["strategy"]
    if target == "json":
        given = {"model": case.model.name, "system": case.system.name, "strategy": {
            k: v for k, v in row.items() if k not in ("dp", "num_microbatches")}}
        out = Exported("json", files={"strategy.json": json.dumps(given, indent=2) + "\n"})
        if case.model.family == "custom":
            out.notes.append("the model is not built in: keep its file beside strategy.json")
        return out
    out = write(target, case.model, case.system, row, with_model=with_model)
    if with_model and target != "megatron-lm":
        out.notes.append(f"--with-model is left out: {target} describes models in its own code")
    if launcher:
        add_launcher(out, launcher, gpus=int(row["gpus"]), system=case.system,
                     name=case.model.name, program=PROGRAMS[target])
        out.notes += [OWN_PROGRAM[target]] if target in OWN_PROGRAM else []
    if out.issues:
        raise InputError(out.issues)
    return out


def _save(folder: Path, out: Exported) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in out.files.items():
            (folder / name).write_text(body, encoding="utf-8")
        (folder / "export.json").write_text(json.dumps(out.to_dict(), indent=2) + "\n",
                                            encoding="utf-8")
    except OSError as error:
        raise InputError(Issue("--out", f"cannot write '{folder}': {error.strerror}")) from error


def _say(out: Exported, folder: str | None) -> None:
    from autotune.report.console import cell, console

    shown = console()
    for name, body in out.files.items():
        shown.print(cell(f"{folder}/{name}" if folder else f"# {name}"), soft_wrap=True)
        if not folder:
            for line in body.splitlines():
                shown.print(cell(line), soft_wrap=True)
    for note in out.notes:
        shown.print(cell(f"note  {note}"), soft_wrap=True)
