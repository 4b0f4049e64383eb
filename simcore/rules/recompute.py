"""Rules on recomputation and activation offload.

References
----------
Megatron-Core 0.19.2, ``transformer_config.py`` (recompute_granularity, recompute_modules,
cpu_offloading).
"""

from __future__ import annotations

import numpy as np

from simcore.degrees import remainder
from simcore.inputs.fields import RECOMPUTE_BIT, RECOMPUTE_MODULES, code
from simcore.layout import LAYOUT_FIELDS
from simcore.resolve import FULL
from simcore.rules.base import Context, Rule, constant, mask, words
from simcore.rules.fixes import make_rule
from simcore.typing import BoolArray

_SELECTIVE = sum(RECOMPUTE_BIT[m] for m in RECOMPUTE_MODULES if m not in ("full", "selective_op"))
_BLOCK = code("recompute_method", "block")
_MEGATRON = ("megatron", "megatron-bridge", "nemo-megatron")


def _absent(c: Context) -> list[str]:
    """Modules that no layer of the model has."""
    moe = c.model.moe if c.model.is_moe else None
    missing = [] if moe else ["moe", "moe_act"]
    if not c.has_dense_layers:
        missing.append("mlp")
    if moe is None or moe.shared_ffn_hidden_size == 0:
        missing.append("shared_experts")
    if c.model.mla is None:
        missing.append("mla_up_proj")
    return missing


def _module_absent(c: Context) -> BoolArray:
    missing = _absent(c)
    return c.recomputes(*missing) if missing else constant(False)


def _module_message(c: Context) -> str:
    asked = [m for m in _absent(c) if c.recomputes(m)[0]]
    return (f"{words(asked, last='and')} can only be recomputed where the model has it, got "
            f"{c.value('recompute', 0)}")


def _stands_alone(c: Context) -> BoolArray:
    column = c["recompute"]
    bad = np.zeros(column.shape, np.bool_)
    for module in ("full", "selective_op"):
        bit = RECOMPUTE_BIT[module]
        bad |= ((column & bit) != 0) & (column != bit)
    return bad


def _twice(c: Context) -> BoolArray:
    return (c.recomputes("moe") & c.recomputes("moe_act", "shared_experts"))


def _selective_framework(c: Context) -> BoolArray:
    modules: BoolArray = (c["recompute"] & _SELECTIVE) != 0
    return modules & ~c.any_of("framework", *_MEGATRON)


def _selective_op_framework(c: Context) -> BoolArray:
    return c.recomputes("selective_op") & ~c.any_of("framework", "torchtitan", "fsdp")


def _moe_act(c: Context) -> BoolArray:
    return mask(c.recomputes("moe_act") & (c["grouped_gemm"] == 0))


def _delayed_scaling(c: Context) -> BoolArray:
    return c.recomputes("moe_act", "layernorm") & c.any_of("precision", "fp8-ds")


def _shared_overlap(c: Context) -> BoolArray:
    return mask(c.recomputes("shared_experts") & (c["shared_expert_overlap"] == 1))


def _is_full(c: Context) -> BoolArray:
    result: BoolArray = c["recompute"] == FULL
    return result


def _layers_without_full(c: Context) -> BoolArray:
    return mask(~_is_full(c) & (c["recompute_layers"] != 0))


def _layers_in_range(c: Context) -> BoolArray:
    full = _is_full(c)
    if not full.any():
        return full
    layers, most = c["recompute_layers"], c.fullest_rank
    uneven = (remainder(layers, np.maximum(c["vpp"], 1)) != 0) & (layers != most)
    # An illegal split is another rule's: it leaves no number of layers to compare with.
    return mask(full & (most > 0) & ((layers < 1) | (layers > most) | uneven))


def _layers_message(c: Context) -> str:
    most = int(c.fullest_rank[0])
    return (f"must be from 1 to the layers of the fullest pipeline rank ({most}) and "
            f"divide by vpp ({c.number('vpp', 0)})")


def _method_without_full(c: Context) -> BoolArray:
    return mask(~_is_full(c) & (c["recompute_method"] == _BLOCK))


def _uniform_is_all(c: Context) -> BoolArray:
    full = _is_full(c) & (c["recompute_method"] != _BLOCK)
    if not full.any():
        return mask(full)
    return mask(full & (c["recompute_layers"] < c.fullest_rank))


