"""Every rule: a case it refuses, one it accepts, what it reads, and what its message offers."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simcore.batch import Batch
from simcore.errors import Issue
from simcore.inputs.fields import FIELD_NAMES
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.resolve import resolve
from simcore.rules import RULES, Context, Rule, check, rules_by_fields

D, MOE, MIX = "llama3-70b", "deepseek-v3", "mixtral-8x7b"
GPT2, OSS, NEXT = "gpt2-xl", "gpt-oss-120b", "qwen3-next-80b-a3b"
H, A, B200, MI = "h100-sxm", "a100-sxm-80g", "b200-sxm", "mi300x"
DS, AA, TT, FSDP = "megatron-deepspeed", "aleph-alpha-scaling", "torchtitan", "fsdp"
V = {"pp": 4, "vpp": 5}
EP = {"ep": 8, "etp": 1}

# name: (model, system, what is refused, what is accepted beside it)
CASES: dict[str, tuple[str, str, dict, dict]] = {
    "gpus_given": (D, H, {"gpus": None}, {}),
    "tp_supported": (D, H, {"tp": 2, "framework": FSDP}, {"tp": 2, "framework": TT}),
    "cp_supported": (D, H, {"cp": 2, "framework": DS}, {"cp": 2}),
    "pp_supported": (D, H, {"pp": 2, "framework": FSDP}, {"pp": 2, "framework": DS}),
    "vpp_supported": (D, H, {**V, "framework": AA}, V),
    "ep_supported": (MIX, H, {"ep": 8, "framework": AA}, {"ep": 8, "framework": DS}),
    "etp_supported": (MIX, H, {"etp": 2, "framework": AA}, {"etp": 2}),
    "replicas_supported": (D, H, {"dp_replicate": 2, "zero": 0}, {"dp_replicate": 2}),
    "replicas_divide": (D, H, {"dp_replicate": 3}, {"dp_replicate": 4}),
    "ep_needs_experts": (D, H, {"ep": 2}, {"ep": 1}),
    "etp_needs_experts": (D, H, {"etp": 2}, {"etp": 1}),
    "heads_divide_by_tp": ("gpt2-xl", H, {"tp": 2},
                           {"tp": 5, "gpus": 40, "sp": False}),
    "query_groups_and_tp": (D, H, {"tp": 16, "framework_version": "0.15"}, {"tp": 16}),
    "linear_heads_divide": (NEXT, H, {"tp": 4, "cp": 8}, {"tp": 4, "cp": 4}),
    "ffn_divides_by_tp": (D, H, {"tp": 5, "gpus": 40}, {"tp": 4}),
    "expert_ffn_divides_by_etp": (MIX, H, {"etp": 3, "gpus": 24}, {"etp": 2}),
    "experts_divide_by_ep": (MIX, H, {"ep": 16}, {"ep": 8}),
    "gpus_divide_by_dense_grid": (D, H, {"gpus": 60, "tp": 8}, {"gpus": 64, "tp": 8}),
    "gpus_divide_by_expert_grid": (MOE, H, {"gpus": 8, "tp": 2, "ep": 16, "etp": 1},
                                   {"gpus": 8, "tp": 2, "ep": 8, "etp": 1}),
    "sp_needs_tp": (D, H, {"sp": True}, {"sp": True, "tp": 2}),
    "moe_with_tp_needs_sp": (MIX, H, {"tp": 2, "sp": False}, {"tp": 2, "sp": True}),
    "seq_len_divides_by_cp": (D, H, {"cp": 4, "seq_len": 8196}, {"cp": 4, "seq_len": 8192}),
    "seq_len_divides_by_tp": (D, H, {"tp": 8, "seq_len": 8196}, {"tp": 8, "seq_len": 8200}),
    "hierarchical_cp_has_two_levels": (D, H, {"cp": 4, "cp_comm": "a2a+p2p"},
                                       {"cp": 16, "cp_comm": "a2a+p2p"}),
    "hierarchical_cp_offered": (D, H, {"cp": 16, "cp_comm": "a2a+p2p", "framework": "torchtitan"},
                                {"cp": 16, "cp_comm": "a2a+p2p"}),
    "cp_comm_needs_cp": (D, H, {"cp_comm": "a2a"}, {"cp_comm": "a2a", "cp": 2}),
    "a2a_heads_divide": (D, H, {"cp": 8, "tp": 8, "cp_comm": "a2a"},
                         {"cp": 8, "cp_comm": "a2a"}),
    "sliding_windows_in_a_ring": (OSS, H, {"cp": 2, "cp_comm": "p2p"}, {"cp": 2}),
    "gbs_divides": (D, H, {"gbs": 63}, {"gbs": 64}),
    "schedule_offered": (D, H, {"schedule": "zero-bubble", "pp": 4,
                                "framework": "megatron-bridge"},
                         {"schedule": "zero-bubble", "pp": 4}),
    "vpp_needs_pp": (D, H, {"vpp": 2}, V),
    "schedule_fits_vpp": (D, H, {**V, "schedule": "1f1b"}, {**V, "schedule": "interleaved"}),
    "schedule_needs_pp": (D, H, {"schedule": "gpipe"}, {"schedule": "gpipe", "pp": 2}),
    "dualpipe_pairs_ranks": (D, H, {"schedule": "dualpipe", "pp": 5, "gpus": 40, "gbs": 80},
                             {"schedule": "dualpipe", "pp": 4, "gbs": 128}),
    "dual_micro_batches": (D, H, {"schedule": "dualpipe", "pp": 4, "gbs": 16 * 9},
                           {"schedule": "dualpipe", "pp": 4, "gbs": 16 * 8}),
    "dualpipe_shards_states_only": (
        D, H, {"schedule": "dualpipe", "pp": 4, "gbs": 128, "zero": 2},
        {"schedule": "dualpipe", "pp": 4, "gbs": 128, "zero": 0}),
    "turned_pipeline_is_even": (
        D, H, {"schedule": "dualpipev", "pp": 4, "gbs": 128, "first_stage_layers": 18,
               "last_stage_layers": 22},
        {"schedule": "dualpipev", "pp": 4, "gbs": 128, "first_stage_layers": 22,
         "last_stage_layers": 22}),
    "layers_divide": (D, H, {"pp": 16, "vpp": 2}, {"pp": 16}),
    "layout_fits": (D, H, {"pp": 4, "pp_layout": "20|20|20|19"},
                    {"pp": 4, "pp_layout": "20|20|21|19"}),
    "overlap_p2p_needs_vpp": (D, H, {"pp": 4, "overlap_p2p": True}, {**V, "overlap_p2p": True}),
    "vpp_on_two_ranks_needs_overlap": (D, H, {"pp": 2, "vpp": 2, "overlap_p2p": False},
                                       {"pp": 4, "vpp": 2, "overlap_p2p": False}),
    "group_size_needs_vpp": (D, H, {"pp": 4, "microbatch_group_size": 8},
                             {**V, "microbatch_group_size": 8}),
    "group_size_in_range": (D, H, {**V, "gbs": 32}, {**V, "gbs": 64}),
    "group_leaves_no_rest": (D, H, {**V, "gbs": 80}, {**V, "gbs": 128}),
    "fp8_needs_units": (D, A, {"precision": "fp8-cs"}, {"precision": "bf16"}),
    "fp8_recipe_needs_hardware": (D, H, {"precision": "mxfp8"}, {"precision": "fp8-block"}),
    "fp8_supported": (D, H, {"precision": "fp8-cs", "framework": DS}, {"precision": "fp8-cs"}),
    "fp8_weights_align": ("gpt2-xl", H, {"precision": "fp8-block"}, {"precision": "fp8-cs"}),
    "fp8_tokens_align": (D, H, {"precision": "fp8-cs", "seq_len": 4100},
                         {"precision": "fp8-cs", "seq_len": 4104}),
    "fp4_param_gather_needs_nvfp4": (
        D, B200, {"fp4_param_gather": True, "precision": "mxfp8"},
        {"fp4_param_gather": True, "precision": "nvfp4"}),
    "fp8_param_gather_needs_fp8": (D, H, {"fp8_param_gather": True},
                                   {"fp8_param_gather": True, "precision": "fp8-cs"}),
    "reuse_grad_buf_needs_mxfp8": (
        D, B200, {"reuse_grad_buf": True},
        {"reuse_grad_buf": True, "precision": "mxfp8", "fp8_param_gather": True}),
    "gradient_format": (D, H, {"grad_dtype": "fp16"}, {"grad_dtype": "fp16",
                                                       "precision": "fp16"}),
    "fp32_gradients": (D, H, {"grad_dtype": "bf16", "precision": "fp32"},
                       {"grad_dtype": "fp32", "precision": "fp32"}),
    "muon_supported": (D, H, {"optimizer": "muon", "framework": "deepspeed"},
                       {"optimizer": "muon"}),
    "muon_whole_matrices": (D, H, {"optimizer": "muon", "zero": 2},
                            {"optimizer": "muon", "zero": 1}),
    "optimizer_offload_supported": (D, H, {"optimizer_offload": 0.5, "framework": FSDP},
                                    {"optimizer_offload": 0.5, "framework": "deepspeed"}),
    "optimizer_offload_needs_adam": (D, H, {"optimizer_offload": 0.5, "optimizer": "sgd"},
                                     {"optimizer_offload": 0.5}),
    "optimizer_offload_needs_precision_aware": (
        D, H, {"optimizer_offload": 0.5, "precision_aware_optimizer": False},
        {"optimizer_offload": 0.5}),
    "optimizer_offload_formats": (D, H, {"optimizer_offload": 0.5, "exp_avg_dtype": "bf16"},
                                  {"exp_avg_dtype": "bf16"}),
    "optimizer_offload_low_precision_weights": (
        D, H, {"optimizer_offload": 0.5, "precision": "fp8-cs", "fp8_param_gather": True},
        {"optimizer_offload": 0.5, "precision": "fp8-ds", "fp8_param_gather": True}),
    "zero_supported": (D, H, {"zero": 1, "framework": FSDP}, {"zero": 3, "framework": FSDP}),
    "zero_with_pipeline": (D, H, {"zero": 3, "pp": 2}, {"zero": 3, "pp": 2, "framework": TT}),
    "precision_aware_needs_adam": (D, H, {"precision_aware_optimizer": True, "zero": 0},
                                   {"precision_aware_optimizer": True}),
    "precision_aware_supported": (
        D, H, {"precision_aware_optimizer": True, "framework": FSDP},
        {"precision_aware_optimizer": True, "framework": "nemo-megatron"}),
    **{f"{name}_needs_precision_aware": (
        D, H, {name: "bf16", "precision_aware_optimizer": False, "grad_dtype": "bf16"},
        {name: "bf16", "grad_dtype": "bf16"})
       for name in ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype",
                    "exp_avg_sq_dtype")},
    "recompute_what_exists": (D, H, {"recompute": "core_attn+moe_act"},
                              {"recompute": "core_attn+mlp"}),
    "recompute_once": (MOE, H, {"recompute": "moe+moe_act"}, {"recompute": "moe+mla_up_proj"}),
    "recompute_modules_supported": (D, H, {"recompute": "mlp", "framework": FSDP},
                                    {"recompute": "full", "framework": FSDP}),
    "selective_op_supported": (D, H, {"recompute": "selective_op"},
                               {"recompute": "selective_op", "framework": TT}),
    "moe_act_needs_grouped_gemm": (MOE, H, {"recompute": "moe_act", "grouped_gemm": False},
                                   {"recompute": "moe_act"}),
    "recompute_under_delayed_scaling": (
        D, H, {"recompute": "layernorm", "precision": "fp8-ds"},
        {"recompute": "layernorm", "precision": "fp8-cs"}),
    "shared_experts_recompute_or_overlap": (
        MOE, H, {"recompute": "shared_experts", "shared_expert_overlap": True},
        {"recompute": "shared_experts", "shared_expert_overlap": False}),
    "recompute_layers_need_full": (D, H, {"recompute": "mlp", "recompute_layers": 4},
                                   {"recompute": "full", "recompute_layers": 4}),
    "recompute_layers_in_range": (D, H, {"pp": 4, "recompute": "full", "recompute_layers": 21},
                                  {"pp": 4, "recompute": "full", "recompute_layers": 20}),
    "recompute_method_needs_full": (D, H, {"recompute_method": "block"},
                                    {"recompute_method": "block", "recompute": "full"}),
    "uniform_recompute_takes_all": (
        D, H, {"recompute": "full", "recompute_layers": 4, "recompute_method": "uniform"},
        {"recompute": "full", "recompute_layers": 80, "recompute_method": "uniform"}),
    "recompute_unit_in_range": (
        D, H, {"pp": 4, "recompute": "full", "recompute_unit_layers": 32},
        {"pp": 4, "recompute": "full", "recompute_unit_layers": 2}),
    "activation_offload_needs_pp_1": (D, H, {"activation_offload_layers": 8, "pp": 2},
                                      {"activation_offload_layers": 8}),
    "activation_offload_in_range": (D, H, {"activation_offload_layers": 80},
                                    {"activation_offload_layers": 79}),
    "activation_offload_or_recompute": (
        D, H, {"activation_offload_layers": 8, "recompute": "mlp"},
        {"activation_offload_layers": 8, "recompute": "none"}),
    "activation_offload_supported": (
        D, H, {"activation_offload_layers": 8, "framework": FSDP},
        {"activation_offload_layers": 8, "framework": "megatron-bridge"}),
    "tp_comm_overlap_supported": (
        D, H, {"tp": 8, "sp": True, "tp_comm_overlap": True, "framework": AA},
        {"tp": 8, "tp_comm_overlap": True}),
    "ep_comm_overlap_supported": (MIX, H, {"ep": 8, "ep_comm_overlap": True, "framework": TT},
                                  {"ep": 8, "ep_comm_overlap": True}),
    "shared_expert_overlap_supported": (
        MOE, H, {**EP, "shared_expert_overlap": True, "framework": TT},
        {**EP, "shared_expert_overlap": True}),
    "delay_wgrad_compute_supported": (
        MIX, H, {"ep": 8, "ep_comm_overlap": True, "delay_wgrad_compute": True,
                 "framework": TT},
        {"ep": 8, "ep_comm_overlap": True, "delay_wgrad_compute": True}),
    "fp8_param_gather_supported": (
        D, H, {"fp8_param_gather": True, "precision": "fp8-cs", "framework": TT},
        {"fp8_param_gather": True, "precision": "fp8-cs"}),
    "reuse_grad_buf_supported": (
        D, B200, {"reuse_grad_buf": True, "precision": "mxfp8", "fp8_param_gather": True,
                  "framework": TT},
        {"reuse_grad_buf": True, "precision": "mxfp8", "fp8_param_gather": True}),
    "cuda_graph_supported": (
        D, H, {"cuda_graph": "local:full_iteration", "framework": FSDP},
        {"cuda_graph": "local:full_iteration"}),
    "pad_to_capacity_needs_experts": (D, H, {"pad_to_capacity": True},
                                      {"pad_to_capacity": False}),
    "grouped_gemm_needs_experts": (D, H, {"grouped_gemm": True}, {"grouped_gemm": False}),
    "permute_fusion_needs_experts": (D, H, {"permute_fusion": True}, {"permute_fusion": False}),
    "overlap_grad_reduce_needs_dp": (D, H, {"tp": 8, "pp": 8, "overlap_grad_reduce": True},
                                     {"tp": 8, "pp": 4, "overlap_grad_reduce": True}),
    "overlap_param_gather_needs": (D, H, {"zero": 0, "overlap_param_gather": True},
                                   {"zero": 1, "overlap_param_gather": True}),
    "tp_comm_overlap_needs_sp": (D, H, {"tp": 8, "sp": False, "tp_comm_overlap": True},
                                 {"tp": 8, "sp": True, "tp_comm_overlap": True}),
    "ep_comm_overlap_needs_ep": (MIX, H, {"ep_comm_overlap": True},
                                 {"ep_comm_overlap": True, "ep": 8}),
    "ep_comm_overlap_dispatcher": (
        MIX, H, {"ep": 8, "ep_comm_overlap": True, "dispatcher": "allgather"},
        {"ep": 8, "ep_comm_overlap": True, "dispatcher": "deepep"}),
    "ep_comm_overlap_needs_vpp": (MIX, H, {"ep": 8, "ep_comm_overlap": True, "pp": 2},
                                  {"ep": 8, "ep_comm_overlap": True, "pp": 2, "vpp": 2}),
    "ep_comm_overlap_recompute": (
        MIX, H, {"ep": 8, "ep_comm_overlap": True, "recompute": "full"},
        {"ep": 8, "ep_comm_overlap": True, "recompute": "moe_act"}),
    "ep_comm_overlap_precision": (
        MIX, H, {"ep": 8, "ep_comm_overlap": True, "precision": "fp32"},
        {"ep": 8, "ep_comm_overlap": True, "precision": "fp16"}),
    "ep_comm_overlap_mtp": (MOE, H, {**EP, "ep_comm_overlap": True, "mtp": 2},
                            {**EP, "ep_comm_overlap": True, "mtp": 1}),
    "ep_comm_overlap_or_shared": (
        MOE, H, {**EP, "ep_comm_overlap": True, "shared_expert_overlap": True},
        {**EP, "ep_comm_overlap": True}),
    "delay_wgrad_needs_ep_comm_overlap": (
        MOE, H, {**EP, "delay_wgrad_compute": True},
        {**EP, "delay_wgrad_compute": True, "ep_comm_overlap": True}),
    "shared_expert_overlap_needs": (MIX, H, {"ep": 8, "shared_expert_overlap": True},
                                    {"ep": 8, "shared_expert_overlap": False}),
    "dispatcher_needs_experts": (D, H, {"dispatcher": "allgather"}, {"dispatcher": "alltoall"}),
    "flex_dispatcher_needs_ranks": (MIX, H, {"dispatcher": "deepep"},
                                    {"dispatcher": "deepep", "ep": 8}),
    "flex_dispatcher_hardware": (MIX, A, {"dispatcher": "deepep", "ep": 8},
                                 {"dispatcher": "alltoall", "ep": 8}),
    "flex_dispatcher_supported": (MIX, H, {"dispatcher": "deepep", "ep": 8, "framework": DS},
                                  {"dispatcher": "deepep", "ep": 8, "framework": TT}),
    "capacity_needs_experts": (D, H, {"capacity_factor": 1.0}, {"capacity_factor": 0.0}),
    "pad_needs_capacity": (MIX, H, {"pad_to_capacity": True},
                           {"pad_to_capacity": True, "capacity_factor": 1.0}),
    "pad_without_deepep": (
        MIX, H, {"ep": 8, "pad_to_capacity": True, "capacity_factor": 1.0,
                 "dispatcher": "deepep"},
        {"ep": 8, "pad_to_capacity": True, "capacity_factor": 1.0, "dispatcher": "hybridep"}),
    "expert_imbalance_in_range": (MIX, H, {"ep": 8, "expert_imbalance": 8.0},
                                  {"ep": 8, "expert_imbalance": 4.0}),
    "expert_imbalance_or_padding": (
        MIX, H, {"ep": 8, "expert_imbalance": 2.0, "capacity_factor": 1.0,
                 "pad_to_capacity": True},
        {"ep": 8, "expert_imbalance": 2.0, "capacity_factor": 1.0}),
    "cross_entropy_impl_needs_fused": (
        D, H, {"cross_entropy": "unfused", "cross_entropy_impl": "native"},
        {"cross_entropy": "fused", "cross_entropy_impl": "native"}),
    "main_grads_as_accumulated": (
        D, H, {"main_grads_dtype": "bf16", "grad_dtype": "fp32"},
        {"main_grads_dtype": "bf16", "grad_dtype": "bf16"}),
    "te_loss_offered": (
        D, H, {"cross_entropy": "fused", "cross_entropy_impl": "te", "framework_version": "0.19"},
        {"cross_entropy": "fused", "cross_entropy_impl": "te", "framework_version": "0.16"}),
    "fused_swiglu_needs_gate": (GPT2, H, {"fused_swiglu": True}, {"fused_swiglu": False}),
    "fused_rope_needs_rotary": (GPT2, H, {"fused_rope": True}, {"fused_rope": False}),
    "cuda_graph_scopes": (MOE, H, {"cuda_graph": "transformer_engine:moe_preprocess"},
                          {"cuda_graph": "transformer_engine:moe_router+moe_preprocess"}),
    "cuda_graph_model": (D, H, {"cuda_graph": "transformer_engine:moe_router"},
                         {"cuda_graph": "transformer_engine:attn+mlp"}),
    "cuda_graph_needs_static_experts": (
        MIX, H, {"cuda_graph": "local:full_iteration"},
        {"cuda_graph": "local:full_iteration", "capacity_factor": 1.0, "pad_to_capacity": True}),
    "cuda_graph_recompute": (
        D, H, {"cuda_graph": "transformer_engine:attn", "recompute": "full"},
        {"cuda_graph": "local:full_iteration", "recompute": "full"}),
    "cuda_graph_ep_comm_overlap": (
        MOE, H, {**EP, "ep_comm_overlap": True, "cuda_graph": "transformer_engine:mlp"},
        {**EP, "ep_comm_overlap": True, "cuda_graph": "transformer_engine:attn"}),
    "cuda_graph_offload": (
        D, H, {"cuda_graph": "transformer_engine:attn", "activation_offload_layers": 8},
        {"cuda_graph": "local:full_iteration", "activation_offload_layers": 8}),
}
BY_NAME = {rule.name: rule for rule in RULES}
ELSEWHERE = ("recompute_stands_alone",)
"""Rules that only a batch can violate, since the parser refuses the values."""


@cache
def model_of(name: str) -> ModelSpec:
    return load_model(name)


def batch_of(model: str, system: str, fields: dict) -> tuple[Batch, Batch]:
    given = Batch.from_strategies([replace(Strategy(gpus=64), **fields)])
    return given, resolve(model_of(model), load_system(system), given)


def context_of(model: str, system: str, fields: dict) -> Context:
    return Context(model_of(model), load_system(system), batch_of(model, system, fields)[1])


def violated(rule: Rule, context: Context) -> bool:
    return bool(np.broadcast_to(rule.violated(context), (1,))[0])


def test_every_rule_has_cases() -> None:
    assert set(CASES) | set(ELSEWHERE) == set(BY_NAME)
    assert len(BY_NAME) == len(RULES)


@pytest.mark.parametrize("name", CASES)
def test_rule_refuses_and_accepts(name: str) -> None:
    model, system, bad, good = CASES[name]
    assert violated(BY_NAME[name], context_of(model, system, bad))
    assert not violated(BY_NAME[name], context_of(model, system, good))
    # The accepting case is legal as a whole, so that it says something.
    batch = batch_of(model, system, good)[1]
    report = check(model_of(model), load_system(system), batch)
    assert report.ok[0], [str(issue) for issue in report.issues(0)]


@pytest.mark.parametrize("name", CASES)
def test_rule_reads_only_its_fields(name: str) -> None:
    model, system, bad, good = CASES[name]
    rule = BY_NAME[name]
    for fields in (bad, good):
        context = context_of(model, system, fields)
        poison = {field: np.full(1, 10**6 + 3, column.dtype)
                  for field, column in context.batch.columns.items()
                  if field not in rule.fields}
        poisoned = Context(context.model, context.system,
                           context.batch.with_columns(poison), partial=True)
        assert violated(rule, poisoned) == violated(rule, context)


def offered(issue: Issue) -> list[dict[str, str]]:
    """Read the values that a message offers, as changes of fields."""
    changes = []
    for part in issue.fix.removeprefix("use ").split("; or use "):
        options = [o.strip() for o in re.split(r", | or ", part)]
        name = issue.where
        for option in options:
            words = option.split(" ")
            if words[0] in FIELD_NAMES:
                name = words[0]
                pairs = option.split(" and ")
                changes.append({p.split(" ")[0]: p.split(" ")[1] for p in pairs})
            else:
                changes.append({name: option})
    return changes


@pytest.mark.parametrize("name", CASES)
def test_message_offers_values_that_pass(name: str) -> None:
    model, system, bad, _ = CASES[name]
    given, batch = batch_of(model, system, bad)
    report = check(model_of(model), load_system(system), batch, given=given)
    assert name in {rule.name for rule in RULES if violated(rule, report.context)}
    assert report.tally()
    issues = report.issues(0)
    assert all(issue.where in FIELD_NAMES for issue in issues)
    if name.endswith("_not_modelled"):
        assert any("not modelled" in issue.message for issue in issues)
    for issue in issues:
        assert issue.fix.startswith("use "), issue
    if len(issues) > 1 or name == "gpus_given":
        return
    for change in offered(issues[0]):
        fixed = Strategy.from_mapping({**given.row(0).given(), **change})
        after = resolve(model_of(model), load_system(system), Batch.from_strategies([fixed]))
        again = check(model_of(model), load_system(system), after)
        assert again.ok[0], (str(issues[0]), change, [str(i) for i in again.issues(0)])


def test_full_stands_alone_in_a_batch_too() -> None:
    batch = batch_of(D, H, {"recompute": "full"})[1]
    mixed = batch.with_columns({"recompute": batch["recompute"] + 2})
    assert violated(BY_NAME["recompute_stands_alone"], Context(model_of(D), load_system(H), mixed))


def test_tally_counts_each_refused_row_once() -> None:
    rows = [Strategy(gpus=64, tp=3), Strategy(gpus=64, tp=8), Strategy(gpus=60, tp=8, gbs=8)]
    batch = resolve(model_of(D), load_system(H), Batch.from_strategies(rows))
    report = check(model_of(D), load_system(H), batch)
    assert report.ok.tolist() == [False, True, False]
    assert sum(report.tally().values()) == 2
    assert report.issues(1) == ()
    assert len(report.issues(2)) >= 2


def test_rules_by_fields_finds_every_rule() -> None:
    found = rules_by_fields()
    assert {rule.name for rules in found.values() for rule in rules} == set(BY_NAME)
    assert all(name in rule.fields for name, rules in found.items() for rule in rules)
