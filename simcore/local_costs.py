"""Everything that the distinct local combinations of a batch cost, evaluated once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from simcore.activations import layer_saved, mlp_parts
from simcore.batch import Batch
from simcore.head_activations import head_saved, mtp_saved
from simcore.inputs.fields import FIELD, Kind
from simcore.inputs.model import LayerKind, ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.layer_costs import Times, embedding_times, head_times, layer_times, mtp_times
from simcore.local import LOCAL_FIELDS, Local
from simcore.parameters import (
    Parameter,
    RankParameters,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    layer_tensors,
    mtp_parameters,
    mtp_tensors,
    weight_shapes,
)
from simcore.resolve import profile_codes
from simcore.tensors import Saved, Tensor, Tensors, total_bytes
from simcore.typing import BoolArray, FloatArray


@dataclass(frozen=True)
class LayerCost:
    """Time, memory and parameters of one kind of layer, arrays of shape (u,), on first use."""

    local: Local
    kind: LayerKind

    @property
    def _degrees(self) -> dict[str, FloatArray]:
        return {"tp": self.local.tp, "ep": self.local.real("ep"), "etp": self.local.real("etp")}

    @cached_property
    def times(self) -> Times:
        """Seconds by term."""
        return layer_times(self.local, self.kind)

    @cached_property
    def saved(self) -> Saved:
        """Bytes kept for backward, and beside them."""
        return layer_saved(self.local, self.kind)

    @cached_property
    def expert_rows(self) -> FloatArray:
        """Bytes kept for backward that grow with the rows of experts, (u,)."""
        parts = mlp_parts(self.local, self.kind)
        return total_bytes((*parts.get("experts", ()), *parts.get("moe_act", ())),
                           len(self.local.batch))

    @cached_property
    def parameters(self) -> RankParameters:
        """Parameters of a rank."""
        return layer_parameters(self.local.model, self.kind, **self._degrees)

    @cached_property
    def matrices(self) -> RankParameters:
        """Those of them in matrices, which have fp8 copies."""
        shapes = weight_shapes(self.local.model, self.kind, **self._degrees)
        moe = self.local.model.moe
        experts = moe.num_experts / self.local.real("ep") if moe is not None else 0.0
        zero = np.zeros(len(self.local.batch))
        return RankParameters(
            sum((w.outputs * w.inputs for w in shapes if not w.is_expert), zero),
            sum((w.outputs * w.inputs * experts for w in shapes if w.is_expert), zero))


    @cached_property
    def tensors(self) -> list[Parameter]:
        """Every parameter of a rank."""
        return layer_tensors(self.local.model, self.kind, **self._degrees)

    @cached_property
    def hidden(self) -> RankParameters:
        """Values in tensors of two dimensions, which Muon updates."""
        zero = np.zeros(len(self.local.batch))
        return RankParameters(
            sum((t.elements for t in self.tensors if t.is_matrix and not t.is_expert), zero),
            sum((t.elements for t in self.tensors if t.is_matrix and t.is_expert), zero))

    @cached_property
    def largest(self) -> RankParameters:
        """Values in the largest of these."""
        found = {False: np.zeros(len(self.local.batch)), True: np.zeros(len(self.local.batch))}
        for tensor in self.tensors:
            if tensor.is_matrix:
                found[tensor.is_expert] = np.maximum(found[tensor.is_expert],
                                                     tensor.elements / tensor.copies)
        return RankParameters(found[False], found[True])


@dataclass(frozen=True)
class LocalCosts:
    """Costs of the u combinations of a `Local`."""

    local: Local

    @property
    def model(self) -> ModelSpec:
        """The model."""
        return self.local.model

    @cached_property
    def layer_costs(self) -> tuple[LayerCost, ...]:
        """Costs of every kind of layer."""
        return tuple(LayerCost(self.local, kind) for kind in self.model.kinds)

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
        return mtp_times(self.local, self.layer_costs[self.model.layers[-1]].times, self.head)

    @cached_property
    def any_dropout(self) -> bool:
        """Whether any combination drops hidden states."""
        return bool(np.any(self.local.is_dropped))

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
    def mtp_projection(self) -> FloatArray:
        """Values in the matrix of an MTP layer's own, (u,)."""
        return sum((t.elements for t in mtp_tensors(self.model, tp=self.local.tp)
                    if t.is_matrix), np.zeros(len(self.local.batch)))

    @cached_property
    def _dummies(self) -> dict[int, tuple[Tensors, Tensor]]:
        return {}

    def dummy_gradients(self, kinds: int) -> tuple[Tensors, Tensor]:
        """bf16 dummy gradients of layers, and the head's where its shape is new.

        Transformer Engine keeps one buffer for each distinct (out, in) shape that a rank has
        (``pytorch/module/base.py``, `get_dummy_wgrad`).

        Parameters
        ----------
        kinds : int
            Bit mask of the kinds of layers on the rank.
        """
        if kinds not in self._dummies:
            self._dummies[kinds] = self._find_dummies(kinds)
        return self._dummies[kinds]

    def dummy_gradients_bytes(self, kinds: int) -> tuple[FloatArray, FloatArray]:
        """Bytes of `dummy_gradients`, (u,) each [B]."""
        layers, head = self.dummy_gradients(kinds)
        size = len(self.local.batch)
        return total_bytes(layers, size), total_bytes((head,), size)

    def _find_dummies(self, kinds: int) -> tuple[Tensors, Tensor]:
        fused = self.local.on("grad_accumulation_fusion")
        dense = fused & (self.local.software("dummy_weight_gradients") > 0)
        grouped = dense & (self.local.software("grouped_dummy_gradients") > 0)
        seen: list[tuple[FloatArray, FloatArray, BoolArray]] = []
        source = "Transformer Engine, pytorch/module/base.py (get_dummy_wgrad)"
        found = []
        for index, kind in enumerate(self.model.kinds):
            if not kinds >> index & 1:
                continue
            for weight in weight_shapes(self.model, kind, tp=self.local.tp,
                                        ep=self.local.real("ep"), etp=self.local.real("etp")):
                kept = grouped if weight.is_expert else dense
                new = _is_new(seen, weight.outputs, weight.inputs, kept)
                found.append(Tensor(f"dummy_wgrad.{weight.name}",
                                    (weight.outputs, weight.inputs), 2.0, source, new))
        outputs = self.local.vocab / self.local.tp
        inputs = np.full_like(outputs, self.model.hidden_size)
        head = Tensor("dummy_wgrad.output_layer", (outputs, inputs), 2.0, source,
                      _is_new(seen, outputs, inputs, self.local.keeps_head_dummy))
        return tuple(found), head


