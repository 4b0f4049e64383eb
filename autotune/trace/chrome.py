"""Chrome's trace event format, which Perfetto and chrome://tracing open.

Format: "Trace Event Format", Google, 2016 (complete events ``X``, metadata ``M``, flow events
``s``/``f``, counters ``C``; times in microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TextIO

import numpy as np

from simcore.events import OperatorSpan, Step, memory_track, operator_spans
from simcore.events.queue import IS_FORWARD, WEIGHT_GRADIENT
from simcore.units import GIB

LABELS = ("F", "B", "I", "W", "F")
"""Of the kinds of operations: forward, backward, its two parts, a forward paired with one."""

GAP_S = 1e-9
MAX_EVENTS = 600_000
"""What stays pleasant in the viewers: some 60 MB of JSON."""
THREADS = ("pipeline", "compute", "tensor parallel", "context parallel", "expert parallel",
           "data parallel", "pipeline parallel", "optimizer")
"""Tracks of a rank, in their order on the screen; the first shows whole micro-batches."""
_TID = {name: i for i, name in enumerate(THREADS)}
_MICRO = 1e6

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True)
class Plan:
    """What is drawn of a step.

    Parameters
    ----------
    ranks : tuple of int
        Global ranks, each a process.
    pipeline_rank : mapping
        Pipeline rank of each of them.
    opened : int
        Micro-batches, from the first, whose operators are drawn; the others are one slice each.
    events : int
        About how many events there will be.
    """

    ranks: tuple[int, ...]
    pipeline_rank: Mapping[int, int]
    opened: int
    events: int


def pipeline_rank(step: Step, rank: int) -> int:
    """Return on which pipeline rank a global rank sits."""
    from simcore.placement import groups

    group = groups(step.frame.batch)["pp"]
    stride = int(group.stride if isinstance(group.stride, int) else group.stride.flat[0])
    return rank // stride % step.pp


def stage_ranks(step: Step) -> tuple[int, ...]:
    """Return the first global rank of each pipeline stage."""
    from simcore.placement import groups

    group = groups(step.frame.batch)["pp"]
    stride = int(group.stride if isinstance(group.stride, int) else group.stride.flat[0])
    return tuple(stage * stride for stage in range(step.pp))


class StepTrace:
    """Events of one step.

    Parameters
    ----------
    step : Step
    ranks : sequence of int
        Global ranks to draw.
    max_events : int
        Bound on the number of events; detail is given up first, in the later micro-batches.

    Raises
    ------
    ValueError
        Even whole micro-batches of these ranks are more than `max_events`.
    """

    def __init__(self, step: Step, ranks: Sequence[int], *,
                 max_events: int = MAX_EVENTS) -> None:
        self.step = step
        self.plan = self._plan(tuple(ranks), max_events)

    def _plan(self, ranks: tuple[int, ...], max_events: int) -> Plan:
        step = self.step
        stage = {rank: pipeline_rank(step, rank) for rank in ranks}
        # A slice, maybe a gap behind it, two memory and two bandwidth counters, two flow ends.
        coarse = sum(8 * step.run.orders[stage[r]].shape[1] for r in ranks) + 24 * len(ranks)
        if coarse > max_events:
            raise ValueError(f"{len(ranks)} ranks have about {coarse} events, over the limit of "
                             f"{max_events}")
        opened = sum(len(self._template(stage[r], kind, chunk)) for r in ranks
                     for kind in self._kinds for chunk in range(self.vpp))
        m = self.num_microbatches
        fine = min(m, (max_events - coarse) // max(opened, 1))
        return Plan(ranks, stage, int(fine), int(coarse + fine * opened))

    @cached_property
    def vpp(self) -> int:
        """Chunks of a rank."""
        return self.step.chunks

    @property
    def _kinds(self) -> tuple[int, ...]:
        """Kinds of operations that the schedule has."""
        return tuple(np.unique(np.concatenate([o[0] for o in self.step.run.orders])).tolist())

    @cached_property
    def num_microbatches(self) -> int:
        """Micro-batches of the step."""
        return int(self.step.frame.microbatches[0])

    @cached_property
    def _templates(self) -> dict[tuple[int, int, int], tuple[OperatorSpan, ...]]:
        return {}

    def _template(self, stage: int, kind: int, chunk: int) -> tuple[OperatorSpan, ...]:
        """Operators of one forward or backward; the same for every micro-batch."""
        key = (stage, kind, chunk)
        if key not in self._templates:
            self._templates[key] = operator_spans(self.step, kind=kind, rank=stage, chunk=chunk)
        return self._templates[key]

    def lines(self) -> Iterator[str]:
        """Yield every event as JSON, process by process."""
        stages = {stage: self._stage(stage) for stage in set(self.plan.pipeline_rank.values())}
        for rank in self.plan.ranks:
            stage = self.plan.pipeline_rank[rank]
            head = f'{{"pid":{rank},'
            for name, args in self._names(rank, stage):
                yield f'{head}"ph":"M","name":"{name[0]}","tid":{name[1]},"args":{_encode(args)}}}'
            for rest in stages[stage]:
                yield head + rest
            yield from self._flows(rank, stage)

    def _names(self, rank: int, stage: int) -> Iterator[tuple[tuple[str, int], dict[str, Any]]]:
        yield ("process_name", 0), {"name": f"rank {rank}, pipeline stage {stage}"}
        yield ("process_sort_index", 0), {"sort_index": rank}
        for tid, thread in enumerate(THREADS):
            yield ("thread_name", tid), {"name": thread}
            yield ("thread_sort_index", tid), {"sort_index": tid}

    def _stage(self, stage: int) -> list[str]:
        """Everything of a stage that is the same on all its ranks, without the process."""
        return [*self._operations(stage), *self._ends(stage), *self._counters(stage)]

    def _ran(self, stage: int) -> Iterator[tuple[int, int, int, float, float]]:
        """Kind, chunk, micro-batch, start and end of a stage's operations, in their order."""
        run = self.step.run
        for (kind, chunk, microbatch), start, end in zip(
                run.orders[stage].T.tolist(), run.start_s[stage].tolist(),
                run.end_s[stage].tolist(), strict=True):
            yield kind, chunk, microbatch, start, end

    def _operations(self, stage: int) -> Iterator[str]:
        before = 0.0
        for kind, chunk, microbatch, start, end in self._ran(stage):
            if start - before > GAP_S:
                yield _slice("pipeline", "idle", "idle", before, start)
            before = end
            label = LABELS[kind]
            category = "forward" if kind in IS_FORWARD else "backward"
            name = f"{label}{microbatch}" + (f".{chunk}" if self.vpp > 1 else "")
            yield _slice("pipeline", name, category, start, end,
                         f'{{"microbatch":{microbatch},"chunk":{chunk}}}')
            if microbatch < self.plan.opened:
                for op, args in self._described(stage, kind, chunk):
                    at = start + op.start_s
                    yield _slice(op.stream, op.name, op.phase, at, at + op.duration_s, args)

    @cached_property
    def _descriptions(self) -> dict[tuple[int, int, int], list[tuple[OperatorSpan, str]]]:
        return {}

    def _described(self, stage: int, kind: int, chunk: int) -> list[tuple[OperatorSpan, str]]:
        """Operators with what the viewer shows of them."""
        key = (stage, kind, chunk)
        if key not in self._descriptions:
            self._descriptions[key] = [(op, _encode(_arguments(op)))
                                       for op in self._template(*key)]
        return self._descriptions[key]

    def _flows(self, rank: int, stage: int) -> Iterator[str]:
        """Arrows between ranks that are both drawn: where a send starts and where it arrives."""
        known = self._drawn
        offset = rank - self._stage_ranks[stage]
        for kind, chunk, microbatch, start, end in self._ran(stage):
            if kind == WEIGHT_GRADIENT:
                continue
            direction, way = int(kind in IS_FORWARD), 1 if kind in IS_FORWARD else -1
            route = next(r for r in self.step.ways if (stage, chunk) in r)
            here = route.index((stage, chunk))
            # Just inside the slice that the arrow leaves or enters.
            inset = min(0.001, (end - start) * _MICRO / 4)
            for there, mark in ((here + way, "s"), (here - way, "f")):
                if not 0 <= there < len(route) or route[there][0] == stage or (
                        self._stage_ranks[route[there][0]] + offset not in known):
                    continue
                source, its_chunk = route[here if mark == "s" else there]
                number = (((its_chunk * self.step.pp + source) * 2 + 1 - direction)
                          * self.num_microbatches + microbatch)
                at = end * _MICRO - inset if mark == "s" else start * _MICRO + inset
                yield (f'{{"pid":{rank},"ph":"{mark}","bp":"e","name":"send","cat":"send",'
                       f'"id":"{offset}.{number}","tid":{_TID["pipeline"]},"ts":{at!r}}}')

    @cached_property
    def _drawn(self) -> frozenset[int]:
        return frozenset(self.plan.ranks)

    @cached_property
    def _stage_ranks(self) -> tuple[int, ...]:
        return stage_ranks(self.step)

    def _ends(self, stage: int) -> Iterator[str]:
        """What comes once a step."""
        step = self.step
        at = float(step.run.ends_s[stage])
        reduced = at + float(step.reduce_s[stage])
        updated = step.barrier_s + float(step.optimizer_s[stage])
        gathered = updated + float(step.gather_s[stage])
        for thread, name, start, end in (
                ("data parallel", "gradient reduction (exposed)", at, reduced),
                ("optimizer", "gradient norm, clipping, update", step.barrier_s, updated),
                ("data parallel", "parameter gather (exposed)", updated, gathered),
                ("optimizer", "once a step (host)", gathered,
                 gathered + float(step.timing.overhead_s[0]))):
            if end > start:
                yield _slice(thread, name, "step", start, end)
        done = gathered + float(step.timing.overhead_s[0])
        if step.end_s - done > GAP_S:
            yield _slice("optimizer", "slower ranks and stragglers", "idle", done, step.end_s)

    def _counters(self, stage: int) -> Iterator[str]:
        track = memory_track(self.step, stage)
        for at, value in zip(track.time_s.tolist(), track.bytes.tolist(), strict=True):
            yield _counter("memory GiB", at, f'{{"allocated":{value / GIB:.4f}}}')
        before = 0.0
        for kind, chunk, _, start, end in self._ran(stage):
            if start - before > GAP_S:
                yield _counter("bandwidth GB/s", before, '{"memory":0,"links":0}')
            before = end
            memory, links = self._rates(stage, kind, chunk)
            yield _counter("bandwidth GB/s", start, f'{{"memory":{memory},"links":{links}}}')
        yield _counter("bandwidth GB/s", before, '{"memory":0,"links":0}')

    def _rates(self, stage: int, kind: int, chunk: int) -> tuple[float, float]:
        """Mean bandwidth of memory and of links over an operation [GB/s]."""
        ops = self._template(stage, kind, chunk)
        whole = max(sum(op.duration_s for op in ops), 1e-12) * 1e9
        memory = sum(op.bytes for op in ops if op.stream == "compute")
        links = sum(op.bytes for op in ops if op.stream != "compute")
        return round(memory / whole, 1), round(links / whole, 1)


