"""Seconds of kernels on a system, from its sustained rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.efficiency import Layout, Source, table_of
from simcore.formulas.roofline import gemm_shape_efficiency, roofline_s
from simcore.inputs.system import Provenance, SystemSpec
from simcore.local import NVFP4_BYTES, Local
from simcore.operators.base import Op, Phase, make
from simcore.typing import FloatArray, IntArray, Num
from simcore.units import GB, MICRO, TERA

PRODUCT_NAMES = ("fwd", "dgrad", "wgrad")
"""By `Layout`."""
GROUPED_STREAMS = 4.0
"""Products of a group that run side by side (Transformer Engine, ``num_streams``)."""
BLOCK_SCALED_FRAC = 0.9
"""128-wide blocks are scaled inside the main loop: promotion of the accumulators costs Hopper
about a tenth (DeepSeek-V3, arXiv 2412.19437, section 3.3.2); where no table says."""

MX_SCALED_FRAC = 0.94
"""Products with scales of 32 values, and the kernels that lay the scales out for them, over
products with one scale a tensor; fitted to the MXFP8 rows of Megatron-Bridge beside the same
runs with one scale."""


def launch_s(local: Local) -> float:
    """Gap before a kernel on the device [s]."""
    return local.system.efficiency.launch_s_per_kernel_us * MICRO


def bf16_flops_per_s(local: Local) -> float:
    """Dense bf16 peak [FLOP/s]."""
    return local.system.accelerator.peak_bf16_tflops * TERA


def memory_bytes_per_s(local: Local) -> float:
    """Bandwidth that element-wise kernels reach [B/s]."""
    system = local.system
    return (system.accelerator.memory_bandwidth_gb_per_s * GB) * system.efficiency.memory_frac


def sustained_bf16_flops_per_s(local: Local) -> float:
    """Sustained rate of large bf16 products without a shape [FLOP/s]."""
    efficiency = local.system.efficiency
    return bf16_flops_per_s(local) * efficiency.sustained_frac * efficiency.gemm_bf16_frac


@dataclass(frozen=True)
class Rate:
    """Rates of kernels, [FLOP/s] and `Source` codes, arrays of shape (u,)."""

    flops_per_s: FloatArray
    source: IntArray


LOW_PRECISION_TABLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fp8", ("fp8-ds", "fp8-cs", "mxfp8")), ("fp8_block", ("fp8-block", "fp8-rowwise")),
    ("nvfp4", ("nvfp4",)))
"""Table that the products of each 8- and 4-bit precision take."""


def product_rates(local: Local, m: FloatArray, n: FloatArray, k: FloatArray, *,
                  low_precision: bool) -> Rate:
    """Sustained rates of a layer's products in the strategy's precision.

    Parameters
    ----------
    m, n, k : ndarray, shape (layouts, u)
        In the order of `Layout`.
    low_precision : bool

    Returns
    -------
    Rate
        Arrays of shape (layouts, u).
    """
    accelerator, efficiency = local.system.accelerator, local.system.efficiency
    table, processors = table_of(local.system), accelerator.num_multiprocessors
    layouts = np.arange(len(m))[:, None]

    def found(dtype: str, peak_tflops: float, frac: float) -> tuple[FloatArray, IntArray]:
        sustained = peak_tflops * TERA * efficiency.sustained_frac
        if table is None:
            share = frac * gemm_shape_efficiency(m, n, k, num_multiprocessors=processors)
            return sustained * np.asarray(share), np.full(m.shape, Source.FORMULA)
        measured = table.gemm(dtype, m, n, k, layouts, num_multiprocessors=processors)
        over = {"bf16": 1.0, "nvfp4": efficiency.fp4_over_table}.get(
            dtype, efficiency.fp8_over_table)
        return sustained * np.minimum(over * measured.share, 1.0), measured.source

    rate, source = found("bf16", accelerator.peak_bf16_tflops, efficiency.gemm_bf16_frac)
    rate = np.where(local.precision_is("fp32"), rate / 8.0, rate)
    if low_precision and np.any(local.is_fp8):
        for dtype, precisions in LOW_PRECISION_TABLES:
            rows = local.precision_is(*precisions)
            if np.any(rows):
                peak, frac = ((accelerator.peak_fp4_tflops, efficiency.gemm_fp4_frac)
                              if dtype == "nvfp4" else
                              (accelerator.peak_fp8_tflops, efficiency.gemm_fp8_frac))
                own, tag = found(dtype, max(peak, 1.0 / TERA), frac * (
                    BLOCK_SCALED_FRAC if dtype == "fp8_block" else 1.0))
                own = own * local.software("fp8_rate_frac")
                own = np.where(local.precision_is("mxfp8"), MX_SCALED_FRAC * own, own)
                rate, source = np.where(rows, own, rate), np.where(rows, tag, source)
    return Rate(rate, source)


def memory_source(system: SystemSpec) -> Source:
    """Tell where the rate of memory-bound kernels comes from."""
    return (Source.INTERPOLATED if system.efficiency.provenance is Provenance.MEASURED
            else Source.TRANSFERRED)


def elementwise(local: Local, name: str, module: str, phase: Phase, bytes_moved: Num, *,
                kernels: Num = 1.0) -> Op:
    """Build a memory-bound operator."""
    passes = local.software("elementwise_passes")
    moved = passes * bytes_moved
    seconds = moved / memory_bytes_per_s(local) + kernels * launch_s(local)
    return make(local, name, module, phase, seconds, bytes_moved=moved,
                source=memory_source(local.system))


def cast_bytes_per_value(local: Local) -> FloatArray:
    """Traffic of quantising one value of a product's input [B], shape (u,).

    Delayed scaling writes fp8 from the kernel before it (1 B, and 1 B for the transpose, which
    Blackwell's products do not need: ``is_non_tn_fp8_gemm_supported`` of Transformer Engine);
    current scaling reads twice, once for the maximum; block formats read bf16 and write both
    directions. NVFP4 reads twice, since its scales rest on the tensor's maximum, and writes
    both directions, one behind a Hadamard transform (arXiv 2509.25149, section 3).
    """
    others = np.where(local.precision_is("nvfp4"), 4.0 + 2.0 * NVFP4_BYTES, 4.0)
    transposes = 0.0 if local.system.accelerator.architecture == "blackwell" else 1.0
    return np.where(local.precision_is("fp8-ds"), 1.0 + transposes,
                    np.where(local.precision_is("fp8-cs", "fp8-rowwise"), 5.0 + transposes,
                             np.where(local.is_fp8, others, 0.0)))


def gemm(local: Local, name: str, module: str, *, rows: FloatArray, out: Num, inner: Num,
         low_precision: bool = True, groups: Num = 1.0, weights_gradient: bool = True) -> list[Op]:
    """Build a linear layer's three products (forward, data and weight gradient).

    Parameters
    ----------
    rows : ndarray, shape (u,)
        Tokens, of all groups together.
    out, inner : float or ndarray
        Output and input features on this rank.
    low_precision : bool
        Whether it follows the strategy's fp8.
    groups : float or ndarray
        Experts in one grouped product (1: a dense product).

    Returns
    -------
    list of Op
    """
    rows, out, inner = (np.asarray(x, np.float64) for x in (rows, out, inner))
    fp8 = local.is_fp8 & low_precision
    size = np.where(fp8, np.where(local.precision_is("nvfp4"), NVFP4_BYTES, 1.0),
                    local.bytes_per_value)
    count = 3 if weights_gradient else 2
    rates = product_rates(local, *_shapes(local, rows, out, inner, groups, count),
                          low_precision=low_precision)
    fused = local.on("grad_accumulation_fusion")
    shapes = ((rows, out, inner), (rows, inner, out), (out, inner, rows))
    written = (local.bytes_per_value, local.bytes_per_value, np.where(fused, 8.0, 2.0))
    ops = [_product(local, module, f"{name}_{PRODUCT_NAMES[layout]}", layout, *shapes[layout],
                    size, written[layout], groups,
                    Rate(rates.flops_per_s[layout], rates.source[layout]))
           for layout in tuple(Layout)[:count]]
    if weights_gradient:
        # Not fused: the product is written in bf16, then added to the fp32 buffer.
        extra = np.where(fused, 0.0, 10.0 * out * inner * groups)
        ops.append(make(local, f"{name}_accumulate", module, Phase.BACKWARD,
                        np.where(fused, 0.0, extra / memory_bytes_per_s(local)
                                 + launch_s(local)), bytes_moved=extra,
                        source=memory_source(local.system)))
    if np.any(fp8):
        per_value = np.where(fp8, cast_bytes_per_value(local), 0.0)
        for phase, width in ((Phase.FORWARD, inner), (Phase.BACKWARD, out)):
            moved = per_value * rows * width
            ops.append(make(local, f"{name}_cast_{phase.value}", module, phase,
                            moved / memory_bytes_per_s(local) + fp8 * launch_s(local),
                            bytes_moved=moved, source=memory_source(local.system)))
    return ops


def _shapes(local: Local, rows: FloatArray, out: FloatArray, inner: FloatArray, groups: Num,
            count: int) -> FloatArray:
    """m, n and k of the products that run at one time, shape (3, count, u).

    A grouped product is a loop of products over a few streams (Transformer Engine's
    ``nvte_multi_tensor_gemm``), some of which run side by side.
    """
    shapes = np.empty((3, count, len(local.batch)))
    beside = np.where(local.on("grouped_gemm"), np.minimum(groups, GROUPED_STREAMS), 1.0)
    each = np.maximum(rows / groups, 1.0)
    for layout, shape in enumerate(((each * beside, out, inner), (each * beside, inner, out),
                                    (out * beside, inner, each))[:count]):
        for axis, length in enumerate(shape):
            shapes[axis, layout] = length
    return np.maximum(shapes, 1.0)


def _product(local: Local, module: str, name: str, layout: Layout, m: FloatArray, n: FloatArray,
             k: FloatArray, size: FloatArray, out_bytes: Num, groups: Num, rate: Rate) -> Op:
    """One (grouped) product of m x n x k; `m`, or `k` in a weight gradient, spans all groups.

    No product of a group starts sooner than the CPU launches it.
    """
    by_depth = layout is Layout.WEIGHT_GRADIENT
    flops = 2.0 * m * n * k
    moved = size * (m * k + n * k * (1.0 if by_depth else groups)) + out_bytes * (
        m * n * (groups if by_depth else 1.0))
    reached, launches, floor = rate.flops_per_s, np.asarray(1.0), np.asarray(0.0)
    if np.any(np.asarray(groups) > 1):
        grouped, together = np.asarray(groups) > 1, local.on("grouped_gemm")
        reached = reached * np.where(grouped, local.system.efficiency.grouped_gemm_frac, 1.0)
        launches = np.where(grouped & ~together, groups, 1.0)
        floor = np.where(grouped, groups * local.software("grouped_launch_us") * MICRO, 0.0)
    seconds = roofline_s(flops, moved, flops_per_s=np.maximum(reached, 1.0),
                         bytes_per_s=memory_bytes_per_s(local),
                         launch_s=launches * launch_s(local))
    return make(local, name, module,
                Phase.FORWARD if layout is Layout.FORWARD else Phase.BACKWARD,
                np.maximum(seconds, floor), flops=flops, bytes_moved=moved, source=rate.source,
                shape=(groups, m if by_depth else m / groups, n, k / groups if by_depth else k))
