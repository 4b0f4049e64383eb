"""Peak bytes of every class of pipeline ranks, and what the device shows beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from simcore.frame import Class, Frame
from simcore.moments import Moment, moments
from simcore.saved_memory import Activations, activations, chunk_bytes, chunk_terms
from simcore.static_memory import fixed_terms, host_bytes, state_terms
from simcore.terms import Term, total
from simcore.typing import FloatArray, IntArray

STATES = ("weights", "gradients", "optimizer")
"""Parts that are held from start to end."""
OPTIMIZER_STEP = "casts of gradients and moments"
PHASES = ("forward", "backward", "head", "recompute", "optimizer")
"""Moments at which a rank can be fullest."""

@dataclass(frozen=True)
class ClassMemory:
    """Bytes of one class of ranks, arrays of shape (n,)."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    temporaries: FloatArray
    fixed: FloatArray
    """Of the temporaries, buffers that stay from start to end."""
    peak: FloatArray
    phase: FloatArray
    """Index into `PHASES`."""
    host: FloatArray
    """Of the host's memory."""
    moments: FloatArray
    """Alive in each of `PHASES` beside what stays from start to end, shape (n, P)."""

    @property
    def phases(self) -> FloatArray:
        """Peak in each of `PHASES`, shape (n, P) [B]."""
        states = self.weights + self.gradients + self.optimizer
        return self.moments + states[:, None] + self.fixed[:, None]

    @property
    def dynamic(self) -> FloatArray:
        """Of the peak, what comes and goes within a step, (n,) [B]."""
        return self.activations + self.temporaries - self.fixed

    def take(self, index: IntArray) -> ClassMemory:
        """Return the rows that an index names."""
        return ClassMemory(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class RankMemory:
    """Everything that a class of ranks can hold, in terms."""

    states: Mapping[str, tuple[Term, ...]]
    """Of weights, gradients and optimizer, from start to end."""
    fixed: tuple[Term, ...]
    """Buffers and workspaces, from start to end."""
    saved: Activations
    moments: tuple[Moment, ...]
    """In the order of `PHASES`, the optimizer step last."""


def rank_memory(frame: Frame, c: Class) -> RankMemory:
    """Find what the fullest rank of class c can hold."""
    saved = activations(frame, c)
    states, step = state_terms(frame, c)
    return RankMemory(states, fixed_terms(frame, c), saved,
                      (*moments(frame, c, saved.in_flight),
                       Moment((), step, len(frame), (OPTIMIZER_STEP,))))


def class_memory(frame: Frame, c: Class) -> ClassMemory:
    """Bytes that tensors hold on the fullest rank of class c."""
    found, n = rank_memory(frame, c), len(frame)
    saved = found.saved
    weights, gradients, optimizer = (total(found.states[part], n) for part in STATES)
    fixed = total(found.fixed, n)
    # The head works while its own chunk is alive; no activation is in the optimizer step.
    kept = np.stack((saved.kept, saved.kept, saved.kept_at_head, saved.kept, np.zeros(n)))
    beside = np.stack([moment.bytes for moment in found.moments])
    whole = kept + beside
    phase = np.argmax(whole, axis=0)[None]
    alive = np.take_along_axis(kept, phase, axis=0)[0]
    temporaries = fixed + np.take_along_axis(beside, phase, axis=0)[0]
    states = weights + gradients + optimizer
    return ClassMemory(weights, gradients, optimizer, alive, temporaries, fixed,
                       states + temporaries + alive, phase[0], saved.host + host_bytes(frame, c),
                       whole.T)


@dataclass(frozen=True)
class RankBytes:
    """What a rank of one class holds when, arrays of shape (n, ...) [B].

    Parameters
    ----------
    static : ndarray, shape (n,)
        From start to end: weights, gradients, optimizer states, fixed buffers.
    chunks : ndarray, shape (n, V)
        Saved on the device for backward by one micro-batch in each chunk.
    beside : ndarray, shape (n,)
        Beside them where activations are offloaded (on their way to the host and back), or the
        next forward runs beside a backward.
    moments : ndarray, shape (4, n)
        Beside them while an operation runs, in the order of `PHASES`.
    step : ndarray, shape (n,)
        Beside the static part in the optimizer step.
    """

    static: FloatArray
    chunks: FloatArray
    beside: FloatArray
    moments: FloatArray
    step: FloatArray


def rank_bytes(frame: Frame, c: Class) -> RankBytes:
    """Bytes of class c by when they are alive, for a simulation of events."""
    found, n = rank_memory(frame, c), len(frame)
    static = total((term for part in STATES for term in found.states[part]), n)
    saved = found.saved
    chunks = chunk_bytes(frame, chunk_terms(frame, c)) * (1.0 - saved.offloaded)[:, None]
    beside = [moment.bytes for moment in found.moments]
    return RankBytes(static + total(found.fixed, n), chunks, saved.beside, np.stack(beside[:-1]),
                     beside[-1])
