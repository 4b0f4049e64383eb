"""Bytes that tensors hold on a pipeline rank over a step, from the simulated operations.

Between operations a rank holds its weights, gradients, optimizer states, fixed buffers and the
activations of the chunks in flight; while an operation runs, also what it needs beside them.
How much each is comes from `simcore.memory`, when each is alive from the event simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.events.queue import IS_FORWARD, RELEASES
from simcore.events.step import Step
from simcore.memory import PHASES, rank_bytes
from simcore.typing import FloatArray


@dataclass(frozen=True)
class MemoryTrack:
    """A step function of time.

    Parameters
    ----------
    time_s : ndarray, shape (k,)
        Where it changes, ascending [s].
    bytes : ndarray, shape (k,)
        Held from there on [B].
    """

    time_s: FloatArray
    bytes: FloatArray

    @property
    def peak_bytes(self) -> float:
        """The most that is held [B]."""
        return float(self.bytes.max())


def memory_track(step: Step, rank: int) -> MemoryTrack:
    """Return what a pipeline rank holds over a step.

    Parameters
    ----------
    step : Step
    rank : int
        Pipeline rank.
    """
    held = rank_bytes(step.frame_of_ranks, rank)
    chunks, static = held.chunks[0].tolist(), float(held.static[0])
    beside = {name: float(held.moments[i, 0]) for i, name in enumerate(PHASES[:-1])}
    in_backward = max(beside["backward"], beside["recompute"])
    in_transit = float(held.beside[0])
    times, levels, alive = [0.0], [static], 0.0
    for (kind, chunk, _), start, end in zip(
            step.run.orders[rank].T.tolist(), step.run.start_s[rank].tolist(),
            step.run.end_s[rank].tolist(), strict=True):
        has_head = step.is_last(rank, chunk)
        if kind in IS_FORWARD:
            alive += chunks[chunk]
            needed = beside["forward"]
        else:
            # The loss is computed at the end of the forward and freed in backward's first
            # operators; both have every layer's saves beside them.
            needed = max(in_backward, beside["head"]) if has_head else in_backward
        times += [start, end]
        levels.append(static + alive + in_transit + needed)
        if kind in RELEASES:
            alive -= chunks[chunk]
        levels.append(static + alive)
    times += [step.barrier_s, step.end_s]
    levels += [static + float(held.step[0]), static]
    return MemoryTrack(np.array(times), np.array(levels))
