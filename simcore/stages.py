"""Pipeline ranks that are alike, as tables over the distinct layouts of a batch.

Ranks with the same layers, chunk by chunk, cost the same; memory is largest on the first of
them (most micro-batches in flight) and the pipeline's bound on the last (most work before it).
So a few classes of ranks stand for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simcore.inputs.model import ModelSpec
from simcore.layout import PipelineLayout
from simcore.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class StageTables:
    """Tables over L layouts and C classes of ranks (padded by repeating the last class).

    Parameters
    ----------
    first_rank, last_rank, num_ranks : ndarray of int, shape (L, C)
        First and last pipeline rank of a class, and how many there are (0 in padding).
    has_embedding, has_head : ndarray of bool, shape (L, C)
    mtp : ndarray of bool, shape (L, C)
        Whether it holds the MTP layers.
    chunk_layers : ndarray, shape (L, C, V, K)
        Layers by virtual stage and kind.
    first_layers : ndarray, shape (L, C, V, Q + 1, K)
        The same of the first q layers of each chunk.
    rank_first_layers : ndarray, shape (L, C, Q + 1, K)
        The same of all chunks of a rank together.
    layers : ndarray, shape (L, C, K)
        Layers of the rank.
    before : ndarray, shape (L, C, Q + 1, K)
        Of the first q layers of virtual stage 0 on all ranks before the class' last, by kind;
        entry Q has all of them.
    uniform : ndarray of bool, shape (L, C)
        Whether all chunks of the rank are alike.
    class_of_rank : tuple of ndarray of int, shape (pp,) each
        Class of every rank, one entry a layout.
    """

    first_rank: IntArray
    last_rank: IntArray
    num_ranks: IntArray
    has_embedding: BoolArray
    has_head: BoolArray
    mtp: BoolArray
    chunk_layers: FloatArray
    first_layers: FloatArray
    rank_first_layers: FloatArray
    layers: FloatArray
    before: FloatArray
    uniform: BoolArray
    class_of_rank: tuple[IntArray, ...]

    @property
    def num_classes(self) -> int:
        """Classes in the widest layout."""
        return int(self.first_rank.shape[1])

    @property
    def depth(self) -> int:
        """Most layers in a chunk, Q."""
        return int(self.first_layers.shape[3]) - 1


@dataclass(frozen=True)
class _Classes:
    ranks: tuple[tuple[int, ...], ...]
    class_of_rank: IntArray


@lru_cache(maxsize=4096)
def _classes(layout: PipelineLayout, *, apart: bool) -> _Classes:
    """Group the ranks of one layout, in the order of their first rank."""
    pp, vpp = layout.pp, layout.vpp
    found: dict[object, list[int]] = {}
    for rank in range(pp):
        key: object = rank if apart else (
            tuple(layout.chunks[v * pp + rank] for v in range(vpp)), rank == 0, rank == pp - 1,
            tuple(chunk % pp == rank for chunk in layout.mtp_chunks))
        found.setdefault(key, []).append(rank)
    ranks = tuple(tuple(members) for members in found.values())
    class_of_rank = np.empty(pp, np.int64)
    for index, members in enumerate(ranks):
        class_of_rank[list(members)] = index
    class_of_rank.setflags(write=False)
    return _Classes(ranks, class_of_rank)


@lru_cache(maxsize=8)
def stage_tables(model: ModelSpec, layouts: tuple[PipelineLayout, ...], *,
                 apart: bool = False) -> StageTables:
    """Build the tables of some layouts; `apart` makes every rank a class of its own."""
    kinds = len(model.kinds)
    classes = [_classes(layout, apart=apart) for layout in layouts]
    width = max(len(c.ranks) for c in classes)
    virtual = max(layout.vpp for layout in layouts)
    depth = max(max((len(chunk) for chunk in layout.chunks), default=0) for layout in layouts)
    shape = (len(layouts), width)
    first_layers = np.zeros((*shape, virtual, depth + 1, kinds))
    before = np.zeros((*shape, depth + 1, kinds))
    ranks = np.zeros((3, *shape), np.int64)
    flags = np.zeros((4, *shape), np.bool_)
    for i, (layout, found) in enumerate(zip(layouts, classes, strict=True)):
        chunks = _first_layers(layout, depth, kinds)
        ahead = np.concatenate((np.zeros((1, depth + 1, kinds)),
                                np.cumsum(chunks[:layout.pp], axis=0)))
        for j in range(width):
            members = found.ranks[min(j, len(found.ranks) - 1)]
            own = chunks[members[0]::layout.pp]
            first_layers[i, j, :layout.vpp] = own
            before[i, j] = ahead[members[-1]]
            ranks[:, i, j] = members[0], members[-1], len(members) * (j < len(found.ranks))
            flags[:, i, j] = (_holds(layout, layout.embedding_chunks, members[0]),
                              _holds(layout, layout.head_chunks, members[-1]),
                              layout.has_mtp and _holds(layout, layout.mtp_chunks, members[0]),
                              _is_uniform(layout, members[0], own))
    chunk_layers = first_layers[:, :, :, -1]
    return StageTables(
        ranks[0], ranks[1], ranks[2], flags[0], flags[1], flags[2], chunk_layers, first_layers,
        first_layers.sum(axis=2), chunk_layers.sum(axis=2), before, flags[3],
        tuple(c.class_of_rank for c in classes))


def _holds(layout: PipelineLayout, chunks: tuple[int, ...], rank: int) -> bool:
    """Whether a rank holds any of some chunks."""
    return any(chunk % layout.pp == rank for chunk in chunks)


def _is_uniform(layout: PipelineLayout, rank: int, own: FloatArray) -> bool:
    """Whether a rank's chunks are alike; MTP layers make the last one different."""
    if layout.vpp > 1 and layout.has_mtp and _holds(layout, layout.mtp_chunks, rank):
        return False
    return all(np.array_equal(own[0], other) for other in own)


@lru_cache(maxsize=4096)
def _first_layers(layout: PipelineLayout, depth: int, kinds: int) -> FloatArray:
    """Kinds of the first q layers of every chunk, shape (chunks, depth + 1, kinds)."""
    counts = np.zeros((len(layout.chunks), depth + 1, kinds))
    for i, chunk in enumerate(layout.chunks):
        for q, kind in enumerate(chunk):
            counts[i, q + 1:, kind] += 1
    return counts
