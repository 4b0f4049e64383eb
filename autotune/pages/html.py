"""Pieces of HTML; every name from a file or the user is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template
from typing import Any, NamedTuple

from simcore.errors import SimcoreError

EXTRA = "pip install 'autotune[report]'"


class MissingExtraError(SimcoreError):
    """A package that only the pictures need is not installed."""


class Column(NamedTuple):
    """A column of a table: its title, and whether it holds text rather than numbers."""

    title: str
    is_text: bool = False


class Cell(NamedTuple):
    """A cell: what is shown, what it is sorted by, and a class."""

    text: str
    value: float | None = None
    style: str = ""


class Section(NamedTuple):
    """A part of the page with a heading that can be linked to."""

    name: str
    title: str
    body: str


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, name: str,
          caption: str, filtered: bool = False) -> str:
    """Return a table that is sorted by a click on a heading, with a filter on request."""
    head = "".join(f'<th scope="col"{_class("text" if c.is_text else "")}>{escape(c.title)}</th>'
                   for c in columns)
    body = []
    count = 0
    for row in rows:
        count += 1
        cells = "".join(
            f'<td{_class(" ".join(filter(None, ("text" if c.is_text else "", cell.style))))}'
            + (f' data-value="{cell.value!r}"' if cell.value is not None else "")
            + f'>{escape(cell.text)}</td>' for c, cell in zip(columns, row, strict=True))
        body.append(f"<tr>{cells}</tr>")
    search = "" if not filtered else (
        f'<p class="filter"><label for="{name}-filter">Filter</label>'
        f'<input id="{name}-filter" type="search" data-filters="{name}" '
        f'placeholder="words that a row must hold, such as tp8 full">'
        f'<span id="{name}-count" aria-live="polite">{count} of {count}</span></p>')
    return (f'{search}<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(caption)}"><table class="sortable" id="{name}">'
            f"<caption>{escape(caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>")


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Return names and values, one below the other."""
    return '<dl class="facts">' + "".join(
        f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>"
        for key, value in pairs) + "</dl>"


def figure(name: str, spec: Mapping[str, Any]) -> str:
    """Return the place of a figure, with its description in words below it."""
    return (f'<figure><div class="drawing" data-figure="{escape(name)}"></div>'
            f'<figcaption>{escape(str(spec["description"]))}</figcaption></figure>')


def code(text: str) -> str:
    """Return a block of code."""
    return f"<pre><code>{escape(text)}</code></pre>"


def page(title: str, lead: str, sections: Sequence[Section],
         figures: Mapping[str, Mapping[str, Any]], *, footer: str) -> str:
    """Return the whole page.

    Parameters
    ----------
    title, lead, footer : str
        Plain text.
    sections : sequence of Section
        Bodies of HTML.
    figures : mapping
        Vega-Lite specifications by the name that `figure` was given.

    Raises
    ------
    MissingExtraError
        The package that draws the figures is not installed.
    """
    folder = files("autotune.report") / "templates"
    template = Template((folder / "page.html").read_text("utf-8"))
    # "</script>" in a name would end the data: every "<" is written as its code.
    data = json.dumps({"figures": figures}, allow_nan=False).replace("<", "\\u003c")
    return template.substitute(
        title=escape(title), lead=escape(lead), footer=escape(footer), data=data,
        style=(folder / "page.css").read_text("utf-8"),
        script=_texts(folder, "draw.js", "page.js"), library=library(),
        contents="".join(f'<li><a href="#{s.name}">{escape(s.title)}</a></li>'
                         for s in sections),
        sections="".join(f'<section id="{s.name}" aria-labelledby="{s.name}-title">'
                         f'<h2 id="{s.name}-title">{escape(s.title)}</h2>{s.body}</section>'
                         for s in sections))


def _texts(folder: Traversable, *names: str) -> str:
    """Files of a folder, one behind the other."""
    return "".join((folder / name).read_text("utf-8") for name in names)


def converter() -> Any:
    """Return vl-convert, which holds Vega and draws without a browser."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError(f"figures need a package that is not installed: {EXTRA}"
                                ) from error
    return vl_convert


@cache
def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    # An end tag within the library's own strings would end the script.
    bundle: str = converter().javascript_bundle()
    # Its own names stay inside; what it offers it hangs on the window itself.
    return "(() => {" + bundle.replace("</script", "<\\/script") + "\n})();"
