"""Which decoder layers sit where in the pipeline.

Of pp*vpp chunks in order, chunk i sits on rank i % pp. The embedding belongs to chunk 0, the
final norm, the head and the loss to the last one. A split of the layers is one of

- even: num_layers % (pp vpp) == 0;
- accounted: embedding and loss count as a layer each (Megatron's
  ``--account-for-embedding-in-pipeline-split`` and ``--account-for-loss-...``), so that the
  first and the last chunk hold one decoder layer less; where that does not divide either,
  the multi-token-prediction layers count too;
- by `first_stage_layers` and `last_stage_layers`: the ranks between share the rest evenly, and
  every rank's layers divide by vpp;
- by `pp_layout`, chunk for chunk.

References
----------
Megatron-Core 0.19, ``transformer_config.py`` ("Uneven PP"), ``transformer_block.py``
(``get_num_layers_to_build``), ``pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from simcore.batch import Batch
from simcore.inputs.fields import FIELD, UNSET
from simcore.inputs.model import ModelSpec
from simcore.layout_notation import (
    is_numeric,
    layout_text,
    mtp_problem,
    num_chunks,
    stages_of,
)
from simcore.schedule.split import DUAL_KINDS
from simcore.typing import BoolArray, FloatArray, IntArray

__all__ = ["LAYOUT_FIELDS", "NO_SPLIT", "PipelineLayout", "balanced", "default_ends",
           "end_layers", "layout_text", "layouts", "num_chunks", "parse_layout",
           "split_choices", "split_counts", "split_is_legal"]
NO_SPLIT = -2
"""Stands in first_stage_layers and last_stage_layers where no split follows; never legal."""
LAYOUT_FIELDS = ("pp", "vpp", "first_stage_layers", "last_stage_layers", "pp_layout", "mtp",
                 "schedule")
"""What the place of the layers depends on."""


@dataclass(frozen=True)
class PipelineLayout:
    """Decoder layers of every chunk.

    Parameters
    ----------
    pp, vpp : int
        Pipeline ranks, and chunks a rank.
    chunks : tuple of tuple of int, length pp * vpp
        Kinds (indices into `ModelSpec.kinds`) of the decoder layers of chunk i, in order.
    mtp_chunk : int
        Chunk that holds the multi-token-prediction layers, where there are any.
    has_mtp : bool
        Whether there are any.
    schedule : str
        'dualpipe' and 'dualpipev' place their chunks in ways of their own.

    Notes
    -----
    Under DualPipe `chunks` has the pp stages in order, then in reverse: rank r holds stages r and
    pp - 1 - r. Under DualPipeV the second half of 2 pp stages is in reverse: rank r holds stages
    r and 2 pp - 1 - r. In both, chunk i is on rank i % pp.
    """

    pp: int
    vpp: int
    chunks: tuple[tuple[int, ...], ...]
    mtp_chunk: int
    has_mtp: bool = False
    schedule: str = "1f1b"

    @property
    def head_chunks(self) -> tuple[int, ...]:
        """Chunks with final norm, head and loss."""
        last = {"dualpipe": (self.pp - 1, self.pp), "dualpipev": (self.pp,)}
        return last.get(self.schedule, (len(self.chunks) - 1,))

    @property
    def embedding_chunks(self) -> tuple[int, ...]:
        """Chunks with the embedding."""
        return (0, 2 * self.pp - 1) if self.schedule == "dualpipe" else (0,)

    @property
    def mtp_chunks(self) -> tuple[int, ...]:
        """Chunks with the multi-token-prediction layers."""
        return self.head_chunks if self.schedule in DUAL_KINDS else (self.mtp_chunk,)

    def rank_layers(self) -> IntArray:
        """Decoder layers of each rank over all its chunks, shape (pp,)."""
        counts = np.array([len(chunk) for chunk in self.chunks], np.int64)
        total: IntArray = counts.reshape(self.vpp, self.pp).sum(axis=0)
        return total

    def kind_counts(self, num_kinds: int) -> FloatArray:
        """Decoder layers by rank, chunk of the rank and kind, shape (pp, vpp, num_kinds)."""
        counts = np.zeros((self.pp, self.vpp, num_kinds))
        for i, chunk in enumerate(self.chunks):
            for kind in chunk:
                counts[i % self.pp, i // self.pp, kind] += 1
        return counts

    def text(self) -> str:
        """Canonical notation, such as ``4|4|4|1m``; m marks the chunk with the MTP layers."""
        chunks = self.chunks
        if self.schedule in DUAL_KINDS:
            back = chunks[self.pp:][::-1] if self.schedule == "dualpipev" else ()
            chunks = chunks[:self.pp] + back
        return layout_text([len(chunk) for chunk in chunks],
                           self.mtp_chunk if self.has_mtp else None)


def layouts(model: ModelSpec, batch: Batch) -> tuple[tuple[PipelineLayout | None, ...], IntArray]:
    """Find the distinct layouts of a batch.

    Parameters
    ----------
    model : ModelSpec
        Gives the layers and their kinds.
    batch : Batch
        Resolved strategies.

    Returns
    -------
    layouts : tuple of PipelineLayout or None
        None where the combination is illegal.
    index : ndarray, shape (n,)
        Which of them each row has.
    """
    first, index = batch.group(LAYOUT_FIELDS)
    columns, found = [batch[name] for name in LAYOUT_FIELDS], []
    for row in first:
        pp, vpp, head, tail, text, mtp, schedule = (int(column[row]) for column in columns)
        layout = _layout(model.layers, pp, vpp, head, tail, batch.texts[text], mtp)
        found.append(None if layout is None else _placed(
            layout, FIELD["schedule"].choices[max(schedule, 0)]))
    return tuple(found), index


@lru_cache(maxsize=4096)
def _layout(layers: tuple[int, ...], pp: int, vpp: int, first: int, last: int, text: str,
            mtp: int) -> PipelineLayout | None:
    if pp < 1 or vpp < 1:
        return None
    mtp_chunk = pp * vpp - 1
    if text == "none":
        counts = split_counts(len(layers), pp, vpp, first, last)
        if counts is None:
            return None
    else:
        parsed = parse_layout(text, num_layers=len(layers), pp=pp, vpp=vpp, mtp=mtp)
        if isinstance(parsed, str):
            return None
        counts, mtp_chunk = parsed
        if end_layers(counts, pp) != (first, last):
            return None
    bounds = np.cumsum((0, *counts)).tolist()
    chunks = tuple(layers[a:b] for a, b in zip(bounds, bounds[1:], strict=False))
    return PipelineLayout(pp, vpp, chunks, mtp_chunk, mtp > 0)


def _placed(layout: PipelineLayout, schedule: str) -> PipelineLayout:
    """Return a layout as a schedule places it on the ranks."""
    chunks, pp = layout.chunks, layout.pp
    if schedule == "dualpipe" and layout.vpp == 1:
        return replace(layout, vpp=2, chunks=chunks + chunks[::-1], schedule=schedule)
    if schedule == "dualpipev" and layout.vpp == 2:
        return replace(layout, chunks=chunks[:pp] + chunks[pp:][::-1], schedule=schedule)
    return layout


def end_layers(counts: tuple[int, ...], pp: int) -> tuple[int, int]:
    """Decoder layers of the first and of the last rank."""
    return sum(counts[::pp]), sum(counts[pp - 1::pp])


def split_counts(num_layers: int, pp: int, vpp: int, first: int,
                 last: int) -> tuple[int, ...] | None:
    """Layers of every chunk under resolved first and last stages; None where illegal."""
    one = np.ones(1, np.int64)
    if not split_is_legal(num_layers, one * pp, one * vpp, one * first, one * last)[0]:
        return None
    if pp == 1:
        return (num_layers,)
    middle = (num_layers - first - last) // max(pp - 2, 1)
    turn = (first // vpp, *(middle // vpp,) * (pp - 2), last // vpp)
    return turn * vpp


def split_is_legal(num_layers: int, pp: IntArray, vpp: IntArray, first: IntArray,
                   last: IntArray) -> BoolArray:
    """Tell whether resolved first and last stages give each layer a place.

    Parameters
    ----------
    num_layers : int
        Decoder layers of the model.
    pp, vpp, first, last : ndarray, shapes that broadcast to (n,)
        Degrees, and layers of the first and of the last rank.

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    rest = num_layers - first - last
    between = np.where(pp > 2, (rest > 0) & (rest % np.maximum((pp - 2) * vpp, 1) == 0),
                       rest == 0)
    by_ends = (first > 0) & (last > 0) & (first % vpp == 0) & (last % vpp == 0) & between
    whole = (vpp == 1) & (first == num_layers) & (last == num_layers)
    legal: BoolArray = np.where(pp == 1, whole, by_ends)
    return legal


