"""Memory and speed of strategies: the one way from a strategy to a number.

`evaluate` predicts a batch, `predict` a batch of one, and `bound` what a search needs to leave
candidates out: the same memory, and a step time that is never above the predicted one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simcore.batch import Batch
from simcore.breakdown import TIME_TERMS, phase_times, recomputed_flops, time_terms
from simcore.device_memory import DeviceMemory, device_bytes
from simcore.errors import InputError
from simcore.flops import model_flops_per_token
from simcore.frame import Frame
from simcore.inputs.fields import FIELD, code
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.interval import relative_interval
from simcore.memory import PHASES, ClassMemory, class_memory
from simcore.parameters import active_parameters, total_parameters
from simcore.resolve import is_fp8, resolve
from simcore.rules import check
from simcore.timing import Timing
from simcore.typing import FloatArray, IntArray
from simcore.units import GIB, TERA

VERDICTS = ("fits", "marginal", "does_not_fit")
"""Verdicts; a column holds the index."""


@dataclass(frozen=True)
class Bounds:
    """What a search needs of every candidate, arrays of shape (n,).

    Parameters
    ----------
    step_time_lower_s : ndarray
        Never above `evaluate`'s step time [s].
    peak_memory_bytes, device_memory_bytes, device_memory_high_bytes : ndarray
        Exactly `evaluate`'s [B].
    verdict : ndarray of int
        Index into `VERDICTS`.
    """

    step_time_lower_s: FloatArray
    peak_memory_bytes: FloatArray
    device_memory_bytes: FloatArray
    device_memory_high_bytes: FloatArray
    verdict: FloatArray


@dataclass(frozen=True)
class Predictions:
    """Predictions of a batch.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
        Resolved.
    columns : mapping of str to ndarray, shape (n,)
        ``step_time_s``, rates, memory in bytes, ``verdict`` (index into `VERDICTS`) and the
        time terms.
    stages : tuple of ClassMemory
        Memory of each class of ranks.
    frame : Frame
        A single strategy's has every pipeline rank as a class of its own.
    timing : Timing
    """

    model: ModelSpec
    system: SystemSpec
    batch: Batch
    columns: Mapping[str, FloatArray]
    stages: tuple[ClassMemory, ...]
    frame: Frame
    timing: Timing

    def __len__(self) -> int:
        return len(self.batch)

    def row(self, i: int) -> Prediction:
        """Return row i."""
        return Prediction(self, i)


@dataclass(frozen=True)
class Prediction:
    """One strategy's prediction: a row of a batch."""

    predictions: Predictions
    index: int

    def __getitem__(self, name: str) -> float:
        """Return a column's value."""
        return float(self.predictions.columns[name][self.index])

    @property
    def strategy(self) -> Strategy:
        """The resolved strategy."""
        return self.predictions.batch.row(self.index)

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return VERDICTS[int(self["verdict"])]

    def strategy_dict(self) -> dict[str, Any]:
        """Return every field, resolved, and ``dp`` and ``num_microbatches``."""
        frame, i = self.predictions.frame, self.index
        fields: dict[str, Any] = dict(self.strategy.items())
        return {**fields, "dp": int(frame.dp[i]),
                "num_microbatches": int(frame.microbatches[i])}

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as the JSON of ``autotune predict``."""
        model, system = self.predictions.model, self.predictions.system
        return {
            "model": {"name": model.name, "parameters": total_parameters(model),
                      "active_parameters": active_parameters(model)},
            "system": {"name": system.name, "memory_gib": system.accelerator.memory_gib},
            "strategy": self.strategy_dict(),
            "verdict": self.verdict,
            "peak_memory_gib": self["peak_memory_bytes"] / GIB,
            "device_memory_gib": self["device_memory_bytes"] / GIB,
            "device_memory_high_gib": self["device_memory_high_bytes"] / GIB,
            "memory": {"stages": self._stages()},
            **{name: self[name] for name in (
                "step_time_s", "step_time_s_p10", "step_time_s_p90", "told_apart_pct",
                "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu",
                "mfu", "hfu")},
            "time": {name: self[name] for name in TIME_TERMS},
            "phases": self._phases(),
        }

    @cached_property
    def alone(self) -> Alone:
        """This row by itself, every pipeline rank a class of its own."""
        whole, i = self.predictions, self.index
        if len(whole) == 1:
            return Alone(whole.frame, whole.stages, whole.timing)
        frame = Frame.build(whole.model, whole.system, whole.batch.take(slice(i, i + 1)),
                            apart=True)
        return Alone(frame, frame.per_class(class_memory), Timing(frame))

    def _stages(self) -> list[dict[str, Any]]:
        """Memory of every pipeline rank, each with its own micro-batches in flight."""
        ranks, frame = self.alone.stages, self.alone.frame
        device = _device(frame, ranks)
        return [_stage(rank, memory, device, frame) for rank, memory in enumerate(ranks)]

    def _phases(self) -> list[dict[str, Any]]:
        """Seconds of every pipeline rank by phase."""
        return [{"stage": rank, **{name: float(values[0]) for name, values in found.items()}}
                for rank, found in enumerate(phase_times(self.alone.timing))]


class Alone(NamedTuple):
    """What one strategy's ranks hold and do, every pipeline rank a class of its own."""

    frame: Frame
    stages: tuple[ClassMemory, ...]
    timing: Timing


