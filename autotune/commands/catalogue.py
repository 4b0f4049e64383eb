"""What ``autotune models`` and ``autotune systems`` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Data = Mapping[str, Any]


def flatten(data: Data, prefix: str = "") -> list[dict[str, Any]]:
    """List the figures of a spec as rows of key path and value; lists are joined.

    Each row carries the source and provenance of its section.
    """
    rows: list[dict[str, Any]] = []
    about = {key: data[key] for key in ("provenance", "source") if key in data}
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += [{**about, **row} for row in flatten(value, f"{path}.")]
        elif key not in about:
            rows.append({"key": path, "value": _joined(value), **about})
    return rows


def _joined(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _runs(value)
    return value


def _runs(values: Sequence[Any]) -> str:
    """Join a list, ``3 x false, 58 x true`` where values repeat."""
    parts: list[tuple[Any, int]] = []
    for value in values:
        if parts and parts[-1][0] == value:
            parts[-1] = (value, parts[-1][1] + 1)
        else:
            parts.append((value, 1))
    return ", ".join(f"{n} x {v}" if n > 1 else f"{v}" for v, n in parts)
