"""What one forward or backward of a chunk is made of, in the order in which it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from simcore.events.queue import IS_FORWARD, WEIGHT_GRADIENT
from simcore.events.step import Step
from simcore.layer_costs import (
    NOT_CHECKPOINTED,
    RECOMPUTED_BY,
    WEIGHT_GRADIENT_NAMES,
    Times,
)
from simcore.layout import layouts
from simcore.operators.base import Op, Phase, Term
from simcore.schedule.split import DUAL_KINDS, INPUT_GRADIENT

AFTER: dict[str, tuple[str, ...]] = {
    "cp": ("rope", "kv_up", "q_up", "qkv"),
    "tp_attention": ("proj", "core_attention"),
    "ep": ("permute", "topk", "router"),
    "tp_mlp": ("mlp_fc2", "shared_fc2", "experts_fc2"),
}
"""Behind which operator a collective stands in forward, the first of these that a layer has.
An exchange of experts is dispatch and combine in one span, at the dispatch."""

STREAMS = {Term.COMPUTE: "compute", Term.CPU: "compute", Term.TP: "tensor parallel",
           Term.CP: "context parallel", Term.EP: "expert parallel"}
"""Stream on which a term's operators run."""

_BASE = re.compile(r"_(fwd|bwd|dgrad|wgrad|accumulate|forward|backward)$")


@dataclass(frozen=True)
class OperatorSpan:
    """One operator within a forward or backward of a chunk.

    Parameters
    ----------
    name, module, stream : str
    phase : str
        'forward', 'backward' or 'recompute'.
    layer : int
        Decoder layer within the chunk; -1 for the ends.
    start_s, duration_s : float
        From the start of the forward or backward; exposed time [s].
    flops, bytes : float
        What it computes [FLOP] and moves [B].
    """

    name: str
    module: str
    stream: str
    phase: str
    layer: int
    start_s: float
    duration_s: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class _Piece:
    """An operator before it has a place in time."""

    name: str
    module: str
    stream: str
    phase: str
    layer: int
    seconds: float
    flops: float = 0.0
    bytes: float = 0.0


def base_name(op: Op) -> str:
    """Name of an operator without its direction."""
    return _BASE.sub("", op.name)


def _in_place(ops: Sequence[Op]) -> list[list[Op]]:
    """Operators of both phases in the order of forward, one list a base name."""
    groups = [list(members) for _, members in groupby(ops, key=base_name)]
    names = [base_name(members[0]) for members in groups]
    placed = [g for g, name in zip(groups, names, strict=True) if name not in AFTER]
    for members, name in zip(groups, names, strict=True):
        if name in AFTER:
            have = [base_name(g[0]) for g in placed]
            anchor = next((a for a in AFTER[name] if a in have), have[-1])
            at = len(have) - have[::-1].index(anchor)
            placed.insert(at, members)
    return placed


def _pieces(ops: Iterable[Op], u: int, *, layer: int, phase: str, share: float = 1.0,
            ) -> list[_Piece]:
    """Operators that take time."""
    return [_Piece(op.name, op.module, STREAMS[op.term], phase, layer,
                   share * float(op.seconds[u]), share * float(op.flops[u]),
                   share * float(op.bytes[u]))
            for op in ops if float(op.seconds[u]) > 0]


def _forward(times: Times, u: int, layer: int, phase: str = "forward") -> list[_Piece]:
    ops = [op for members in _in_place(times.ops) for op in members if op.phase is Phase.FORWARD]
    return _pieces(ops, u, layer=layer, phase=phase)


def _backward(times: Times, u: int, layer: int) -> list[_Piece]:
    ops = [op for members in reversed(_in_place(times.ops)) for op in members
           if op.phase is Phase.BACKWARD]
    return _pieces(ops, u, layer=layer, phase="backward")


def _selected(step: Step, times: Times, u: int, layer: int) -> list[_Piece]:
    """What selective recomputation runs again in a layer."""
    local = step.frame.local
    parts = {part for module, names in RECOMPUTED_BY.items() if local.recomputes(module)[u]
             for part in names}
    ops = [op for members in _in_place(times.ops) for op in members if op.phase is Phase.FORWARD]
    again = [op for op in ops if op.module in parts]
    found = _pieces(again, u, layer=layer, phase="recompute")
    if local.recomputes("selective_op")[u]:
        half = [op for op in ops
                if op.term is Term.COMPUTE and op.module not in NOT_CHECKPOINTED]
        found += _pieces(half, u, layer=layer, phase="recompute", share=0.5)
    return found


