"""A batch with everything that its rows share, evaluated once and gathered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcore.activations import Saved, head_saved, layer_saved, mtp_saved
from simcore.batch import Batch
from simcore.degrees import data_parallel, expert_data_parallel, num_microbatches
from simcore.errors import InputError, Issue
from simcore.inputs.fields import RECOMPUTE_BIT, code
from simcore.inputs.framework import MemoryStyle
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.layer_costs import Times, embedding_times, head_times, layer_times, mtp_times
from simcore.layout import layouts
from simcore.local import LOCAL_FIELDS, Local
from simcore.parameters import (
    RankParameters,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    weight_shapes,
)
from simcore.placement import Group, Placement, groups, place
from simcore.resolve import profile_codes
from simcore.states import BytesPerParameter, bytes_per_parameter, shard_sizes
from simcore.stages import StageTables, stage_tables
from simcore.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class LayerCost:
    """Time, memory and parameters of one kind of layer, arrays of shape (u,)."""

    times: Times
    saved: Saved
    parameters: RankParameters
    matrices: RankParameters
    """Parameters in matrices, which have fp8 copies."""


@dataclass(frozen=True)
class ClassParameters:
    """Parameters of a rank, dense and expert, and those of them in matrices, (n,)."""

    dense: FloatArray
    expert: FloatArray
    dense_matrices: FloatArray
    expert_matrices: FloatArray


SITE_FIELDS = ("gpus", "tp", "cp", "pp", "ep", "etp", "rank_order", "dp_replicate")
"""Fields that decide where a step's groups sit."""
SITE_GROUPS = ("dp_cp", "edp", "ends", "neighbours")
"""Groups of once a step: data-parallel ones, the pipeline's ends, two of its neighbours."""


def site_groups(batch: Batch) -> dict[str, Group]:
    """Return the groups of `SITE_GROUPS`."""
    found = groups(batch)
    pair, stride = np.minimum(batch["pp"], 2), np.asarray(found["pp"].stride)
    found["neighbours"] = Group(pair, stride)
    found["ends"] = Group(pair, stride * np.maximum(batch["pp"] - 1, 1))
    return found


