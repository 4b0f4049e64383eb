"""``autotune validate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.commands.failures import DONE, warn
from autotune.commands.inputs import output_format, text
from simcore.errors import InputError, Issue


def run(values: Mapping[str, object]) -> int:
    """Predict measured runs and compare."""
    style = output_format(values)
    from autotune.accuracy import report
    from autotune.compare import Library, compare
    from autotune.report.validation import emit_validation

    folder = text(values, "models")
    if folder is not None and not Path(folder).is_dir():
        raise InputError(Issue("--models", f"must be a folder of model files, got "
                                           f"'{folder[:200]}'"))
    sources, folds, refit = values.get("runs") or [], None, None
    if sources:
        from autotune.runs import read_tables
        tables = read_tables(str(s) for s in sources)  # type: ignore[attr-defined]
        library = Library(Path(folder) if folder else None)
        for file, reason in tables.left_out.items():
            warn(f"{file}: left out, {reason}")
    else:
        from autotune.kept import kept_folds, kept_left_out, kept_models, kept_runs
        tables, folds, refit = kept_runs(), kept_folds(), kept_left_out()
        library = Library(Path(folder) if folder else None, kept_models())
    if not tables.runs:
        raise InputError(Issue("runs", "hold no row", "give a table with at least one run"))
    result = report(compare(tables.runs, library), folds)
    if refit is not None:
        result["refit_on_folds"] = refit
    if tables.left_out:
        result["left_out"] = dict(tables.left_out)
    emit_validation(result, style=style)
    return DONE
