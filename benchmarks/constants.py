"""Every constant that is fitted to training runs: where it stands, its physical range, its rows.

What is measured, counted in a framework's kernels or printed in a data sheet is not here.
`benchmarks.refit` fits each problem on four folds and reports errors on the fifth.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from simcore.inputs.load import load_framework, load_system


@dataclass(frozen=True)
class Constant:
    """One fitted constant.

    Parameters
    ----------
    place : str
        ``framework NAME FIELD`` (all its versions move together), ``system NAME SECTION FIELD``
        (``NAME+NAME``: systems that share it) or ``module NAME ATTRIBUTE``.
    low, high : float
        Physical range.
    why : str
        What it stands for.
    """

    place: str
    low: float
    high: float
    why: str

    def values(self) -> list[float]:
        """Return the shipped values, one a profile (and architecture)."""
        kind, name, *rest = self.place.split()
        if kind == "module":
            return [float(getattr(importlib.import_module(name), rest[0]))]
        if kind == "system":
            return [float(getattr(getattr(load_system(one), rest[0]), rest[1]))
                    for one in name.split("+")]
        found: list[float] = []
        for profile in load_framework(name).profiles:
            value = getattr(profile, rest[0])
            found += value.values() if isinstance(value, Mapping) else [value]
        return found


@dataclass(frozen=True)
class Problem:
    """Tables that are fitted together, and what is fitted to them."""

    name: str
    tables: tuple[str, ...]
    constants: tuple[Constant, ...]


def _frac(system: str, field: str, why: str) -> Constant:
    return Constant(f"system {system} efficiency {field}", 0.3, 1.0, why)


SUSTAINED = "kernels in a long step over the same kernels alone: clocks under power and heat"
PASSES = "traffic of element-wise kernels over fused ones"
OVER_TABLE = "training's 8- and 4-bit products over the table's inference kernels"
PROBLEMS = (
    Problem("aleph_alpha_2023", ("aleph_alpha_2023",), (
        Constant("framework aleph-alpha-scaling data_parallel_gb_per_s", 1, 200,
                 "what its gradient all-reduce reaches"),
        Constant("framework aleph-alpha-scaling elementwise_passes", 1, 5, PASSES),
    )),
    Problem("vtrain2024/multi", ("vtrain2024/multi.csv",), (
        Constant("framework megatron-deepspeed data_parallel_gb_per_s", 1, 200,
                 "what its gradient all-reduce reaches"),
        Constant("framework megatron-deepspeed elementwise_passes", 1, 5, PASSES),
        Constant("system a100-sxm-80g network scale_out_frac", 0.2, 1.0,
                 "what rings between nodes reach of the NICs"),
    )),
    Problem("dgxc_benchmarking", ("papers/dgxc_benchmarking.csv",), (
        _frac("h100-sxm", "sustained_frac", SUSTAINED),
        Constant("framework nemo-megatron fp8_rate_frac", 0.5, 1.0,
                 "fp8 products of its libraries over the newest"),
        Constant("framework nemo-megatron straggler_frac", 0, 0.02,
                 "growth of a step with each doubling of the nodes"),
    )),
    Problem("nvidia_megatron_bridge", ("nvidia_megatron_bridge",), (
        Constant("framework megatron-bridge moe_passes", 1, 5,
                 "traffic of router and permutation over what the rows need"),
        Constant("framework megatron-bridge moe_layer_cpu_us", 1000, 30000,
                 "launches of a MoE layer and micro-batch"),
        Constant("framework megatron-bridge elementwise_passes", 1, 5, PASSES),
        Constant("module simcore.operators.mlp EXPERT_BIAS_PASSES", 1, 5,
                 "traffic of the experts' eager bias over its kernels' own"),
        Constant("system gb200-nvl72+gb300-nvl72+b200-sxm+b300-sxm efficiency fp8_over_table",
                 0.8, 2, OVER_TABLE),
        Constant("system gb200-nvl72+gb300-nvl72+b200-sxm+b300-sxm efficiency fp4_over_table",
                 0.8, 2, OVER_TABLE),
        Constant("system h100-sxm efficiency fp8_over_table", 0.8, 2, OVER_TABLE),
        Constant("module simcore.kernels MX_SCALED_FRAC", 0.7, 1,
                 "products with a scale for 32 values over those with one a tensor"),
        Constant("module simcore.data_parallel OFFLOAD_EXPOSED_SHARE", 0, 1,
                 "of activations' way to the host and back, what nothing hides"),
        _frac("b200-sxm", "sustained_frac", SUSTAINED),
        _frac("b300-sxm", "sustained_frac", SUSTAINED),
        _frac("gb200-nvl72", "sustained_frac", SUSTAINED),
        _frac("gb300-nvl72", "sustained_frac", SUSTAINED),
    )),
    Problem("mpt_foundry", ("papers/mpt_foundry.csv",), (
        _frac("a100-sxm-80g", "sustained_frac", SUSTAINED),
        Constant("framework fsdp attention_rate_frac", 0.2, 1.0,
                 "FlashAttention 1 (and 2, off Ampere) over the system's kernel"),
        Constant("framework fsdp elementwise_passes", 1, 5, PASSES),
    )),
    Problem("torchtitan", ("papers/torchtitan.csv",), (
        Constant("framework torchtitan attention_rate_frac", 0.1, 1.0,
                 "SDPA's FlashAttention 2 over the system's kernel"),
        Constant("framework torchtitan elementwise_passes", 1, 5, PASSES),
    )),
)
MOST = 40
"""Fitted constants that the project may have."""