def default_ends(num_layers: int, pp: IntArray, vpp: IntArray, mtp: IntArray, first: IntArray,
                 last: IntArray) -> tuple[IntArray, IntArray, BoolArray]:
    """Fill in the layers of the first and of the last rank, where they are UNSET.

    Returns
    -------
    first, last : ndarray, shape (n,)
        `NO_SPLIT` where nothing follows.
    by_text : ndarray of bool, shape (n,)
        Where only a `pp_layout` can express the default: embedding and loss count as layers
        under vpp > 1, or MTP layers do and the last rank holds no decoder layer.
    """
    chunks = np.maximum(pp * vpp, 1)
    even = num_layers % chunks == 0
    base = (num_layers + 2) // chunks * vpp - 1
    # Megatron needs a flag to count embedding and loss as layers; a run without it and without
    # a split builds fewer layers than asked for. So this split is the default only where no
    # first and last stage can express one (94 layers on 96 chunks).
    accounted = ~even & ((num_layers + 2) % chunks == 0)
    plain = accounted & (base % vpp != 0)
    units = num_layers + 2 + mtp
    share = units // chunks
    with_mtp = ~even & ~accounted & (units % chunks == 0) & (share >= mtp) & (mtp > 0)
    by_text = plain | (with_mtp & ((vpp > 1) | (share - 1 - mtp < 1)))
    free_first = np.where(even, num_layers // chunks * vpp, np.where(
        plain, base, np.where(with_mtp, share * vpp - 1, NO_SPLIT)))
    free_last = np.where(with_mtp, free_first - mtp, free_first)
    no_first, no_last = first == UNSET, last == UNSET
    others = np.maximum(pp - 1, 1)
    # One end given: the other ranks share the rest evenly.
    after_last = np.where((num_layers - last) % others == 0, (num_layers - last) // others,
                          NO_SPLIT)
    after_first = np.where((num_layers - first) % others == 0, (num_layers - first) // others,
                           NO_SPLIT)
    free = no_first & no_last
    new_first = np.where(free, free_first, np.where(no_first, after_last, first))
    new_last = np.where(free, free_last, np.where(no_last, after_first, last))
    single = pp == 1
    new_first = np.where(single & no_first, num_layers, new_first)
    new_last = np.where(single & no_last, num_layers, new_last)
    return new_first, new_last, free & by_text & ~single


