"""Expand a shell word from the script's own variables, never from the machine.

What only a running shell could know (a command substitution, a variable that nothing sets)
becomes a marker that names it; whoever needs the value refuses it by that name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from autotune.formats.shell_words import MAX_DEPTH, balanced_end, quoted_end
from simcore.errors import InputError, Issue

Value = str | list[str]
MARK = re.compile("\ue000(\\d+)\ue001")
MAX_CHARACTERS = 4_000_000
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_INSIDE = re.compile(r"(#?)([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([^\]]*)\])?(:?[-=+?])?(.*)\Z", re.S)
_BINARY = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b,
           ast.Mult: lambda a, b: a * b, ast.Mod: lambda a, b: a - b * int(a / b),
           ast.Div: lambda a, b: int(a / b), ast.FloorDiv: lambda a, b: int(a / b)}
_COMPARE = {ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b,
            ast.GtE: lambda a, b: a >= b, ast.Eq: lambda a, b: a == b,
            ast.NotEq: lambda a, b: a != b}
_LARGEST = 10**15


@dataclass
class Unknown:
    """What is not known without running the script."""

    text: str
    is_unset: bool


@dataclass
class Values:
    """Variables of a script and what could not be known."""

    where: str
    variables: dict[str, Value] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    written: int = 0

    def mark(self, text: str, *, is_unset: bool = False) -> str:
        """Return a marker for something unknown."""
        self.unknown.append(Unknown(text[:80], is_unset))
        return f"\ue000{len(self.unknown) - 1}\ue001"

    def named(self, word: str) -> str:
        """Write a word with its markers as the script has them."""
        return MARK.sub(lambda m: self.unknown[int(m[1])].text, word)

    def unset_as_empty(self, word: str) -> str | None:
        """Return a word where unset variables are empty; None where it holds another unknown."""
        kept = MARK.sub(lambda m: "" if self.unknown[int(m[1])].is_unset else m[0], word)
        return None if MARK.search(kept) else kept

    def get(self, name: str) -> Value | None:
        """Return a variable or positional argument; None where nothing sets it."""
        if name in ("@", "*"):
            return self.arguments
        if name.isdigit():
            i = int(name) - 1
            return self.arguments[i] if 0 <= i < len(self.arguments) else None
        return str(len(self.arguments)) if name == "#" else self.variables.get(name)

    def expand(self, raw: str, *, depth: int = 0) -> list[str]:
        """Expand a word as written to the words that the shell would make of it."""
        if depth > MAX_DEPTH:
            raise InputError(Issue(self.where, "is nested too deeply"))
        fields: list[str] = []
        current: list[str] | None = None
        for pieces, is_quoted in self._pieces(raw, depth):
            parts = pieces
            if not is_quoted:
                joined = " ".join(pieces)
                parts = joined.split()
                if joined[:1].isspace() and current is not None:
                    fields.append("".join(current))
                    current = None
            self.written += sum(map(len, parts)) + len(parts)
            if self.written > MAX_CHARACTERS:
                raise InputError(Issue(self.where, "expands to too much text"))
            for j, part in enumerate(parts):
                if j and current is not None:
                    fields.append("".join(current))
                    current = None
                current = [*(current or []), part] if current is None else (
                    current.append(part) or current)  # type: ignore[func-returns-value]
            if not is_quoted and pieces and pieces[-1][-1:].isspace() and current is not None:
                fields.append("".join(current))
                current = None
        if current is not None:
            fields.append("".join(current))
        return fields

    def _pieces(self, raw: str, depth: int) -> list[tuple[list[str], bool]]:
        """Pieces of a word: its values, and whether they stay whole."""
        found: list[tuple[list[str], bool]] = []
        i = 0
        while i < len(raw):
            char = raw[i]
            if char == "\\":
                found.append(([raw[i + 1:i + 2].replace("\n", "")], True))
                i += 2
            elif char == "'":
                end = quoted_end(raw, i, 0, self.where)
                found.append(([raw[i + 1:end - 1]], True))
                i = end
            elif char == '"':
                end = quoted_end(raw, i, 0, self.where)
                found.append((self._double(raw[i + 1:end - 1], depth), True))
                i = end
            elif char in "$`":
                value, i = self._dollar(raw, i, depth)
                found.append(([value] if isinstance(value, str) else value, False))
            else:
                found.append(([char], True))
                i += 1
        return found

    def _double(self, raw: str, depth: int) -> list[str]:
        """Expand what stands between double quotes; only an array makes several words."""
        words = [""]
        i = 0
        while i < len(raw):
            char = raw[i]
            if char == "\\":
                after = raw[i + 1:i + 2]
                words[-1] += "" if after == "\n" else after if after in '$`"\\' else char + after
                i += 2
            elif char in "$`":
                value, i = self._dollar(raw, i, depth)
                if isinstance(value, str):
                    words[-1] += value
                elif value:
                    words[-1] += value[0]
                    words.extend(value[1:])
                elif raw.strip('"').endswith(("[@]}", "$@")):
                    return []
            else:
                words[-1] += char
                i += 1
        return words

    def _dollar(self, raw: str, i: int, depth: int) -> tuple[Value, int]:
        """Value of what starts with ``$`` or a backquote, and the index behind it."""
        if raw[i] == "`":
            end = quoted_end(raw, i, 0, self.where)
            return self.mark(raw[i:end]), end
        after = raw[i + 1:i + 2]
        if after == "(":
            end = balanced_end(raw, i + 1, 0, self.where)
            if raw.startswith("((", i + 1):
                return self._arithmetic(raw[i + 3:end - 2], depth), end
            return self.mark(raw[i:end]), end
        if after == "{":
            end = balanced_end(raw, i + 1, 0, self.where)
            return self._braces(raw[i + 2:end - 1], depth), end
        name = _NAME.match(raw, i + 1)
        if not name:
            return "$", i + 1
        value = self.get(name[0])
        if isinstance(value, list) and name[0] != "@":
            value = " ".join(value) if name[0] == "*" else value[0] if value else ""
        return (self.mark("$" + name[0], is_unset=True) if value is None else value), name.end()

    def _braces(self, inside: str, depth: int) -> Value:
        found = _INSIDE.match(inside)
        if not found or (found[5] and not found[4]):
            return self.mark("${" + inside + "}")
        length, name, index, operator, rest = found.groups()
        value = self.get(name)
        if index is not None and isinstance(value, list) and index not in ("@", "*"):
            place = self._arithmetic(index, depth)
            value = value[int(place)] if place.isdigit() and int(place) < len(value) else None
        elif isinstance(value, list) and index is None and name not in ("@", "*"):
            value = value[0] if value else None
        if length:
            return self.mark("${" + inside + "}") if value is None else str(len(value))
        is_empty = value is None or (":" in (operator or "") and value in ("", []))
        if operator and operator[-1] == "+":
            return "" if is_empty else " ".join(self.expand(rest, depth=depth + 1))
        if is_empty and operator and operator[-1] in "-=":
            default = " ".join(self.expand(rest, depth=depth + 1))
            if operator[-1] == "=":
                self.variables[name] = default
            return default
        if value is None:
            return [] if index in ("@", "*") else self.mark("${" + inside + "}", is_unset=True)
        # ${A[*]} is one word where it stands between quotes, ${A[@]} several.
        return " ".join(value) if isinstance(value, list) and "*" in (index, name) else value

    def _arithmetic(self, text: str, depth: int) -> str:
        """Whole-number arithmetic; a marker where it uses what is not known."""
        written = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", r"\1", text).strip()
        if "$" in written:
            written = " ".join(self.expand(text, depth=depth + 1))
        try:
            tree = ast.parse(written[:1000], mode="eval").body
            return str(int(self._number(tree, 0)))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError,
                OverflowError):
            return self.mark(f"$(({text}))")

    def _number(self, node: ast.expr, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ValueError
        value = None
        if isinstance(node, ast.Constant) and type(node.value) is int:
            value = node.value
        elif isinstance(node, ast.Name):
            held = self.variables.get(node.id, "0")
            value = int(held if isinstance(held, str) else held[0])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = -self._number(node.operand, depth + 1)
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            value = int(_BINARY[type(node.op)](  # type: ignore[no-untyped-call]
                self._number(node.left, depth + 1), self._number(node.right, depth + 1)))
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARE:
            value = int(_COMPARE[type(node.ops[0])](  # type: ignore[no-untyped-call]
                self._number(node.left, depth + 1), self._number(node.comparators[0], depth + 1)))
        if value is None or abs(value) > _LARGEST:
            raise ValueError
        return value
