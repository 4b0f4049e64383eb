"""The part of a strategy that decides what one layer costs on one rank.

A layer's time and memory depend on few fields (tp, cp, ep, etp, mbs, precision, kernels, ...),
so they are evaluated for the distinct combinations only and gathered to the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcore.batch import Batch
from simcore.degrees import head_exchange_ranks
from simcore.inputs.fields import RECOMPUTE_BIT, code
from simcore.inputs.framework import Profile
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.parameters import padded_vocab
from simcore.placement import Group, Placement, place
from simcore.resolve import is_fp8
from simcore.typing import BoolArray, FloatArray, IntArray

LOCAL_FIELDS: tuple[str, ...] = (
    "tp", "cp", "ep", "etp", "mbs", "seq_len", "sp", "recompute", "precision", "attention",
    "cross_entropy", "cross_entropy_impl", "fused_swiglu", "fused_rope", "fused_norm",
    "grad_accumulation_fusion", "grouped_gemm", "permute_fusion", "dispatcher",
    "capacity_factor", "pad_to_capacity", "expert_imbalance", "cp_comm", "tp_comm_overlap",
    "ep_comm_overlap", "shared_expert_overlap", "delay_wgrad_compute", "cuda_graph",
    "framework", "framework_version", "grad_dtype", "fp8_param_gather", "dropout",
)
"""Fields that a layer's cost on a rank depends on."""

