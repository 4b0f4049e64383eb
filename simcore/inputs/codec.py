"""From what users write to a field's value, and from a value to its code in a column."""

from __future__ import annotations

import math
import re

from simcore.errors import Issue, nearest
from simcore.inputs.fields import UNSET, Field, Kind

Value = int | float | bool | str

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_INT = re.compile(r"[+-]?\d{1,18}\Z")
_SAFE_TEXT = re.compile(r"[A-Za-z0-9_.*()|:+, -]{1,4000}\Z")


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _legal(field: Field) -> str:
    """Say in words what a field accepts."""
    if field.kind is Kind.BOOL:
        return "use true or false"
    if field.kind in (Kind.ENUM, Kind.MODULES):
        modelled = [c for c in field.choices if c not in field.not_modelled]
        if field.kind is Kind.ENUM:
            return "use " + ", ".join(modelled)
        return "use none, or names joined by '+': " + ", ".join(modelled)
    if field.kind is Kind.TEXT:
        return "use letters, digits and the signs _ . , * ( ) | : + -"
    return f"use {_range_text(field)}"


def _range_text(field: Field) -> str:
    word = "a whole number" if field.kind is Kind.INT else "a number"
    return f"{word} from {field.minimum:.10g} to {field.maximum:.10g}"


def parse(field: Field, raw: object, *, where: str = "") -> Value | Issue:
    """Read one value of a field.

    Parameters
    ----------
    field : Field
        Which field.
    raw : object
        Text from a command line, or what YAML or JSON gave.
    where : str
        Put in front of the field's name in a message.

    Returns
    -------
    value or Issue
        The value in the field's own type, or what is wrong with it.
    """
    name = where + field.name
    bad = Issue(name, f"must be {_expected(field)}, got {_shown(raw)}", _legal(field))
    if isinstance(raw, (dict, list, tuple, set)):
        return bad
    match field.kind:
        case Kind.INT | Kind.FLOAT:
            return _parse_number(field, raw, bad)
        case Kind.BOOL:
            return _parse_bool(raw, bad)
        case Kind.ENUM:
            return _parse_enum(field, raw, bad, name)
        case Kind.MODULES:
            return _parse_modules(field, raw, name)
        case Kind.TEXT:
            text = str(raw).strip()
            return text if _SAFE_TEXT.match(text) and not isinstance(raw, bool) else bad


def _expected(field: Field) -> str:
    match field.kind:
        case Kind.INT | Kind.FLOAT:
            return _range_text(field)
        case Kind.BOOL:
            return "true or false"
        case Kind.ENUM:
            return "one of " + ", ".join(field.choices)
        case _:
            return "text"


def _parse_number(field: Field, raw: object, bad: Issue) -> Value | Issue:
    if isinstance(raw, bool):
        return bad
    if isinstance(raw, str):
        text = raw.strip()
        if _INT.match(text):
            number: int | float = int(text)
        else:
            try:
                number = float(text)
            except ValueError:
                return bad
    elif isinstance(raw, (int, float)):
        number = raw
    else:
        return bad
    if not math.isfinite(number) or not field.minimum <= number <= field.maximum:
        return bad
    if field.kind is Kind.INT:
        return int(number) if number == int(number) else bad
    return float(number)


def _parse_bool(raw: object, bad: Issue) -> Value | Issue:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in _TRUE:
        return True
    return False if text in _FALSE else bad


def _parse_enum(field: Field, raw: object, bad: Issue, name: str) -> Value | Issue:
    text = str(raw).strip().lower()
    if text in field.not_modelled:
        legal = ", ".join(c for c in field.choices if c not in field.not_modelled)
        return Issue(name, f"'{text}' is not modelled: {field.not_modelled[text]}",
                     f"use {legal}")
    if text in field.choices:
        return text
    hint = nearest(text, field.choices)
    return Issue(name, bad.message, f"{bad.fix}" if hint.startswith("known") else hint)


def _parse_modules(field: Field, raw: object, name: str) -> Value | Issue:
    text = str(raw).strip().lower()
    if text in ("none", "false", "", "0"):
        return "none"
    prefix, _, scopes = text.rpartition(":")
    names = [part.strip() for part in scopes.replace(",", "+").split("+")]
    for part in names:
        if part not in field.choices:
            return Issue(name, f"'{part[:60]}' is not one of its modules", _legal(field))
    if len(set(names)) != len(names):
        return Issue(name, f"names a module twice, got {_shown(raw)}", _legal(field))
    if field.name == "cuda_graph":
        return _cuda_graph(prefix, names, name)
    if prefix:
        return Issue(name, f"has no prefix '{prefix[:40]}:'", _legal(field))
    alone = [n for n in ("full", "selective_op") if n in names]
    if alone and len(names) > 1:
        return Issue(name, f"'{alone[0]}' stands alone, got {_shown(raw)}", _legal(field))
    return "+".join(n for n in field.choices if n in names)


def _cuda_graph(prefix: str, names: list[str], where: str) -> Value | Issue:
    full = "full_iteration" in names
    implementation = "local" if full else "transformer_engine"
    if prefix not in ("", implementation) or (full and len(names) > 1):
        return Issue(where, "captures the full iteration with 'local', or scopes with "
                     f"'transformer_engine', got {_shown(prefix)} for {'+'.join(names)[:60]}",
                     "use none, local:full_iteration, or transformer_engine:attn+moe_router")
    return f"{implementation}:" + "+".join(names)


def encode(field: Field, value: Value | None, texts: list[str]) -> float:
    """Code of a value in a column; `texts` grows with the texts that are new."""
    if value is None:
        return UNSET
    match field.kind:
        case Kind.ENUM:
            return field.choices.index(str(value))
        case Kind.MODULES:
            names = str(value).rpartition(":")[2].split("+")
            return sum(1 << field.choices.index(n) for n in names if n != "none")
        case Kind.TEXT:
            if value not in texts:
                texts.append(str(value))
            return texts.index(str(value))
        case _:
            return float(value)


def decode(field: Field, number: float, texts: tuple[str, ...]) -> Value | None:
    """Value of a code; the inverse of `encode`."""
    if number == UNSET:
        return None
    match field.kind:
        case Kind.FLOAT:
            return float(number)
        case Kind.BOOL:
            return bool(number)
        case Kind.ENUM:
            return field.choices[int(number)]
        case Kind.MODULES:
            names = [c for i, c in enumerate(field.choices) if int(number) >> i & 1]
            if field.name == "cuda_graph" and names:
                head = "local" if names == ["full_iteration"] else "transformer_engine"
                return f"{head}:" + "+".join(names)
            return "+".join(names) or "none"
        case Kind.TEXT:
            return texts[int(number)]
        case _:
            return int(number)
