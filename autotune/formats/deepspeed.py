"""DeepSpeed's JSON as a strategy; it holds no model.

References
----------
DeepSpeed's configuration reference (deepspeed.ai/docs/config-json): keys and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.formats.imported import Arguments, Data, Ignored, Imported

_QUIET = ("optimizer", "scheduler", "bf16", "bfloat16", "fp16", "zero_optimization",
          "steps_per_print", "wall_clock_breakdown", "gradient_clipping", "prescale_gradients",
          "tensorboard", "wandb", "csv_monitor", "comms_logger", "flops_profiler", "dump_state",
          "zero_allow_untested_optimizer", "gradient_predivide_factor", "checkpoint", "seed",
          "memory_breakdown", "data_types", "communication_data_type", "tensor_parallel",
          "zero_force_ds_cpu_optimizer",
          "load_universal_checkpoint", "use_node_local_storage", "monitor_config", "dataloader_"
          "drop_last", "elasticity", "autotuning", "data_efficiency", "curriculum_learning")
_ZERO_QUIET = ("stage", "overlap_comm", "offload_optimizer", "contiguous_gradients",
               "reduce_bucket_size", "allgather_bucket_size", "allgather_partitions",
               "reduce_scatter", "stage3_prefetch_bucket_size", "sub_group_size",
               "stage3_param_persistence_threshold", "stage3_max_live_parameters",
               "stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save",
               "round_robin_gradients", "ignore_unused_parameters", "load_from_fp32_weights",
               "stage3_gather_fp16_weights_on_model_save", "offload_param")


def strategy_from(raw: Mapping[str, object], *, where: str) -> Imported:
    """Read a configuration; ``auto`` is left to the defaults."""
    a = Arguments({k: v for k, v in raw.items() if v != "auto"}, where)
    zero = Arguments({k: v for k, v in _mapping(raw, "zero_optimization").items()
                      if v != "auto"}, f"{where}: zero_optimization")
    s: Data = {"framework": "deepspeed", "gbs": a.number("train_batch_size"),
               "mbs": a.number("train_micro_batch_size_per_gpu"), "zero": zero.number("stage", 0)}
    rounds = a.number("gradient_accumulation_steps")
    parallel = _mapping(raw, "tensor_parallel")
    tp = parallel.get("autotp_size", 1)
    s["tp"] = tp if isinstance(tp, int) and tp > 0 else 1
    if ways := a.number("sequence_parallel_size"):
        s.update(cp=ways, cp_comm="a2a")
    if s["gbs"] and s["mbs"] and rounds:
        share = int(str(s["mbs"])) * rounds
        if int(str(s["gbs"])) % share:
            a.fail("train_batch_size",
                   f"must be a multiple of micro-batch x accumulation ({share})")
        else:
            s["gpus"] = int(str(s["gbs"])) // share * int(str(s["tp"])) * int(str(s.get("cp", 1)))
    s["precision"] = "fp32"
    for key, name in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        if _mapping(raw, key).get("enabled") in (True, "auto"):
            s["precision"] = name
            break
    if zero.values.get("overlap_comm") is not None:
        s["overlap_grad_reduce"] = zero.flag("overlap_comm")
    kinds = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16",
             "fp16": "fp16", "float16": "fp16"}
    # Stages 1 and 2 gather parameters at the end of the optimizer's step.
    if s["zero"] in (1, 2) or zero.values.get("stage3_prefetch_bucket_size") == 0:
        s["overlap_param_gather"] = False
    if dtype := _mapping(raw, "data_types").get("grad_accum_dtype"):
        s["grad_dtype"] = kinds.get(str(dtype))
    name = str(_mapping(raw, "optimizer").get("type") or "adam").lower()
    names = {"adam": "adam", "adamw": "adam", "fusedadam": "adam", "sgd": "sgd", "muon": "muon"}
    if name not in names:
        a.fail("optimizer.type", f"'{name[:40]}' is not modelled", "use Adam, AdamW, SGD or Muon")
    s["optimizer"] = names.get(name)
    result = Imported("deepspeed")
    offload = _mapping(zero.values, "offload_optimizer")
    if offload.get("device") in ("cpu", "nvme"):
        ratio = offload.get("ratio", 1.0)
        s["optimizer_offload"] = ratio if isinstance(ratio, (int, float)) else 1.0
        if offload["device"] == "nvme":
            result.ignored.append(Ignored("zero_optimization.offload_optimizer.device", "nvme",
                                          "taken as cpu: NVMe is slower"))
    if _mapping(zero.values, "offload_param").get("device") in ("cpu", "nvme"):
        a.fail("zero_optimization.offload_param", "is not modelled: parameters stay on the GPU",
               "remove it")
    zero.read.update(_ZERO_QUIET)
    a.read.update(_QUIET)
    for holder, prefix in ((a, ""), (zero, "zero_optimization.")):
        result.ignored += [Ignored(prefix + key, str(value)[:80], "may change memory or time, and "
                                   "is not understood") for key, value in holder.values.items()
                           if key not in holder.read and value not in (None, False, 0, 1, {})]
    a.issues += zero.issues
    a.settle()
    result.strategy = {key: value for key, value in s.items() if value is not None}
    return result


def _mapping(raw: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}
