"""``autotune compare``."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.commands.failures import DONE
from autotune.commands.inputs import Problems, output_format
from simcore.errors import InputError, Issue

MOST = 20


def run(values: Mapping[str, object]) -> int:
    """Compare predictions with the first of them."""
    style = output_format(values)
    given = values.get("sources")
    sources = [str(s) for s in given] if isinstance(given, (list, tuple)) else []
    if not 2 <= len(sources) <= MOST:
        raise InputError(Issue("SOURCES", f"two to {MOST} are compared, got {len(sources)}",
                               "name strategy files, the JSON of 'predict', or folders of "
                               "'search --out'"))
    from autotune.sidebyside import compare, read_side

    problems = Problems()
    sides = [problems.collect(lambda s=source: read_side(s)) for source in sources]  # type: ignore[misc]
    problems.settle()
    found = compare([side for side in sides if side is not None])
    from autotune.report.emit import emit

    def table() -> None:
        from autotune.report.sidebyside import print_comparison
        print_comparison(found)

    emit(found, style=style, table=table, rows=lambda: found["sides"])
    return DONE
