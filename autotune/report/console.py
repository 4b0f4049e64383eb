"""Tables for people: plain text that keeps to the terminal's width."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 160
"""Columns of a table that goes to a file or a pipe, where COLUMNS does not say."""
NARROWEST = 60


class Column(NamedTuple):
    """A column of a table.

    Those of higher `keep` are dropped first in a narrow terminal. A text wraps to `wrap`
    characters before anything is dropped; 0: it is not wrapped for that.
    """

    title: str
    right: bool = True
    keep: int = 0
    wrap: int = 0


def console() -> Console:
    """Return a console on stdout, as wide as the terminal; rich honours NO_COLOR."""
    width = None
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        width = PIPED_WIDTH
    found = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)
    if found.width < NARROWEST:
        found = Console(file=sys.stdout, highlight=False, markup=False, emoji=False,
                        width=NARROWEST)
    return found


def clean(value: Any) -> str:
    """Return text without control characters, which could rewrite the terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
                   for c in text)


def cell(value: Any, style: str = "") -> Text:
    """Return a cell; markup in names stays text."""
    return value if isinstance(value, Text) else Text(clean(value), style=style)


VERDICT_STYLE = {"fits": "green", "marginal": "yellow", "does_not_fit": "red"}


def show(out: Console, columns: Sequence[Column], rows: Iterable[Sequence[Any]], *,
         title: str = "") -> None:
    """Print a table below its title."""
    if title:
        out.print(cell(title))
    out.print(table(columns, rows, width=out.width))


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, width: int) -> Table:
    """Lay out a table, leaving out empty columns, and others until it fits the width.

    Parameters
    ----------
    columns : sequence of Column
        In order.
    rows : iterable of sequences
        One value a column; texts, numbers or rich texts.
    width : int
        Columns of the terminal.
    """
    cells = [[cell(value) for value in row] for row in rows]
    sizes = [max([len(column.title)] + [len(row[i]) for row in cells])
             for i, column in enumerate(columns)]
    sizes = [min(size, columns[i].wrap) if columns[i].wrap else size
             for i, size in enumerate(sizes)]
    shown = [i for i in range(len(columns)) if any(len(row[i]) for row in cells) or not cells]
    while len(shown) > 2 and sum(sizes[i] + 2 for i in shown) > width:
        worst = max(shown, key=lambda i: (columns[i].keep, i))
        if columns[worst].keep == 0:
            break
        shown.remove(worst)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for i in shown:
        # Only texts may wrap: half a number is worse than a long line.
        made.add_column(cell(columns[i].title), justify="right" if columns[i].right else "left",
                        no_wrap=columns[i].right, overflow="fold")
    for row in cells:
        made.add_row(*[row[i] for i in shown])
    return made


def duration(seconds: float) -> str:
    """Return seconds for people, ``12.3 ms`` or ``4.56 s``."""
    if seconds == 0:
        return "0"
    if abs(seconds) < 0.1:
        return f"{seconds * 1e3:.2f} ms"
    digits = 3 if abs(seconds) < 100 else 1 if abs(seconds) < 10_000 else 0
    return f"{seconds:,.{digits}f} s"
