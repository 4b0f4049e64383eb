"""Seconds of kernels on a system, from its sustained rates."""

from __future__ import annotations

import numpy as np

from simcore.formulas.roofline import gemm_shape_efficiency, roofline_s
from simcore.local import NVFP4_BYTES, Local
from simcore.operators.base import Op, Phase, make
from simcore.typing import FloatArray, Num
from simcore.units import GB, MICRO, TERA

GROUPED_TILE = 128.0
"""Rows are padded to whole tiles for each expert (CUTLASS grouped GEMM's usual tile)."""


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


def matmul_flops_per_s(local: Local, *, fp8: bool = True) -> FloatArray:
    """Sustained rate of large products in the strategy's precision [FLOP/s], shape (u,)."""
    accelerator, efficiency = local.system.accelerator, local.system.efficiency
    sustained = TERA * efficiency.sustained_frac
    bf16 = accelerator.peak_bf16_tflops * sustained * efficiency.gemm_bf16_frac
    low = accelerator.peak_fp8_tflops * sustained * efficiency.gemm_fp8_frac
    rate = np.where(local.precision_is("fp32"), bf16 / 8.0, bf16)
    # 128-wide blocks and 32-wide MX scales are applied inside the main loop: promotion of the
    # accumulators costs Hopper about a tenth (DeepSeek-V3, arXiv 2412.19437, section 3.3.2).
    block = np.where(local.precision_is("fp8-block", "fp8-rowwise"), 0.9, 1.0)
    four = accelerator.peak_fp4_tflops * sustained * efficiency.gemm_fp4_frac
    reached = np.where(local.precision_is("nvfp4"), max(four, 1.0), max(low, 1.0) * block)
    return np.where(local.is_fp8 & fp8, reached * local.software("fp8_rate_frac"), rate)


def elementwise(local: Local, name: str, module: str, phase: Phase, bytes_moved: Num, *,
                kernels: Num = 1.0) -> Op:
    """Build a memory-bound operator."""
    passes = local.software("elementwise_passes")
    moved = passes * bytes_moved
    seconds = moved / memory_bytes_per_s(local) + kernels * launch_s(local)
    return make(local, name, module, phase, seconds, bytes_moved=moved)


def cast_bytes_per_value(local: Local) -> FloatArray:
    """Traffic of quantising one value of a product's input [B], shape (u,).

    Delayed scaling writes fp8 from the kernel before it (1 B, and 1 B for the transpose);
    current scaling reads once more for the maximum; block formats read bf16 and write both
    directions. NVFP4 reads twice, since its scales rest on the tensor's maximum, and writes
    both directions, one behind a Hadamard transform (arXiv 2509.25149, section 3).
    """
    others = np.where(local.precision_is("nvfp4"), 4.0 + 2.0 * NVFP4_BYTES, 4.0)
    return np.where(local.precision_is("fp8-ds"), 2.0,
                    np.where(local.precision_is("fp8-cs", "fp8-rowwise"), 6.0,
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
    rate = matmul_flops_per_s(local, fp8=low_precision)
    ops = [_product(local, f"{name}_fwd", module, Phase.FORWARD, rows, out, inner, rate, size,
                    local.bytes_per_value, groups),
           _product(local, f"{name}_dgrad", module, Phase.BACKWARD, rows, inner, out, rate, size,
                    local.bytes_per_value, groups)]
    if weights_gradient:
        fused = local.on("grad_accumulation_fusion")
        ops.append(_product(local, f"{name}_wgrad", module, Phase.BACKWARD, out, inner, rows,
                            rate, size, np.where(fused, 8.0, 2.0), groups, depth_grouped=True))
        # Not fused: the product is written in bf16, then added to the fp32 buffer.
        extra = np.where(fused, 0.0, 10.0 * out * inner * groups)
        ops.append(make(local, f"{name}_accumulate", module, Phase.BACKWARD,
                        np.where(fused, 0.0, extra / memory_bytes_per_s(local)
                                 + launch_s(local)), bytes_moved=extra))
    if np.any(fp8):
        per_value = np.where(fp8, cast_bytes_per_value(local), 0.0)
        for phase, width in ((Phase.FORWARD, inner), (Phase.BACKWARD, out)):
            moved = per_value * rows * width
            ops.append(make(local, f"{name}_cast_{phase.value}", module, phase,
                            moved / memory_bytes_per_s(local) + fp8 * launch_s(local),
                            bytes_moved=moved))
    return ops


def _product(local: Local, name: str, module: str, phase: Phase, m: FloatArray, n: FloatArray,
             k: FloatArray, rate: FloatArray, size: FloatArray, out_bytes: Num, groups: Num, *,
             depth_grouped: bool = False) -> Op:
    """One (grouped) product of m x n x k; `m`, or `k` in a weight gradient, spans all groups."""
    groups = np.asarray(groups, np.float64)
    efficiency = local.system.efficiency
    grouped = groups > 1
    each_m, each_k = (m, k / groups) if depth_grouped else (m / groups, k)
    flops = 2.0 * m * n * k
    tile_waste = np.where(grouped & (not depth_grouped),
                          each_m / (np.ceil(np.maximum(each_m, 1.0) / GROUPED_TILE)
                                    * GROUPED_TILE), 1.0)
    shape = gemm_shape_efficiency(
        np.where(grouped, each_m * groups, each_m), n, each_k,
        num_multiprocessors=local.system.accelerator.num_multiprocessors)
    # One after the other, each expert's product has the device to itself, and its launch.
    alone = gemm_shape_efficiency(
        each_m, n, each_k, num_multiprocessors=local.system.accelerator.num_multiprocessors)
    together = local.on("grouped_gemm")
    reached = np.where(grouped & together, shape * efficiency.grouped_gemm_frac * tile_waste,
                       np.where(grouped, alone, shape))
    launches = np.where(grouped & ~together, groups, 1.0)
    moved = size * (m * k + n * k * np.where(depth_grouped, 1.0, groups)) + out_bytes * (
        m * n * np.where(depth_grouped, groups, 1.0))
    seconds = roofline_s(flops, moved, flops_per_s=np.maximum(rate * reached, 1.0),
                         bytes_per_s=memory_bytes_per_s(local),
                         launch_s=launches * launch_s(local))
    return make(local, name, module, phase, seconds, flops=flops, bytes_moved=moved)
