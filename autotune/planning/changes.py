"""What moved since the last plan, why, and what is newly broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
MOVED_PCT = 0.1
"""Step times that differ by less count as the same."""
KEY = ("model", "cluster", "workload", "gpus")
_BREAKS = (("fits", "no longer fits"), ("meets_deadline", "misses its deadline"),
           ("meets_budget", "exceeds its budget"))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Row:
    """Compare a plan's answer with an earlier one.

    Returns
    -------
    dict
        ``moved`` (rows whose step time, layout or fit changed, with the inputs that did),
        ``added`` and ``removed`` rows, ``broken`` and ``mended`` questions in words, and
        ``inputs`` that changed.
    """
    inputs = _inputs(before.get("inputs", {}), after["inputs"])
    old = {_key(r): r for r in before.get("rows", ())}
    new = {_key(r): r for r in after["rows"]}
    moved = [found for key, row in new.items() if key in old
             and (found := _moved(old[key], row, inputs)) is not None]
    broken, mended = _turned(before.get("questions", ()), after["questions"])
    return {"inputs": inputs, "moved": moved,
            "added": [dict(zip(KEY, key, strict=True)) for key in new if key not in old],
            "removed": [dict(zip(KEY, key, strict=True)) for key in old if key not in new],
            "broken": broken, "mended": mended}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY)


def _inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of what is not as it was: the tool, the plan, models, systems."""
    found = [name for name, words in (("tool", "autotune or its data"), ("plan", "the plan"))
             if before.get(name) != after.get(name) for name in (words,)]
    for part, word in (("models", "model"), ("systems", "system")):
        old = before.get(part, {})
        found += [f"{word} {name}" for name, value in after.get(part, {}).items()
                  if name in old and old[name] != value]
    return found


def _moved(old: Row, new: Row, inputs: Sequence[str]) -> Row | None:
    if old["fits"] != new["fits"]:
        what = "fits now" if new["fits"] else "no longer fits"
        pct = None
    elif not new["fits"]:
        return None
    else:
        pct = 100.0 * (new["step_time_s"] / old["step_time_s"] - 1.0)
        layout = old["layout"] != new["layout"]
        if abs(pct) < MOVED_PCT and not layout:
            return None
        what = f"step {pct:+.2f} %" + (f", layout {old['layout']} -> {new['layout']}"
                                       if layout else "")
    own = (f"model {new['model']}", f"system {new['system']}", "autotune or its data", "the plan")
    why = [name for name in inputs if name in own]
    return {**{name: new[name] for name in KEY}, "what": what, "step_pct": pct,
            "why": why or ["prices, tokens or goodput of the plan"]}


def _turned(before: Sequence[Row], after: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Questions whose answer turned to no, and to yes."""
    names = KEY[:3]
    old = {tuple(q[n] for n in names): q for q in before}
    broken, mended = [], []
    for question in after:
        key = tuple(question[n] for n in names)
        label = f"{key[0]} on {key[1]}, {key[2]}"
        for field, words in _BREAKS:
            was = old.get(key, {}).get(field)
            now = question.get(field)
            if field != "fits" and question["fits"] is False:
                now = None
            if was is True and now is False:
                broken.append(f"{label} {words}")
            elif was is False and now is True:
                mended.append(f"{label}: {field.replace('_', ' ')} again")
    return broken, mended
