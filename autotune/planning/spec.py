"""What a plan asks: models, clusters, workloads, and what failures cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simcore.goodput import FAILURES_PER_GPU_HOUR
from simcore.inputs.model import Frozen
from simcore.inputs.yaml_io import read_data, require_mapping, validate

Positive = Annotated[float, Field(gt=0, le=1e18)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_048_576)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class GpuRange(Frozen):
    """GPU counts from one to another: doubled each time, or by a step."""

    min: Count
    max: Count
    step: Count | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max must be at least min ({self.min}), got {self.max}")
        if len(self.counts) > 64:
            raise ValueError(f"gives {len(self.counts)} counts, at most 64 are planned")
        return self

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts, ascending."""
        if self.step is not None:
            return tuple(range(self.min, self.max + 1, self.step))
        found = [self.min]
        while found[-1] * 2 <= self.max:
            found.append(found[-1] * 2)
        return tuple(found)


class Cluster(Frozen):
    """GPUs that could be used."""

    name: Name
    system: Name
    """Built-in name or a file, relative to the plan's."""
    gpus: tuple[Count, ...] | Count | GpuRange
    available_gpus: Count | None = None
    """How many there are at all, for a split among jobs; counts above it are not planned."""
    price_per_gpu_hour: Positive | None = None
    power_w: Positive | None = None
    """Of a GPU with its share of the node; the accelerator's where left out."""
    pue: Annotated[float, Field(ge=1, le=5)] = 1.2
    """Power usage effectiveness of the building."""

    @property
    def counts(self) -> tuple[int, ...]:
        """GPU counts that are planned, ascending."""
        if isinstance(self.gpus, GpuRange):
            counts = self.gpus.counts
        else:
            counts = (self.gpus,) if isinstance(self.gpus, int) else self.gpus
        limit = self.available_gpus or max(counts)
        return tuple(sorted({n for n in counts if n <= limit}))


class Workload(Frozen):
    """A training run that is wanted."""

    name: Name
    tokens: Positive
    models: tuple[Name, ...] | None = None
    """Which of the plan's models it is for; all where left out."""
    gbs: Count | None = None
    seq_len: Count | None = None
    precision: Name | None = None
    framework: Name | None = None
    deadline_days: Positive | None = None
    budget_usd: Positive | None = None

    def fields(self) -> dict[str, object]:
        """Strategy fields that the workload fixes."""
        return {name: getattr(self, name)
                for name in ("gbs", "seq_len", "precision", "framework")
                if getattr(self, name) is not None}


class Failures(Frozen):
    """What stops a run and what that costs."""

    per_gpu_hour: Annotated[float, Field(ge=0, le=1)] = FAILURES_PER_GPU_HOUR
    """Llama 3's rate (arXiv:2407.21783, table 5) where left out; 0: none."""
    checkpoint_s: Positive = 30.0
    """From the start of a checkpoint until it is safe."""
    checkpoint_pause_s: Positive | None = 2.0
    """How long of that the run stands still, where it is written while training goes on; null:
    all of it."""
    restart_s: Positive = 600.0
    """From a failure until the run works again."""

    @property
    def pause_s(self) -> float:
        """What a checkpoint keeps the run from working."""
        pause = self.checkpoint_pause_s
        return self.checkpoint_s if pause is None else min(pause, self.checkpoint_s)


class Job(Frozen):
    """One of the jobs that share a cluster."""

    model: Name
    workload: Name
    weight: Positive = 1.0


class Split(Frozen):
    """How one cluster is shared."""

    cluster: Name
    jobs: Annotated[tuple[Job, ...], Field(min_length=1, max_length=64)]
    objective: Literal["makespan", "weighted_throughput", "cost"] = "makespan"
    """makespan: the last job ends soonest; weighted_throughput: most tokens, by weight; cost:
    cheapest that meets the deadlines."""


class Plan(Frozen):
    """What ``autotune plan`` takes."""

    name: Name = "plan"
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)]
    clusters: Annotated[tuple[Cluster, ...], Field(min_length=1, max_length=100)]
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1, max_length=100)]
    failures: Failures = Failures()
    space: Name | None = None
    """Search space; the default of each model where left out."""
    marginal: bool = False
    """Whether layouts count whose fit is uncertain."""
    splits: tuple[Split, ...] = ()

    @model_validator(mode="after")
    def _names(self) -> Self:
        for what, names in (("models", self.models),
                            ("clusters", [c.name for c in self.clusters]),
                            ("workloads", [w.name for w in self.workloads])):
            twice = {n for n in names if list(names).count(n) > 1}
            if twice:
                raise ValueError(f"{what} must have different names, got {sorted(twice)} twice")
        for workload in self.workloads:
            unknown = set(workload.models or ()) - set(self.models)
            if unknown:
                raise ValueError(f"workload {workload.name} names models that the plan lacks: "
                                 f"{', '.join(sorted(unknown))}")
        self._check_splits()
        return self

    def _check_splits(self) -> None:
        clusters = {c.name for c in self.clusters}
        workloads = {w.name for w in self.workloads}
        for split in self.splits:
            if split.cluster not in clusters:
                raise ValueError(f"a split names cluster {split.cluster}, which the plan lacks; "
                                 f"it has {', '.join(sorted(clusters))}")
            for job in split.jobs:
                if job.model not in self.models or job.workload not in workloads:
                    raise ValueError(f"a split names job {job.model} / {job.workload}, which the "
                                     "plan lacks")


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises
    ------
    InputError
        With every problem of the file.
    """
    data = require_mapping(read_data(path), where=str(path))
    return validate(Plan, data, where=str(path))