def chunk_layers(step: Step, rank: int, chunk: int) -> tuple[list[int], int]:
    """Kinds of a chunk's layers in order, and how many of them are recomputed whole."""
    frame = step.frame
    layout = layouts(frame.model, frame.batch)[0][0]
    kinds = list(layout.chunks[chunk * step.pp + rank]) if layout is not None else []
    return kinds, min(int(frame.recomputed_depth[0]), len(kinds))


def operator_spans(step: Step, *, kind: int, rank: int, chunk: int) -> tuple[OperatorSpan, ...]:
    """Return the operators of one forward or backward of a chunk.

    Parameters
    ----------
    step : Step
    kind : int
        See `simcore.schedule.split`; recomputation belongs to backward.
    rank, chunk : int
        Pipeline rank, and chunk of it.

    Returns
    -------
    tuple of OperatorSpan
        Without gaps, from 0 to the operation's duration; exposed times only, so operators of
        different streams follow one another.
    """
    costs = step.frame.costs
    u = int(step.frame.local_index[0])
    kinds, whole = chunk_layers(step, rank, chunk)
    has_embedding, has_head = step.is_first(rank, chunk), step.is_last(rank, chunk)
    c = int(step.classes[rank])
    holds_mtp = has_head if step.kind in DUAL_KINDS else chunk == step.chunks - 1
    mtp = int(step.frame.mtp_here(c)[0]) if holds_mtp and step.frame.has_mtp else 0
    if kind == WEIGHT_GRADIENT:
        parts = [costs.head] * has_head + [costs.layer_costs[k].times for k in reversed(kinds)]
        return _placed([piece for part in parts for piece in _backward(part, u, -1)
                        if piece.name.endswith(WEIGHT_GRADIENT_NAMES)])
    pieces: list[_Piece] = []
    if kind in IS_FORWARD:
        if has_embedding:
            pieces += _forward(costs.embedding, u, -1)
        for layer, k in enumerate(kinds):
            pieces += _forward(costs.layer_costs[k].times, u, layer)
        for _ in range(mtp):
            pieces += _forward(costs.mtp_layer, u, -1)
        if has_head:
            pieces += _forward(costs.head, u, -1)
    else:
        if has_head:
            pieces += _backward(costs.head, u, -1)
        for _ in range(mtp):
            pieces += _selected(step, costs.mtp_layer, u, -1) + _backward(costs.mtp_layer, u, -1)
        for layer in range(len(kinds) - 1, -1, -1):
            times = costs.layer_costs[kinds[layer]].times
            if layer < whole:
                pieces += _forward(times, u, layer, "recompute")
            pieces += _selected(step, times, u, layer) + _backward(times, u, layer)
        if has_embedding:
            pieces += _backward(costs.embedding, u, -1)
        if kind == INPUT_GRADIENT:
            pieces = [p for p in pieces if p.phase != "backward"
                      or not p.name.endswith(WEIGHT_GRADIENT_NAMES)]
    pieces += _sends(step, kind, rank, chunk)
    return _placed(pieces)


def _sends(step: Step, kind: int, rank: int, chunk: int) -> list[_Piece]:
    """Exposed traffic of ZeRO, and the send where it blocks."""
    timing, found = step.timing, []
    ends = timing.classes[int(step.classes[rank])][2]
    zero = float((ends.forward_s if kind in IS_FORWARD else ends.backward_s)[0])
    offload = 0.0 if kind in IS_FORWARD else float(ends.offload_s[0])
    if offload > 0:
        found.append(_Piece("offload_exposed", "activation_offload", "other", "backward", -1,
                            offload / step.chunks))
    if zero > 0:
        found.append(_Piece("zero_exposed", "zero", "data parallel",
                            "forward" if kind in IS_FORWARD else "backward", -1,
                            zero / step.chunks))
    at_end = step.is_last(rank, chunk) if kind in IS_FORWARD else step.is_first(rank, chunk)
    blocking = float(timing.blocking_s[0])
    if step.pp > 1 and not at_end and blocking > 0:
        found.append(_Piece("send", "pipeline", "pipeline parallel",
                            "forward" if kind in IS_FORWARD else "backward", -1, blocking,
                            bytes=float(step.frame.boundary_bytes[0])))
    return found


def _placed(pieces: Sequence[_Piece]) -> tuple[OperatorSpan, ...]:
    at, found = 0.0, []
    for p in pieces:
        found.append(OperatorSpan(p.name, p.module, p.stream, p.phase, p.layer, at, p.seconds,
                                  p.flops, p.bytes))
        at += p.seconds
    return tuple(found)
