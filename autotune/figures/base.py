"""What all figures share: scheme, sizes, colours that stay apart for colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Spec = dict[str, Any]
Data = Mapping[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
WIDTH = 640

# Okabe and Ito, "Color Universal Design", 2008.
BLUE, ORANGE, GREEN, YELLOW, SKY, VERMILION, PURPLE, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#F0E442", "#56B4E9", "#D55E00", "#CC79A7", "#8C8C8C")

PART_COLOURS = {"weights": BLUE, "gradients": SKY, "optimizer": GREEN, "activations": ORANGE,
                "temporaries": PURPLE}
TERM_COLOURS = {"compute": BLUE, "recompute": SKY, "tp comm": ORANGE, "cp comm": YELLOW,
                "ep comm": VERMILION, "pp comm": PURPLE, "dp comm": GREEN, "bubble": GREY,
                "optimizer": "#4B4B9B", "other": "#5C4033"}
VERDICT_COLOURS = {"fits": GREEN, "marginal": ORANGE, "does not fit": VERMILION}


def figure(title: str, description: str, **parts: Any) -> Spec:
    """Return a figure with its title and its description in words.

    Parameters
    ----------
    title, description : str
    **parts
        The rest of the specification.
    """
    return {"$schema": SCHEMA, "title": {"text": title, "anchor": "start"},
            "description": description, "width": WIDTH, **parts}


def values(rows: Sequence[Data]) -> Spec:
    """Return inline data."""
    return {"values": [dict(row) for row in rows]}


def colours(known: Mapping[str, str], used: Sequence[str]) -> Spec:
    """Return a colour scale for the categories that occur, in the order of the scheme."""
    domain = [name for name in known if name in used]
    return {"domain": domain, "range": [known[name] for name in domain]}


def axis(field: str, title: str, kind: str = "quantitative", **more: Any) -> Spec:
    """Return an encoding of one field."""
    return {"field": field, "type": kind, "title": title, **more}
