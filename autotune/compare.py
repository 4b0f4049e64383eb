"""Measured runs against predictions: each row predicted, or skipped with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from autotune.runs import Run
from simcore.batch import Batch
from simcore.errors import InputError
from simcore.flops import model_flops_per_token
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.prediction import VERDICTS, evaluate
from simcore.resolve import resolve
from simcore.rules import check
from simcore.typing import FloatArray
from simcore.units import GIB, TERA

_HARDWARE = re.compile(r"(?:(?P<gb>\d+)GB|(?P<tbps>[\d.]+)TBps|(?P<watt>\d+)W)(?=-|\Z)")
_GIB_OF_NOMINAL_GB = 79.65 / 80
"""What the driver of an H100 reports over its nominal memory."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Parameters
    ----------
    run : Run
    step_time_s, peak_memory_gib : float or None
        Measured; None where the source does not give it.
    predicted : mapping
        `step_time_s`, `peak_memory_gib`, `device_memory_gib`, `verdict`; empty if skipped.
    skipped : str or None
        Why nothing was predicted.
    notes : tuple of str
        What the prediction had to assume.
    """

    run: Run
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    predicted: Mapping[str, float | str] = field(default_factory=dict)
    skipped: str | None = None
    notes: tuple[str, ...] = ()

    def error_pct(self, name: str) -> float | None:
        """Return (predicted - measured) / measured in percent; None where either is missing."""
        measured = {"step_time": self.step_time_s, "peak_memory": self.peak_memory_gib}[name]
        key = {"step_time": "step_time_s", "peak_memory": "peak_memory_gib"}[name]
        if measured is None or not self.predicted:
            return None
        return 100.0 * (float(self.predicted[key]) - measured) / measured


@dataclass(frozen=True)
class _Job:
    """A run made ready: its strategy, and by how much its step is scaled."""

    index: int
    strategy: Strategy
    scale: float
    notes: tuple[str, ...]


class Library:
    """Finds the models and systems that tables name, each once.

    Parameters
    ----------
    folder : Path or None
        Where models are looked up; beside or above each table where None.
    kept : mapping
        Models that are at hand without a file.
    """

    def __init__(self, folder: Path | None = None,
                 kept: Mapping[str, ModelSpec] | None = None) -> None:
        self._folder = folder
        self._kept = dict(kept or {})
        self._models: dict[tuple[str, str], ModelSpec] = {}
        self._systems: dict[str, SystemSpec] = {}

    def _path(self, run: Run) -> Path | None:
        folders = [self._folder] if self._folder else (
            [parent / "models" for parent in run.path.parents[:4]] if run.path else [])
        # A name with a slash or dots would leave the folder.
        if not re.fullmatch(r"[A-Za-z0-9_.+ -]{1,120}", run.model) or run.model.startswith("."):
            return None
        for folder in folders:
            for suffix in (".json", ".yaml", ".yml"):
                path = folder / f"{run.model}{suffix}"
                if path.is_file():
                    return path
        return None

    def model(self, run: Run) -> ModelSpec:
        """Return the model that a run names, before its own changes."""
        if self._folder is None and run.path is None and run.model in self._kept:
            return self._kept[run.model]
        key = (run.model, str(run.path.parent if run.path else ""))
        if key not in self._models:
            path = self._path(run)
            self._models[key] = load_model(path if path is not None else run.model)
        return self._models[key]

    def system(self, run: Run) -> SystemSpec:
        """Return the system of a run; `hw` among its conditions changes the accelerator."""
        hardware = run.conditions.get("hw", "")
        key = f"{run.system} {hardware}"
        if key not in self._systems:
            system = load_system(run.system)
            changes = _hardware_changes(hardware)
            if changes:
                accelerator = system.accelerator.model_copy(update=changes)
                # Dynamic power goes with the cube of the clock, voltage following frequency.
                slower = (accelerator.power_w / system.accelerator.power_w) ** (1.0 / 3.0)
                efficiency = system.efficiency.model_copy(update={
                    "sustained_frac": min(1.0, system.efficiency.sustained_frac * slower)})
                system = system.model_copy(update={"accelerator": accelerator,
                                                   "efficiency": efficiency})
            self._systems[key] = system
        return self._systems[key]


def _hardware_changes(text: str) -> dict[str, float]:
    """Read ``h100-96GB-HBM2e-2.4TBps-500W``: what differs from the system's own figures."""
    changes: dict[str, float] = {}
    for found in _HARDWARE.finditer(text):
        if found["gb"]:
            changes["memory_gib"] = float(found["gb"]) * _GIB_OF_NOMINAL_GB
        if found["tbps"]:
            changes["memory_bandwidth_gb_per_s"] = 1000.0 * float(found["tbps"])
        if found["watt"]:
            changes["power_w"] = float(found["watt"])
    return changes


