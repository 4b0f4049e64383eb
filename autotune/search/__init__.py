"""Search for the best parallel strategy.

`search` answers a `Problem`; everything else is machinery. Optuna is imported by the modules
`sampled` and `study` alone, and only when they are needed.
"""

from __future__ import annotations

from autotune.search.problem import Problem

__all__ = ["Problem", "search"]


def __getattr__(name: str) -> object:
    if name == "search":
        from autotune.search.run import search
        return search
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