def _arguments(op: OperatorSpan) -> dict[str, Any]:
    """What a viewer shows of an operator that is clicked."""
    args: dict[str, Any] = {"module": op.module, "phase": op.phase}
    if op.layer >= 0:
        args["layer_of_chunk"] = op.layer
    if op.flops:
        args["gflop"] = round(op.flops / 1e9, 3)
        args["tflops"] = round(op.flops / op.duration_s / 1e12, 1)
    if op.bytes:
        args["mib"] = round(op.bytes / 2**20, 2)
        args["gb_per_s"] = round(op.bytes / op.duration_s / 1e9, 1)
    return args


def _slice(thread: str, name: str, category: str, start: float, end: float,
           args: str = "") -> str:
    tail = f',"args":{args}' if args else ""
    return (f'"ph":"X","name":"{name}","cat":"{category}","tid":{_TID[thread]},'
            f'"ts":{start * _MICRO!r},"dur":{(end - start) * _MICRO!r}{tail}}}')


def _counter(name: str, at: float, values: str) -> str:
    return f'"ph":"C","name":"{name}","ts":{at * _MICRO!r},"args":{values}}}'


def write_trace(stream: TextIO, lines: Iterable[str], about: Mapping[str, Any]) -> int:
    """Write a trace, one event a line, without holding it in memory; return their number."""
    stream.write('{"displayTimeUnit": "ms", "otherData": ')
    stream.write(_encode(about))
    stream.write(', "traceEvents": [\n')
    count = 0
    for line in lines:
        stream.write((",\n" if count else "") + line)
        count += 1
    stream.write("\n]}\n")
    return count


def about(trace: StepTrace) -> dict[str, Any]:
    """Return what the trace is of, for the viewer's metadata."""
    from autotune import version

    prediction = trace.step.prediction
    given = {k: v for k, v in prediction.strategy_dict().items() if v is not None}
    return {"tool": f"autotune {version()}", "model": prediction.predictions.model.name,
            "system": prediction.predictions.system.name, "step_time_s": trace.step.end_s,
            "microbatches_in_detail": trace.plan.opened, "strategy": given,
            "note": "predicted, not measured; communication is drawn where it is exposed"}