def _device(frame: Frame, stages: tuple[ClassMemory, ...]) -> DeviceMemory:
    """What the device shows of each class, arrays of shape (C, n), or broadcasting with it."""
    peak, dynamic, activations = (np.stack([getattr(stage, part) for stage in stages])
                                  for part in ("peak", "dynamic", "activations"))
    return device_bytes(frame, peak, dynamic, activations)


def _stage(rank: int, memory: ClassMemory, device: DeviceMemory, frame: Frame) -> dict[str, Any]:
    shape = device.likely.shape
    pessimistic = {
        f"{name}_gib": float(np.broadcast_to(getattr(device, name), shape)[rank, 0]) / GIB
        for name in ("fragmentation", "imbalance", "workspaces", "expandable")}
    parts = ("weights", "gradients", "optimizer", "activations", "temporaries")
    absent = {"head": not frame.stage(frame.tables.has_head, rank)[0],
              "recompute": not frame.whole_layers(rank).any()}
    return {
        "stage": rank,
        **{f"{name}_gib": float(getattr(memory, name)[0]) / GIB for name in parts},
        "peak_memory_gib": float(memory.peak[0]) / GIB,
        "device_memory_gib": float(device.likely[rank, 0]) / GIB,
        "device_memory_high_gib": float(device.high[rank, 0]) / GIB,
        "peak_phase": PHASES[int(memory.phase[0])],
        "phases": {f"{name}_gib": None if absent.get(name) else float(value) / GIB
                   for name, value in zip(PHASES, memory.phases[0], strict=True)},
        "pessimistic": pessimistic,
        "host_memory_gib": float(memory.host[0]) / GIB,
    }


TIME_ONLY_FIELDS = ("overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap",
                    "overlap_p2p", "delay_wgrad_compute", "rank_order")
"""Fields that memory does not depend on."""
MEMORY_FIELDS = tuple(name for name in FIELD if name not in TIME_ONLY_FIELDS)


def _memory(frame: Frame, limit_bytes: float) -> tuple[
        tuple[ClassMemory, ...], IntArray | None, dict[str, FloatArray]]:
    """Memory of all classes, and of the fullest rank with its verdict.

    Evaluated once a distinct `MEMORY_FIELDS`: a search varies the overlap switches most. The
    classes' memory is that of the distinct rows, behind it is which of them each row has.
    """
    narrow, index = frame.narrowed(MEMORY_FIELDS)
    stages = narrow.per_class(class_memory)
    device = _device(narrow, stages)
    likely, high = device.likely.max(axis=0), device.high.max(axis=0)
    verdict = (likely > limit_bytes).astype(np.float64) + (high > limit_bytes)
    peak = np.maximum.reduce([stage.peak for stage in stages])
    columns = {"peak_memory_bytes": peak, "device_memory_bytes": likely,
               "device_memory_high_bytes": high, "verdict": verdict}
    if index is not None:
        columns = {name: column.take(index) for name, column in columns.items()}
    return stages, index, columns


def _limit(system: SystemSpec, limit_bytes: float | None) -> float:
    return system.accelerator.memory_gib * GIB if limit_bytes is None else limit_bytes


