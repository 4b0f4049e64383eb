"""Errors that users can cause, apart from bugs.

Anything that is not a `SimcoreError` is a bug, and is never reported as "infeasible".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong with an input.

    Parameters
    ----------
    where : str
        The field or key path, with the file in front where there is one
        (``run.yaml: strategy.tp``).
    message : str
        What must hold and what was given (``must divide num_attention_heads (28), got 8``).
    fix : str
        What would be legal (``use 1, 2, 4 or 7``); empty where nothing can be named.
    """

    where: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        tail = f". {self.fix[:1].upper()}{self.fix[1:]}" if self.fix else ""
        return f"{self.where}: {self.message}{tail}"


class SimcoreError(Exception):
    """Base of everything that the user's input can cause."""


class InputError(SimcoreError):
    """Bad input; holds every problem found, not only the first.

    Parameters
    ----------
    issues : iterable of Issue
        At least one.
    """

    def __init__(self, issues: Iterable[Issue] | Issue) -> None:
        self.issues: tuple[Issue, ...] = (
            (issues,) if isinstance(issues, Issue) else tuple(issues)
        )
        super().__init__("; ".join(str(issue) for issue in self.issues))


class ResourceError(SimcoreError):
    """Something around the program fails: a full disk, a folder that is not ours, a database."""


class NoFeasibleStrategyError(SimcoreError):
    """No strategy fits; the message names the nearest miss."""


def nearest(name: str, known: Sequence[str], *, count: int = 3) -> str:
    """Say which known names are nearest to an unknown one.

    Returns
    -------
    str
        A phrase such as ``did you mean 'h100-sxm'?``, or the list of what is known.
    """
    # An endless name would make the comparison slow and the message useless.
    close = difflib.get_close_matches(name[:80].lower(), known, n=count, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    shown = ", ".join(known[:40])
    return f"known: {shown}" + (", ..." if len(known) > 40 else "")
