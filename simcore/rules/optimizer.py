"""Rules on optimizers, their states' formats, their offload and their replicas.

References
----------
Megatron-Core 0.19.2, ``optimizer/optimizer_config.py`` (`__post_init__`),
``optimizer/__init__.py`` (`_get_megatron_emerging_optimizer`),
``optimizer/cpu_offloading/hybrid_optimizer.py`` and ``training/arguments.py``
(`validate_args`); PyTorch FSDP2 (`fully_shard` over a mesh of two dimensions).
"""

from __future__ import annotations

from simcore.degrees import remainder
from simcore.inputs.fields import MEGATRON
from simcore.rules.base import Context, Rule, mask, words
from simcore.rules.fixes import make_rule
from simcore.typing import BoolArray

_STATES = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_MUON = ("megatron", "megatron-bridge")
_OFFLOAD = (*MEGATRON, "deepspeed")
_REPLICATES = (*MEGATRON, "fsdp", "torchtitan")


def _muon_framework(c: Context) -> BoolArray:
    return c.any_of("optimizer", "muon") & ~c.any_of("framework", *_MUON)


def _muon_limits(c: Context) -> BoolArray:
    whole = (c["zero"] >= 2) | (c["dp_replicate"] > 1) | c.any_of("precision", "fp16")
    return mask(c.any_of("optimizer", "muon") & whole)


def _aware(c: Context) -> BoolArray:
    on: BoolArray = c["precision_aware_optimizer"] == 1
    return mask(on & (~c.any_of("optimizer", "adam") | (c["zero"] == 0)))


def _aware_framework(c: Context) -> BoolArray:
    on: BoolArray = c["precision_aware_optimizer"] == 1
    return on & ~c.any_of("framework", *MEGATRON)


def _state_rule(name: str) -> Rule:
    def violated(c: Context) -> BoolArray:
        bad: BoolArray = (c[name] != 0) & (c["precision_aware_optimizer"] == 0)
        return bad

    return make_rule(f"{name}_needs_precision_aware", (name, "precision_aware_optimizer"),
                     violated, "must be fp32 without precision_aware_optimizer",
                     (name, "precision_aware_optimizer"))


def _main_grads(c: Context) -> BoolArray:
    # validate_args: --main-grads-dtype can only be fp32 where gradients accumulate in fp32.
    wider = c.any_of("grad_dtype", "fp32") & ~c.any_of("precision", "fp16", "fp32")
    return mask(wider & ~c.any_of("main_grads_dtype", "fp32") & c.any_of("framework", "megatron"))


def _offloads(c: Context) -> BoolArray:
    on: BoolArray = c.real("optimizer_offload") > 0
    return on


def _offload_framework(c: Context) -> BoolArray:
    return mask(_offloads(c) & ~c.any_of("framework", *_OFFLOAD))


def _offload_optimizer(c: Context) -> BoolArray:
    return mask(_offloads(c) & (~c.any_of("optimizer", "adam") | (c["zero"] == 0)))


def _offload_formats(c: Context) -> BoolArray:
    unlike = ((c["main_params_dtype"] != 0) | (c["exp_avg_dtype"] != 0)
              | (c["exp_avg_sq_dtype"] != 0))
    return mask(_offloads(c) & unlike)


def _offload_aware(c: Context) -> BoolArray:
    without = (c["precision_aware_optimizer"] == 0) & c.any_of("framework", *MEGATRON)
    return mask(_offloads(c) & without)


def _offload_fp8(c: Context) -> BoolArray:
    gathered = (c["fp8_param_gather"] == 1) & ~c.any_of("precision", "fp8-ds")
    return mask(_offloads(c) & (gathered | (c["fp4_param_gather"] == 1)))


def _replicates(c: Context) -> BoolArray:
    on: BoolArray = c["dp_replicate"] > 1
    return on


def _replicas_framework(c: Context) -> BoolArray:
    unsharded = (c["zero"] == 0) | ~c.any_of("framework", *_REPLICATES)
    return mask(_replicates(c) & unsharded)


def _replicas_divide(c: Context) -> BoolArray:
    replicas = c["dp_replicate"]
    bad: BoolArray = remainder(c.dp, replicas) != 0
    if c.model.is_moe:
        edp = c["gpus"] // (c["etp"] * c["ep"] * c["pp"])
        bad = bad | (remainder(edp, replicas) != 0)
    return mask(_replicates(c) & bad)


RULES: tuple[Rule, ...] = (
    make_rule("muon_supported", ("optimizer", "framework"), _muon_framework,
              f"muon needs {words(_MUON)}", ("optimizer", "framework")),
    make_rule("muon_whole_matrices", ("optimizer", "zero", "dp_replicate", "precision"),
              _muon_limits, "muon works on whole matrices in bf16 or fp32: zero 0 or 1, one "
              "replica, no fp16", ("optimizer", "zero", "dp_replicate", "precision")),
    make_rule("precision_aware_needs_adam", ("precision_aware_optimizer", "optimizer", "zero"),
              _aware, "needs adam and a sharded optimizer (zero >= 1)",
              ("precision_aware_optimizer", "zero", "optimizer")),
    make_rule("precision_aware_supported", ("precision_aware_optimizer", "framework"),
              _aware_framework, f"needs {words(MEGATRON)}",
              ("precision_aware_optimizer", "framework")),
    *(_state_rule(name) for name in _STATES),
    make_rule("main_grads_as_accumulated",
              ("main_grads_dtype", "grad_dtype", "precision", "framework"), _main_grads,
              "must be fp32 in Megatron-LM where gradients are accumulated in fp32 (grad_dtype)",
              ("main_grads_dtype", "grad_dtype")),
    make_rule("optimizer_offload_supported", ("optimizer_offload", "framework"),
              _offload_framework, lambda c: f"an optimizer on the CPU needs {words(_OFFLOAD)}, "
              f"not {c.value('framework', 0)}", ("optimizer_offload", "framework")),
    make_rule("optimizer_offload_needs_adam", ("optimizer_offload", "optimizer", "zero"),
              _offload_optimizer, "needs adam and a sharded optimizer (zero >= 1)",
              ("optimizer_offload", "optimizer", "zero")),
    make_rule("optimizer_offload_needs_precision_aware",
              ("optimizer_offload", "precision_aware_optimizer", "framework"), _offload_aware,
              "needs precision_aware_optimizer, whose code path it takes",
              ("optimizer_offload", "precision_aware_optimizer")),
    make_rule("optimizer_offload_formats",
              ("optimizer_offload", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
              _offload_formats, "the optimizer on the CPU keeps its states in fp32",
              ("optimizer_offload",)),
    make_rule("optimizer_offload_low_precision_weights",
              ("optimizer_offload", "precision", "fp8_param_gather", "fp4_param_gather"),
              _offload_fp8, "with weights gathered in low precision it needs fp8-ds",
              ("optimizer_offload", "fp8_param_gather", "fp4_param_gather", "precision")),
    make_rule("replicas_supported", ("dp_replicate", "zero", "framework"), _replicas_framework,
              f"replicas of a sharded group need zero >= 1 and {words(_REPLICATES)}",
              ("dp_replicate", "zero", "framework")),
    make_rule("replicas_divide",
              ("dp_replicate", "gpus", "tp", "cp", "pp", "ep", "etp"), _replicas_divide,
              lambda c: f"must divide the data-parallel size ({int(c.dp[0])}), and that of the "
              "experts where there are some", ("dp_replicate", "gpus")),
)
