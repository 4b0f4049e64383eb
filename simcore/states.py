"""Bytes of weights, gradients and optimizer states on a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.batch import Batch
from simcore.degrees import data_parallel, expert_data_parallel
from simcore.inputs.fields import FIELD, code
from simcore.inputs.system import SystemSpec
from simcore.local import DTYPE_BYTES, NVFP4_BYTES
from simcore.resolve import is_fp8
from simcore.typing import BoolArray, FloatArray


@dataclass(frozen=True)
class BytesPerParameter:
    """Of one parameter on a rank, arrays of shape (n,) [B].

    Parameters
    ----------
    weight : ndarray
        The weights that compute uses (of the shard, under ZeRO-3).
    quantised : ndarray
        fp8 or fp4 copies of a matrix that stand beside the weight; negative where they replace
        it.
    gradient : ndarray
        The gradient buffer.
    main, exp_avg, exp_avg_sq : ndarray
        Master weights and moments on the device. Muon has no second moment for the matrices
        that it orthogonalises.
    step : ndarray
        Temporaries of the optimizer step.
    host : ndarray
        States, and the gradients that they need, in host memory.
    shards : ndarray
        Ranks that share the states.
    """

    weight: FloatArray
    quantised: FloatArray
    gradient: FloatArray
    main: FloatArray
    exp_avg: FloatArray
    exp_avg_sq: FloatArray
    step: FloatArray
    host: FloatArray
    shards: FloatArray

    @property
    def optimizer(self) -> FloatArray:
        """Master weights and both moments."""
        return self.main + self.exp_avg + self.exp_avg_sq


def shard_sizes(batch: Batch) -> tuple[FloatArray, FloatArray]:
    """Ranks that share the states of a dense and of an expert parameter, shape (n,).

    With replicas (HSDP, or several instances of Megatron's distributed optimizer) these are the
    ranks of one replica.
    """
    replicas = np.maximum(batch["dp_replicate"], 1)
    dense = (data_parallel(batch) * batch["cp"] / replicas).astype(np.float64)
    # Under DualPipe two pipeline ranks hold each stage, and share its states.
    copies = np.where(batch["schedule"] == code("schedule", "dualpipe"), 2.0, 1.0)
    return dense * copies, np.maximum(expert_data_parallel(batch) / replicas, 1.0) * copies


def dtype_bytes(batch: Batch, name: str) -> FloatArray:
    """Bytes of a value in a field's format, (n,)."""
    table = np.array([DTYPE_BYTES[choice] for choice in FIELD[name].choices])
    return table[batch[name]]


def gradient_bytes(batch: Batch) -> FloatArray:
    """Bytes of a gradient in its buffer, and on the wire unless the framework says else, (n,)."""
    return np.where(batch["grad_dtype"] == code("grad_dtype", "fp32"), 4.0, 2.0)


def is_muon(batch: Batch) -> BoolArray:
    """Tell where matrices are updated by Muon, (n,)."""
    chosen: BoolArray = batch["optimizer"] == code("optimizer", "muon")
    return chosen


def bytes_per_parameter(batch: Batch, system: SystemSpec, shards: FloatArray,
                        *, upcasts: BoolArray, is_fsdp: BoolArray) -> BytesPerParameter:
    """Bytes a rank holds for each of its parameters.

    Parameters
    ----------
    batch : Batch
        Resolved, n rows.
    shards : ndarray, shape (n,)
        Ranks that share the states.
    upcasts : ndarray of bool, shape (n,)
        Where Adam casts bf16 moments to fp32 temporaries.
    is_fsdp : ndarray of bool, shape (n,)
        Where parameters are kept in fp32 shards without a bf16 copy (PyTorch FSDP).

    Notes
    -----
    A share of the optimizer may live in host memory. `HybridDeviceOptimizer` then keeps that
    share's fp32 weights, moments and a pinned copy of its gradients there, and hands the rest's
    gradients to the device's Adam in fp32.

    References
    ----------
    Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5; Megatron-LM
    ``docs/source/api-guide/dist_optimizer.md``, table of bytes; Transformer Engine
    ``pytorch/tensor/{float8_tensor,mxfp8_tensor,nvfp4_tensor}.py`` for the copies in low
    precision; Megatron-Core 0.19, ``optimizer/cpu_offloading/hybrid_optimizer.py``.
    """
    zero = batch["zero"]
    is_fp32 = batch["precision"] == code("precision", "fp32")
    low = np.where(is_fp32, 4.0, 2.0)
    own = 1.0 / np.where(zero >= 1, shards, 1.0)
    sharded = zero >= 3
    # FSDP's fp32 shard is the master copy itself.
    no_main = is_fp32 | (sharded & is_fsdp)
    main = np.where(no_main, 0.0, dtype_bytes(batch, "main_params_dtype")) * own
    has_moments = batch["optimizer"] != code("optimizer", "sgd")
    first = np.where(has_moments, dtype_bytes(batch, "exp_avg_dtype"), 0.0) * own
    second = np.where(has_moments, dtype_bytes(batch, "exp_avg_sq_dtype"), 0.0) * own
    gradient = np.where(is_fp32, 4.0, dtype_bytes(batch, "grad_dtype"))
    weight = np.where(sharded, np.where(is_fsdp, 4.0 / shards, low / shards), low)
    # Gradients are cast to the optimizer's format where the buffer has another, a shard at once.
    main_grad = dtype_bytes(batch, "main_grads_dtype")
    away = np.maximum(batch.real("optimizer_offload"), 0.0)
    here = 1.0 - away
    main_grad = np.where(away > 0, 4.0, main_grad)
    cast = np.where(main_grad != gradient, main_grad, 0.0)
    cast = np.where(is_fp32 | is_fsdp, 0.0, cast)
    up = np.where(upcasts & (dtype_bytes(batch, "exp_avg_dtype") < 4.0), 8.0, 0.0)
    host = away * (np.where(no_main, 0.0, 4.0) * own + first + second + 4.0 * own)
    return BytesPerParameter(
        weight=weight, quantised=quantised_bytes(batch, system) * np.where(
            sharded, 1.0 / shards, 1.0),
        gradient=np.where(zero >= 2, np.where(is_fsdp, 4.0, gradient) / shards, gradient),
        main=main * here, exp_avg=first * here, exp_avg_sq=second * here,
        step=(cast + up) * own * here, host=host, shards=shards)


def quantised_bytes(batch: Batch, system: SystemSpec) -> FloatArray:
    """Copies of a matrix in low precision, less the bf16 weight they replace [B a parameter].

    Per-tensor scaling keeps one copy, and its transpose on Hopper, whose fp8 products take one
    layout only; block formats keep both directions with their scales: one of 8 bits to 32
    values of MXFP8, one to 16 values of NVFP4. A reused gradient buffer saves the gathered
    parameters' buffer of MXFP8.
    """
    low = is_fp8(batch["precision"])
    hopper = system.accelerator.architecture == "hopper"
    per_tensor = np.isin(batch["precision"], [code("precision", p)
                                              for p in ("fp8-ds", "fp8-cs", "fp8-rowwise")])
    is_mx = batch["precision"] == code("precision", "mxfp8")
    is_fp4 = batch["precision"] == code("precision", "nvfp4")
    copies = np.where(per_tensor, 2.0 if hopper else 1.0, 2.0 * np.where(
        is_fp4, NVFP4_BYTES, 1.0 + 1.0 / 32.0))
    gathered = (batch["fp8_param_gather"] > 0) | (batch["fp4_param_gather"] > 0)
    buffer = np.where(gathered & is_mx & (batch["reuse_grad_buf"] <= 0), 2.0, 0.0)
    return np.where(low, copies - np.where(gathered, 2.0, 0.0) + buffer, 0.0)
