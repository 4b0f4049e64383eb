"""What an export consists of, whatever it is written for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcore.errors import Issue

Row = Mapping[str, object]
"""A strategy's fields, resolved."""


@dataclass(frozen=True)
class Line:
    """Words that belong together on a command line, and why they are there."""

    words: tuple[str, ...]
    why: str


@dataclass
class Exported:
    """A strategy in a framework's own terms.

    Parameters
    ----------
    target : str
        Framework it is written for.
    lines : list of Line
        Arguments, in order.
    env : dict of str to (str, str)
        Variables of the environment: value, and why.
    files : dict of str to str
        Further files, by name.
    notes : list of str
        What the target does not express, or leaves to the user.
    reasons : dict of str to str
        Why a setting in a file has its value, by the setting's name.
    issues : list of Issue
        What it cannot express, so that a run would be another one than was predicted.
    """

    target: str
    lines: list[Line] = field(default_factory=list)
    env: dict[str, tuple[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)

    def add(self, why: str, *words: object) -> None:
        """Add arguments."""
        self.lines.append(Line(tuple(str(word) for word in words), why))

    def refuse(self, where: str, message: str, fix: str = "") -> None:
        """Note what the target cannot express."""
        self.issues.append(Issue(where, message, fix))

    def only(self, row: Row, name: str, *allowed: object) -> None:
        """Refuse a field whose value is none of those that the target can express."""
        if row[name] not in allowed:
            shown = ", ".join(_shown(value) for value in dict.fromkeys(allowed))
            self.refuse(name, f"{_shown(row[name])} cannot be expressed in {self.target}",
                        f"use {shown}")

    def needs_framework(self, row: Row, *names: str) -> None:
        """Refuse a strategy that was predicted for another framework."""
        if row["framework"] not in names:
            self.refuse("framework", f"was predicted for {row['framework']}, got --to "
                        f"{self.target}", f"predict it with --framework {names[0]} first")

    @property
    def args(self) -> list[str]:
        """All arguments as one list of words."""
        return [word for line in self.lines for word in line.words]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"target": self.target, "args": self.args,
                "env": {name: value for name, (value, _) in self.env.items()},
                "files": dict(self.files), "notes": list(self.notes),
                "reasons": {**{" ".join(line.words): line.why for line in self.lines},
                            **self.reasons}}


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def bash_array(name: str, lines: list[Line]) -> str:
    """Write arguments as an array of bash, one line each with its reason."""
    rows = [f"  {shlex.join(line.words)}  # {comment(line.why)}" for line in lines]
    return "\n".join([f"{name}=(", *rows, ")"]) + "\n"


def comment(text: str) -> str:
    """Return a text that cannot leave a comment: one line of printable characters."""
    return "".join(c if c.isprintable() else " " for c in text)