def bound(model: ModelSpec, system: SystemSpec, batch: Batch, *,
          limit_bytes: float | None = None) -> Bounds:
    """Bound resolved, legal strategies.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
        Resolved and legal, n rows.
    limit_bytes : float, optional
        Device memory that may be used; all that the driver reports where it is left out [B].

    Returns
    -------
    Bounds
        Memory and verdict as `evaluate` gives them; step time from below.
    """
    frame = Frame.build(model, system, batch)
    columns = _memory(frame, _limit(system, limit_bytes))[2]
    return Bounds(Timing(frame).lower_bound_s(), columns["peak_memory_bytes"],
                  columns["device_memory_bytes"], columns["device_memory_high_bytes"],
                  columns["verdict"])


def lower_bound_s(model: ModelSpec, system: SystemSpec, batch: Batch) -> FloatArray:
    """Bound the step times of resolved, legal strategies from below, shape (n,) [s].

    What `bound` gives, without the memory: to time known strategies on another system.
    """
    return Timing(Frame.build(model, system, batch)).lower_bound_s()


def evaluate(model: ModelSpec, system: SystemSpec, batch: Batch, *,
             limit_bytes: float | None = None) -> Predictions:
    """Predict strategies.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
        n rows; fields that were left out are resolved.
    limit_bytes : float, optional
        Device memory that may be used [B].

    Returns
    -------
    Predictions

    Raises
    ------
    InputError
        A row is illegal; the message names the first one's problems.
    """
    resolved = resolve(model, system, batch)
    report = check(model, system, resolved, given=batch)
    if not np.all(report.ok):
        raise InputError(report.issues(int(np.argmin(report.ok))))
    # To tell the ranks of one strategy apart costs next to nothing.
    frame = Frame.build(model, system, resolved, apart=len(resolved) == 1)
    stages, index, columns = _memory(frame, _limit(system, limit_bytes))
    if index is not None:
        stages = tuple(stage.take(index) for stage in stages)
    timing = Timing(frame)
    step = timing.step_s()
    low, high, pair = relative_interval(model, system, resolved, batch)
    columns |= {"step_time_s": step, "step_time_s_p10": step * low, "step_time_s_p90": step * high,
                "told_apart_pct": 100.0 * pair, **_rates(frame, step),
                **time_terms(timing, step)}
    for column in columns.values():
        column.setflags(write=False)
    return Predictions(model, system, resolved, columns, stages, frame, timing)


def _rates(frame: Frame, step_s: FloatArray) -> dict[str, FloatArray]:
    """Throughput and utilisation, (n,)."""
    batch, accelerator = frame.batch, frame.system.accelerator
    tokens = batch.real("gbs") * batch.real("seq_len")
    gpus = batch.real("gpus")
    flops = tokens * model_flops_per_token(frame.model, batch.real("seq_len"),
                                           mtp=np.maximum(batch.real("mtp"), 0.0),
                                           tp=batch.real("tp"))
    is_fp4 = batch["precision"] == code("precision", "nvfp4")
    peak = TERA * np.where(
        is_fp8(batch["precision"]),
        np.where(is_fp4, accelerator.peak_fp4_tflops, accelerator.peak_fp8_tflops),
        accelerator.peak_bf16_tflops)
    again = recomputed_flops(frame)
    return {
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_per_gpu": tokens / step_s / gpus,
        "model_tflops_per_gpu": flops / step_s / gpus / TERA,
        "mfu": flops / step_s / gpus / peak,
        "hfu": (flops + again) / step_s / gpus / peak,
    }


def predict(model: ModelSpec, system: SystemSpec, strategy: Strategy, *,
            limit_bytes: float | None = None) -> Prediction:
    """Predict one strategy.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    strategy : Strategy
        Fields that are None take their defaults.
    limit_bytes : float, optional
        Device memory that may be used [B].

    Returns
    -------
    Prediction
        `Prediction.to_dict` gives the JSON of ``autotune predict``.

    Raises
    ------
    InputError
        Illegal strategy, with every problem.
    """
    batch = Batch.from_strategies([strategy])
    return evaluate(model, system, batch, limit_bytes=limit_bytes).row(0)