def _vocabulary(vocab_size: int, padded: int, run: Run) -> int:
    """Return the vocabulary that is padded to what the run had.

    Megatron's NullTokenizer adds one token; where that does not explain it, the padded size
    stands for itself, since padding is idempotent.
    """
    tp = str(run.fields.get("tp") or 1)
    multiple = 128 * int(tp) if tp.isdigit() and int(tp) > 0 else 128
    for size in (vocab_size, vocab_size + 1):
        if -(-size // multiple) * multiple == padded:
            return size
    return padded


def run_model(model: ModelSpec, run: Run) -> ModelSpec:
    """Return the model as the run trained it: layers, padded vocabulary, positions."""
    if run.num_layers is not None and run.num_layers != model.num_layers:
        model = model.with_layers(run.num_layers)
    changes: dict[str, object] = {}
    dense = run.conditions.get("dense_layers")
    if dense is not None and dense.isdigit() and model.moe is not None:
        changes["moe_layers"] = None
        changes["first_dense_layers"] = min(int(dense), model.num_layers)
    padded = run.conditions.get("padded_vocab")
    if padded is not None and padded.isdigit():
        changes["vocab_size"] = _vocabulary(model.vocab_size, int(padded), run)
    seq_len = str(run.fields.get("seq_len", ""))
    if model.learned_positions and seq_len.isdigit() and (
            int(seq_len) > model.max_position_embeddings):
        changes["max_position_embeddings"] = int(seq_len)
    if not changes:
        return model
    return ModelSpec.model_validate({**model.model_dump(), **changes})


def _ready(strategy: Strategy, model: ModelSpec, index: int) -> _Job:
    """Fill what a table leaves to the reader: uneven splits, a smaller last micro-batch."""
    pp, vpp = strategy.pp or 1, strategy.vpp or 1
    notes: list[str] = []
    scale = 1.0
    chunks = pp * vpp
    split = (strategy.first_stage_layers, strategy.last_stage_layers, strategy.pp_layout)
    if all(part is None for part in split) and model.num_layers % chunks and (
            (model.num_layers + 2) % chunks):
        strategy = replace(strategy, pp_layout="auto")
        notes.append("layers do not divide into pp*vpp: most balanced split taken")
    if strategy.sp and (strategy.tp or 1) == 1:
        # Tables name it even where there is nothing to shard over.
        strategy = replace(strategy, sp=False)
    ranks = (strategy.tp or 1) * (strategy.cp or 1) * pp
    gpus, gbs, mbs = strategy.gpus or 1, strategy.gbs, strategy.mbs or 1
    step = gpus // ranks * mbs if gpus % ranks == 0 else 0
    if pp == 1 and gbs and step and gbs % step:
        rounded = -(-gbs // step) * step
        scale = gbs / rounded
        strategy = replace(strategy, gbs=rounded)
        notes.append(f"the last micro-batch is smaller: predicted with gbs {rounded}, time "
                     "scaled by tokens")
    return _Job(index, strategy, scale, tuple(notes))


def ready_strategy(run: Run, model: ModelSpec) -> Strategy:
    """Return the strategy that a run is predicted with."""
    return _ready(Strategy.from_mapping(run.fields), model, 0).strategy


def _measured_step_s(run: Run, strategy: Strategy, flops_per_token: float) -> float | None:
    """Return the measured step time: given, or from tokens/s, or from TFLOP/s."""
    if "step_time_s" in run.measured:
        return run.measured["step_time_s"]
    tokens = float(strategy.gbs or 0) * float(strategy.seq_len or 0)
    gpus = float(strategy.gpus or 1)
    if "tokens_per_s_per_gpu" in run.measured:
        return tokens / (gpus * run.measured["tokens_per_s_per_gpu"])
    if "model_tflops_per_gpu" in run.measured:
        return tokens * flops_per_token / (gpus * run.measured["model_tflops_per_gpu"] * TERA)
    return None


def _reason(error: InputError | ValueError) -> str:
    if isinstance(error, InputError):
        return "; ".join(str(issue) for issue in error.issues[:3])
    if isinstance(error, ValidationError):
        return f"model: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
    return str(error)


def compare(runs: Sequence[Run], library: Library) -> list[Outcome]:
    """Predict every run, batched by model and system.

    Parameters
    ----------
    runs : sequence of Run
    library : Library

    Returns
    -------
    list of Outcome
        One a run, in order.
    """
    outcomes: list[Outcome | None] = [None] * len(runs)
    groups: dict[tuple[ModelSpec, int], tuple[ModelSpec, SystemSpec, list[_Job]]] = {}
    models: dict[tuple[object, ...], ModelSpec] = {}
    for i, run in enumerate(runs):
        if run.problem:
            outcomes[i] = Outcome(run, skipped=run.problem)
            continue
        try:
            base = library.model(run)
            key = (id(base), run.num_layers, run.conditions.get("dense_layers"),
                   run.conditions.get("padded_vocab"), run.fields.get("tp"),
                   run.fields.get("seq_len") if base.learned_positions else None)
            if key not in models:
                models[key] = run_model(base, run)
            model, system = models[key], library.system(run)
            job = _ready(Strategy.from_mapping(run.fields), model, i)
        except (InputError, ValueError) as error:
            outcomes[i] = Outcome(run, skipped=_reason(error))
            continue
        # Models that are equal are one, wherever they were read.
        groups.setdefault((model, id(system)), (model, system, []))[2].append(job)
    for model, system, jobs in groups.values():
        _predict_or_split(model, system, jobs, runs, outcomes)
    return [outcome for outcome in outcomes if outcome is not None]


def _predict_or_split(model: ModelSpec, system: SystemSpec, jobs: Sequence[_Job],
                      runs: Sequence[Run], outcomes: list[Outcome | None]) -> None:
    """Predict a group at once; where one row stops it, one by one."""
    try:
        _predict_group(model, system, jobs, runs, outcomes)
    except InputError as error:
        if len(jobs) == 1:
            index = jobs[0].index
            outcomes[index] = Outcome(runs[index], skipped=_reason(error))
            return
        for job in jobs:
            _predict_or_split(model, system, [job], runs, outcomes)


def _predict_group(model: ModelSpec, system: SystemSpec, jobs: Sequence[_Job],
                   runs: Sequence[Run], outcomes: list[Outcome | None]) -> None:
    batch = resolve(model, system, Batch.from_strategies([job.strategy for job in jobs]))
    report = check(model, system, batch)
    legal = report.ok.nonzero()[0]
    flops = model_flops_per_token(model, batch.real("seq_len"), mtp=batch.real("mtp"),
                                  tp=batch.real("tp"))
    columns: Mapping[str, FloatArray] = {}
    if len(legal):
        columns = evaluate(model, system, batch.take(legal)).columns
    place = {int(row): at for at, row in enumerate(legal)}
    for row, job in enumerate(jobs):
        run = runs[job.index]
        if row not in place:
            reason = "; ".join(str(issue) for issue in report.issues(row)[:3])
            outcomes[job.index] = Outcome(run, skipped=reason, notes=job.notes)
            continue
        at = place[row]
        strategy = batch.row(row)
        given = replace(strategy, gbs=round((strategy.gbs or 0) * job.scale))
        outcomes[job.index] = Outcome(
            run, notes=job.notes,
            step_time_s=_measured_step_s(run, given, float(flops[row])),  # type: ignore[index]
            peak_memory_gib=run.measured.get("peak_memory_gib"),
            predicted={
                **{name: float(columns[name][at]) * job.scale for name in (
                    "step_time_s", "step_time_s_p10", "step_time_s_p90")},
                "told_apart_pct": float(columns["told_apart_pct"][at]),
                "peak_memory_gib": float(columns["peak_memory_bytes"][at]) / GIB,
                "device_memory_gib": float(columns["device_memory_bytes"][at]) / GIB,
                "verdict": VERDICTS[int(columns["verdict"][at])],
            })


def files(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the tables' names, in order."""
    return list(dict.fromkeys(outcome.run.file for outcome in outcomes))
