"""``autotune export``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from autotune.commands.failures import DONE
from autotune.commands.inputs import Case, Problems, output_format, read_case, text
from autotune.formats.exported import Exported, bash_array
from autotune.formats.launchers import LAUNCHERS, add_launcher
from simcore.errors import InputError, Issue, nearest

TARGETS = ("megatron-lm", "json")
PROGRAMS = {"megatron-lm": "pretrain_gpt.py"}


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
    elif launcher is not None and target == "json":
        problems.add("--launcher", "needs a framework, got --to json", "use --to megatron-lm")
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
    from autotune.formats.megatron_export import export_megatron
    from autotune.formats.megatron_model_export import add_model

    out = export_megatron(case.model, case.system, row)
    if with_model:
        add_model(out, case.model, int(row["seq_len"]))
    else:
        out.notes.append("arguments of the model are left out (--with-model)")
    out.files["args.sh"] = "# shellcheck shell=bash disable=SC2034\n" + "".join(
        f"# {name}={value}: {why}\n" for name, (value, why) in out.env.items()
    ) + bash_array("ARGS", out.lines)
    if launcher:
        add_launcher(out, launcher, gpus=int(row["gpus"]), system=case.system,
                     name=case.model.name, script=PROGRAMS[target])
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
