"""The fullest rank's memory as PyTorch writes it, for the pages at pytorch.org/memory_viz.

Format: ``torch.cuda.memory._snapshot()``, read by ``torch/cuda/_memory_viz.py``: a pickle of
segments and of a trace of allocations, whose stack frames hold the tensors' names here.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.files import replacing
from simcore.errors import InputError, Issue
from simcore.events import Step, memory_track
from simcore.events.queue import IS_FORWARD, RELEASES
from simcore.events.tensors import chunk_tensors, operation_temporaries, static_tensors

MAX_EVENTS = 400_000
PICKLE_PROTOCOL = 4


@dataclass
class _Recorder:
    """Hands out addresses and writes down what is allocated and freed."""

    address: int = 0x7F0000000000
    events: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        self.events = []

    def allocate(self, name: str, where: str, size: float, at_s: float) -> tuple[int, int]:
        """Allocate a tensor; return where it is and how large."""
        place, whole = self.address, max(int(round(size)), 1)
        self.address += whole
        self._write("alloc", place, whole, at_s, [
            {"name": name, "filename": where, "line": 0}])
        return place, whole

    def free(self, tensor: tuple[int, int], at_s: float) -> None:
        """Free a tensor."""
        for action in ("free_requested", "free_completed"):
            self._write(action, *tensor, at_s, [])

    def _write(self, action: str, place: int, size: int, at_s: float,
               frames: list[dict[str, Any]]) -> None:
        if self.events is not None:
            self.events.append({"action": action, "addr": place, "size": size, "stream": 0,
                                "time_us": int(at_s * 1e6), "frames": frames})


def fullest_rank(step: Step) -> int:
    """Return the pipeline rank whose memory is highest."""
    peaks = [memory_track(step, rank).peak_bytes for rank in range(step.pp)]
    return peaks.index(max(peaks))


def snapshot(step: Step, rank: int, *, max_events: int = MAX_EVENTS) -> dict[str, Any]:
    """Return the snapshot of a pipeline rank.

    Parameters
    ----------
    step : Step
    rank : int
        Pipeline rank.
    max_events : int
        The step is cut off behind this many allocations and frees; the pattern repeats.
    """
    recorder = _Recorder()
    held = [(name, recorder.allocate(name, "static", size, 0.0), size)
            for name, size in static_tensors(step, rank)]
    alive: dict[tuple[int, int], list[tuple[int, int]]] = {}
    saved = [chunk_tensors(step, rank, chunk)
             for chunk in range(step.chunks)]
    needed = {(kind, chunk): operation_temporaries(step, rank, kind, chunk)
              for kind in range(5) for chunk in range(len(saved))}
    order = step.run.orders[rank]
    for i, (kind, chunk, microbatch) in enumerate(order.T.tolist()):
        start, end = float(step.run.start_s[rank][i]), float(step.run.end_s[rank][i])
        where = f"chunk {chunk}, micro-batch {microbatch}"
        if kind in IS_FORWARD:
            alive[chunk, microbatch] = [
                recorder.allocate(name, where, size, start)
                for name, size in saved[chunk]]
        beside = [recorder.allocate(name, where, size, start)
                  for name, size in needed[kind, chunk]]
        for tensor in beside:
            recorder.free(tensor, end)
        if kind in RELEASES:
            for tensor in alive.pop((chunk, microbatch)):
                recorder.free(tensor, end)
        if len(recorder.events or ()) > max_events:
            break
    total = sum(size for _, (_, size), _ in held)
    first = held[0][1][0]
    blocks = [{"address": place, "size": size, "requested_size": size,
               "state": "active_allocated",
               "frames": [{"name": name, "filename": "static", "line": 0}]}
              for name, (place, size), _ in held]
    segment = {"device": 0, "address": first, "total_size": total, "allocated_size": total,
               "active_size": total, "requested_size": total, "stream": 0,
               "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
               "frames": [], "blocks": blocks}
    return {"segments": [segment], "device_traces": [recorder.events], "allocator_settings": {},
            "external_annotations": []}


def write_snapshot(path: Path, step: Step) -> int:
    """Write the fullest rank's snapshot; return how many events it holds.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    data = snapshot(step, fullest_rank(step))
    try:
        with replacing(path) as stream:
            pickle.dump(data, stream, protocol=PICKLE_PROTOCOL)
    except OSError as error:
        raise InputError(Issue("--memory-snapshot", f"cannot write '{path}': {error.strerror}")
                         ) from error
    return len(data["device_traces"][0])
