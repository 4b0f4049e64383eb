"""torchtitan's TOML as a strategy for one of its models.

References
----------
torchtitan 0.2.2, ``torchtitan/config/job_config.py``: names and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.formats.imported import Arguments, Data, Ignored, Imported
from simcore.errors import InputError
from simcore.inputs.load import load_model
from simcore.layout_notation import layout_text

_MODELS = {"llama3-8b": "llama3-8b", "llama3-70b": "llama3-70b", "llama3-405b": "llama3.1-405b",
           "deepseek_v3-671b": "deepseek-v3"}
_SECTIONS = ("parallelism", "training", "activation_checkpoint", "optimizer", "model")
_QUIET_SECTIONS = ("job", "profiling", "metrics", "checkpoint", "comm", "lr_scheduler",
                   "fault_tolerance", "experimental", "validation", "debug", "compile",
                   "memory_estimation", "quantize", "float8", "mx")
_QUIET = frozenset((
    "name", "flavor", "tokenizer_path", "hf_assets_path", "converters", "print_after_conversion",
    "dataset", "dataset_path", "steps", "max_norm", "seed", "deterministic", "gc_freq", "gc_debug",
    "lr", "eps", "beta1", "beta2", "weight_decay", "implementation", "early_step_in_backward",
    "enable_cpu_offload", "dtype", "mixed_precision_param", "mixed_precision_reduce",
    "disable_loss_parallel", "context_parallel_load_balancer", "dataloader", "warmup_steps",
    "per_op_sac_force_recompute_mm_shapes_by_fqns", "norm_type", "preserve_rng_state"))
_SCHEDULES = {"1f1b": "1f1b", "interleaved1f1b": "interleaved", "gpipe": "gpipe"}


def from_toml(raw: Mapping[str, object], *, where: str) -> Imported:
    """Read a job configuration.

    Raises
    ------
    InputError
        Values that are wrong or not modelled, all at once.
    """
    parts = {name: Arguments(_mapping(raw, name), f"{where}: {name}") for name in _SECTIONS}
    p, t, c = parts["parallelism"], parts["training"], parts["activation_checkpoint"]
    result = Imported("torchtitan", model_name=_model(parts["model"]))
    tp = p.number("tensor_parallel_degree", 1) or 1
    cp = p.number("context_parallel_degree", 1) or 1
    pp = p.number("pipeline_parallel_degree", 1) or 1
    shard = p.number("data_parallel_shard_degree", -1) or -1
    replicas = p.number("data_parallel_replicate_degree", 1) or 1
    local = t.number("local_batch_size") or t.number("batch_size", 8) or 8
    s: Data = {"framework": "torchtitan", "seq_len": t.number("seq_len", 2048), "tp": tp, "cp": cp,
               "pp": pp, "sp": tp > 1, "dp_replicate": replicas if replicas > 1 else None}
    total = t.number("global_batch_size", -1) or -1
    if shard > 0:
        s["gpus"] = shard * replicas * tp * cp * pp
        s["gbs"] = total if total > 0 else local * shard * replicas
    elif total > 0:
        s["gbs"] = total
    s["mbs"] = (p.number("pipeline_parallel_microbatch_size", 1) if pp > 1 else local)
    # It trains no multi-token prediction.
    s["mtp"] = 0
    keep = p.text("fsdp_reshard_after_forward", "default")
    if keep not in ("default", "always", "never"):
        p.fail("fsdp_reshard_after_forward", "must be default, always or never")
    s["zero"] = 2 if keep == "never" or (keep == "default" and pp > 1) else 3
    if shard == 1:
        s["zero"] = 0
    if (experts := p.number("expert_parallel_degree", 1) or 1) > 1:
        s.update(ep=experts, etp=p.number("expert_tensor_parallel_degree", 1) or 1)
        if p.text("expert_parallel_comm_backend", "standard") == "deepep":
            s["dispatcher"] = "deepep"
    if cp > 1:
        s["cp_comm"] = "all_gather" if p.text("context_parallel_rotate_method",
                                              "allgather") == "allgather" else "p2p"
    s["tp_comm_overlap"] = p.flag("enable_async_tensor_parallel")
    s.update(_pipeline(p, pp, result), **_recompute(c, result, pp), **_precision(raw, result))
    name = parts["optimizer"].text("name", "AdamW").lower()
    if name not in ("adam", "adamw"):
        parts["optimizer"].fail("name", f"'{name[:40]}' is not modelled", "use AdamW")
    s["optimizer"] = "adam"
    if t.flag("enable_cpu_offload"):
        t.fail("enable_cpu_offload", "is not modelled: parameters stay on the GPU", "remove it")
    issues = [i for part in parts.values() for i in part.issues]
    if issues:
        raise InputError(issues)
    result.strategy = {key: value for key, value in s.items() if value is not None}
    result.ignored += _rest(raw, parts)
    return result


def _model(a: Arguments) -> str:
    name, flavor = a.text("name"), a.text("flavor")
    wanted = f"{name}-{flavor}".lower()
    found = _MODELS.get(wanted, wanted.replace("_", "-"))
    try:
        load_model(found)
    except InputError:
        a.fail("flavor", f"'{name[:30]} {flavor[:30]}' is no model that is built in",
               "name the model with --model")
        return ""
    return found


def _pipeline(p: Arguments, pp: int, result: Imported) -> Data:
    name = p.text("pipeline_parallel_schedule", "1F1B").lower()
    each = p.number("pipeline_parallel_layers_per_stage")
    p.read.update(("pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule"))
    if pp == 1:
        return {}
    if name not in _SCHEDULES:
        p.fail("pipeline_parallel_schedule", f"'{name[:40]}' is not modelled",
               "use 1F1B, Interleaved1F1B or GPipe")
        return {}
    found: Data = {"schedule": _SCHEDULES[name]}
    parts = p.values.get("module_fqns_per_model_part")
    p.read.add("module_fqns_per_model_part")
    if isinstance(parts, list) and parts:
        found.update(_layout(p, parts, pp))
    elif name == "interleaved1f1b":
        # generate_llm_fqn_per_model_part: two stages a rank where no size is given.
        layers = load_model(result.model_name).num_layers if result.model_name else 0
        found["vpp"] = max(2, round(layers / pp / each)) if each and layers else 2
    return found


def _layout(p: Arguments, parts: list[object], pp: int) -> Data:
    """Read the modules of every chunk; the layers follow one another in the model's order."""
    counts = [sum(str(name).startswith("layers.") for name in part) if isinstance(part, list)
              else 0 for part in parts]
    if len(parts) % pp:
        p.fail("module_fqns_per_model_part", f"must be a multiple of pp ({pp}) chunks, got "
               f"{len(parts)}")
    return {"vpp": len(parts) // pp, "pp_layout": layout_text(counts, None)}


def _recompute(c: Arguments, result: Imported, pp: int) -> Data:
    mode, option = c.text("mode", "selective"), c.text("selective_ac_option", "2")
    if mode == "none":
        return {"recompute": "none"}
    if mode == "full":
        return {"recompute": "full"}
    if mode != "selective":
        c.fail("mode", f"'{mode[:40]}' is not modelled", "use none, selective or full")
    if option == "op":
        return {"recompute": "selective_op"}
    if not option.isdigit() or not 1 <= int(option) <= 4096:
        c.fail("selective_ac_option", f"must be op or a number of layers, got '{option[:40]}'")
        return {}
    layers = load_model(result.model_name).num_layers if result.model_name else 0
    return {"recompute": "full", "recompute_method": "block",
            "recompute_layers": max(1, layers // pp // int(option)) if layers else None}


def _precision(raw: Mapping[str, object], result: Imported) -> Data:
    converters = _mapping(raw, "model").get("converters")
    named = [str(c) for c in converters] if isinstance(converters, list) else []
    linear = _mapping(_mapping(raw, "quantize"), "linear")
    float8 = _mapping(linear, "float8") or _mapping(raw, "float8")
    if any("mx" in c for c in named):
        return {"precision": "mxfp8"}
    if not any("float8" in c for c in named):
        return {"precision": "bf16"}
    recipe = str(float8.get("recipe_name") or "tensorwise")
    if recipe == "rowwise_with_gw_hp":
        result.ignored.append(Ignored("recipe_name", recipe, "taken as rowwise"))
    return {"precision": "fp8-rowwise" if recipe.startswith("rowwise") else "fp8-cs",
            "fp8_param_gather": float8.get("enable_fsdp_float8_all_gather") is True}


def _rest(raw: Mapping[str, object], parts: Mapping[str, Arguments]) -> list[Ignored]:
    found = [Ignored(f"{name}.{key}", str(value)[:80], "may change memory or time, and is not "
                     "understood") for name, a in parts.items() for key, value in a.values.items()
             if key not in a.read and key not in _QUIET]
    found += [Ignored(name, "", "section is not understood") for name in raw
              if name not in parts and name not in _QUIET_SECTIONS]
    return found


def _mapping(raw: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}
