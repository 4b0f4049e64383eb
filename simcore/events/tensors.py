"""Names and sizes of what a rank holds, operation by operation, for a viewer of memory."""

from __future__ import annotations

from simcore.events.operators import chunk_layers
from simcore.events.queue import IS_FORWARD
from simcore.events.step import Step
from simcore.memory import PHASES, RankBytes, class_memory, rank_bytes

Named = list[tuple[str, float]]


def _held(step: Step, rank: int) -> RankBytes:
    return rank_bytes(step.frame_of_ranks, rank)


def static_tensors(step: Step, rank: int) -> Named:
    """Return what is held from the start to the end of a step [B]."""
    memory = class_memory(step.frame_of_ranks, rank)
    parts = [("weights", float(memory.weights[0])), ("gradients", float(memory.gradients[0])),
             ("optimizer states", float(memory.optimizer[0]))]
    rest = float(_held(step, rank).static[0]) - sum(size for _, size in parts)
    return [(name, size) for name, size in
            (*parts, ("workspaces and fixed buffers", rest)) if size > 0]


def chunk_tensors(step: Step, rank: int, chunk: int) -> Named:
    """Return what the forward of a chunk saves for its backward, layer by layer [B].

    What is listed adds up to the chunk's share in the memory model; a rest, such as MTP's, is
    named as such.
    """
    total = float(_held(step, rank).chunks[0, chunk])
    u = int(step.frame.local_index[0])
    kinds, whole = chunk_layers(step, rank, chunk)
    named: Named = []
    for layer, kind in enumerate(kinds):
        if layer < whole:
            continue
        for tensor in step.frame.layer_costs[kind].saved.kept_tensors:
            size = tensor.bytes if isinstance(tensor.bytes, (int, float)) else float(
                tensor.bytes[u])
            if size > 0:
                named.append((f"layer {layer}: {tensor.name}", float(size)))
    rest = total - sum(size for _, size in named)
    if rest < 0:
        # Offloaded to the host: each tensor's share that stays.
        share = total / (total - rest)
        return [(name, size * share) for name, size in named]
    return [*named, ("inputs of recomputed layers, ends", rest)] if rest > 0.5 else named


def operation_temporaries(step: Step, rank: int, kind: int, chunk: int) -> Named:
    """Return what an operation holds beside the saves, at its worst moment [B]."""
    held = _held(step, rank)
    beside = {name: float(held.moments[i, 0]) for i, name in enumerate(PHASES[:-1])}
    has_head = step.is_last(rank, chunk)
    moments = ["forward"] if kind in IS_FORWARD else ["backward", "recompute"] + (
        ["head"] if has_head else [])
    worst = max(moments, key=lambda name: beside[name])
    found = [(f"temporaries of {worst}", beside[worst]),
             ("in transit to the host, or of the next forward", float(held.beside[0]))]
    return [(name, size) for name, size in found if size > 0]
