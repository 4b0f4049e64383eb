"""The page as a whole, and its figures one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.pages.html import Section, converter, facts, page
from autotune.pages.search import read_saved, search_figures, show_search
from autotune.pages.strategy import show_strategy
from simcore.errors import InputError, Issue
from simcore.inputs.load import load_model, load_strategy_file, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec

PNG_SCALE = 2.0
FIGURE_KINDS = ("svg", "png")


@dataclass(frozen=True)
class Report:
    """A page with its figures.

    Parameters
    ----------
    title, lead : str
    sections : tuple of Section
    figures : mapping
        Vega-Lite specifications by name.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    figures: Mapping[str, dict[str, Any]]

    def html(self) -> str:
        """Return the page, which needs no network and no other file."""
        from autotune import version

        return page(self.title, self.lead, self.sections, self.figures,
                    footer=f"autotune {version()}. Predicted, not measured; figures of the "
                           "hardware have their sources above.")

    def pictures(self, kind: str) -> Mapping[str, bytes]:
        """Draw every figure without a browser, as 'svg' or 'png'."""
        drawer = converter()
        if kind == "svg":
            return {name: drawer.vegalite_to_svg(spec).encode() for name, spec in
                    self.figures.items()}
        return {name: drawer.vegalite_to_png(spec, scale=PNG_SCALE)
                for name, spec in self.figures.items()}


def make_report(source: Path) -> Report:
    """Make the report of a search's folder or of a strategy file.

    Raises
    ------
    InputError
        The source cannot be read, or its strategy is illegal.
    """
    if source.is_dir():
        saved = read_saved(source)
        figures = search_figures(saved)
        sections = show_search(saved, figures)
        best = _of_strategy(saved.best, heading="The best strategy")
        summary = saved.summary
        lead = (f"Search over {summary['candidates']:,} legal strategies, by "
                f"{summary.get('objective', 'tokens_per_s')}.")
        gpus = summary["ranked"][0]["strategy"]["gpus"]
        title = f"{summary['model']} on {gpus} x {summary['system']}"
        return Report(title, lead, (*sections, *best.sections), {**figures, **best.figures})
    if not source.exists():
        raise InputError(Issue(str(source), "does not exist",
                               "name a strategy file, or a folder of 'autotune search --out'"))
    return _of_strategy(source)


def _of_strategy(path: Path, heading: str = "") -> Report:
    file = load_strategy_file(path)
    if file.model is None:
        raise InputError(Issue(str(path), "names no model", "add 'model: NAME'"))
    model, system = load_model(file.model), load_system(file.system or "h100-sxm")
    shown = show_strategy(model, system, file.strategy, heading=heading)
    title = f"{model.name} on {file.strategy.gpus} x {system.name}"
    return Report(title, "One strategy: memory, time, and what bounds them.",
                  (*shown.sections, Section("sources", "Inputs and their sources",
                                            _sources(model, system))), shown.figures)


def _sources(model: ModelSpec, system: SystemSpec) -> str:
    parts = {"chip": system.accelerator, "efficiencies": system.efficiency,
             "network": system.network}
    return facts([("model", f"{model.name}: {model.source}"), *(
        (f"{system.name}, {name}", f"{part.provenance.value}: {part.source}")
        for name, part in parts.items())])
