"""A batch with everything that its rows share, evaluated once and gathered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TypeVar, cast

import numpy as np

from simcore.batch import Batch, Column, distinct
from simcore.degrees import data_parallel, expert_data_parallel, num_microbatches
from simcore.errors import InputError, Issue
from simcore.inputs.fields import RECOMPUTE_BIT, code
from simcore.inputs.framework import MemoryStyle
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import Network, SystemSpec
from simcore.layout import LAYOUT_FIELDS, layouts
from simcore.local import LOCAL_FIELDS, Local
from simcore.local_costs import LayerCost, LocalCosts, local_costs
from simcore.placement import Group, Placement, groups, place
from simcore.rank_parameters import ClassParameters, class_parameters
from simcore.stages import StageTables, stage_tables
from simcore.states import BytesPerParameter, bytes_per_parameter, shard_sizes
from simcore.typing import BoolArray, FloatArray, IntArray

Class = int | IntArray
"""A class of ranks: one for all rows, or one a row."""
Columns = TypeVar("Columns")
WIDE_ROWS = 512
"""Rows times classes below which all classes are evaluated in one call."""

SITE_FIELDS = ("gpus", "tp", "cp", "pp", "ep", "etp", "rank_order", "dp_replicate")
"""Fields that decide where a step's groups sit."""
SITE_GROUPS = ("dp_cp", "edp", "dp_replicate", "edp_replicate", "ends", "neighbours")
"""Groups of once a step: data-parallel ones, the pipeline's ends, two of its neighbours."""


def site_groups(batch: Batch) -> dict[str, Group]:
    """Return the groups of `SITE_GROUPS`."""
    found = groups(batch)
    pair, stride = np.minimum(batch["pp"], 2), np.asarray(found["pp"].stride)
    found["neighbours"] = Group(pair, stride)
    found["ends"] = Group(pair, stride * np.maximum(batch["pp"] - 1, 1))
    return found


@lru_cache(maxsize=64)
def _site_placements(network: Network, rows: bytes, size: int) -> dict[str, Placement]:
    """Place the groups of distinct grids, remembered from call to call."""
    table = np.frombuffer(rows, np.int64).reshape(len(SITE_FIELDS), size)
    columns = dict(zip(SITE_FIELDS, table, strict=True))
    found = site_groups(Batch.from_columns(columns, size=size))
    placed = {}
    for name in SITE_GROUPS:
        where = place(found[name], network)
        placed[name] = Placement(*(np.broadcast_to(column, (size,)) for column in where))
    return placed


def _gather(table: FloatArray | IntArray | BoolArray, c: Class, layout: IntArray,
            depth: IntArray | None = None) -> FloatArray:
    """Entries (layout, c) of a table of shape (L, C, ...), or (layout, c, depth).

    numpy takes whole rows by one number several times faster than by several.
    """
    if isinstance(c, int):
        known, index = cast(FloatArray, table[:, c]), layout
    else:
        known = cast(FloatArray, table).reshape(-1, *table.shape[2:])
        index = layout * table.shape[1] + c
    if depth is not None:
        known, index = known.reshape(-1, *known.shape[2:]), index * known.shape[1] + depth
    rows: FloatArray = known.take(index, axis=0)
    return rows


class _Spread(dict[str, Placement]):
    """Placements of distinct grids, gathered to the rows of a batch as they are asked for."""

    def __init__(self, distinct: Mapping[str, Placement], index: IntArray) -> None:
        super().__init__()
        self._distinct, self._index = distinct, index

    def __missing__(self, name: str) -> Placement:
        """Gather one group's."""
        rows = Placement(*(column.take(self._index) for column in self._distinct[name]))
        self[name] = rows
        return rows