def _unit(c: Context) -> BoolArray:
    uniform = _is_full(c) & (c["recompute_method"] != _BLOCK)
    unit = c["recompute_unit_layers"]
    if (unit == 1).all():
        return constant(False)
    per_chunk = np.ceil(c.fullest_rank / np.maximum(c["vpp"], 1))
    bad: BoolArray = (unit > 1) & (~uniform | (unit > per_chunk))
    return bad


def _offload_pipeline(c: Context) -> BoolArray:
    bad: BoolArray = (c["activation_offload_layers"] > 0) & (c["pp"] > 1)
    return bad


def _offload_layers(c: Context) -> BoolArray:
    bad: BoolArray = c["activation_offload_layers"] >= c.model.num_layers
    return bad


def _offload_recompute(c: Context) -> BoolArray:
    bad: BoolArray = (c["activation_offload_layers"] > 0) & (c["recompute"] != 0)
    return bad


def _offload_framework(c: Context) -> BoolArray:
    bad: BoolArray = c["activation_offload_layers"] > 0
    return bad & ~c.any_of("framework", *_MEGATRON)


RULES: tuple[Rule, ...] = (
    make_rule("recompute_stands_alone", ("recompute",), _stands_alone,
              "full and selective_op stand alone", ("recompute",)),
    make_rule("recompute_what_exists", ("recompute",), _module_absent, _module_message,
              ("recompute",)),
    make_rule("recompute_once", ("recompute",), _twice,
              "moe recomputes moe_act and shared_experts already", ("recompute",)),
    make_rule("recompute_modules_supported", ("recompute", "framework"), _selective_framework,
              f"modules can be chosen under {words(_MEGATRON)} only", ("recompute", "framework")),
    make_rule("selective_op_supported", ("recompute", "framework"), _selective_op_framework,
              "selective_op exists under torchtitan and fsdp only", ("recompute", "framework")),
    make_rule("moe_act_needs_grouped_gemm", ("recompute", "grouped_gemm"), _moe_act,
              "moe_act needs grouped_gemm", ("recompute", "grouped_gemm")),
    make_rule("recompute_under_delayed_scaling", ("recompute", "precision"), _delayed_scaling,
              "layernorm and moe_act cannot be recomputed under fp8 with delayed scaling",
              ("recompute", "precision")),
    make_rule("shared_experts_recompute_or_overlap", ("recompute", "shared_expert_overlap"),
              _shared_overlap, "shared_experts cannot be recomputed under shared_expert_overlap",
              ("recompute", "shared_expert_overlap")),
    make_rule("recompute_layers_need_full", ("recompute", "recompute_layers"),
              _layers_without_full, "needs recompute full; other recomputation takes every layer",
              ("recompute_layers", "recompute")),
    make_rule("recompute_layers_in_range",
              ("recompute", "recompute_layers", *LAYOUT_FIELDS), _layers_in_range,
              _layers_message, ("recompute_layers",)),
    make_rule("recompute_method_needs_full", ("recompute", "recompute_method"),
              _method_without_full, "block needs recompute full",
              ("recompute_method", "recompute")),
    make_rule("uniform_recompute_takes_all",
              ("recompute", "recompute_method", "recompute_layers", *LAYOUT_FIELDS),
              _uniform_is_all, "uniform recomputes every layer: a number of them needs block",
              ("recompute_method", "recompute_layers")),
    make_rule("recompute_unit_in_range",
              ("recompute", "recompute_method", "recompute_unit_layers", *LAYOUT_FIELDS), _unit,
              "above 1 needs full, uniform recomputation, and at most the layers of a chunk",
              ("recompute_unit_layers",)),
    make_rule("activation_offload_needs_pp_1", ("activation_offload_layers", "pp"),
              _offload_pipeline, "activations can be offloaded at pp 1 only",
              ("activation_offload_layers", "pp")),
    make_rule("activation_offload_in_range", ("activation_offload_layers",), _offload_layers,
              lambda c: f"must be below num_layers ({c.model.num_layers})",
              ("activation_offload_layers",)),
    make_rule("activation_offload_or_recompute", ("activation_offload_layers", "recompute"),
              _offload_recompute, "activations are offloaded or recomputed, not both",
              ("activation_offload_layers", "recompute")),
    make_rule("activation_offload_supported", ("activation_offload_layers", "framework"),
              _offload_framework, f"needs {words(_MEGATRON)}",
              ("activation_offload_layers", "framework")),
)
