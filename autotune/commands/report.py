"""``autotune report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.commands.failures import DONE
from autotune.commands.inputs import Problems, output_format, text
from autotune.files import save_text
from simcore.errors import InputError, Issue, nearest


def run(values: Mapping[str, object]) -> int:
    """Write the page, and the figures where asked."""
    style = output_format(values)
    problems = Problems()
    source = text(values, "source")
    if not source:
        problems.add("SOURCE", "is needed", "name a folder of 'autotune search --out', or a "
                     "strategy file")
    out = Path(text(values, "out") or "report.html")
    if out.is_dir() or not out.absolute().parent.is_dir():
        problems.add("--out", f"'{str(out)[:200]}' is a folder, or its folder does not exist",
                     "name a file in a folder that exists")
    kinds = _kinds(values, problems)
    folder = text(values, "figures")
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        problems.add("--figures", f"'{folder[:200]}' is a file, a folder is needed")
    problems.settle()
    from autotune.pages.report import make_report

    report = make_report(Path(str(source)))
    page = report.html()
    save_text(out, lambda stream: stream.write(page))
    found: dict[str, object] = {"file": str(out), "bytes": len(page.encode()),
                                "figures": sorted(report.figures)}
    if folder is not None:
        found["pictures"] = [str(p) for kind in kinds for p in
                             _pictures(report.pictures(kind), Path(folder), kind)]
    from autotune.report.emit import emit
    emit(found, style=style, table=lambda: _say(found), rows=lambda: [
        {"file": found["file"], "bytes": found["bytes"]}])
    return DONE


def _kinds(values: Mapping[str, object], problems: Problems) -> tuple[str, ...]:
    from autotune.pages.report import FIGURE_KINDS

    asked = [part.strip().lower() for part in
             (text(values, "figure_format") or "svg").split(",")]
    for part in asked:
        if part not in FIGURE_KINDS:
            problems.add("--figure-format", f"must be svg or png, got '{part[:60]}'",
                         nearest(part, FIGURE_KINDS))
    if text(values, "figure_format") and not text(values, "figures"):
        problems.add("--figure-format", "needs a folder", "add --figures DIR")
    return tuple(dict.fromkeys(asked))


def _pictures(drawn: Mapping[str, bytes], folder: Path, kind: str) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, data in drawn.items():
            path = folder / f"{name}.{kind}"
            path.write_bytes(data)
            written.append(path)
    except OSError as error:
        raise InputError(Issue("--figures", f"cannot write '{folder}': {error.strerror}")
                         ) from error
    return written


def _say(found: Mapping[str, object]) -> None:
    from autotune.report.console import cell, console

    out = console()
    out.print(cell(f"{found['file']}: {int(str(found['bytes'])) / 1e6:.1f} MB, "
                   f"{len(found['figures'])} figures; open it in a browser"))  # type: ignore[arg-type]
