"""Rules on overlap switches, experts and kernels.

References
----------
Megatron-Core 0.19.2, ``transformer_config.py`` (overlap_moe_expert_parallel_comm,
delay_wgrad_compute, cuda_graph_modules) and ``arguments.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcore.inputs.fields import CUDA_GRAPH_BIT, FIELD, RECOMPUTE_BIT
from simcore.inputs.framework import Profile
from simcore.profiles import version_key
from simcore.rules.base import Context, Rule, constant, mask, words
from simcore.rules.fixes import make_rule
from simcore.typing import BoolArray, FloatArray

_MEGATRON = ("megatron", "megatron-bridge", "nemo-megatron")
_SWITCHES = ("tp_comm_overlap", "ep_comm_overlap", "shared_expert_overlap",
             "delay_wgrad_compute", "fp8_param_gather", "reuse_grad_buf")
_MOE_SWITCHES = ("pad_to_capacity", "grouped_gemm", "permute_fusion")
Mask = Callable[[Context], BoolArray]


def _megatron_only(name: str) -> Rule:
    # torchtitan's async tensor parallelism is the same mechanism.
    able = (*_MEGATRON, "torchtitan") if name == "tp_comm_overlap" else _MEGATRON

    def violated(c: Context) -> BoolArray:
        on: BoolArray = c[name] != 0
        return on & ~c.any_of("framework", *able)

    return make_rule(f"{name}_supported", (name, "framework"), violated,
                     f"needs {words(able)}", (name, "framework"))


def _moe_only(name: str) -> Rule:
    def violated(c: Context) -> BoolArray:
        bad: BoolArray = (c[name] == 1) & (not c.model.is_moe)
        return bad

    return make_rule(f"{name}_needs_experts", (name,), violated, "needs a model with experts",
                     (name,))


def _grad_reduce(c: Context) -> BoolArray:
    bad: BoolArray = (c["overlap_grad_reduce"] == 1) & (c.dp * c["cp"] == 1)
    return bad


def _param_gather(c: Context) -> BoolArray:
    bad: BoolArray = (c["overlap_param_gather"] == 1) & (
        (c["zero"] == 0) | (c["overlap_grad_reduce"] == 0))
    return bad


def _tp_overlap(c: Context) -> BoolArray:
    bad: BoolArray = (c["tp_comm_overlap"] == 1) & ((c["tp"] == 1) | (c["sp"] == 0))
    return bad


def _on(c: Context) -> BoolArray:
    result: BoolArray = c["ep_comm_overlap"] == 1
    return result


def _ep_needs_ep(c: Context) -> BoolArray:
    return mask(_on(c) & ((c["ep"] == 1) | (not c.model.is_moe)))


def _ep_dispatcher(c: Context) -> BoolArray:
    return _on(c) & c.any_of("dispatcher", "allgather")


def _ep_pipeline(c: Context) -> BoolArray:
    return mask(_on(c) & (c["pp"] > 1) & (c["vpp"] == 1))


def _ep_recompute(c: Context) -> BoolArray:
    return _on(c) & c.recomputes("full", "moe")


def _ep_precision(c: Context) -> BoolArray:
    return _on(c) & c.any_of("precision", "fp32")


def _ep_mtp(c: Context) -> BoolArray:
    return _on(c) & (c["mtp"] > 1)


def _ep_shared(c: Context) -> BoolArray:
    return mask(_on(c) & (c["shared_expert_overlap"] == 1))


def _delay(c: Context) -> BoolArray:
    return mask(~_on(c) & (c["delay_wgrad_compute"] == 1))


def _shared(c: Context) -> BoolArray:
    moe = c.model.moe
    has = c.model.is_moe and moe is not None and moe.shared_ffn_hidden_size > 0
    on: BoolArray = c["shared_expert_overlap"] == 1
    return on & (~c.any_of("dispatcher", "alltoall", "deepep", "hybridep") | (not has))


def _dispatcher_dense(c: Context) -> BoolArray:
    bad: BoolArray = (c["dispatcher"] != 0) & (not c.model.is_moe)
    return bad


def _flex(c: Context) -> BoolArray:
    return c.any_of("dispatcher", "deepep", "hybridep")


def _flex_ranks(c: Context) -> BoolArray:
    if not c.model.is_moe:
        return constant(False)
    return mask(_flex(c) & (c["ep"] * c["etp"] == 1))


def _flex_hardware(c: Context) -> BoolArray:
    chip = c.system.accelerator
    able = chip.vendor.lower() == "nvidia" and chip.architecture.lower().startswith(
        ("hopper", "blackwell"))
    return constant(False) if able else _flex(c)


def _flex_framework(c: Context) -> BoolArray:
    return _flex(c) & ~c.any_of("framework", *_MEGATRON, "torchtitan")


def _capacity_dense(c: Context) -> BoolArray:
    bad: BoolArray = (c.real("capacity_factor") > 0) & (not c.model.is_moe)
    return bad


def _pad(c: Context) -> BoolArray:
    bad: BoolArray = (c["pad_to_capacity"] == 1) & (c.real("capacity_factor") <= 0)
    return bad


def _pad_deepep(c: Context) -> BoolArray:
    return mask((c["pad_to_capacity"] == 1) & c.any_of("dispatcher", "deepep"))


def imbalance_limit(c: Context) -> FloatArray:
    """Most rows of one expert rank over the even share: every token sends it all it can."""
    moe = c.model.moe
    if not c.model.is_moe or moe is None:
        return np.ones(1)
    ep = c["ep"].astype(np.float64)
    local = np.maximum(np.floor(moe.num_experts / ep), 1)
    limit: FloatArray = ep * np.minimum(moe.topk, local) / moe.topk
    return limit


def _imbalance(c: Context) -> BoolArray:
    bad: BoolArray = c.real("expert_imbalance") > np.maximum(imbalance_limit(c), 1) * (1 + 1e-9)
    return bad


def _imbalance_pad(c: Context) -> BoolArray:
    bad: BoolArray = (c.real("expert_imbalance") > 1) & (c["pad_to_capacity"] == 1)
    return bad


def _cross_entropy_impl(c: Context) -> BoolArray:
    return mask((c["cross_entropy_impl"] != 0) & ~c.any_of("cross_entropy", "fused"))


def _te_loss_dropped(name: str, profile: Profile) -> bool:
    return name == "megatron" and version_key(profile.version) >= (0, 19)


def _te_loss(c: Context) -> BoolArray:
    # validate_args of 0.19.2: "disabled due to stability issues". Megatron-Bridge does not run it.
    return (c.any_of("cross_entropy", "fused") & c.any_of("cross_entropy_impl", "te")
            & c.by_profile(_te_loss_dropped))


def _swiglu(c: Context) -> BoolArray:
    bad: BoolArray = (c["fused_swiglu"] == 1) & (not c.model.gated_mlp)
    return bad


def _rope(c: Context) -> BoolArray:
    bad: BoolArray = (c["fused_rope"] == 1) & (not c.model.rotary)
    return bad


def _scope(c: Context, *names: str) -> BoolArray:
    hit: BoolArray = (c["cuda_graph"] & sum(CUDA_GRAPH_BIT[name] for name in names)) != 0
    return hit


def _graph_scopes(c: Context) -> BoolArray:
    moe = _scope(c, "moe")
    router, preprocess = _scope(c, "moe_router"), _scope(c, "moe_preprocess")
    whole = _scope(c, "full_iteration") & (c["cuda_graph"] != CUDA_GRAPH_BIT["full_iteration"])
    return mask((moe & router) | (preprocess & ~router) | whole)


def _graph_model(c: Context) -> BoolArray:
    if not c.model.is_moe:
        return _scope(c, "moe", "moe_router", "moe_preprocess")
    return constant(False) if c.has_dense_layers else _scope(c, "mlp")


def _graph_dropless(c: Context) -> BoolArray:
    if not c.model.is_moe:
        return constant(False)
    # Row counts that only the router knows cannot be captured.
    return mask(_scope(c, "moe", "full_iteration") & (c["pad_to_capacity"] == 0))


def _graph_recompute(c: Context) -> BoolArray:
    full: BoolArray = (c["recompute"] & RECOMPUTE_BIT["full"]) != 0
    captured: BoolArray = c["cuda_graph"] != 0
    return ((captured & ~_scope(c, "full_iteration") & full)
            | (_scope(c, "moe_router") & c.recomputes("moe")))


def _graph_overlap(c: Context) -> BoolArray:
    return _on(c) & _scope(c, "moe", "mlp", "full_iteration")


def _graph_offload(c: Context) -> BoolArray:
    return mask((c["cuda_graph"] != 0) & ~_scope(c, "full_iteration")
            & (c["activation_offload_layers"] > 0))


RULES: tuple[Rule, ...] = (
    *(_megatron_only(name) for name in (*_SWITCHES, "cuda_graph")),
    *(_moe_only(name) for name in _MOE_SWITCHES),
    make_rule("overlap_grad_reduce_needs_dp", ("overlap_grad_reduce", "gpus", "tp", "cp", "pp"),
              _grad_reduce, "nothing is reduced where dp*cp is 1",
              ("overlap_grad_reduce", "gpus")),
    make_rule("overlap_param_gather_needs",
              ("overlap_param_gather", "zero", "overlap_grad_reduce"), _param_gather,
              "needs a sharded optimizer (zero >= 1) and overlap_grad_reduce",
              ("overlap_param_gather", "overlap_grad_reduce", "zero")),
    make_rule("tp_comm_overlap_needs_sp", ("tp_comm_overlap", "tp", "sp"), _tp_overlap,
              "needs tp > 1 with sequence parallelism", ("tp_comm_overlap", "sp", "tp")),
    make_rule("ep_comm_overlap_needs_ep", ("ep_comm_overlap", "ep"), _ep_needs_ep,
              "needs ep > 1", ("ep_comm_overlap", "ep")),
    make_rule("ep_comm_overlap_dispatcher", ("ep_comm_overlap", "dispatcher"), _ep_dispatcher,
              "needs the alltoall, deepep or hybridep dispatcher",
              ("ep_comm_overlap", "dispatcher")),
    make_rule("ep_comm_overlap_needs_vpp", ("ep_comm_overlap", "pp", "vpp"), _ep_pipeline,
              "needs vpp > 1 where pp > 1", ("ep_comm_overlap", "vpp", "pp")),
    make_rule("ep_comm_overlap_recompute", ("ep_comm_overlap", "recompute"), _ep_recompute,
              "cannot recompute full layers or moe", ("ep_comm_overlap", "recompute")),
    make_rule("ep_comm_overlap_precision", ("ep_comm_overlap", "precision"), _ep_precision,
              "needs 16-bit weights", ("ep_comm_overlap", "precision")),
    make_rule("ep_comm_overlap_mtp", ("ep_comm_overlap", "mtp"), _ep_mtp,
              "takes at most one MTP layer", ("ep_comm_overlap", "mtp")),
    make_rule("ep_comm_overlap_or_shared", ("ep_comm_overlap", "shared_expert_overlap"),
              _ep_shared, "excludes shared_expert_overlap",
              ("ep_comm_overlap", "shared_expert_overlap")),
    make_rule("delay_wgrad_needs_ep_comm_overlap", ("delay_wgrad_compute", "ep_comm_overlap"),
              _delay, "needs ep_comm_overlap", ("delay_wgrad_compute", "ep_comm_overlap")),
    make_rule("shared_expert_overlap_needs", ("shared_expert_overlap", "dispatcher"), _shared,
              "needs a shared expert, and the alltoall, deepep or hybridep dispatcher",
              ("shared_expert_overlap", "dispatcher")),
    make_rule("dispatcher_needs_experts", ("dispatcher",), _dispatcher_dense,
              "must be alltoall in a model without experts", ("dispatcher",)),
    make_rule("flex_dispatcher_needs_ranks", ("dispatcher", "ep", "etp"), _flex_ranks,
              "needs ep*etp > 1", ("dispatcher", "ep", "etp")),
    make_rule("flex_dispatcher_hardware", ("dispatcher",), _flex_hardware,
              lambda c: f"needs NVIDIA's Hopper or Blackwell, which {c.system.name} is not",
              ("dispatcher",)),
    make_rule("flex_dispatcher_supported", ("dispatcher", "framework"), _flex_framework,
              f"needs {words((*_MEGATRON, 'torchtitan'))}", ("dispatcher", "framework")),
    make_rule("capacity_needs_experts", ("capacity_factor",), _capacity_dense,
              "must be 0 in a model without experts", ("capacity_factor",)),
    make_rule("pad_needs_capacity", ("pad_to_capacity", "capacity_factor"), _pad,
              "needs capacity_factor > 0", ("pad_to_capacity", "capacity_factor")),
    make_rule("pad_without_deepep", ("pad_to_capacity", "dispatcher"), _pad_deepep,
              "is not supported by deepep", ("pad_to_capacity", "dispatcher")),
    make_rule("expert_imbalance_in_range", ("expert_imbalance", "ep"), _imbalance,
              lambda c: "must be at most what one of ep ranks can get "
              f"({float(np.maximum(imbalance_limit(c), 1)[0]):.6g} at ep {c.number('ep', 0)})",
              ("expert_imbalance",)),
    make_rule("expert_imbalance_or_padding", ("expert_imbalance", "pad_to_capacity"),
              _imbalance_pad, "must be 1 where every expert is padded to its capacity",
              ("expert_imbalance", "pad_to_capacity")),
    make_rule("cross_entropy_impl_needs_fused", ("cross_entropy_impl", "cross_entropy"),
              _cross_entropy_impl, "must be te where the loss is not fused",
              ("cross_entropy_impl", "cross_entropy")),
    make_rule("te_loss_offered", ("cross_entropy_impl", "cross_entropy", "framework",
                                  "framework_version"), _te_loss,
              "te is refused by Megatron-LM from 0.19 (disabled due to stability issues)",
              ("cross_entropy_impl", "cross_entropy")),
    make_rule("fused_swiglu_needs_gate", ("fused_swiglu",), _swiglu, "needs a gated MLP",
              ("fused_swiglu",)),
    make_rule("fused_rope_needs_rotary", ("fused_rope",), _rope, "needs rotary positions",
              ("fused_rope",)),
    make_rule("cuda_graph_scopes", ("cuda_graph",), _graph_scopes,
              "full_iteration stands alone, moe excludes moe_router, moe_preprocess needs "
              f"moe_router (of {', '.join(FIELD['cuda_graph'].choices)})", ("cuda_graph",)),
    make_rule("cuda_graph_model", ("cuda_graph",), _graph_model,
              "moe scopes need experts, mlp needs dense layers", ("cuda_graph",)),
    make_rule("cuda_graph_needs_static_experts", ("cuda_graph", "pad_to_capacity"),
              _graph_dropless, "moe and full_iteration need experts padded to their capacity",
              ("cuda_graph", "pad_to_capacity")),
    make_rule("cuda_graph_recompute", ("cuda_graph", "recompute"), _graph_recompute,
              "full recomputation needs local:full_iteration, and moe cannot be recomputed "
              "around a captured moe_router", ("cuda_graph", "recompute")),
    make_rule("cuda_graph_ep_comm_overlap", ("cuda_graph", "ep_comm_overlap"), _graph_overlap,
              "moe, mlp and full_iteration exclude ep_comm_overlap",
              ("cuda_graph", "ep_comm_overlap")),
    make_rule("cuda_graph_offload", ("cuda_graph", "activation_offload_layers"), _graph_offload,
              "scopes exclude activation offload", ("cuda_graph", "activation_offload_layers")),
)
