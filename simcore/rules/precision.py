"""Rules on number formats and what is sharded.

References
----------
Transformer Engine 2.x, ``pytorch/utils.py`` (`assert_dim_for_fp8_exec`) and the quantizers'
`is_quantizable`; Megatron-Core 0.19.2, ``optimizer_config.py`` and ``arguments.py``.
"""

from __future__ import annotations

import numpy as np

from simcore.inputs.fields import FRAMEWORKS, MEGATRON, PRECISIONS
from simcore.resolve import is_fp8
from simcore.rules.base import Context, Rule, constant, mask, words
from simcore.rules.fixes import make_rule
from simcore.typing import BoolArray, IntArray

_ZERO = {
    **dict.fromkeys(MEGATRON, (0, 1, 2, 3)), "megatron-deepspeed": (0, 1, 2, 3),
    "deepspeed": (0, 1, 2, 3), "aleph-alpha-scaling": (0, 1), "fsdp": (2, 3),
    "torchtitan": (2, 3),
}
"""Stages of sharding that each framework knows."""
_ZERO_TABLE = np.array([[stage in _ZERO[name] for stage in range(4)] for name in FRAMEWORKS])
_WITH_PIPELINE = np.array([name == "torchtitan" for name in FRAMEWORKS])
"""Frameworks that shard gradients beside a pipeline."""
_UNIT = {"fp8-ds": (16, 8), "fp8-cs": (16, 8), "fp8-rowwise": (16, 16), "fp8-block": (128, 128),
         "mxfp8": (32, 32), "nvfp4": (32, 32)}
_WEIGHT_UNIT = np.array([_UNIT.get(name, (1, 1))[0] for name in PRECISIONS], np.int64)
_TOKEN_UNIT = np.array([_UNIT.get(name, (1, 1))[1] for name in PRECISIONS], np.int64)


def _fp8_units(c: Context) -> BoolArray:
    if c.system.accelerator.peak_fp8_tflops > 0:
        return constant(False)
    return is_fp8(c["precision"])


def _recipe_hardware(c: Context) -> BoolArray:
    if c.system.accelerator.peak_fp8_tflops <= 0:
        return constant(False)
    architecture = c.system.accelerator.architecture.lower()
    refused = []
    if not architecture.startswith("blackwell"):
        refused.append("mxfp8")
    if not architecture.startswith(("hopper", "blackwell")):
        refused.append("fp8-block")
    if c.system.accelerator.peak_fp4_tflops <= 0:
        refused.append("nvfp4")
    return c.any_of("precision", *refused) if refused else constant(False)


