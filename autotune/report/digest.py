"""What a prediction says in a word: the layout, what binds memory, what bounds the speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Data = Mapping[str, Any]

PARTS = ("weights", "gradients", "optimizer", "activations", "temporaries")
TIME_TERMS = ("compute", "recompute", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm",
              "bubble", "optimizer", "other")
LAYOUT = ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs")
VERDICT_TEXT = {"fits": "fits", "marginal": "marginal", "does_not_fit": "does not fit"}


class Binding(NamedTuple):
    """The pipeline stage that needs most memory, and what fills it."""

    stage: int
    part: str
    phase: str
    device_memory_gib: float


def binding(prediction: Data) -> Binding:
    """Find the fullest stage and the largest part of its memory; ties go to the first."""
    stages = prediction["memory"]["stages"]
    fullest = max(stages, key=lambda s: (s["device_memory_gib"], -s["stage"]))
    part = max(PARTS, key=lambda name: fullest[f"{name}_gib"])
    return Binding(int(fullest["stage"]), part, str(fullest.get("peak_phase", "")),
                   float(fullest["device_memory_gib"]))


def time_shares(prediction: Data) -> list[tuple[str, float, float]]:
    """List the time terms as (name, seconds, share of the step), in the table's order."""
    step = prediction["step_time_s"] or 1.0
    known = prediction["time"]
    return [(name, known[f"{name}_s"], known[f"{name}_s"] / step) for name in TIME_TERMS]


def bounds(prediction: Data) -> str:
    """Say what the step is spent on most, beside computing."""
    shares = time_shares(prediction)
    compute = shares[0][2]
    name, _, share = max(shares[1:], key=lambda term: term[2])
    if share < 0.02:
        return f"compute {compute:.0%}"
    return f"compute {compute:.0%}, {label(name)} {share:.0%}"


def label(name: str) -> str:
    """Return a term's name as people read it, ``tp_comm`` as ``tp comm``."""
    return name.replace("_", " ")


def layout_text(strategy: Data) -> str:
    """Say the parallel sizes that are not 1, and dp, in one line."""
    parts = [f"{name}{strategy[name]}" for name in ("tp", "cp", "pp", "vpp", "ep")
             if strategy.get(name, 1) != 1]
    if strategy.get("ep", 1) != 1 or strategy.get("etp", 1) not in (1, strategy.get("tp")):
        parts.append(f"etp{strategy.get('etp', 1)}")
    return " ".join([*parts, f"dp{strategy['dp']}", f"mbs{strategy['mbs']}"])


def recompute_text(strategy: Data) -> str:
    """Say what is recomputed, with the number of layers where it is not all."""
    what = str(strategy.get("recompute", "none"))
    layers = strategy.get("recompute_layers")
    partial = what != "none" and layers not in (None, 0, "all")
    return f"{what} ({layers})" if partial else what