def balanced(num_layers: int, pp: int, vpp: int,
             mtp: int) -> tuple[tuple[int, ...], int] | None:
    """Most balanced split: embedding, loss and each MTP layer count as a layer.

    Returns
    -------
    (counts, mtp_chunk) or None
        Decoder layers of every chunk and the chunk of the MTP layers; None where the layers
        are fewer than the chunks.
    """
    chunks = pp * vpp
    if chunks < 1 or (pp == 1 and vpp > 1):
        return None
    end = chunks - 1
    if num_layers % chunks == 0:
        return (num_layers // chunks,) * chunks, end
    share, over = divmod(num_layers + 2, chunks)
    if over == 0 and share >= 1:
        return (share - 1, *(share,) * (chunks - 2), share - 1), end
    for chunk in (end, end - 1):
        # MTP layers that would crowd the loss out of its chunk take the one before it.
        counts = _spread(num_layers, pp, vpp, mtp, chunk)
        if counts and (chunk == end or (counts[end] == 0 and chunk % pp)):
            return counts, chunk
    return None


def _spread(num_layers: int, pp: int, vpp: int, mtp: int, chunk: int) -> tuple[int, ...] | None:
    """Balance the layers around MTP layers in a given chunk; None where a chunk stays empty."""
    chunks = pp * vpp
    end = chunks - 1
    share, over = divmod(num_layers + 2 + mtp, chunks)
    counts = [share] * chunks
    # The extra layers go to the inner ranks first: the first one holds the most micro-batches
    # in flight, the last one the logits.
    order = [*range(pp - 2, 0, -1), pp - 1, 0][:pp]
    places = [turn * pp + rank for turn in range(vpp) for rank in order]
    for i in places[:over]:
        counts[i] += 1
    counts[0] -= 1
    counts[end] -= 1
    counts[chunk] -= mtp
    for i in {chunk, end}:
        for j in places:
            # What does not fit here makes room elsewhere.
            if counts[i] < 0 and j not in (0, chunk, end) and counts[j] > 1:
                counts[i], counts[j] = counts[i] + 1, counts[j] - 1
    inner = [n for i, n in enumerate(counts) if i not in (0, chunk, end)]
    return None if min(counts) < 0 or min(inner, default=1) < 1 else tuple(counts)


def parse_layout(text: str, *, num_layers: int, pp: int, vpp: int,
                 mtp: int) -> tuple[tuple[int, ...], int] | str:
    """Read a `pp_layout` in either notation, or find the split that ``auto`` means.

    Parameters
    ----------
    text : str
        ``4|4|4|1m``, Megatron's ``Et*4|(t*4|)*14tmL``, or ``auto``.
    num_layers, pp, vpp, mtp : int
        What it has to fit.

    Returns
    -------
    (counts, mtp_chunk) or str
        Decoder layers of every chunk and the chunk of the MTP layers, or what is wrong.
    """
    if text == "auto":
        return balanced(num_layers, pp, vpp, mtp) or (
            f"has no split of {num_layers} layers into {pp * vpp} chunks")
    stages = stages_of(text)
    if isinstance(stages, str):
        return stages
    counts, mtp_chunk = stages
    if len(counts) != pp * vpp:
        return f"must name pp*vpp chunks ({pp}*{vpp}), got {len(counts)}"
    if sum(counts) != num_layers:
        return f"must hold all {num_layers} layers, got {sum(counts)}"
    if not is_numeric(text):
        problem = mtp_problem(text, mtp)
        if problem:
            return problem
    last = max((i for i, n in enumerate(counts) if n), default=0)
    chunk = pp * vpp - 1 if mtp_chunk is None else mtp_chunk
    if mtp and (chunk < last or (pp > 1 and chunk % pp == 0)):
        return "must place the MTP layers behind all decoder layers, not on the first rank"
    if mtp and chunk < pp * (vpp - 1):
        return "must place the MTP layers in the last chunk of a rank"
    if any(n == 0 and i not in (0, pp * vpp - 1, chunk) for i, n in enumerate(counts)):
        return "must not leave a chunk empty between the first and the last"
    return counts, chunk


def split_choices(num_layers: int, pp: int, vpp: int, window: int) -> list[tuple[int, int]]:
    """List the legal uneven splits by first and last stage.

    Parameters
    ----------
    num_layers, pp, vpp : int
        Layers and degrees.
    window : int
        Largest distance of either end from the layers of a rank between them (for pp = 2,
        of the one from the other), in layers.

    Returns
    -------
    list of (first, last)
        Most balanced first, embedding and loss counted; without the split that is taken
        where none is given.
    """
    if pp < 2 or vpp < 1:
        return []
    found: list[tuple[float, int, int, int]] = []
    if pp == 2:
        pairs = [(a, num_layers - a, max(a, num_layers - a))
                 for a in range(vpp, num_layers, vpp) if abs(num_layers - 2 * a) <= window]
        pairs = [p for p in pairs if p[1] % vpp == 0]
    else:
        pairs = []
        for middle in range(vpp, num_layers // (pp - 2) + 1, vpp):
            ends = num_layers - middle * (pp - 2)
            if abs(ends - 2 * middle) > 2 * window:
                continue
            low = -(-max(vpp, middle - window, ends - middle - window) // vpp) * vpp
            high = min(middle + window, ends - max(vpp, middle - window))
            pairs += [(a, ends - a, middle) for a in range(low, high + 1, vpp)
                      if (ends - a) % vpp == 0]
    for first, last, middle in pairs:
        highest = max(first + 1, last + 1, middle)
        found.append((highest, abs(first - last), first, last))
    one = np.ones(1, np.int64)
    head, tail, _ = default_ends(num_layers, one * pp, one * vpp, one * 0, one * UNSET,
                                 one * UNSET)
    default = (int(head[0]), int(tail[0]))
    return [(a, b) for _, _, a, b in sorted(found) if (a, b) != default]