@dataclass(frozen=True)
class Frame:
    """One resolved, legal batch of n rows over u distinct local combinations.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
    local : Local
    local_index : ndarray, shape (n,)
    tables : StageTables
    layout_index : ndarray, shape (n,)
    """

    model: ModelSpec
    system: SystemSpec
    batch: Batch
    local: Local
    local_index: IntArray
    tables: StageTables
    layout_index: IntArray

    @classmethod
    def build(cls, model: ModelSpec, system: SystemSpec, batch: Batch) -> Frame:
        """Group a resolved batch.

        Raises
        ------
        InputError
            A row's layers cannot be laid out over its pipeline.
        """
        first, local_index = batch.group(LOCAL_FIELDS)
        distinct = batch.take(first)
        profiles, profile_index = profile_codes(distinct)
        local = Local(model, system, distinct, profiles, profile_index)
        found, layout_index = layouts(model, batch)
        legal = tuple(layout for layout in found if layout is not None)
        if len(legal) < len(found):
            raise InputError(Issue("pp", "layers cannot be split over this pipeline"))
        return cls(model, system, batch, local, local_index, stage_tables(model, legal),
                   layout_index)

    def __len__(self) -> int:
        return len(self.batch)

    def spread(self, values: FloatArray) -> FloatArray:
        """Gather values of the local combinations, shape (u,), to the rows, shape (n,)."""
        if len(values) == 1:
            return np.broadcast_to(values, (len(self),))
        return values[self.local_index]

    def stage(self, table: FloatArray | IntArray | BoolArray, c: int) -> FloatArray:
        """Gather a table of shape (L, C, ...) at class c to the rows, shape (n, ...)."""
        if len(table) == 1:
            return np.broadcast_to(table[0, c], (len(self), *table.shape[2:]))
        return table[self.layout_index, c]  # type: ignore[return-value]

    @cached_property
    def layer_costs(self) -> tuple[LayerCost, ...]:
        """Costs of every kind of layer."""
        costs = []
        for kind in self.model.kinds:
            degrees = {"tp": self.local.tp, "ep": self.local.real("ep"),
                       "etp": self.local.real("etp")}
            shapes = weight_shapes(self.model, kind, **degrees)
            experts = 0.0
            if self.model.moe is not None:
                experts = self.model.moe.num_experts / degrees["ep"]
            zero = np.zeros(len(self.local.batch))
            matrices = RankParameters(
                sum((w.outputs * w.inputs for w in shapes if not w.is_expert), zero),
                sum((w.outputs * w.inputs * experts for w in shapes if w.is_expert), zero))
            costs.append(LayerCost(layer_times(self.local, kind), layer_saved(self.local, kind),
                                   layer_parameters(self.model, kind, **degrees), matrices))
        return tuple(costs)

    @cached_property
    def embedding(self) -> Times:
        """Times of the embedding, (u,)."""
        return embedding_times(self.local)

    @cached_property
    def head(self) -> Times:
        """Times of the head, (u,)."""
        return head_times(self.local)

    @cached_property
    def mtp_layer(self) -> Times:
        """Times of one MTP layer, (u,)."""
        return mtp_times(self.local)

    @cached_property
    def head_memory(self) -> tuple[FloatArray, FloatArray]:
        """Kept by the head, and beside it, (u,) [B]."""
        return head_saved(self.local)

    @cached_property
    def mtp_memory(self) -> FloatArray:
        """Kept by an MTP layer's own parts, (u,) [B]."""
        return mtp_saved(self.local)

    @cached_property
    def end_parameters(self) -> tuple[FloatArray, FloatArray, RankParameters]:
        """Parameters of embedding, of head and final norm, and of one MTP layer, (u,)."""
        tp = self.local.tp
        head = head_parameters(self.model, tp=tp) + final_norm_parameters(self.model)
        mtp = mtp_parameters(self.model, tp=tp, ep=self.local.real("ep"),
                             etp=self.local.real("etp"))
        return embedding_parameters(self.model, tp=tp), head, mtp

    @cached_property
    def dummy_gradients_bytes(self) -> tuple[FloatArray, FloatArray]:
        """bf16 dummy gradients of layers, and the head's where its shape is new, (u,) [B].

        Transformer Engine keeps one buffer for each distinct (out, in) shape
        (``pytorch/module/base.py``, `get_dummy_wgrad`).
        """
        fused = self.local.on("grad_accumulation_fusion")
        dense = fused & (self.local.software("dummy_weight_gradients") > 0)
        grouped = dense & (self.local.software("grouped_dummy_gradients") > 0)
        seen: list[tuple[FloatArray, FloatArray, BoolArray]] = []
        total = np.zeros(len(self.local.batch))
        for kind in self.model.kinds:
            for weight in weight_shapes(self.model, kind, tp=self.local.tp,
                                        ep=self.local.real("ep"), etp=self.local.real("etp")):
                kept = grouped if weight.is_expert else dense
                if weight.name == "router":
                    continue
                total = total + 2.0 * weight.outputs * weight.inputs * _is_new(
                    seen, weight.outputs, weight.inputs, kept)
        outputs = self.local.vocab / self.local.tp
        inputs = np.full_like(outputs, self.model.hidden_size)
        return total, 2.0 * outputs * inputs * _is_new(seen, outputs, inputs, dense)

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
        found = site_groups(self.batch.take(first))
        network = self.system.network
        return {name: Placement(*(self._by_site(column, index)
                                  for column in place(found[name], network)))
                for name in SITE_GROUPS}

    def _by_site(self, column: IntArray, index: IntArray) -> IntArray:
        return np.broadcast_to(column, np.broadcast_shapes(column.shape, (1,)))[
            index if column.size > 1 else np.zeros(len(self), np.int64)]

    @cached_property
    def parameters(self) -> tuple[ClassParameters, ...]:
        """Parameters that a rank of each class holds, unsharded."""
        return tuple(self._class_parameters(c) for c in range(self.tables.num_classes))

    def _class_parameters(self, c: int) -> ClassParameters:
        layers = self.stage(self.tables.layers, c)
        mtp_here = self.stage(self.tables.mtp, c) * np.maximum(self.batch["mtp"], 0)
        embedding, head, mtp = self.end_parameters
        has_embedding = self.stage(self.tables.has_embedding, c)
        tied_once = self.model.tied_embeddings & (self.batch["pp"] == 1)
        dense = has_embedding * self.spread(embedding) + np.where(
            tied_once, 0.0, self.stage(self.tables.has_head, c) * self.spread(head))
        expert = np.zeros(len(self))
        if np.any(mtp_here):
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
        return ClassParameters(dense, expert, low_dense, low_expert)

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

    def recomputed_layers(self, c: int) -> FloatArray:
        """Layers of class c's chunks that are recomputed whole, shape (n, V, K)."""
        rows = np.arange(len(self))
        if not np.any(self.recomputed_depth):
            return np.zeros((len(self), *self.tables.chunk_layers.shape[2:]))
        return self.tables.first_layers[self.layout_index[rows], c, :, self.recomputed_depth]


def _is_new(seen: list[tuple[FloatArray, FloatArray, BoolArray]], outputs: FloatArray,
            inputs: FloatArray, kept: BoolArray) -> FloatArray:
    """1 where a shape has not been seen; remembers it where its buffer is kept."""
    new = kept.copy()
    for other_outputs, other_inputs, other_kept in seen:
        new &= ~(other_kept & (other_outputs == outputs) & (other_inputs == inputs))
    seen.append((outputs, inputs, kept))
    return new.astype(np.float64)
