"""Where the step's seconds go, on the stage with most busy time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simcore.frame import Frame
from simcore.layer_costs import RECOMPUTED_BY, Times
from simcore.operators.base import Phase, Term
from simcore.timing import Timing
from simcore.typing import FloatArray, IntArray

TIME_TERMS = ("compute_s", "recompute_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s",
              "dp_comm_s", "bubble_s", "optimizer_s", "other_s")
"""Keys of the JSON's ``time``; they add up to the step."""


def busiest_class(timing: Timing) -> IntArray:
    """Class with most busy time in a step, the first where several are equal, (n,)."""
    m = timing.frame.runs
    busy = [m * (forward + backward) + ends.reduce_s + ends.gather_s + ends.optimizer_s
            for forward, backward, ends in timing.classes]
    chosen: IntArray = np.argmax(np.stack(busy), axis=0)
    return chosen


def time_terms(timing: Timing, step_s: FloatArray) -> dict[str, FloatArray]:
    """Split the step of the busiest stage into the terms of `TIME_TERMS`, (n,) each [s]."""
    chosen = busiest_class(timing)
    terms = _class_terms(timing, chosen)
    waiting = step_s * (1.0 - 1.0 / timing.stragglers)
    terms["other_s"] = terms["other_s"] + timing.overhead_s + waiting
    spent = sum(terms.values(), np.zeros(len(step_s)))
    terms["bubble_s"] = np.maximum(step_s - spent, 0.0)
    return {name: terms[name] for name in TIME_TERMS}


def _class_terms(timing: Timing, c: IntArray) -> dict[str, FloatArray]:
    frame, tables = timing.frame, timing.frame.tables
    m = frame.runs
    counts = frame.stage(tables.layers, c)
    whole = frame.whole_layers(c)
    found = [ends for _, _, ends in timing.classes]

    def chosen(name: str) -> FloatArray:
        values = np.stack([getattr(ends, name) for ends in found])
        taken: FloatArray = np.take_along_axis(values, c[None], axis=0)[0]
        return taken

    total = {term: np.zeros(len(frame)) for term in Term}
    again = np.zeros(len(frame))
    for k, cost in enumerate(frame.layer_costs):
        for term in Term:
            both = frame.spread(cost.times.forward[term] + cost.times.backward[term])
            total[term] = total[term] + counts[:, k] * both
            # Recomputed compute has a term of its own; what it communicates is booked as such.
            extra = counts[:, k] * frame.spread(cost.times.recompute[term]) + (
                whole[:, k] * frame.spread(cost.times.forward[term]))
            if term in (Term.COMPUTE, Term.CPU):
                again = again + extra
            else:
                total[term] = total[term] + extra
    for here, times in _ends(frame, c):
        for term in Term:
            total[term] = total[term] + here * frame.spread(
                times.forward[term] + times.backward[term])
            extra = here * frame.spread(times.recompute[term])
            if term in (Term.COMPUTE, Term.CPU):
                again = again + extra
            else:
                total[term] = total[term] + extra
    sends = timing.sends(c)
    return {
        "compute_s": m * total[Term.COMPUTE],
        "recompute_s": m * again,
        "tp_comm_s": m * total[Term.TP],
        "cp_comm_s": m * total[Term.CP],
        "ep_comm_s": m * total[Term.EP],
        "pp_comm_s": m * (sends[0] + sends[1]) * timing.blocking_s,
        "dp_comm_s": chosen("reduce_s") + chosen("gather_s") + m * (
            chosen("forward_s") + chosen("backward_s")),
        "optimizer_s": chosen("optimizer_s"),
        "other_s": m * (total[Term.CPU] + chosen("offload_s")),
    }


def phase_times(timing: Timing) -> list[dict[str, FloatArray]]:
    """Busy seconds of every class of ranks in a step by phase, (n,) each [s].

    Recomputation is told from backward, the head and its loss (with MTP) from the layers, exposed
    data-parallel communication from the optimizer's update; sends that block count with the
    phase that sends. What is left of the step is waiting.
    """
    frame, tables, m = timing.frame, timing.frame.tables, timing.frame.runs
    costs = [cost.times for cost in frame.layer_costs]
    layers = [(_seconds(frame, times.recompute), _seconds(frame, times.forward))
              for times in costs]
    found = []
    for c, (forward, backward, ends) in enumerate(timing.classes):
        counts, whole = frame.stage(tables.layers, c), frame.whole_layers(c)
        again = np.zeros(len(frame))
        for k, (recompute_s, forward_s) in enumerate(layers):
            again = again + counts[:, k] * recompute_s + whole[:, k] * forward_s
        head_forward, head_backward = np.zeros(len(frame)), np.zeros(len(frame))
        for here, times in _ends(frame, np.full(len(frame), c, np.int64))[1:]:
            head_forward = head_forward + here * _seconds(frame, times.forward)
            head_backward = head_backward + here * (
                _seconds(frame, times.backward) + _seconds(frame, times.recompute))
        found.append({
            "forward_s": m * (forward - ends.forward_s - head_forward),
            "recompute_s": m * again,
            "backward_s": m * (backward - ends.backward_s - head_backward - again),
            "head_s": m * (head_forward + head_backward),
            "optimizer_s": ends.optimizer_s,
            "dp_comm_s": ends.reduce_s + ends.gather_s + m * (ends.forward_s + ends.backward_s),
        })
    return found


def _seconds(frame: Frame, times: Mapping[Term, FloatArray]) -> FloatArray:
    return frame.spread(sum(times.values(), np.zeros(len(frame.local.batch))))


def _ends(frame: Frame, c: IntArray) -> list[tuple[FloatArray, Times]]:
    tables = frame.tables
    found = [(frame.stage(tables.has_embedding, c), frame.costs.embedding),
             (frame.stage(tables.has_head, c), frame.costs.head)]
    if frame.has_mtp:
        found.append((frame.mtp_here(c), frame.costs.mtp_layer))
    return found


def recomputed_flops(frame: Frame) -> FloatArray:
    """FLOP that all ranks together spend on recomputation in a step, (n,) [FLOP]."""
    batch, tables = frame.batch, frame.tables
    total = np.zeros(len(frame))
    if not np.any(batch["recompute"]):
        return total
    for k, cost in enumerate(frame.layer_costs):
        forward = sum((op.flops for op in cost.times.ops if op.phase is Phase.FORWARD),
                      np.zeros(len(frame.local.batch)))
        share = _selective_flops(frame, k)
        for c in range(tables.num_classes):
            ranks = frame.stage(tables.num_ranks, c)
            whole = frame.whole_layers(c)[:, k]
            total = total + ranks * (whole * frame.spread(forward) + frame.stage(
                tables.layers, c)[:, k] * frame.spread(share))
    width = (batch["gpus"] // np.maximum(batch["pp"], 1)).astype(np.float64)
    return total * frame.runs * width


def _selective_flops(frame: Frame, k: int) -> FloatArray:
    """FLOP that selective recomputation adds to a layer of kind k, (u,)."""
    local = frame.local
    again = np.zeros(len(local.batch))
    for op in frame.layer_costs[k].times.ops:
        if op.phase is Phase.FORWARD:
            runs = np.zeros(len(local.batch), np.bool_)
            for module, parts in RECOMPUTED_BY.items():
                if op.module in parts:
                    runs |= local.recomputes(module)
            half = 0.5 * (local.recomputes("selective_op") & (op.module != "core_attn"))
            again = again + op.flops * np.maximum(runs, half)
    return again
