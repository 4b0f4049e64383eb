"""Every field bites: each legal value changes memory or time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from simcore.inputs.fields import FIELD, FIELDS, Kind
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict


@dataclass(frozen=True)
class Bite:
    """A field's first value gives less of what is measured than its second.

    Parameters
    ----------
    name : str
        The field.
    less, more : value
    of : str
        ``peak`` or ``step``.
    base : dict
        Strategy around it; ``model`` and ``system`` too.
    less_with, more_with : dict
        What legality asks for beside one of the values.
    """

    name: str
    less: Any
    more: Any
    of: str
    base: dict[str, Any]
    less_with: dict[str, Any] = field(default_factory=dict)
    more_with: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{self.less}-{self.more}-{self.of}"


DENSE = {"model": "llama3-8b", "system": "h100-sxm", "gpus": 16, "seq_len": 4096, "gbs": 64}
PIPED = {**DENSE, "gpus": 32, "pp": 4, "gbs": 128}
MOE = {"model": "mixtral-8x7b", "system": "h100-sxm", "gpus": 16, "seq_len": 4096, "gbs": 64,
       "ep": 8}
SHARED = {"model": "deepseek-v2-lite", "system": "h100-sxm", "gpus": 16, "seq_len": 4096,
          "gbs": 64, "ep": 8}
MLA = {"model": "deepseek-v3", "system": "h200-sxm", "gpus": 256, "pp": 8, "ep": 32, "gbs": 256,
       "seq_len": 4096, "first_stage_layers": 7, "last_stage_layers": 6}
STATES = {**DENSE, "gpus": 2, "seq_len": 64, "gbs": 2, "grad_dtype": "bf16"}
AWARE = {**STATES, "precision_aware_optimizer": True}
HALF = {**AWARE, "precision": "fp16", "grad_dtype": "fp16"}
BLOCKS = {**DENSE, "system": "b200-sxm"}
TITAN = {**DENSE, "framework": "torchtitan"}
LAUNCHES = {"model": "gpt2", "system": "b200-sxm", "gpus": 8, "seq_len": 256, "gbs": 64}
EXPERT_LAUNCHES = {**SHARED, "system": "b200-sxm", "seq_len": 512, "capacity_factor": 1.0,
                   "pad_to_capacity": True}
FULL = {**DENSE, "recompute": "full"}
LINKS = {**DENSE, "gpus": 16, "pp": 2, "seq_len": 512, "gbs": 16, "overlap_grad_reduce": False}

BITES = (
    Bite("gpus", 64, 16, "step", DENSE),
    Bite("seq_len", 4096, 8192, "peak", DENSE),
    Bite("gbs", 64, 128, "step", DENSE),
    Bite("dropout", 0.0, 0.1, "peak", DENSE),
    Bite("dropout", 0.0, 0.1, "step", DENSE),
    Bite("mbs", 1, 2, "peak", DENSE),
    Bite("tp", 8, 1, "peak", DENSE),
    Bite("cp", 4, 1, "peak", DENSE),
    Bite("pp", 4, 1, "peak", DENSE),
    Bite("vpp", 4, 1, "step", PIPED),
    Bite("ep", 8, 1, "peak", MOE),
    Bite("etp", 2, 1, "peak", {**MOE, "tp": 2, "ep": 4}),
    Bite("sp", True, False, "peak", {**DENSE, "tp": 8}),
    *(Bite("zero", z, z - 1, "peak", DENSE) for z in (1, 2, 3)),
    Bite("cp_comm", "p2p", "a2a", "peak", {**DENSE, "cp": 4}),
    Bite("cp_comm", "p2p", "all_gather", "peak", {**DENSE, "cp": 4}),
    # Heads are exchanged inside a node, which leaves a shorter ring between nodes.
    Bite("cp_comm", "a2a+p2p", "p2p", "step", {**DENSE, "cp": 16}),
    Bite("cp_comm", "p2p", "a2a+p2p", "peak", {**DENSE, "cp": 16}),
    # Gathering takes cp times as long; with few query groups there is little to gather.
    Bite("cp_comm", "a2a", "all_gather", "step", {**DENSE, "model": "llama2-7b", "cp": 8}),
    # With pp in front, gradients are reduced between nodes.
    Bite("rank_order", "tp-cp-dp-pp", "tp-cp-pp-dp", "step", LINKS),
    Bite("first_stage_layers", 8, 14, "step", PIPED),
    Bite("last_stage_layers", 8, 14, "step", PIPED),
    Bite("pp_layout", "8|8|8|8", "14|6|6|6", "step", PIPED),
    Bite("pp_layout", "none", "14|6|6|6", "step", PIPED),
    Bite("pp_layout", "auto", "14|6|6|6", "step", PIPED),
    Bite("schedule", "1f1b", "gpipe", "peak", PIPED),
    Bite("schedule", "interleaved", "1f1b", "step", PIPED, less_with={"vpp": 4}),
    Bite("schedule", "zero-bubble", "1f1b", "step", PIPED),
    Bite("schedule", "1f1b", "dualpipe", "peak", PIPED),
    Bite("schedule", "dualpipe", "1f1b", "step", PIPED),
    Bite("schedule", "dualpipev", "dualpipe", "peak", PIPED),
    Bite("microbatch_group_size", 4, 8, "peak", {**PIPED, "vpp": 2}),
    Bite("mtp", 0, 1, "step", MLA),
    *(Bite("recompute", modules, "none", "peak", base) for modules, base in (
        ("full", DENSE), ("mlp", DENSE), ("layernorm", DENSE), ("moe", MOE), ("moe_act", MOE),
        ("mla_up_proj", MLA), ("shared_experts", SHARED),
        ("core_attn", {**DENSE, "attention": "unfused"}), ("selective_op", TITAN))),
    *(Bite("recompute", "none", modules, "step", base) for modules, base in (
        ("full", DENSE), ("mlp", DENSE), ("layernorm", DENSE), ("moe", MOE), ("moe_act", MOE),
        ("mla_up_proj", MLA), ("shared_experts", SHARED),
        ("core_attn", {**DENSE, "attention": "unfused"}), ("selective_op", TITAN))),
    Bite("recompute_layers", 24, 8, "peak", FULL),
    Bite("recompute_layers", 8, 24, "step", FULL),
    Bite("recompute_method", "uniform", "block", "peak", FULL,
         more_with={"recompute_layers": 8}),
    # Few long units keep fewer inputs, and rebuild more at once.
    Bite("recompute_unit_layers", 1, 16, "peak", FULL),
    Bite("activation_offload_layers", 8, 0, "peak", DENSE),
    *(Bite("precision", p, "fp32", "step", DENSE) for p in ("bf16", "fp16")),
    *(Bite("precision", p, "bf16", "step", DENSE) for p in ("fp8-ds", "fp8-cs", "fp8-block")),
    Bite("precision", "mxfp8", "bf16", "step", BLOCKS),
    Bite("precision", "fp8-rowwise", "bf16", "step", TITAN),
    Bite("precision", "fp8-ds", "fp8-cs", "step", DENSE),
    Bite("grad_dtype", "bf16", "fp32", "peak", DENSE),
    Bite("grad_dtype", "fp16", "fp32", "peak", {**DENSE, "precision": "fp16"}),
    Bite("fp8_param_gather", True, False, "peak", {**DENSE, "precision": "fp8-ds"}),
    Bite("reuse_grad_buf", True, False, "peak",
         {**BLOCKS, "precision": "mxfp8", "fp8_param_gather": True}),
    Bite("optimizer", "sgd", "adam", "peak", DENSE),
    Bite("precision_aware_optimizer", True, False, "peak", STATES),
    Bite("main_params_dtype", "bf16", "fp32", "peak", AWARE),
    Bite("main_params_dtype", "fp16", "fp32", "peak", AWARE),
    Bite("main_grads_dtype", "bf16", "fp32", "peak", AWARE),
    Bite("main_grads_dtype", "fp16", "fp32", "peak", HALF),
    *(Bite(f"{name}_dtype", dtype, "fp32", "peak", AWARE)
      for name in ("exp_avg", "exp_avg_sq") for dtype in ("bf16", "fp16", "fp8")),
    Bite("overlap_grad_reduce", True, False, "step", DENSE,
         more_with={"overlap_param_gather": False}),
    Bite("overlap_param_gather", True, False, "step", DENSE),
    Bite("tp_comm_overlap", True, False, "step", {**DENSE, "tp": 8}),
    Bite("overlap_p2p", True, False, "step", {**PIPED, "vpp": 2}),
    Bite("ep_comm_overlap", True, False, "step", MOE),
    Bite("ep_comm_overlap", False, True, "peak", {**MOE, "gpus": 32, "pp": 2, "vpp": 2}),
    Bite("shared_expert_overlap", True, False, "step", {**SHARED, "gpus": 64, "ep": 64,
                                                        "seq_len": 8192, "mbs": 1}),
    Bite("delay_wgrad_compute", True, False, "step",
         {**MOE, "gpus": 64, "ep": 8, "etp": 2, "tp": 2, "ep_comm_overlap": True}),
    Bite("dispatcher", "alltoall", "allgather", "step", MOE),
    Bite("dispatcher", "deepep", "alltoall", "step", MOE),
    Bite("dispatcher", "hybridep", "alltoall", "step", MOE),
    Bite("capacity_factor", 1.0, 2.0, "peak", {**MOE, "pad_to_capacity": True}),
    Bite("capacity_factor", 1.0, 0.0, "step", {**MOE, "expert_imbalance": 1.5}),
    Bite("pad_to_capacity", False, True, "peak", {**MOE, "capacity_factor": 2.0}),
    Bite("expert_imbalance", 1.0, 1.5, "step", MOE),
    Bite("grouped_gemm", True, False, "step", SHARED),
    Bite("permute_fusion", True, False, "step", MOE),
    Bite("attention", "flash", "unfused", "peak", DENSE),
    Bite("cross_entropy", "fused", "unfused", "peak", DENSE),
    Bite("cross_entropy_impl", "te", "native", "peak", {**DENSE, "framework_version": "0.16"}),
    Bite("fused_swiglu", True, False, "peak", DENSE),
    Bite("fused_swiglu", True, False, "step", DENSE),
    Bite("fused_rope", True, False, "step", DENSE),
    Bite("fused_norm", True, False, "step", DENSE),
    Bite("fused_norm", True, False, "peak", DENSE),
    Bite("grad_accumulation_fusion", True, False, "step", DENSE),
    *(Bite("cuda_graph", f"transformer_engine:{scope}", "none", "step", LAUNCHES)
      for scope in ("attn", "mlp")),
    Bite("cuda_graph", "local:full_iteration", "none", "step", LAUNCHES),
    *(Bite("cuda_graph", f"transformer_engine:{scope}", "none", "step", EXPERT_LAUNCHES)
      for scope in ("moe", "moe_router")),
    Bite("cuda_graph", "transformer_engine:moe_router+moe_preprocess",
         "transformer_engine:moe_router", "step", EXPERT_LAUNCHES),
    Bite("precision", "nvfp4", "mxfp8", "step", BLOCKS),
    Bite("fp4_param_gather", True, False, "peak", {**BLOCKS, "precision": "nvfp4"}),
    Bite("optimizer", "muon", "adam", "peak", DENSE),
    Bite("optimizer", "adam", "muon", "step", DENSE),
    Bite("optimizer_offload", 0.5, 0.0, "peak", DENSE),
    Bite("optimizer_offload", 0.0, 0.5, "step", DENSE),
    Bite("dp_replicate", 1, 2, "peak", DENSE),
    # Gradients in bf16.
    Bite("framework", "megatron-bridge", "megatron", "peak", DENSE),
    Bite("framework", "nemo-megatron", "megatron", "peak", DENSE),
    # Parameters and gradients are sharded.
    Bite("framework", "fsdp", "megatron", "peak", DENSE),
    Bite("framework", "torchtitan", "megatron", "peak", DENSE),
    # Nothing overlaps; kernels are not fused.
    Bite("framework", "megatron", "megatron-deepspeed", "step", DENSE),
    Bite("framework", "megatron", "aleph-alpha-scaling", "step", DENSE),
    Bite("framework", "megatron", "deepspeed", "step", DENSE),
    # FusedAdam of Transformer Engine 2.11 casts bf16 moments to fp32 at once.
    Bite("framework_version", "0.19", "0.15", "peak",
         {**AWARE, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}),
)


def measured(base: dict[str, Any], of: str) -> float:
    """Predict a strategy; returns its peak [B] or its step time [s]."""
    given = {k: v for k, v in base.items() if k not in ("model", "system")}
    prediction = predict(load_model(base["model"]), load_system(base["system"]),
                         Strategy.from_mapping(given))
    return prediction["peak_memory_bytes" if of == "peak" else "step_time_s"]


@pytest.mark.parametrize("bite", BITES, ids=str)
def test_bites(bite: Bite) -> None:
    less = measured({**bite.base, bite.name: bite.less, **bite.less_with}, bite.of)
    more = measured({**bite.base, bite.name: bite.more, **bite.more_with}, bite.of)
    assert less < more * (1 - 1e-6)


@pytest.mark.parametrize("name", [f.name for f in FIELDS])
def test_no_value_is_left_out(name: str) -> None:
    values = [v for bite in BITES if bite.name == name for v in (bite.less, bite.more)]
    spec = FIELD[name]
    if spec.kind is Kind.BOOL:
        assert set(values) == {True, False}
    elif spec.kind is Kind.ENUM:
        assert set(values) == set(spec.choices)
    elif spec.kind is Kind.MODULES:
        named = {part for v in values for part in str(v).rsplit(":", maxsplit=1)[-1].split("+")}
        assert named == {*spec.choices, "none"}
    else:
        assert len(set(values)) >= 2
