"""Why a fit is uncertain, and what would make it sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.changes import remedies
from simcore.inputs.strategy import Strategy
from simcore.prediction import Prediction

MEANS = {
    "fragmentation": "the allocator may lose more to fragmentation",
    "imbalance": "a router's drift may send a rank a quarter more rows than its share",
    "workspaces": "context, communicators and libraries may take more",
}


def why_marginal(prediction: Prediction, strategy: Strategy,
                 stages: list[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Say which pessimistic terms cross the memory's limit; None where none does or all is lost.

    Parameters
    ----------
    prediction : Prediction
    strategy : Strategy
        As the user gave it.
    stages : list of mapping
        ``memory.stages`` of its JSON.

    Returns
    -------
    dict or None
        ``limit_gib``; ``terms``, largest first, each with what it adds and whether it crosses
        the limit alone; ``crossed_by``, the first that does so on top of those before;
        ``expandable_segments``, whether these would make it fit; and
        ``would_fit``, changes that fit beyond doubt, the fastest first.
    """
    if prediction.verdict != "marginal":
        return None
    found = prediction.predictions
    limit = found.system.accelerator.memory_gib
    stage = max(stages, key=lambda s: (s["device_memory_high_gib"], -s["stage"]))
    likely, total, crossed = stage["device_memory_gib"], stage["device_memory_gib"], None
    terms = []
    for name in sorted(MEANS, key=lambda n: -stage["pessimistic"][f"{n}_gib"]):
        size = stage["pessimistic"][f"{name}_gib"]
        if size <= 0:
            continue
        total += size
        if crossed is None and total > limit:
            crossed = name
        terms.append({"term": name, "gib": size, "crosses_alone": likely + size > limit,
                      "meaning": MEANS[name]})
    saved = stage["pessimistic"]["expandable_gib"]
    changes = remedies(found.model, found.system, strategy, verdicts=("fits",))
    return {"stage": stage["stage"], "limit_gib": limit, "terms": terms, "crossed_by": crossed,
            "expandable_segments": 0 < saved >= stage["device_memory_high_gib"] - limit,
            "would_fit": [c.to_dict() for c in changes]}


def expert_rows(prediction: Prediction) -> dict[str, Any] | None:
    """Say how far routing may drift before the memory is full; None without experts."""
    from simcore.headroom import expert_headroom

    found = expert_headroom(prediction)
    if found is None:
        return None
    return {"imbalance": found.imbalance, "rows_per_rank": found.rows,
            "imbalance_at_limit": found.imbalance_at_limit,
            "headroom_rows_per_rank": found.headroom_rows}
