"""Where every millisecond of a step goes, by pipeline rank, operator and phase.

The listing adds up the same operators as `simcore.timing`, one by one, so that each rank's rows
sum to the step. What a resource costs is found by predicting anew with that resource's figures
changed, not by a second formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.frame import Frame
from simcore.inputs.system import SystemSpec
from simcore.layer_costs import NOT_CHECKPOINTED, Times, recomputed_modules
from simcore.operators.base import Op, Phase, Term
from simcore.prediction import Prediction, evaluate
from simcore.timing import Timing

ENDLESS = 1e9
"""Factor that makes a rate as good as infinite."""
RESOURCES: Mapping[str, Mapping[tuple[str, str], float]] = {
    "tensor cores": {("accelerator", name): ENDLESS for name in (
        "peak_bf16_tflops", "peak_fp8_tflops", "peak_fp4_tflops")},
    "memory bandwidth": {("accelerator", "memory_bandwidth_gb_per_s"): ENDLESS},
    "NVLink": {("network", "scale_up_gb_per_s"): ENDLESS},
    "NIC": {("network", "nic_gb_per_s"): ENDLESS},
    "CPU launch": {("efficiency", "cpu_launch_frac"): 0.0},
    "latency": {**{("network", name): 0.0 for name in (
        "scale_up_latency_us", "collective_base_us", "scale_out_latency_us")},
        ("efficiency", "launch_s_per_kernel_us"): 0.0},
}
"""What is made infinitely fast: figures of the system file, and the factor on them."""


@dataclass(frozen=True)
class Use:
    """An operator on a pipeline rank.

    Parameters
    ----------
    stage : int
    part : str
        ``layer`` (or ``layer KIND`` where kinds differ), ``embedding``, ``head``, ``mtp``,
        ``pipeline`` or ``step``.
    operator, module, phase, term : str
        The phase is forward, backward, recompute, or what comes once a step.
    count : float
        How often it runs in a step.
    seconds : float
        Each time, exposed [s].
    op : Op or None
        The operator; None for what is not one of a layer.
    """

    stage: int
    part: str
    operator: str
    module: str
    phase: str
    term: str
    count: float
    seconds: float
    op: Op | None = None

    @property
    def time_s(self) -> float:
        """In a step [s]."""
        return self.count * self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"stage": self.stage, "part": self.part, "operator": self.operator,
                "phase": self.phase, "term": self.term, "count": self.count,
                "each_s": self.seconds, "time_s": self.time_s}


def alone(prediction: Prediction) -> Frame:
    """Return the frame of one prediction, every pipeline rank a class of its own."""
    return prediction.alone.frame


def _uses(times: Times, frame: Frame, part: str, stage: int, *, count: float,
          whole: float) -> Iterator[Use]:
    """Operators of one kind of layer: `count` of them, `whole` of which run forward again."""
    u = int(frame.local_index[0])
    runs, again = float(frame.runs[0]), recomputed_modules(frame.local)
    half = bool(frame.local.recomputes("selective_op")[u])
    for op in times.ops:
        seconds = float(op.seconds[u])
        if seconds > 0 and count > 0:
            yield Use(stage, part, op.name, op.module, op.phase.value, op.term.value,
                      runs * count, seconds, op)
        if op.phase is not Phase.FORWARD or seconds <= 0:
            continue
        share = float(again[op.module][u]) if op.module in again else 0.0
        if half and op.term is Term.COMPUTE and op.module not in NOT_CHECKPOINTED:
            share += 0.5
        if count * share + whole > 0:
            yield Use(stage, part, op.name, op.module, "recompute", op.term.value,
                      runs * (count * share + whole), seconds, op)


def uses(prediction: Prediction) -> list[Use]:
    """List what every pipeline rank does in a step; each rank's times sum to the step.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    list of Use
        Rank by rank; the last entry of a rank is its idle time (``bubble``).
    """
    frame = alone(prediction)
    timing = Timing(frame)
    found: list[Use] = []
    for stage in range(frame.tables.num_classes):
        own = list(_rank_uses(frame, timing, stage))
        # Waiting for the slowest node stretches the whole step.
        waiting = prediction["step_time_s"] * (1.0 - 1.0 / float(timing.stragglers[0]))
        if waiting > 0:
            own.append(Use(stage, "step", "stragglers", "step", "step", "other", 1.0, waiting))
        idle = prediction["step_time_s"] - sum(use.time_s for use in own)
        found += [*own, Use(stage, "pipeline", "bubble", "pipeline", "idle", "bubble", 1.0,
                            max(idle, 0.0))]
    return found


def _rank_uses(frame: Frame, timing: Timing, stage: int) -> Iterator[Use]:
    tables, costs, kinds = frame.tables, frame.costs, frame.model.kinds
    counts, whole = frame.stage(tables.layers, stage)[0], frame.whole_layers(stage)[0]
    for k, cost in enumerate(frame.layer_costs):
        name = "layer" if len(kinds) == 1 else f"layer {kinds[k].attention.value} " \
                                               f"{kinds[k].mlp.value}"
        yield from _uses(cost.times, frame, name, stage, count=float(counts[k]),
                         whole=float(whole[k]))
    ends = [("embedding", float(frame.stage(tables.has_embedding, stage)[0]), costs.embedding),
            ("head", float(frame.stage(tables.has_head, stage)[0]), costs.head)]
    if frame.has_mtp:
        ends.append(("mtp", float(frame.mtp_here(stage)[0]), costs.mtp_layer))
    for name, here, times in ends:
        yield from _uses(times, frame, name, stage, count=here, whole=0.0)
    runs, step = float(frame.runs[0]), timing.classes[stage][2]
    for phase, sends in zip(("forward", "backward"), timing.sends(stage), strict=True):
        yield Use(stage, "pipeline", "send", "pipeline", phase, "pp_comm",
                  runs * float(sends[0]), float(timing.blocking_s[0]))
    once = (("zero_gather", "forward", "dp_comm", runs, step.forward_s),
            ("zero_gather_and_scatter", "backward", "dp_comm", runs, step.backward_s),
            ("activation_offload", "backward", "other", runs, step.offload_s),
            ("gradient_reduction", "step", "dp_comm", 1.0, step.reduce_s),
            ("parameter_gather", "step", "dp_comm", 1.0, step.gather_s),
            ("optimizer", "step", "optimizer", 1.0, step.optimizer_s),
            ("overhead", "step", "other", 1.0, timing.overhead_s))
    for operator, phase, term, count, seconds in once:
        if float(np.asarray(seconds)[0]) > 0:
            yield Use(stage, "step", operator, "step", phase, term, count,
                      float(np.asarray(seconds)[0]))


def without(system: SystemSpec, resource: str) -> SystemSpec:
    """Return a system on which one of `RESOURCES` is infinitely fast."""
    for (section, name), factor in RESOURCES[resource].items():
        part = getattr(system, section)
        part = part.model_copy(update={name: getattr(part, name) * factor})
        system = system.model_copy(update={section: part})
    return system


def gains(prediction: Prediction) -> list[dict[str, Any]]:
    """Predict the step with each resource infinitely fast; most gained first.

    Returns
    -------
    list of dict
        ``resource``, ``step_time_s`` with it, ``gain_s`` and ``gain_pct`` of the step.
    """
    whole, i = prediction.predictions, prediction.index
    batch, now = whole.batch.take(slice(i, i + 1)), prediction["step_time_s"]
    found = []
    for resource in RESOURCES:
        step = float(evaluate(whole.model, without(whole.system, resource),
                              batch).columns["step_time_s"][0])
        found.append({"resource": resource, "step_time_s": step, "gain_s": now - step,
                      "gain_pct": 100.0 * (1.0 - step / now)})
    return sorted(found, key=lambda row: -float(str(row["gain_s"])))


def explain_time(prediction: Prediction) -> dict[str, Any]:
    """Return what ``predict --explain time`` shows: operators by rank, and gains."""
    return {"step_time_s": prediction["step_time_s"],
            "operators": [use.to_dict() for use in uses(prediction) if use.time_s > 0],
            "gains": gains(prediction)}
