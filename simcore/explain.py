"""Every tensor that is alive at a rank's peak, from the records that the memory model sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simcore.errors import InputError, Issue
from simcore.memory import PHASES, STATES, RankMemory, rank_memory
from simcore.prediction import Prediction
from simcore.tensors import Tensor
from simcore.terms import Term
from simcore.typing import Num
from simcore.units import GIB

WHOLE = 1e-9
"""Counts below this are what rounding leaves of nothing."""


@dataclass
class Alive:
    """Tensors of one name and shape that are alive at the peak.

    Parameters
    ----------
    name, part, source : str
    shape : tuple of float
    value_bytes : float
        [B]
    count : float
        Layers times micro-batches in flight; less those of them that are freed by then.
    bytes : float
        All of them [B].
    """

    name: str
    part: str
    shape: tuple[float, ...]
    value_bytes: float
    source: str
    count: float = 0.0
    bytes: float = 0.0

    def to_dict(self, names: dict[float, str]) -> dict[str, Any]:
        """Return it as JSON has it; `names` are those of number formats by their bytes."""
        return {"name": self.name, "part": self.part,
                "shape": [int(side) if side == int(side) else side for side in self.shape],
                "dtype": names.get(self.value_bytes, f"{self.value_bytes:.4g} B"),
                "count": self.count, "bytes": self.bytes, "gib": self.bytes / GIB,
                "source": self.source}


@dataclass
class Listing:
    """What is alive on one pipeline rank at its peak, largest first."""

    stage: int
    phase: str
    operator: str
    peak_bytes: float
    dtypes: dict[float, str] = field(default_factory=dict)
    tensors: list[Alive] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of ``autotune predict --explain memory``."""
        return {"stage": self.stage, "phase": self.phase, "operator": self.operator,
                "peak_memory_gib": self.peak_bytes / GIB, "peak_memory_bytes": self.peak_bytes,
                "tensors": [t.to_dict(self.dtypes) for t in self.tensors]}


def explain_memory(prediction: Prediction, stage: int | None = None) -> Listing:
    """List every tensor that is alive at the peak of a pipeline rank.

    Parameters
    ----------
    prediction : Prediction
    stage : int, optional
        Pipeline rank; the fullest where it is left out.

    Returns
    -------
    Listing
        Its tensors' bytes add up to the rank's ``peak_memory_gib``.

    Raises
    ------
    InputError
        There is no such rank.
    """
    frame, ranks = prediction.alone.frame, prediction.alone.stages
    peaks = [float(rank.peak[0]) for rank in ranks]
    at = int(np.argmax(peaks)) if stage is None else stage
    if not 0 <= at < len(peaks):
        raise InputError(Issue("stage", f"must be a pipeline rank, 0 to {len(peaks) - 1}, "
                               f"got {at}"))
    phase = int(ranks[at].phase[0])
    half = "fp16" if prediction.strategy.precision == "fp16" else "bf16"
    found = rank_memory(frame, at)
    listing = Listing(at, PHASES[phase], found.moments[phase].operator(), peaks[at],
                      {4.0: "fp32", 2.0: half, 1.0: "8 bits"})
    listing.tensors = _merged(_tensors(found, phase))
    return listing


def _tensors(found: RankMemory, phase: int) -> Iterator[tuple[str, Term, Tensor]]:
    """Terms of a single candidate at one moment, with their part and their tensors."""
    at_head = PHASES[phase] == "head"
    saved = [] if PHASES[phase] == "optimizer" else found.saved.terms(at_head=at_head)
    parts = {**{part: found.states[part] for part in STATES}, "activations": saved,
             "temporaries": [*found.fixed, *found.moments[phase].terms()]}
    for part, terms in parts.items():
        for term in terms:
            tensors = term.tensors() if callable(term.tensors) else term.tensors
            for tensor in tensors:
                yield part, term, tensor


def _number(value: Num) -> float:
    return float(np.asarray(value, np.float64).reshape(-1)[0])


def _merged(found: Iterator[tuple[str, Term, Tensor]]) -> list[Alive]:
    """Put alike tensors together, what is freed by then with what was saved."""
    rows: dict[tuple[str, tuple[float, ...], float], Alive] = {}
    for part, term, tensor in found:
        shape = tuple(map(_number, tensor.shape))
        value_bytes, number = _number(tensor.value_bytes), _number(term.number)
        # A flat buffer's number of values is its shape.
        one = 1.0 if term.is_flat else number
        count = one * _number(tensor.count)
        key = tensor.name, shape, value_bytes
        row = rows.setdefault(key, Alive(tensor.name, part, shape, value_bytes, tensor.source))
        row.count += count
        row.bytes += one * _number(tensor.bytes)
    kept = [row for row in rows.values() if abs(row.count) > WHOLE and row.bytes != 0.0]
    return sorted(kept, key=lambda row: -row.bytes)
