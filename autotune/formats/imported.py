"""What an import gives, whatever the file was."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simcore.errors import InputError, Issue

Data = dict[str, object]
_INT = re.compile(r"[+-]?\d{1,15}\Z")
_EXPRESSION = re.compile(r"[\d\s\[\]()*+,-]{1,2000}\Z")


@dataclass(frozen=True)
class Ignored:
    """Something in the file that was not taken over.

    Parameters
    ----------
    name, value : str
        As the file writes them.
    reason : str
        What it would change, or why it is not known.
    """

    name: str
    value: str
    reason: str


@dataclass
class Imported:
    """A model, a strategy and a system as mappings; each is empty where the file has none.

    Parameters
    ----------
    kind : str
        What the file was read as.
    model, strategy, system : dict
        Keys of `ModelSpec`, fields of `Strategy`, keys of `SystemSpec`.
    model_name : str
        Built-in model that the file means; `model` is empty then.
    ignored : list of Ignored
    """

    kind: str
    model: Data = field(default_factory=dict)
    strategy: Data = field(default_factory=dict)
    system: Data = field(default_factory=dict)
    model_name: str = ""
    ignored: list[Ignored] = field(default_factory=list)


class Arguments:
    """Typed values out of a mapping of arguments; every problem is collected.

    Parameters
    ----------
    values : mapping
        Text or typed values.
    where : str
        The file, put in front of messages.
    spell : callable or mapping
        How an argument is written in the file, for messages.
    """

    def __init__(self, values: Mapping[str, object], where: str,
                 spelled: Mapping[str, str] | None = None) -> None:
        self.values, self.where, self.spelled = values, where, spelled or {}
        self.issues: list[Issue] = []
        self.read: set[str] = set()

    def fail(self, name: str, message: str, fix: str = "") -> None:
        """Note that an argument cannot be used."""
        self.issues.append(Issue(f"{self.where}: {self.spelled.get(name, name)}", message, fix))

    def settle(self) -> None:
        """Raise what was noted, if anything."""
        if self.issues:
            raise InputError(self.issues)

    def raw(self, name: str, default: object = None) -> object:
        """Return an argument as it stands; None and missing take the default."""
        self.read.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def text(self, name: str, default: str = "") -> str:
        """Return an argument as text."""
        value = self.raw(name, default)
        if isinstance(value, (list, tuple)):
            value = value[0] if len(value) == 1 else " ".join(map(str, value))
        return str(value)

    def words(self, name: str) -> list[str]:
        """Return an argument that may be a list."""
        value = self.raw(name, [])
        items = value if isinstance(value, (list, tuple)) else str(value).replace(",", " ").split()
        return [str(item) for item in items]

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a switch."""
        value = self.raw(name, default)
        if isinstance(value, bool):
            return value
        text = str(value).strip().lower()
        if text not in ("true", "false", "1", "0", "yes", "no"):
            self.fail(name, f"must be true or false, got '{text[:40]}'")
        return text in ("true", "1", "yes")

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number; missing takes the default."""
        value = self.raw(name)
        if value is None or value == "None":
            return default
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        text = str(value).strip().replace("_", "")
        if isinstance(value, bool) or not _INT.match(text):
            self.fail(name, f"must be a whole number, got '{str(value)[:60]}'")
            return default
        return int(text)

    def real(self, name: str, default: float | None = None) -> float | None:
        """Return a number; missing takes the default."""
        value = self.raw(name)
        if value is None or value == "None":
            return default
        try:
            return float(str(value))
        except ValueError:
            self.fail(name, f"must be a number, got '{str(value)[:60]}'")
            return default


def pattern_of(value: object) -> int | list[int] | None:
    """Read a frequency: a number, or a list such as ``([0]*3+[1]*58)``; None where it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [int(v) for v in value if isinstance(v, int)] if len(value) <= 4096 else None
    text = str(value).strip()
    if not _EXPRESSION.match(text):
        return None
    try:
        found = _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return found


def _evaluated(node: ast.expr, depth: int = 0) -> int | list[int]:
    if depth > 40:
        raise ValueError
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**6:
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_evaluated(e, depth + 1) for e in node.elts]
        if any(isinstance(i, list) for i in items):
            raise ValueError
        return [int(i) for i in items if not isinstance(i, list)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _evaluated(node.operand, depth + 1)
        return [] if isinstance(inner, list) else -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _evaluated(node.left, depth + 1), _evaluated(node.right, depth + 1)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > 4096:
                raise ValueError
            return left * right
        if isinstance(left, int) and isinstance(right, int):
            return left + right if isinstance(node.op, ast.Add) else left * right
    raise ValueError
