"""Figures of a system by name, and ranges of values for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcore.errors import InputError, Issue, nearest
from simcore.inputs.system import Accelerator, Efficiency, Figures, Network, SystemSpec
from simcore.inputs.yaml_io import validate

SECTIONS: Mapping[str, type[Figures]] = {"accelerator": Accelerator, "efficiency": Efficiency,
                                         "network": Network}
_NOT_NUMBERS = ("provenance", "source", "vendor", "architecture", "scale_up_is_mesh",
                "scale_up_all_reduce_offload", "rail_optimised")
SPACE_FIGURES = frozenset({
    "network.gpus_per_node", "network.domain_size", "network.domain_used"})
"""Figures that decide which strategies are legal or sensible; the others only decide how fast
they are, or (memory_gib) which of them fit."""
MAX_POINTS = 1000
_RANGE = re.compile(r"(?P<low>x?[^.:x].*?)\.\.(?P<high>x?.+?)(?::(?P<count>\d{1,4}))?\Z")


def _names() -> dict[str, str]:
    """Full name of every figure, by full name and by its last part where that is unique."""
    full = [f"{section}.{name}" for section, kind in SECTIONS.items()
            for name, info in kind.model_fields.items()
            if name not in _NOT_NUMBERS and info.annotation is not str]
    short = [name.split(".")[1] for name in full]
    return {**{name: name for name in full},
            **{s: name for s, name in zip(short, full, strict=True) if short.count(s) == 1}}


NAMES: Mapping[str, str] = _names()


def figure_name(name: str) -> str:
    """Return a figure's full name.

    Raises
    ------
    InputError
        It is not known.
    """
    found = NAMES.get(name.strip())
    if found is None:
        raise InputError(Issue("--vary", f"'{name[:80]}' is no figure of a system",
                               nearest(name, sorted(NAMES))))
    return found


def base_value(system: SystemSpec, name: str) -> float:
    """Return a figure of a system by its full name."""
    section, key = name.split(".")
    return float(getattr(getattr(system, section), key))


def changed(system: SystemSpec, figures: Mapping[str, float]) -> SystemSpec:
    """Return a system with other figures.

    Raises
    ------
    InputError
        A value that is not legal there.
    """
    data = system.model_dump()
    for name, value in figures.items():
        section, key = name.split(".")
        kind = SECTIONS[section].model_fields[key].annotation
        is_whole = isinstance(getattr(getattr(system, section), key), int) and kind is not float
        data[section][key] = round(value) if is_whole else float(value)
    return validate(SystemSpec, data, where="--vary")


@dataclass(frozen=True)
class Varied:
    """A figure and the values it takes.

    Parameters
    ----------
    name : str
        Full name.
    values : tuple of float
        Ascending.
    """

    name: str
    values: tuple[float, ...]


def parse_varied(text: str, system: SystemSpec) -> Varied:
    """Read ``FIGURE=VALUES``.

    Parameters
    ----------
    text : str
        Values as ``25,50,100``, or ``LOW..HIGH:N`` for N values in equal ratios; an ``x`` in
        front means times the system's own figure (``x0.5..x4:20``).
    system : SystemSpec

    Raises
    ------
    InputError
        It cannot be read.
    """
    name, mark, rest = text.partition("=")
    full = figure_name(name)
    if not mark or not rest.strip():
        raise InputError(Issue(f"--vary {full}", "has no values", "write it as "
                               f"{full}=x0.5..x4:10, or {full}=25,50,100"))
    base = base_value(system, full)
    found = _RANGE.fullmatch(rest.strip())
    if found is None:
        values = [_number(part, base, full) for part in rest.split(",")]
    else:
        low, high = (_number(found[k], base, full) for k in ("low", "high"))
        count = int(found["count"] or 10)
        if not 2 <= count <= MAX_POINTS or not 0 < low < high:
            raise InputError(Issue(f"--vary {full}", f"'{rest[:60]}' is no range",
                                   "write it as LOW..HIGH:N, 0 < LOW < HIGH, N of at least 2"))
        values = np.geomspace(low, high, count).tolist()
    if len(values) > MAX_POINTS:
        raise InputError(Issue(f"--vary {full}", f"has {len(values)} values",
                               f"give at most {MAX_POINTS}"))
    whole = full in SPACE_FIGURES
    values = sorted({float(round(v)) if whole else float(v) for v in values})
    for value in (values[0], values[-1]):
        changed(system, {full: value})
    return Varied(full, tuple(values))


def _number(text: str, base: float, name: str) -> float:
    text = text.strip()
    is_factor = text[:1] in ("x", "X")
    try:
        value = float(text[1:] if is_factor else text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e12:
        raise InputError(Issue(f"--vary {name}", f"'{text[:40]}' is no number",
                               "write 100, or x2 for twice the system's own"))
    if is_factor and base == 0:
        raise InputError(Issue(f"--vary {name}", "is 0 in this system, so x has no meaning",
                               "give values"))
    return value * base if is_factor else value


def combinations(varied: Sequence[Varied], *, together: bool) -> list[dict[str, float]]:
    """List the points: each figure alone, or every combination of all.

    Raises
    ------
    InputError
        More than 10,000 combinations.
    """
    if not together:
        return [{v.name: value} for v in varied for value in v.values]
    total = int(np.prod([len(v.values) for v in varied]))
    if total > 10 * MAX_POINTS:
        raise InputError(Issue("--together", f"makes {total} combinations", "give fewer values: "
                               f"at most {10 * MAX_POINTS} together"))
    grids = np.meshgrid(*(v.values for v in varied), indexing="ij")
    rows = np.stack([g.ravel() for g in grids], axis=1)
    return [dict(zip((v.name for v in varied), row.tolist(), strict=True)) for row in rows]
