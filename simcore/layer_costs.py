"""Seconds of a layer, and of a pipeline's ends, on one rank and one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simcore.inputs.fields import CUDA_GRAPH_BIT, code
from simcore.inputs.model import LayerKind, MlpKind
from simcore.local import Local
from simcore.operators.attention import attention_ops
from simcore.operators.base import TERMS, Op, Phase, Term, make
from simcore.operators.communication import (
    context_parallel_ops,
    expert_parallel_ops,
    tensor_parallel_ops,
    vocabulary_parallel_s,
)
from simcore.operators.ends import embedding_ops, head_ops, mtp_ops
from simcore.operators.mlp import mlp_ops
from simcore.typing import FloatArray
from simcore.units import MICRO

RECOMPUTED_BY: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("core_attn",),
    "mlp": ("mlp",),
    "layernorm": ("layernorm",),
    "moe": ("router", "permute", "experts", "moe_act", "moe_exchange", "shared_experts"),
    "moe_act": ("moe_act",),
    "mla_up_proj": ("mla_up_proj",),
    "shared_experts": ("shared_experts",),
}
"""Operators' modules that a recompute module runs again
(``--recompute-modules``, megatron/training/arguments.py)."""

WEIGHT_GRADIENT_NAMES = ("_wgrad", "_accumulate")
"""Ends of the names of operators that no other rank waits for."""

NOT_CHECKPOINTED = ("core_attn", "embedding", "head", "end")
"""What per-operator checkpointing of a layer's block keeps, or does not reach."""

CPU_SHARE_CAPTURED = {"attn": 0.35, "moe_router": 0.05, "moe_preprocess": 0.05, "mlp": 0.2,
                      "moe": 0.45}
"""Share of a layer's launches that each scope of CUDA graphs captures: kernels of the scope
over those of a layer, counted in `simcore.operators`; router and preprocessing hardly lower the
floor (qwen3-30b-a3b with both captured takes 8.8 to 9.2 ms a layer on B200)."""


@dataclass(frozen=True)
class Times:
    """Seconds by term, forward, backward and what recomputation adds to backward.

    Each maps a `Term` to an array of shape (u,).
    """

    forward: Mapping[Term, FloatArray]
    backward: Mapping[Term, FloatArray]
    recompute: Mapping[Term, FloatArray]
    ops: tuple[Op, ...]


def _by_term(ops: list[Op], phase: Phase, local: Local) -> dict[Term, FloatArray]:
    zero = np.zeros(len(local.batch))
    return {term: sum((op.seconds for op in ops if op.phase is phase and op.term is term), zero)
            for term in TERMS}


def weight_gradient_s(ops: tuple[Op, ...], local: Local) -> FloatArray:
    """Seconds of backward that compute gradients of weights, which can wait, (u,) [s]."""
    return sum((op.seconds for op in ops if op.name.endswith(WEIGHT_GRADIENT_NAMES)),
               np.zeros(len(local.batch)))


def recomputed_modules(local: Local) -> dict[str, FloatArray]:
    """Where backward runs each operator module's forward again, (u,): 1 or 0."""
    again: dict[str, FloatArray] = {}
    for module, parts in RECOMPUTED_BY.items():
        runs = local.recomputes(module)
        if np.any(runs):
            for part in parts:
                again[part] = np.maximum(again.get(part, np.zeros(len(local.batch))), runs)
    return again


def _recomputed(ops: list[Op], local: Local) -> dict[Term, FloatArray]:
    """Forward time of the modules that backward runs again."""
    again = recomputed_modules(local)
    zero = np.zeros(len(local.batch))
    times = {term: sum((op.seconds * again[op.module] for op in ops
                        if op.phase is Phase.FORWARD and op.term is term
                        and op.module in again), zero) for term in TERMS}
    if np.any(local.recomputes("selective_op")):
        # torchtitan's per-operator checkpointing keeps attention, scatters and every second
        # product; the rest of the layer, about half of its time without attention, runs again.
        half = sum((0.5 * op.seconds for op in ops if op.phase is Phase.FORWARD
                    and op.term is Term.COMPUTE and op.module not in NOT_CHECKPOINTED), zero)
        times[Term.COMPUTE] = times[Term.COMPUTE] + half * local.recomputes("selective_op")
    return times


def _cpu_gap_ops(local: Local, kind: LayerKind, ops: list[Op]) -> list[Op]:
    """Time by which the CPU's launches outlast the device's work on a layer.

    A floor, not an addition: the device waits only where its work is shorter.
    """
    name = "moe_layer_cpu_us" if kind.mlp is MlpKind.MOE else "dense_layer_cpu_us"
    graph = local.batch["cuda_graph"]
    captured = sum((share * ((graph & CUDA_GRAPH_BIT[scope]) > 0)
                    for scope, share in CPU_SHARE_CAPTURED.items()),
                   np.zeros(len(local.batch)))
    captured = np.where((graph & CUDA_GRAPH_BIT["full_iteration"]) > 0, 1.0,
                        np.minimum(captured, 0.95))
    cpu = local.software(name) * MICRO * (1.0 - captured) * (
        local.system.efficiency.cpu_launch_frac)
    gaps = []
    for phase, share in ((Phase.FORWARD, 0.4), (Phase.BACKWARD, 0.6)):
        device = sum((op.seconds for op in ops if op.phase is phase), np.zeros(len(cpu)))
        gaps.append(make(local, f"cpu_launch_{phase.value}", "launch", phase,
                         np.maximum(share * cpu - device, 0.0), term=Term.CPU))
        if kind.mlp is MlpKind.MOE:
            # Dispatchers that learn the counts on the host drain the queue of launches.
            waits = local.batch["dispatcher"] < code("dispatcher", "deepep")
            gaps.append(make(local, f"moe_sync_{phase.value}", "launch", phase,
                             share * waits * local.software("moe_sync_us") * MICRO,
                             term=Term.CPU))
    return gaps


def _times(ops: list[Op], local: Local) -> Times:
    return Times(_by_term(ops, Phase.FORWARD, local), _by_term(ops, Phase.BACKWARD, local),
                 _recomputed(ops, local), tuple(ops))


def layer_times(local: Local, kind: LayerKind) -> Times:
    """Times of one layer of a kind, arrays of shape (u,) [s]."""
    compute = [*attention_ops(local, kind), *mlp_ops(local, kind)]
    ops = [*compute, *tensor_parallel_ops(local, kind, compute),
           *context_parallel_ops(local, kind, compute),
           *expert_parallel_ops(local, kind, compute)]
    return _times([*ops, *_cpu_gap_ops(local, kind, ops)], local)


def _end(local: Local, ops: list[Op], comm_s: FloatArray) -> Times:
    for phase in Phase:
        ops.append(make(local, f"vocab_parallel_{phase.value}", "end", phase, comm_s,
                        term=Term.TP))
    return _times(ops, local)


def embedding_times(local: Local) -> Times:
    """Times of the embedding [s]."""
    return _end(local, embedding_ops(local), vocabulary_parallel_s(local)[0])


def head_times(local: Local) -> Times:
    """Times of final norm, output projection and loss [s]."""
    return _end(local, head_ops(local), vocabulary_parallel_s(local)[1])


def mtp_times(local: Local, layer: Times, head: Times) -> Times:
    """Times of one MTP layer: its own parts, a decoder layer of the last kind, a head [s]."""
    return _times([*mtp_ops(local), *layer.ops, *head.ops], local)
