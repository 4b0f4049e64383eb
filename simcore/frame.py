"""A batch with everything that its rows share, evaluated once and gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import TypeVar, cast

import numpy as np

from simcore.batch import Batch
from simcore.degrees import data_parallel, expert_data_parallel, num_microbatches
from simcore.errors import InputError, Issue
from simcore.inputs.fields import RECOMPUTE_BIT, code
from simcore.inputs.framework import MemoryStyle
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import Network, SystemSpec
from simcore.layout import layouts
from simcore.local import LOCAL_FIELDS, Local
from simcore.local_costs import LayerCost, LocalCosts, local_costs
from simcore.parameters import final_norm_parameters
from simcore.placement import Group, Placement, groups, place
from simcore.stages import StageTables, stage_tables
from simcore.states import BytesPerParameter, bytes_per_parameter, is_muon, shard_sizes
from simcore.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class ClassParameters:
    """Parameters of a rank, dense and expert, and some of them, (n,).

    Parameters
    ----------
    dense, expert : ndarray
        All of them.
    dense_matrices, expert_matrices : ndarray
        Those in matrices that have copies in low precision.
    dense_hidden, expert_hidden : ndarray
        Those in matrices other than embedding and head, where Muon updates these; else 0.
    dense_largest, expert_largest : ndarray
        Of these, those in the largest matrix.
    """

    dense: FloatArray
    expert: FloatArray
    dense_matrices: FloatArray
    expert_matrices: FloatArray
    dense_hidden: FloatArray
    expert_hidden: FloatArray
    dense_largest: FloatArray
    expert_largest: FloatArray


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
        costs = local_costs(model, system, batch.take(first))
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
        rows: FloatArray = table[self.layout_index, c]
        return rows

    @cached_property
    def wide(self) -> Frame:
        """The rows once for each class of ranks, class by class: n x C rows."""
        count = self.tables.num_classes
        rows = np.tile(np.arange(len(self)), count)
        return Frame(self.model, self.system, self.batch.take(rows), self.costs,
                     self.local_index[rows], self.tables, self.layout_index[rows],
                     np.repeat(np.arange(count), len(self)))

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
        first, index = self.batch.group(fields)
        if len(first) == len(self):
            return self, None
        return Frame.build(self.model, self.system, self.batch.take(first)), index

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
    def dp(self) -> IntArray:
        """Data-parallel size, (n,)."""
        return data_parallel(self.batch)

    @cached_property
    def edp(self) -> IntArray:
        """Expert-data-parallel size, (n,)."""
        return expert_data_parallel(self.batch)

    @cached_property
    def placements(self) -> dict[str, Placement]:
        """Where the step's groups sit (`SITE_GROUPS`), (n,); found once a distinct grid."""
        first, index = self.batch.group(SITE_FIELDS)
        rows = np.stack([self.batch[name][first] for name in SITE_FIELDS])
        found = _site_placements(self.system.network, rows.tobytes(), len(first))
        if len(first) == 1:
            return found
        return {name: Placement(*(column[index] for column in placement))
                for name, placement in found.items()}

    def parameters(self, c: Class) -> ClassParameters:
        """Parameters that a rank of class c holds, unsharded."""
        known = self._parameters
        key = c if isinstance(c, int) else -1
        if key not in known:
            known[key] = self._class_parameters(c)
        return known[key]

    @cached_property
    def _parameters(self) -> dict[int, ClassParameters]:
        return {}

    def _class_parameters(self, c: Class) -> ClassParameters:
        layers = self.stage(self.tables.layers, c)
        embedding, head, mtp = self.costs.end_parameters
        has_embedding = self.stage(self.tables.has_embedding, c)
        tied_once = self.model.tied_embeddings & (self.batch["pp"] == 1)
        # On one rank a tied head is the embedding itself; its final norm stays.
        ends = np.where(tied_once, final_norm_parameters(self.model), self.spread(head))
        dense = has_embedding * self.spread(embedding) + self.stage(
            self.tables.has_head, c) * ends
        expert = np.zeros(len(self))
        if self.has_mtp:
            mtp_here = self.mtp_here(c)
            # MTP shares the embedding; away from rank 0 it holds a copy.
            away = (mtp_here > 0) & (has_embedding == 0)
            dense = dense + mtp_here * self.spread(mtp.dense) + np.where(
                away, self.spread(embedding), 0.0)
            expert = expert + mtp_here * self.spread(mtp.expert)
        low_dense, low_expert = np.zeros(len(self)), np.zeros(len(self))
        for k, cost in enumerate(self.layer_costs):
            dense = dense + layers[:, k] * self.spread(cost.parameters.dense)
            low_dense = low_dense + layers[:, k] * self.spread(cost.matrices.dense)
            if self.model.is_moe:
                expert = expert + layers[:, k] * self.spread(cost.parameters.expert)
                low_expert = low_expert + layers[:, k] * self.spread(cost.matrices.expert)
        zero = np.zeros(len(self))
        hidden = self._hidden_parameters(c) if np.any(is_muon(self.batch)) else (zero,) * 4
        return ClassParameters(dense, expert, low_dense, low_expert, *hidden)

    def _hidden_parameters(self, c: Class) -> tuple[FloatArray, ...]:
        """Values in matrices of the layers, where Muon updates them, dense and expert, and
        those of the largest one, (n,)."""
        layers = self.stage(self.tables.layers, c)
        found = [np.zeros(len(self)) for _ in range(4)]
        for k, cost in enumerate(self.layer_costs):
            counts = layers[:, k]
            if self.has_mtp and k == self.model.layers[-1]:
                counts = counts + self.mtp_here(c)
            for at, hidden, largest in ((0, cost.hidden.dense, cost.largest.dense),
                                        (1, cost.hidden.expert, cost.largest.expert)):
                found[at] = found[at] + counts * self.spread(hidden)
                found[at + 2] = np.maximum(found[at + 2], (counts > 0) * self.spread(largest))
        if self.has_mtp:
            found[0] = found[0] + self.mtp_here(c) * self.spread(self.costs.mtp_projection)
        return tuple(values * is_muon(self.batch) for values in found)

    def dummy_gradients_bytes(self, c: Class) -> FloatArray:
        """Dummy weight gradients of the layers and the head on the ranks of class c, (n,) [B]."""
        tables = self.tables
        bits = 1 << np.arange(len(self.model.kinds))
        # A layer of multi-token prediction is one of the last kind.
        held = ((tables.layers > 0) * bits).sum(axis=2) | np.where(
            tables.mtp, bits[self.model.layers[-1]], 0)
        own = self.stage(held, c)
        has_head, total = self.stage(tables.has_head, c), np.zeros(len(self))
        patterns = np.unique(own).tolist()
        for kinds in patterns:
            layers, head = self.costs.dummy_gradients_bytes(kinds)
            found = self.spread(layers) + has_head * self.spread(head)
            if len(patterns) == 1:
                return found
            total = np.where(own == kinds, found, total)
        return total

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
                         -(-wanted // np.maximum(self.batch["vpp"], 1)))
        return np.where(self.recomputes_layers, np.minimum(depth, self.tables.depth), 0)

    def recomputed_layers(self, c: Class) -> FloatArray:
        """Layers of class c's chunks that are recomputed whole, shape (n, V, K)."""
        table, depth = self.tables.first_layers, self.recomputed_depth
        if not self._recomputes_any:
            return np.broadcast_to(0.0, (len(self), *table.shape[2:3], table.shape[-1]))
        rows: FloatArray = table[self.layout_index, c, :, depth]
        return rows

    @cached_property
    def _recomputes_any(self) -> bool:
        return bool(np.any(self.recomputed_depth))

    def whole_layers(self, c: Class) -> FloatArray:
        """The same of all chunks together, shape (n, K)."""
        table = self.tables.rank_first_layers
        if not self._recomputes_any:
            return np.broadcast_to(0.0, (len(self), table.shape[-1]))
        rows: FloatArray = table[self.layout_index, c, self.recomputed_depth]
        return rows