@dataclass(frozen=True)
class Frame:
    """One resolved, legal batch of n rows over u distinct local combinations.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
    costs : LocalCosts
    local_index : ndarray, shape (n,)
    tables : StageTables
    layout_index : ndarray, shape (n,)
    classes : ndarray, shape (n,), or None
        Class of ranks that each row stands for, in a frame made by `wide`.
    """

    model: ModelSpec
    system: SystemSpec
    batch: Batch
    costs: LocalCosts
    local_index: IntArray
    tables: StageTables
    layout_index: IntArray
    classes: IntArray | None = None

    @classmethod
    def build(cls, model: ModelSpec, system: SystemSpec, batch: Batch, *,
              apart: bool = False) -> Frame:
        """Group a resolved batch; `apart` makes every pipeline rank a class of its own.

        Raises
        ------
        InputError
            A row's layers cannot be laid out over its pipeline.
        """
        first, local_index = batch.group(LOCAL_FIELDS)
        costs = local_costs(model, system, batch if len(batch) == 1 else batch.take(first))
        found, layout_index = layouts(model, batch)
        legal = tuple(layout for layout in found if layout is not None)
        if len(legal) < len(found):
            raise InputError(Issue("pp", "layers cannot be split over this pipeline"))
        tables = stage_tables(model, legal, apart=apart)
        return cls(model, system, batch, costs, local_index, tables, layout_index)

    def __len__(self) -> int:
        return len(self.batch)

    def spread(self, values: FloatArray) -> FloatArray:
        """Gather values of the local combinations, shape (u,), to the rows, shape (n,)."""
        if len(values) == 1 and len(self) > WIDE_ROWS:
            return np.broadcast_to(values, (len(self),))
        # For few rows numpy's broadcast costs ten times a gather.
        return values[self.local_index]

    def stage(self, table: FloatArray | IntArray | BoolArray, c: Class) -> FloatArray:
        """Gather a table of shape (L, C, ...) at class c to the rows, shape (n, ...)."""
        if len(table) == 1 and isinstance(c, int) and len(self) > WIDE_ROWS:
            row = cast(FloatArray, table[:, c])
            return np.broadcast_to(row, (len(self), *row.shape[1:]))
        return _gather(table, c, self.layout_index)

    @cached_property
    def wide(self) -> Frame:
        """The rows once for each class of ranks, class by class: n x C rows."""
        count = self.tables.num_classes
        whole = self.take(np.tile(np.arange(len(self)), count))
        return replace(whole, classes=np.repeat(np.arange(count), len(self)))

    def per_class(self, evaluate: Callable[[Frame, Class], Columns]) -> tuple[Columns, ...]:
        """Evaluate something for every class of ranks.

        Parameters
        ----------
        evaluate : callable
            Takes a frame and a class (or one a row) and returns a dataclass of arrays (n,).

        Returns
        -------
        tuple
            One a class. A few rows are evaluated for all classes in one call, since numpy costs
            the same for three rows as for one; many rows class by class, to stay in the cache.
        """
        count, n = self.tables.num_classes, len(self)
        if count == 1 or count * n > WIDE_ROWS:
            return tuple(evaluate(self, c) for c in range(count))
        whole = evaluate(self.wide, cast(IntArray, self.wide.classes))
        names = [f.name for f in fields(whole)]  # type: ignore[arg-type]
        return tuple(type(whole)(*(getattr(whole, name)[c * n:(c + 1) * n] for name in names))
                     for c in range(count))

    def narrowed(self, fields: tuple[str, ...]) -> tuple[Frame, IntArray | None]:
        """Find the rows that differ in some fields: their frame, and which of them each row is.

        The index is None where all rows differ.
        """
        if len(self) == 1:
            return self, None
        names: set[str] = set(fields)
        columns: list[Column] = []
        for known, codes in ((LOCAL_FIELDS, self.local_index), (LAYOUT_FIELDS, self.layout_index)):
            # These combinations are numbered already.
            if names.issuperset(known):
                names.difference_update(known)
                columns.append(codes)
        columns += [self.batch.columns[name] for name in fields if name in names]
        first, index = distinct(columns, len(self))
        if len(first) == len(self):
            return self, None
        return self.take(first), index

    def take(self, rows: IntArray) -> Frame:
        """Return some rows, which share the costs and tables of all."""
        return Frame(self.model, self.system, self.batch.take(rows), self.costs,
                     self.local_index[rows], self.tables, self.layout_index[rows])

    @cached_property
    def has_mtp(self) -> bool:
        """Whether any row trains MTP layers."""
        return bool(np.any(self.batch["mtp"] > 0))

    def mtp_here(self, c: Class) -> FloatArray:
        """MTP layers on a rank of class c, (n,)."""
        return self.stage(self.tables.mtp, c) * np.maximum(self.batch["mtp"], 0)

    @property
    def local(self) -> Local:
        """The distinct local combinations, u of them."""
        return self.costs.local

    @property
    def layer_costs(self) -> tuple[LayerCost, ...]:
        """Costs of every kind of layer, (u,)."""
        return self.costs.layer_costs

    @cached_property
    def microbatches(self) -> FloatArray:
        """Micro-batches of a step, (n,)."""
        return num_microbatches(self.batch).astype(np.float64)

    @cached_property
    def is_dualpipe(self) -> BoolArray:
        """Where each stage is held twice, from either end, (n,)."""
        rows: BoolArray = self.batch["schedule"] == code("schedule", "dualpipe")
        return rows

    @cached_property
    def is_split(self) -> BoolArray:
        """Where a backward's weight gradients are an operation of their own, (n,)."""
        rows: BoolArray = self.batch["schedule"] >= code("schedule", "zero-bubble")
        return rows

    @cached_property
    def chunks(self) -> IntArray:
        """Chunks that a rank holds, (n,)."""
        return np.where(self.is_dualpipe, 2, np.maximum(self.batch["vpp"], 1))

    @cached_property
    def runs(self) -> FloatArray:
        """Micro-batches that pass a chunk in a step, (n,): half of them in DualPipe."""
        return self.microbatches * np.where(self.is_dualpipe, 0.5, 1.0)

    @cached_property
    def dp(self) -> IntArray:
        """Data-parallel size, (n,)."""
        return data_parallel(self.batch)

    @cached_property
    def edp(self) -> IntArray:
        """Expert-data-parallel size, (n,)."""
        return expert_data_parallel(self.batch)

    @cached_property
    def placements(self) -> Mapping[str, Placement]:
        """Where the step's groups sit (`SITE_GROUPS`), (n,); found once a distinct grid."""
        first, index = self.batch.group(SITE_FIELDS)
        rows = np.stack([self.batch[name][first] for name in SITE_FIELDS])
        found = _site_placements(self.system.network, rows.tobytes(), len(first))
        if len(first) == 1:
            return found
        return _Spread(found, index)

    def parameters(self, c: Class) -> ClassParameters:
        """Parameters that a rank of class c holds, unsharded."""
        known = self._parameters
        key = c if isinstance(c, int) else -1
        if key not in known:
            known[key] = class_parameters(self, c)
        return known[key]

    @cached_property
    def _parameters(self) -> dict[int, ClassParameters]:
        return {}

    def kinds_held(self, c: Class) -> IntArray:
        """Bit mask of the kinds of layers on the ranks of class c, (n,)."""
        tables, bits = self.tables, 1 << np.arange(len(self.model.kinds))
        # A layer of multi-token prediction is one of the last kind.
        held = ((tables.layers > 0) * bits).sum(axis=2) | np.where(
            tables.mtp, bits[self.model.layers[-1]], 0)
        return self.stage(held, c).astype(np.int64)

    def dummy_gradients_bytes(self, c: Class) -> tuple[FloatArray, FloatArray]:
        """Dummy weight gradients of the layers and of the head on class c, (n,) each [B]."""
        own, zero = self.kinds_held(c), np.zeros(len(self))
        total, heads = zero, zero
        patterns = np.unique(own).tolist()
        for kinds in patterns:
            layers, head = map(self.spread, self.costs.dummy_gradients_bytes(kinds))
            total = layers if len(patterns) == 1 else np.where(own == kinds, layers, total)
            heads = head if len(patterns) == 1 else np.where(own == kinds, head, heads)
        return total, self.stage(self.tables.has_head, c) * heads

    @cached_property
    def boundary_bytes(self) -> FloatArray:
        """Hidden states of a micro-batch between two layers, (n,) [B]."""
        local = self.local
        return self.spread(local.bytes_per_value * self.model.hidden_size * local.tokens_sharded)

    @cached_property
    def is_fsdp(self) -> BoolArray:
        """Where the framework keeps fp32 shards and gathers bf16 layers, (n,)."""
        style = self.local.style_is(MemoryStyle.FSDP.value).astype(np.float64)
        return self.spread(style) > 0

    @cached_property
    def dense_bytes(self) -> BytesPerParameter:
        """Bytes of a dense parameter, (n,)."""
        return self._bytes(shard_sizes(self.batch)[0])

    @cached_property
    def expert_bytes(self) -> BytesPerParameter:
        """Bytes of an expert parameter, (n,)."""
        return self._bytes(shard_sizes(self.batch)[1])

    def _bytes(self, shards: FloatArray) -> BytesPerParameter:
        upcasts = self.spread(self.local.software("adam_upcast_moments")) > 0
        return bytes_per_parameter(self.batch, self.system, shards, upcasts=upcasts,
                                   is_fsdp=self.is_fsdp)

    @cached_property
    def recomputes_layers(self) -> BoolArray:
        """Where whole layers are recomputed, (n,)."""
        return (self.batch["recompute"] & RECOMPUTE_BIT["full"]) > 0

    @cached_property
    def recomputed_depth(self) -> IntArray:
        """Layers of each chunk that are recomputed whole, from its first on, (n,)."""
        wanted = np.maximum(self.batch["recompute_layers"], 0)
        uniform = self.batch["recompute_method"] == code("recompute_method", "uniform")
        depth = np.where(uniform, self.tables.depth,
                         -(-wanted // self.chunks))
        return np.where(self.recomputes_layers, np.minimum(depth, self.tables.depth), 0)

    def recomputed_layers(self, c: Class) -> FloatArray:
        """Layers of class c's chunks that are recomputed whole, shape (n, V, K)."""
        table, depth = self.tables.first_layers, self.recomputed_depth
        if not self._recomputes_any:
            return np.zeros((len(self), *table.shape[2:3], table.shape[-1]))
        return _gather(table.transpose(0, 1, 3, 2, 4), c, self.layout_index, depth)

    @cached_property
    def _recomputes_any(self) -> bool:
        return bool(np.any(self.recomputed_depth))

    def whole_layers(self, c: Class) -> FloatArray:
        """The same of all chunks together, shape (n, K)."""
        table = self.tables.rank_first_layers
        if not self._recomputes_any:
            return np.zeros((len(self), table.shape[-1]))
        return _gather(table, c, self.layout_index, self.recomputed_depth)

    def layers_before(self, c: Class) -> FloatArray:
        """Layers of virtual stage 0 on the ranks before class c's last, shape (n, K)."""
        return self.stage(self.tables.before[:, :, -1], c)

    def whole_before(self, c: Class) -> FloatArray:
        """Those of them that are recomputed whole, shape (n, K)."""
        return _gather(self.tables.before, c, self.layout_index, self.recomputed_depth)
