"""Find values that make an illegal strategy legal, by trying them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from simcore.batch import Batch, Column, as_column
from simcore.errors import Issue
from simcore.inputs.codec import Value, decode, encode
from simcore.inputs.fields import FIELD, FIELD_NAMES, FRAMEWORKS, UNSET, Kind
from simcore.inputs.load import load_framework
from simcore.layout import default_ends, split_choices
from simcore.resolve import resolve
from simcore.rules.base import Context, Rule, words
from simcore.typing import BoolArray

SHOWN, SHOWN_OF_MANY = 8, 4
"""Values that a message lists at most: degrees, and fields of which every multiple would do."""
ALTERNATIVES = 2
"""Fields whose change a message offers at most."""
_DEGREES = tuple(sorted({*range(1, 129), *(2**k for k in range(13))}))
_SHARES = (0.0, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_SPLIT = ("first_stage_layers", "last_stage_layers", "pp_layout")
_TOGETHER = (_SPLIT, ("recompute_layers", "recompute_method"))
Change = dict[str, Value]


def make_rule(name: str, fields: tuple[str, ...], violated: Callable[[Context], BoolArray],
              message: str | Callable[[Context], str], blamed: Sequence[str],
              where: Callable[[Context], str] | None = None) -> Rule:
    """Make a rule whose issue names values that are legal.

    Parameters
    ----------
    name, fields, violated
        As of the rule.
    message : str or callable
        What must hold; a callable gets the context of the row alone. The value of the first
        blamed field is added.
    blamed : sequence of str
        Fields whose change may help, the likeliest first; the first is where the issue is.
    where : callable, optional
        The field at fault, where that depends on the row.
    """
    def issue(context: Context, i: int) -> Issue:
        one = context.row(i)
        got = one.value(blamed[0], 0)
        shown = str(got).lower() if isinstance(got, bool) else got
        text = message if isinstance(message, str) else message(one)
        if "got " not in text and "not modelled" not in text:
            text = f"{text}, got {'nothing' if shown is None else shown}"
        return Issue(where(one) if where else blamed[0], text, suggest(one, own, blamed))

    own = Rule(name, fields, violated, issue)
    return own


def suggest(context: Context, own: Rule, blamed: Sequence[str]) -> str:
    """Name legal values of the blamed fields; empty where there are none.

    Values that make the whole strategy legal are preferred; where none does, since something
    else is wrong with it too, those that break no further rule.
    """
    rules = () if context.partial else tuple(context.rules)
    kept = tuple(rule for rule in rules if not rule.violated(context).any())
    sure: list[str] = []
    unsure = ["", ""]
    for name in blamed:
        if len(sure) == ALTERNATIVES:
            break
        changes = _changes(context, name)
        rest = Context(context.model, context.system, _variants(context, changes),
                       context.partial)
        passes = ~_any_violated(rest, (own,))
        safe = passes & ~_any_violated(rest, kept)
        legal = safe & ~_any_violated(rest, [rule for rule in rules if rule not in kept])
        texts = [_phrase(context, name, [c for c, ok in zip(changes, mask, strict=True) if ok],
                         same=name == blamed[0]) for mask in (legal, safe, passes)]
        if texts[0]:
            sure.append(texts[0])
        unsure = [old or new for old, new in zip(unsure, texts[1:], strict=True)]
    return "; or ".join(sure) or unsure[0] or unsure[1]


def _any_violated(context: Context, rules: Iterable[Rule]) -> BoolArray:
    bad = np.zeros(len(context.batch), np.bool_)
    for rule in rules:
        bad |= rule.violated(context)
    return bad


def _phrase(context: Context, name: str, changes: list[Change], *, same: bool) -> str:
    if not changes:
        return ""
    if name in _SPLIT:
        parts = [" and ".join(f"{k} {v}" for k, v in change.items()) for change in changes[:3]]
        return "use " + words(parts)
    values = [change[name] for change in changes]
    now = context.value(name, 0)
    if FIELD[name].kind in (Kind.INT, Kind.FLOAT) and isinstance(now, (int, float)):
        numbers = [v for v in values if isinstance(v, (int, float))]
        count = SHOWN_OF_MANY if name in ("gbs", "gpus", "seq_len") else SHOWN
        near = sorted(sorted(numbers, key=lambda v: _distance(v, now))[:count])
        values = [f"{v:g}" if isinstance(v, float) else v for v in near]
    shown = words(values[:SHOWN])
    return f"use {shown}" if same else f"use {name} {shown}"


def _distance(value: float, now: float) -> float:
    return abs(math.log((value + 0.5) / (max(now, 0) + 0.5)))


def _changes(context: Context, name: str) -> list[Change]:
    """List changes of a field that are worth a try."""
    if name in _SPLIT:
        return _splits(context)
    field = FIELD[name]
    now = context.value(name, 0)
    match field.kind:
        case Kind.BOOL:
            values: list[Value] = [False, True]
        case Kind.ENUM:
            values = [c for c in field.choices if c not in field.not_modelled]
        case Kind.MODULES:
            values = list(dict.fromkeys(["none", *_fewer(field.choices, context, name),
                                         *_one_each(field.choices, name)]))
        case Kind.TEXT:
            values = [p.version for p in load_framework(
                FRAMEWORKS[context.number("framework", 0)]).profiles]
        case Kind.FLOAT:
            values = [v for v in _SHARES if field.minimum <= v <= field.maximum]
        case _:
            values = [v for v in _whole_numbers(context, name)
                      if field.minimum <= v <= field.maximum]
    return [{name: value} for value in values if value != now]


def _one_each(choices: Sequence[str], name: str) -> list[Value]:
    head = ("local:", "transformer_engine:") if name == "cuda_graph" else ("", "")
    return [head[i > 0] + choice for i, choice in enumerate(choices)]


def _fewer(choices: Sequence[str], context: Context, name: str) -> list[Value]:
    """The modules at hand without one of them."""
    now = context.number(name, 0)
    codes = [now & ~(1 << i) for i in range(len(choices)) if now >> i & 1]
    return [v for code in codes if (v := decode(FIELD[name], code, ())) is not None]


def _whole_numbers(context: Context, name: str) -> list[int]:
    """Numbers to try: degrees up to 128 and powers of two; multiples near the value at hand."""
    number = {f: max(context.number(f, 0), 1) for f in
              ("tp", "cp", "pp", "ep", "etp", "gpus", "mbs", "gbs", "seq_len",
               "microbatch_group_size")}
    dense = number["tp"] * number["cp"] * number["pp"]
    steps = {
        "gbs": [max(number["gpus"] // dense, 1) * number["mbs"]],
        "gpus": [dense, math.lcm(dense, number["etp"] * number["ep"] * number["pp"])],
        "seq_len": [number["cp"] * 2, math.lcm(number["cp"] * 2, number["cp"] * number["tp"]),
                    number["cp"] * 128],
    }.get(name)
    if steps is None:
        return [0, *_DEGREES] if FIELD[name].minimum == 0 else list(_DEGREES)
    found: set[int] = set()
    for step in steps:
        middle = number[name] // step
        low = max(1, middle - 64)
        found.update(step * k for k in range(low, low + 129))
        found.update(step * number["pp"] * k for k in range(1, 9))
        found.update(step * 2**k for k in range(12))
    return sorted(found)


def _splits(context: Context) -> list[Change]:
    pp, vpp = context.number("pp", 0), context.number("vpp", 0)
    layers = context.model.num_layers
    pairs: list[tuple[int, int]] = []
    for window in (2 * vpp, layers):
        pairs = pairs or split_choices(layers, pp, vpp, window)[:6]
    one = np.ones(1, np.int64)
    first, last, _ = default_ends(layers, one * pp, one * vpp, one * context.number("mtp", 0),
                                  one * UNSET, one * UNSET)
    if vpp >= 1 and pp >= 1 and first[0] >= 0 and (pp > 1 or vpp == 1):
        pairs = [(int(first[0]), int(last[0])), *pairs]
    # A change sets fields and never clears one: users can only add to what they wrote.
    splits: list[Change] = [{"first_stage_layers": a, "last_stage_layers": b} for a, b in pairs]
    auto: Change = {"pp_layout": "auto"}
    if context.value("pp_layout", 0) == "none":
        return [*splits, auto]
    return [auto, {"pp_layout": "none"}, *({**change, "pp_layout": "none"} for change in splits)]


def _variants(context: Context, changes: list[Change]) -> Batch:
    """The strategy under each change, resolved; defaults follow the change."""
    base = context.given if context.given is not None else _loosened(context)
    texts = list(base.texts)
    columns: dict[str, Column] = {}
    size = len(changes)
    for name in FIELD_NAMES:
        codes = [encode(FIELD[name], change[name], texts) if name in change
                 else base.columns[name][0] for change in changes]
        columns[name] = as_column(codes, base.columns[name].dtype)
    batch = Batch.from_columns(columns, texts=texts, size=size)
    return resolve(context.model, context.system, batch)


def _loosened(context: Context) -> Batch:
    """The strategy with every field unset that has its default anyway."""
    batch = context.batch
    groups = [*_TOGETHER, *((n,) for n in FIELD_NAMES
                            if not any(n in group for group in _TOGETHER))]
    columns: dict[str, Column] = {name: as_column(np.repeat(column[:1], len(groups)), column.dtype)
                                  for name, column in batch.columns.items()}
    for k, group in enumerate(groups):
        for name in group:
            columns[name][k] = UNSET
    filled = resolve(context.model, context.system,
                     Batch.from_columns(columns, texts=batch.texts, size=len(groups)))
    loose: dict[str, Column] = {name: column[:1].copy() for name, column in batch.columns.items()}
    for k, group in enumerate(groups):
        if all(filled.columns[name][k] == batch.columns[name][0] for name in group):
            for name in group:
                loose[name][0] = UNSET
    return Batch.from_columns(loose, texts=batch.texts, size=1)