def _weight_sides(c: Context) -> list[IntArray]:
    """Sides of the weights that a rank multiplies in low precision."""
    m, tp = c.model, c["tp"]
    one = np.ones(1, np.int64)
    sides = [one * m.hidden_size]
    if m.mla is not None:
        sides.append(m.num_attention_heads * m.mla.v_head_dim // tp)
    else:
        sides.append(m.num_attention_heads * m.head_dim // tp)
        sides.append((m.num_attention_heads + 2 * np.maximum(m.num_query_groups, tp))
                     * m.head_dim // tp)
    if c.has_dense_layers:
        sides.append(m.ffn_hidden_size // tp)
    if m.is_moe and m.moe is not None:
        sides.append(m.moe.ffn_hidden_size // c["etp"])
        if m.moe.shared_ffn_hidden_size:
            sides.append(m.moe.shared_ffn_hidden_size // tp)
    return sides


def _weights_align(c: Context) -> BoolArray:
    low = is_fp8(c["precision"])
    if not low.any():
        return low
    unit = _WEIGHT_UNIT[c["precision"]]
    bad = np.zeros(1, np.bool_)
    for side in _weight_sides(c):
        bad = bad | (side % unit != 0)
    return bad & low


def _align_message(c: Context) -> str:
    unit = int(_WEIGHT_UNIT[c.number("precision", 0)])
    sides = [int(s[0]) for s in _weight_sides(c) if s[0] % unit]
    return (f"{c.value('precision', 0)} needs weights whose sides divide by {unit} on every "
            f"rank, which {words(sides, last='and')} at tp {c.number('tp', 0)} and etp "
            f"{c.number('etp', 0)} do not, got {c.value('precision', 0)}")


def _tokens_align(c: Context) -> BoolArray:
    low = is_fp8(c["precision"])
    if not low.any():
        return low
    unit = _TOKEN_UNIT[c["precision"]]
    tokens = c["seq_len"] * c["mbs"] // c["cp"]
    bad: BoolArray = tokens % unit != 0
    return bad & low


def _tokens_message(c: Context) -> str:
    unit = int(_TOKEN_UNIT[c.number("precision", 0)])
    return (f"seq_len*mbs/cp must divide by {unit} under {c.value('precision', 0)}, got "
            f"{c.number('seq_len', 0)}")


def _low_precision_framework(c: Context) -> BoolArray:
    rowwise = c.any_of("precision", "fp8-rowwise") & ~c.any_of("framework", "torchtitan", "fsdp")
    never = is_fp8(c["precision"]) & c.any_of("framework", "megatron-deepspeed",
                                              "aleph-alpha-scaling", "deepspeed")
    return rowwise | never


def _param_gather(c: Context) -> BoolArray:
    on: BoolArray = c["fp8_param_gather"] == 1
    low = is_fp8(c["precision"]) & ~c.any_of("precision", "nvfp4")
    return mask(on & (~low | (c["zero"] == 0)))


def _fp4_param_gather(c: Context) -> BoolArray:
    on: BoolArray = c["fp4_param_gather"] == 1
    return mask(on & (~c.any_of("precision", "nvfp4") | (c["zero"] == 0)))


def _reuse(c: Context) -> BoolArray:
    on: BoolArray = c["reuse_grad_buf"] == 1
    return mask(on & (~c.any_of("precision", "mxfp8") | (c["fp8_param_gather"] == 0)
                 | (c["zero"] != 1)))


def _zero_supported(c: Context) -> BoolArray:
    known: BoolArray = _ZERO_TABLE[c["framework"], np.clip(c["zero"], 0, 3)]
    return ~known


def _zero_message(c: Context) -> str:
    name = str(c.value("framework", 0))
    return f"{name} shards at stages {words(_ZERO[name], last='and')}, got {c.number('zero', 0)}"


def _zero_pipeline(c: Context) -> BoolArray:
    bad: BoolArray = (c["zero"] >= 2) & (c["pp"] > 1)
    return mask(bad & ~_WITH_PIPELINE[c["framework"]])


def _grads_in_fp16(c: Context) -> BoolArray:
    half = c.any_of("precision", "fp16")
    return mask((c.any_of("grad_dtype", "fp16") & ~half) | (c.any_of("grad_dtype", "bf16") & half))


def _fp32_grads(c: Context) -> BoolArray:
    return mask(c.any_of("precision", "fp32") & (c["grad_dtype"] != 0))


RULES: tuple[Rule, ...] = (
    make_rule("fp8_needs_units", ("precision",), _fp8_units,
              lambda c: f"{c.system.name} has no fp8 units", ("precision",)),
    make_rule("fp8_recipe_needs_hardware", ("precision",), _recipe_hardware,
              lambda c: "mxfp8 and nvfp4 need Blackwell, fp8-block Hopper or Blackwell; "
              f"{c.system.name} is {c.system.accelerator.architecture}", ("precision",)),
    make_rule("fp8_supported", ("precision", "framework"), _low_precision_framework,
              lambda c: f"{c.value('precision', 0)} does not exist under "
              f"{c.value('framework', 0)}", ("precision", "framework")),
    make_rule("fp8_weights_align", ("precision", "tp", "etp"), _weights_align, _align_message,
              ("precision", "tp", "etp")),
    make_rule("fp8_tokens_align", ("precision", "seq_len", "mbs", "cp"), _tokens_align,
              _tokens_message, ("seq_len", "mbs", "precision")),
    make_rule("fp4_param_gather_needs_nvfp4", ("fp4_param_gather", "precision", "zero"),
              _fp4_param_gather, "needs nvfp4 and a sharded optimizer (zero >= 1)",
              ("fp4_param_gather", "precision", "zero")),
    make_rule("fp8_param_gather_needs_fp8", ("fp8_param_gather", "precision", "zero"),
              _param_gather, "needs an fp8 precision and a sharded optimizer (zero >= 1)",
              ("fp8_param_gather", "precision", "zero")),
    make_rule("reuse_grad_buf_needs_mxfp8",
              ("reuse_grad_buf", "precision", "fp8_param_gather", "zero"), _reuse,
              "needs mxfp8, fp8_param_gather and zero 1",
              ("reuse_grad_buf", "fp8_param_gather", "precision")),
    make_rule("gradient_format", ("grad_dtype", "precision"), _grads_in_fp16,
              lambda c: f"16-bit gradients have the format of the products "
              f"({c.value('precision', 0)})", ("grad_dtype", "precision")),
    make_rule("fp32_gradients", ("grad_dtype", "precision"), _fp32_grads,
              "must be fp32 where the precision is", ("grad_dtype", "precision")),
    make_rule("zero_supported", ("zero", "framework"), _zero_supported, _zero_message,
              ("zero", "framework")),
    make_rule("zero_with_pipeline", ("zero", "pp", "framework"), _zero_pipeline,
              lambda c: f"above 1 needs pp 1 under {c.value('framework', 0)}: gradients are "
              "reduced with every micro-batch", ("zero", "pp")),
)