NVFP4_BYTES = 0.5 + 1.0 / 16.0
"""Of a value in NVFP4: four bits, and a scale of eight to 16 values (Transformer Engine,
``pytorch/tensor/nvfp4_tensor.py``)."""
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Local:
    """Distinct local combinations, as float64 arrays of shape (u,), with what follows from them.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
        One row a combination, resolved.
    profiles : tuple of Profile
    profile_index : ndarray, shape (u,)
        Which profile each row has.
    """

    model: ModelSpec
    system: SystemSpec
    batch: Batch
    profiles: tuple[Profile, ...]
    profile_index: IntArray

    def real(self, name: str) -> FloatArray:
        """Return a field's column as float64, shape (u,)."""
        return self.batch.real(name)

    def on(self, name: str) -> BoolArray:
        """Return a switch's column as a mask, shape (u,)."""
        return self.batch[name] > 0

    def software(self, name: str) -> FloatArray:
        """Return a number of the framework's profile, shape (u,)."""
        table = np.array([float(getattr(p, name)) for p in self.profiles])
        values: FloatArray = table[self.profile_index]
        return values

    @cached_property
    def attention_rate_frac(self) -> FloatArray:
        """Rate of the profile's fused attention on this architecture, shape (u,)."""
        architecture = self.system.accelerator.architecture
        rates = [p.attention_rate_frac for p in self.profiles]
        table = np.array([r.get(architecture, 1.0) if isinstance(r, dict) else r for r in rates])
        values: FloatArray = table[self.profile_index]
        return values

    def style_is(self, style: str) -> BoolArray:
        """Tell where the profile has this memory style, shape (u,)."""
        styles = np.array([p.memory_style.value == style for p in self.profiles])
        rows: BoolArray = styles[self.profile_index]
        return rows

    def recomputes(self, module: str) -> BoolArray:
        """Tell where a module is recomputed, shape (u,)."""
        return (self.batch["recompute"] & RECOMPUTE_BIT[module]) > 0

    @cached_property
    def tp(self) -> FloatArray:
        """Tensor-parallel size."""
        return self.real("tp")

    @cached_property
    def tp_placement(self) -> Placement:
        """Tensor groups: neighbouring ranks."""
        return place(Group(self.batch["tp"], 1), self.system.network)

    @cached_property
    def cp_placement(self) -> Placement:
        """Context groups: ranks one tensor group apart."""
        return place(Group(self.batch["cp"], self.batch["tp"]), self.system.network)

    @cached_property
    def cp_inner(self) -> IntArray:
        """Ranks of the level that exchanges heads, under a2a+p2p."""
        model = self.model
        groups = model.num_attention_heads if model.mla else model.num_query_groups
        return head_exchange_ranks(self.batch, model.num_attention_heads, groups,
                                   self.system.network.domain_size)

    @cached_property
    def ep_placement(self) -> Placement:
        """Expert groups: ranks one expert-tensor group apart, whatever tp and cp are."""
        return place(Group(self.batch["ep"], self.batch["etp"]), self.system.network)

    @cached_property
    def etp_placement(self) -> Placement:
        """Expert-tensor groups: neighbouring ranks."""
        return place(Group(self.batch["etp"], 1), self.system.network)

    @cached_property
    def tokens(self) -> FloatArray:
        """Tokens of a micro-batch on a context-parallel rank [tokens]."""
        return self.real("mbs") * self.real("seq_len") / self.real("cp")

    @cached_property
    def tokens_sharded(self) -> FloatArray:
        """The same where sequence parallelism splits them over tp [tokens]."""
        return np.where(self.on("sp"), self.tokens / self.tp, self.tokens)

    @cached_property
    def is_fp8(self) -> BoolArray:
        """Whether the layers' matrix products run in fp8 or NVFP4."""
        return is_fp8(self.batch["precision"])

    @cached_property
    def is_dropped(self) -> BoolArray:
        """Whether hidden states and attention go through dropout."""
        return self.real("dropout") > 0

    def precision_is(self, *names: str) -> BoolArray:
        """Tell where the precision is one of these, shape (u,)."""
        return np.isin(self.batch["precision"], [code("precision", p) for p in names])

    @cached_property
    def bytes_per_value(self) -> FloatArray:
        """Of activations outside of fp8 products [B]."""
        return np.where(self.precision_is("fp32"), 4.0, 2.0)

    @cached_property
    def gemm_input_bytes(self) -> FloatArray:
        """Of an input that a product saves for its weight gradient [B an element].

        Scales of MXFP8 add 1/32 (Transformer Engine, ``tensor/mxfp8_tensor.py``), of 128-wide
        blocks 4/128.
        """
        scaled = np.where(self.precision_is("mxfp8", "fp8-block"), 1.0 + 1.0 / 32.0, 1.0)
        scaled = np.where(self.precision_is("nvfp4"), NVFP4_BYTES, scaled)
        return np.where(self.is_fp8, scaled, self.bytes_per_value)

    @cached_property
    def keeps_head_dummy(self) -> BoolArray:
        """Whether the head's dummy weight gradient stays between micro-batches."""
        kept = (self.software("dummy_weight_gradients") * self.software("head_dummy_gradient")) > 0
        return kept & self.on("grad_accumulation_fusion")

    @cached_property
    def vocab(self) -> FloatArray:
        """Padded vocabulary, whole."""
        return np.asarray(padded_vocab(self.model, self.tp), dtype=np.float64)

    @cached_property
    def routed_rows(self) -> FloatArray:
        """Rows that the experts of a rank work on, in a micro-batch (balanced times imbalance).

        Each rank brings its tokens top-k times; the ranks of an expert-tensor group work on the
        same rows. Capacity bounds what an expert takes; padding makes it exactly that.
        """
        moe = self.model.moe
        if moe is None:
            return np.zeros(len(self.batch))
        brought = self.tokens_sharded * moe.topk
        capacity_factor = np.maximum(self.real("capacity_factor"), 0.0)
        capacity = np.ceil(brought * capacity_factor / moe.num_experts) * moe.num_experts
        rows = brought * self.real("expert_imbalance")
        rows = np.where(capacity_factor > 0, np.minimum(rows, capacity), rows)
        rows = np.where(self.on("pad_to_capacity") & (capacity_factor > 0), capacity, rows)
        return rows * self.real("etp")

    @cached_property
    def dispatched_rows(self) -> FloatArray:
        """Rows a rank sends to experts, its own included."""
        moe = self.model.moe
        if moe is None:
            return np.zeros(len(self.batch))
        return self.routed_rows / self.real("etp")
