"""Changes of a strategy that would make it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.commands.inputs import Case
from simcore.batch import Batch
from simcore.inputs.codec import Value
from simcore.inputs.strategy import Strategy
from simcore.prediction import evaluate
from simcore.resolve import resolve
from simcore.rules import check
from simcore.units import GIB

Change = dict[str, Value]
DOES_NOT_FIT = 2


def candidates(resolved: Strategy, *, is_moe: bool) -> list[Change]:
    """List what could be changed, alone and with recomputation of whole layers."""
    full: Change = {"recompute": "full"}
    single: list[Change] = [full]
    if is_moe:
        single.append({"recompute": "layernorm+moe_act"})
    mbs, zero = int(resolved.mbs or 1), int(resolved.zero or 0)
    single += [{"mbs": m} for m in (mbs // 2, 1) if 0 < m < mbs]
    single += [{"zero": z} for z in range(zero + 1, 4)]
    for name in ("tp", "pp", "cp", "ep", "gpus"):
        if name == "ep" and not is_moe:
            continue
        now = int(getattr(resolved, name) or 1)
        single += [{name: now * k} for k in (2, 4, 8, 16)]
    return single + [{**change, **full} for change in single[1:] if "recompute" not in change]


def remedies(case: Case, *, count: int = 5) -> tuple[dict[str, Any], ...]:
    """Find changes that make a strategy fit, the fastest first.

    Returns
    -------
    tuple of dict
        Keys `change` (as options), `device_memory_gib` and `step_time_s`.
    """
    base = resolve(case.model, case.system, Batch.from_strategies([case.strategy])).row(0)
    changes = candidates(base, is_moe=case.model.is_moe)
    rows = [replace(case.strategy, **change) for change in changes]  # type: ignore[arg-type]
    batch = resolve(case.model, case.system, Batch.from_strategies(rows))
    legal = check(case.model, case.system, batch).ok.nonzero()[0]
    if not len(legal):
        return ()
    columns = evaluate(case.model, case.system, batch.take(legal)).columns
    # More GPUs are faster, but not what was asked for: they come last.
    order = sorted(
        (i for i in range(len(legal)) if columns["verdict"][i] != DOES_NOT_FIT),
        key=lambda i: ("gpus" in changes[legal[i]], float(columns["step_time_s"][i])))
    return tuple({
        "change": " ".join(f"--{k.replace('_', '-')} {v}" for k, v in changes[legal[i]].items()),
        "device_memory_gib": float(columns["device_memory_bytes"][i]) / GIB,
        "step_time_s": float(columns["step_time_s"][i]),
    } for i in order[:count])
