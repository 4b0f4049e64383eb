"""Find the best parallel strategy for training a large language model.

The names here are imported when they are used. The function that searches is
`autotune.search.search`, under the name `run_search` here, since `autotune.search` is a package.
"""

from __future__ import annotations

__all__ = ["Problem", "SearchResult", "SearchSpace", "default_space", "load_space",
           "run_search"]

_HOMES = {"Problem": "autotune.search.problem", "SearchResult": "autotune.result",
          "SearchSpace": "autotune.space", "default_space": "autotune.space",
          "load_space": "autotune.space", "run_search": "autotune.search.run"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module
    return getattr(import_module(_HOMES[name]), "search" if name == "run_search" else name)


def version() -> str:
    """Return the installed version; a word that says so where nothing is installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed
    try:
        return installed("autotune")
    except PackageNotFoundError:
        return "(not installed)"
