"""What the page shows for a choice: HTML and figures, or what is wrong in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from autotune.figures import search as draw_search
from autotune.pages.html import facts, figure
from autotune.pages.search import ranking_table
from autotune.pages.strategy import show_strategy
from autotune.report.digest import layout_text, recompute_text
from simcore.errors import InputError, NoFeasibleStrategyError, SimcoreError
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy

CHOSEN = ("gpus", "seq_len", "gbs", "mbs", "tp", "cp", "pp", "vpp", "ep", "etp", "zero",
          "recompute", "recompute_layers", "precision", "framework")
"""Fields with an input of their own; any other goes into the free text."""


@dataclass(frozen=True)
class Answer:
    """Something to show.

    Parameters
    ----------
    html : str
    figures : mapping
        Vega-Lite specifications by the name of their place in the HTML.
    strategy : mapping, optional
        Fields of the best strategy, to go on from.
    """

    html: str
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    strategy: Mapping[str, Any] | None = None


def parse_more(text: str) -> dict[str, object]:
    """Read ``field=value`` pairs, separated by spaces, commas or lines.

    Raises
    ------
    InputError
        A part without an equals sign.
    """
    from simcore.errors import Issue

    found: dict[str, object] = {}
    for part in text.replace(",", " ").split():
        name, mark, value = part.partition("=")
        if not mark or not value:
            raise InputError(Issue("more", f"'{part[:60]}' is no field", "write field=value"))
        found[name.replace("-", "_").lstrip("_")] = value
    return found


def problem_html(error: SimcoreError) -> str:
    """Return what is wrong as a list."""
    lines = [str(i) for i in error.issues] if isinstance(error, InputError) else [str(error)]
    return ('<div class="problem" role="alert"><ul>'
            + "".join(f"<li>{escape(line[:600])}</li>" for line in lines[:20]) + "</ul></div>")


def given(values: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that were filled in."""
    fields: dict[str, object] = {
        name: values[name] for name in CHOSEN
        if values.get(name) is not None and str(values[name]).strip() != ""}
    fields.update(parse_more(str(values.get("more") or "")))
    return {name: str(value) for name, value in fields.items()}


def predicted(values: Mapping[str, object]) -> Answer:
    """Predict the chosen strategy and draw everything that can be said of it."""
    try:
        model = load_model(str(values.get("model") or ""))
        system = load_system(str(values.get("system") or ""))
        strategy = Strategy.from_mapping(given(values))
        shown = show_strategy(model, system, strategy)
    except SimcoreError as error:
        return Answer(problem_html(error))
    body = "".join(f'<section aria-label="{escape(s.title)}"><h2>{escape(s.title)}</h2>{s.body}'
                   "</section>" for s in shown.sections)
    return Answer(body, shown.figures)


def searched(values: Mapping[str, object], *, top: int = 20) -> Answer:
    """Search the default space with what is filled in held fixed."""
    from autotune.search.problem import Problem
    from autotune.search.run import search
    from autotune.space import default_space

    try:
        model = load_model(str(values.get("model") or ""))
        system = load_system(str(values.get("system") or ""))
        fixed = given(values)
        seq_len = str(fixed.get("seq_len", ""))
        space = default_space(model, int(seq_len) if seq_len.isdigit() else None)
        result = search(Problem(model, system, space.override(fixed), top=top))
    except NoFeasibleStrategyError as error:
        return Answer(problem_html(error))
    except SimcoreError as error:
        return Answer(problem_html(error))
    data = result.to_dict()
    cells = [{"layout": layout_text(d := e.prediction["strategy"]) + ", " + recompute_text(d),
              "tp": d["tp"], "pp": d["pp"], **{k: e.prediction[k] for k in (
                  "device_memory_gib", "tokens_per_s_per_gpu", "step_time_s", "verdict")},
              "pareto": e in result.pareto} for e in (*result.pareto, *result.cells)]
    figures = {"search_pareto": draw_search.pareto(cells, data["memory_limit_gib"]),
               "search_map": draw_search.heat_map(cells)}
    text = facts((("candidates", f"{result.candidates:,} legal, {result.feasible:,} fit"),
                  ("exact", "yes" if result.exact else "no"),
                  ("time", f"{result.wall_s:.2f} s")))
    html = (f"<h2>Best strategies</h2>{text}{ranking_table(data['ranked'])}"
            + figure("search_pareto", figures["search_pareto"])
            + figure("search_map", figures["search_map"]))
    return Answer(html, figures, data["ranked"][0]["strategy"])
