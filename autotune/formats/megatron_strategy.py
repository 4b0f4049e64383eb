"""Megatron's arguments as a strategy.

References
----------
Megatron-LM core 0.19.2, ``validate_args``: what missing arguments become.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.formats.imported import Arguments, Data
from autotune.formats.megatron_flags import (
    CHOICES,
    CUDA_GRAPH_MODULES,
    RECOMPUTE_MODULES,
    STRATEGY_FLAGS,
)
from simcore.layout_notation import num_chunks

_RECIPES = {"delayed": "fp8-ds", "tensorwise": "fp8-cs", "blockwise": "fp8-block",
            "mxfp8": "mxfp8"}
_FSDP = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_NUMBERS = ("seq_len", "gbs", "mbs", "tp", "cp", "pp", "ep", "etp", "dp_replicate",
            "first_stage_layers", "last_stage_layers", "microbatch_group_size", "mtp",
            "activation_offload_layers")
_DTYPES = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_EXPERT_ONLY = ("ep", "etp", "pad_to_capacity", "grouped_gemm", "permute_fusion",
                "shared_expert_overlap", "ep_comm_overlap")


def strategy_of(a: Arguments, *, framework: str, num_layers: int | None, is_moe: bool) -> Data:
    """Build a strategy from Megatron's arguments.

    Parameters
    ----------
    a : Arguments
        By Megatron's attribute names; what is wrong is noted there.
    framework : str
    num_layers : int or None
        Of the model, for splits that are written in layers.
    is_moe : bool

    Returns
    -------
    dict
        Fields of `Strategy`; what Megatron's own default decides is written out.
    """
    s: Data = {}
    for flag in STRATEGY_FLAGS:
        if not is_moe and flag.field in _EXPERT_ONLY:
            if flag.field in ("ep", "etp") and (a.number(flag.dest) or 1) > 1:
                s[flag.field] = a.number(flag.dest)
            a.raw(flag.dest)
        elif flag.field in _NUMBERS:
            value = a.number(flag.dest, flag.default if isinstance(flag.default, int) else None)
            if value is not None:
                s[flag.field] = value
        elif flag.action != "store" and flag.field != "overlap_p2p":
            s[flag.field] = a.flag(flag.dest, default=bool(flag.default))
    if not a.values.get("context_parallel_size"):
        s.setdefault("cp", 1)
    if s.get("tp", 1) == 1:
        s["sp"] = False
    s["framework"] = framework
    s.update(_pipeline(a, s, num_layers), **_recompute(a), **_precision(a), **_optimizer(a, s))
    s.update(_kernels(a), **_experts(a, is_moe), **_context(a, s))
    if (s.get("vpp") or 1) != 1:
        s["overlap_p2p"] = a.flag("overlap_p2p_comm", default=True)
    else:
        a.raw("overlap_p2p_comm")
    return {key: value for key, value in s.items() if value is not None}


def _pipeline(a: Arguments, s: Mapping[str, object], num_layers: int | None) -> Data:
    found: Data = {}
    pp = int(str(s.get("pp") or 1))
    a.read.update(("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size",
                   "num_layers_per_virtual_pipeline_stage"))
    vpp = (a.number("num_virtual_stages_per_pipeline_rank")
           or a.number("virtual_pipeline_model_parallel_size"))
    chunk = a.number("num_layers_per_virtual_pipeline_stage")
    layout = a.text("pipeline_model_parallel_layout")
    counted = [a.flag(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
    if layout and layout != "None":
        found["pp_layout"] = layout
        chunks = num_chunks(layout)
        # One that pp does not divide stays without vpp: check says what is wrong with it.
        found["vpp"] = chunks // pp if chunks is not None and chunks % pp == 0 else None
    elif chunk and num_layers:
        vpp = max(1, (num_layers + sum(counted)) // pp // chunk)
    if any(counted) and num_layers and pp > 1 and (num_layers + sum(counted)) % pp == 0:
        share = (num_layers + sum(counted)) // pp
        if counted[0]:
            found["first_stage_layers"] = share - 1
        if counted[1]:
            found["last_stage_layers"] = share - 1
    found.setdefault("vpp", vpp or 1)
    found["rank_order"] = ("tp-cp-pp-dp" if a.flag("use_tp_pp_dp_mapping") else "tp-cp-dp-pp")
    if found["vpp"] == 1:
        # Megatron reads the group's size only where chunks are interleaved.
        found["microbatch_group_size"] = None
    return found


def _recompute(a: Arguments) -> Data:
    a.read.update(("recompute_method", "recompute_num_layers", "recompute_modules"))
    kind = a.text("recompute_granularity", "None")
    if kind in ("None", "none", ""):
        return {"recompute": "none"}
    if kind == "selective":
        modules = a.words("recompute_modules") or ["core_attn"]
        wrong = [m for m in modules if m not in RECOMPUTE_MODULES]
        if wrong:
            a.fail("recompute_modules", f"'{wrong[0][:40]}' is not modelled",
                   f"use {', '.join(RECOMPUTE_MODULES)}")
            return {}
        return {"recompute": "+".join(dict.fromkeys(modules))}
    if kind != "full":
        a.fail("recompute_granularity", f"must be full or selective, got '{kind[:40]}'")
        return {}
    method, count = a.text("recompute_method", "None"), a.number("recompute_num_layers")
    if method == "block":
        vpp = a.number("num_virtual_stages_per_pipeline_rank")
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": count,
                "_per_chunk": True if vpp or count else None}
    if method not in ("uniform", "None"):
        a.fail("recompute_method", f"must be uniform or block, got '{method[:40]}'")
    return {"recompute": "full", "recompute_method": "uniform",
            "recompute_unit_layers": count or 1}


def _precision(a: Arguments) -> Data:
    found: Data = {}
    fp8, fp4 = a.text("fp8", "None"), a.text("fp4", "None")
    recipe = a.text("fp8_recipe", "delayed")
    a.read.update(("fp4_recipe", "grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32",
                   "grad_reduce_in_fp32"))
    bf16, fp16 = a.flag("bf16"), a.flag("fp16")
    if fp4 not in ("None", ""):
        if a.text("fp4_recipe", "nvfp4") != "nvfp4":
            a.fail("fp4_recipe", "is not modelled", "use nvfp4")
        found["precision"] = "nvfp4"
    elif fp8 not in ("None", ""):
        if recipe not in _RECIPES:
            a.fail("fp8_recipe", f"'{recipe[:40]}' is not modelled", f"use {', '.join(_RECIPES)}")
        found["precision"] = _RECIPES.get(recipe)
    else:
        found["precision"] = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    fp32 = a.values.get("grad_reduce_in_fp32")
    if fp32 is not None:
        found["grad_dtype"] = "fp32" if a.flag("grad_reduce_in_fp32") else (
            "fp16" if fp16 else "bf16")
    elif bf16 or fp8 != "None":
        found["grad_dtype"] = "bf16" if a.flag("grad_reduce_in_bf16") else "fp32"
    elif fp16:
        found["grad_dtype"] = ("fp32" if a.flag("accumulate_allreduce_grads_in_fp32")
                               else "fp16")
    else:
        found["grad_dtype"] = "fp32"
    return found


def _optimizer(a: Arguments, s: Mapping[str, object]) -> Data:
    found: Data = {}
    name = a.text("optimizer", "adam")
    name = "muon" if name == "dist_muon" else name
    if name not in CHOICES["optimizer"]:
        a.fail("optimizer", f"'{name[:40]}' is not modelled",
               f"use {', '.join(CHOICES['optimizer'])}")
    found["optimizer"] = name
    for field in _DTYPES:
        text = a.text(field, "fp32").removeprefix("torch.").replace("float32", "fp32")
        text = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8"}.get(
            text, text)
        found[field] = text if s.get("precision_aware_optimizer") else None
    if a.flag("optimizer_cpu_offload"):
        found["optimizer_offload"] = a.real("optimizer_offload_fraction", 1.0)
    a.read.update(("optimizer_offload_fraction", "use_distributed_optimizer",
                   "data_parallel_sharding_strategy"))
    sharding = a.text("data_parallel_sharding_strategy", "optim_grads_params")
    if a.flag("use_torch_fsdp2"):
        found["zero"] = 3
    elif a.flag("use_megatron_fsdp"):
        if sharding not in _FSDP:
            a.fail("data_parallel_sharding_strategy", f"'{sharding[:40]}' is not one of its",
                   f"use {', '.join(_FSDP)}")
        found["zero"] = _FSDP.get(sharding, 3)
    else:
        found["zero"] = int(a.flag("use_distributed_optimizer")
                            or bool(s.get("overlap_param_gather")))
    return found


def _kernels(a: Arguments) -> Data:
    fused = a.flag("cross_entropy_loss_fusion")
    found: Data = {"cross_entropy": "fused" if fused else "unfused"}
    impl = a.text("cross_entropy_fusion_impl", "native")
    if fused:
        found["cross_entropy_impl"] = impl
    backend = a.text("attention_backend", "auto").rpartition(".")[2]
    if backend not in ("auto", "None", "flash", "fused", "unfused", "local"):
        a.fail("attention_backend", f"'{backend[:40]}' is not known",
               "use flash, fused, unfused, local or auto")
    found["attention"] = "unfused" if backend in ("unfused", "local") else "flash"
    kind = a.text("cuda_graph_impl", "none")
    a.read.update(("cuda_graph_modules", "cuda_graph_scope"))
    modules = a.words("cuda_graph_modules") or a.words("cuda_graph_scope")
    if kind == "full_iteration" or (kind == "local" and "full_iteration" in modules):
        found["cuda_graph"] = "local:full_iteration"
    elif kind == "transformer_engine":
        kept = [m for m in CUDA_GRAPH_MODULES if m in modules]
        found["cuda_graph"] = "transformer_engine:" + "+".join(kept or ["attn", "mlp"])
    elif kind == "local":
        a.fail("cuda_graph_impl", "local is modelled for the full iteration only",
               "use transformer_engine, or local with the scope full_iteration")
    a.raw("transformer_impl")
    return found


def _experts(a: Arguments, is_moe: bool) -> Data:
    a.read.update(("moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
                   "moe_expert_capacity_factor"))
    if not is_moe:
        return {}
    kind = a.text("moe_token_dispatcher_type", "allgather")
    if kind == "flex":
        kind = a.text("moe_flex_dispatcher_backend", "deepep")
    if kind not in CHOICES["dispatcher"]:
        a.fail("moe_token_dispatcher_type", f"'{kind[:40]}' is not modelled",
               f"use {', '.join(CHOICES['dispatcher'])}")
    capacity = a.real("moe_expert_capacity_factor")
    return {"dispatcher": kind, "capacity_factor": max(0.0, capacity or 0.0)}


def _context(a: Arguments, s: Mapping[str, object]) -> Data:
    kinds = set(a.words("cp_comm_type"))
    if len(kinds) > 1:
        a.fail("cp_comm_type", "differs between layers, which is not modelled", "give one")
    return {"cp_comm": kinds.pop() if kinds and s.get("cp", 1) != 1 else None}
