"""One operator of one layer on one rank, for many candidates at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from simcore.efficiency import Source
from simcore.local import Local
from simcore.typing import FloatArray, IntArray, Num


class Phase(StrEnum):
    """When an operator runs."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Term(StrEnum):
    """What an operator's time is booked under."""

    COMPUTE = "compute"
    TP = "tp_comm"
    CP = "cp_comm"
    EP = "ep_comm"
    CPU = "other"


TERMS: tuple[Term, ...] = tuple(Term)


@dataclass(frozen=True)
class Op:
    """An operator's cost, arrays of shape (u,).

    Parameters
    ----------
    name : str
    module : str
        The part of a layer it belongs to; recomputation names these.
    phase : Phase
    term : Term
    seconds : ndarray
        Exposed time [s].
    flops, bytes : ndarray
        What it computes [FLOP] and moves in memory or over links [B].
    source : ndarray
        Where its rate comes from, `simcore.efficiency.Source` codes.
    shape : tuple of float or ndarray
        Of a matrix product: groups, and rows, columns and depth of one; else empty.
    """

    name: str
    module: str
    phase: Phase
    term: Term
    seconds: FloatArray
    flops: FloatArray
    bytes: FloatArray
    source: IntArray
    shape: tuple[Num, ...] = ()


def make(local: Local, name: str, module: str, phase: Phase, seconds: Num, *,
         term: Term = Term.COMPUTE, flops: Num = 0.0, bytes_moved: Num = 0.0,
         source: IntArray | Source = Source.FORMULA,
         shape: tuple[Num, ...] = ()) -> Op:
    """Build an operator, broadcasting numbers to the batch."""
    n = len(local.batch)
    return Op(name, module, phase, term, _full(seconds, n), _full(flops, n),
              _full(bytes_moved, n), _codes(source, n), shape)


def _codes(source: IntArray | Source, n: int) -> IntArray:
    return source if isinstance(source, np.ndarray) else np.full(n, int(source))


def _full(value: Num, n: int) -> FloatArray:
    """Return a value as an array of n; numpy's own broadcast costs ten times as much for one."""
    if isinstance(value, np.ndarray) and value.shape == (n,):
        return value
    full = np.empty(n)
    full[...] = value
    return full
