"""What-if curves as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from autotune.figures import whatif as draw
from autotune.pages.html import Cell, Column, Section, figure, page, table


def whatif_page(found: Mapping[str, Any]) -> str:
    """Return the page.

    Raises
    ------
    MissingExtraError
        The package that draws the figures is not installed.
    """
    from autotune import version

    figures, sections = {}, []
    for i, curve in enumerate(found.get("curves", ())):
        rows = [{"value": p["figures"][curve["figure"]], "layout": f"{p['layout']}, "
                 f"{p['recompute']}", "tokens_per_s_per_gpu": p["tokens_per_s_per_gpu"]}
                for p in found["points"] if curve["figure"] in p["figures"] and p["fits"]]
        if rows:
            name = f"curve{i}"
            figures[name] = draw.curve(curve["figure"], curve["base"], rows)
            sections.append(Section(name + "-section", curve["figure"],
                                    figure(name, figures[name]) + _breaks(curve)))
    sections.append(Section("points", "Every point", _points(found)))
    return page(f"What if: {found['model']} on {found['system']}",
                f"{found['candidates']:,} legal strategies searched at every point.", sections,
                figures, footer=f"autotune {version()}. Predicted, not measured.")


def _breaks(curve: Mapping[str, Any]) -> str:
    lines = []
    for b in curve["break_even"]:
        at = (f"From {b['value']:.4g} on" if b["value"] is not None else
              f"Between {b['between'][0]:g} and {b['between'][1]:g}")
        lines.append(f"<li>{escape(at)}: {escape(b['to'])} (before: {escape(b['from'])})</li>")
    return f"<ul>{''.join(lines)}</ul>" if lines else "<p>One strategy is best throughout.</p>"


def _points(found: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(n for p in found["points"] for n in p["figures"]))
    rows = []
    for p in found["points"]:
        head = [Cell(f"{p['figures'][n]:g}", p["figures"][n]) if n in p["figures"] else Cell("")
                for n in names]
        rows.append([*head, *([Cell("nothing fits"), Cell(""), Cell("")] if not p["fits"] else [
            Cell(f"{p['layout']}, {p['recompute']}"),
            Cell(f"{p['step_time_s']:.4g}", p["step_time_s"]),
            Cell(f"{p['tokens_per_s_per_gpu']:,.0f}", p["tokens_per_s_per_gpu"])])])
    return table([*(Column(n) for n in names), Column("best", True), Column("step s"),
                  Column("tokens/s/GPU")], rows, name="points-table", filtered=True,
                 caption="The best strategy at each value")