def _is_new(seen: list[tuple[FloatArray, FloatArray, BoolArray]], outputs: FloatArray,
            inputs: FloatArray, kept: BoolArray) -> FloatArray:
    """1 where a shape has not been seen; remembers it where its buffer is kept."""
    new = kept.copy()
    for other_outputs, other_inputs, other_kept in seen:
        new &= ~(other_kept & (other_outputs == outputs) & (other_inputs == inputs))
    seen.append((outputs, inputs, kept))
    return new.astype(np.float64)


def local_costs(model: ModelSpec, system: SystemSpec, distinct: Batch) -> LocalCosts:
    """Return the costs of distinct local combinations, remembered from call to call.

    Neighbouring chunks of a search, and strategies that differ in their pipeline only, share
    them.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    distinct : Batch
        Resolved, u rows; only `LOCAL_FIELDS` are read.
    """
    rows = np.empty((len(LOCAL_FIELDS), len(distinct)))
    for i, name in enumerate(LOCAL_FIELDS):
        rows[i] = distinct.columns[name]
    return _remembered(model, system, rows.tobytes(), len(distinct), distinct.texts)


@lru_cache(maxsize=8)
def _remembered(model: ModelSpec, system: SystemSpec, rows: bytes, size: int,
                texts: tuple[str, ...]) -> LocalCosts:
    table = np.frombuffer(rows).reshape(len(LOCAL_FIELDS), size)
    columns = {name: table[i] if FIELD[name].kind is Kind.FLOAT else table[i].astype(np.int64)
               for i, name in enumerate(LOCAL_FIELDS)}
    batch = Batch.from_columns(columns, texts=texts, size=size)
    profiles, profile_index = profile_codes(batch)
    return LocalCosts(Local(model, system, batch, profiles, profile_index))
