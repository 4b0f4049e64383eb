"""Bytes of weights, gradients and optimizer states on a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.batch import Batch
from simcore.degrees import data_parallel, expert_data_parallel
from simcore.inputs.fields import FIELD, code
from simcore.inputs.system import SystemSpec
from simcore.local import DTYPE_BYTES
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
        fp8 copies of a matrix that stand beside the weight; negative where they replace it.
    gradient : ndarray
        The gradient buffer.
    optimizer : ndarray
        Master weights and moments.
    step : ndarray
        Temporaries of the optimizer step.
    """

    weight: FloatArray
    quantised: FloatArray
    gradient: FloatArray
    optimizer: FloatArray
    step: FloatArray


def shard_sizes(batch: Batch) -> tuple[FloatArray, FloatArray]:
    """Ranks that share the states of a dense and of an expert parameter, shape (n,)."""
    dense = (data_parallel(batch) * batch["cp"]).astype(np.float64)
    return dense, expert_data_parallel(batch).astype(np.float64)


def dtype_bytes(batch: Batch, name: str) -> FloatArray:
    table = np.array([DTYPE_BYTES[choice] for choice in FIELD[name].choices])
    return table[batch[name]]


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

    References
    ----------
    Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5; Megatron-LM
    ``docs/source/api-guide/dist_optimizer.md``, table of bytes; Transformer Engine
    ``pytorch/tensor/{float8_tensor,mxfp8_tensor}.py`` for the fp8 copies.
    """
    zero = batch["zero"]
    is_fp32 = batch["precision"] == code("precision", "fp32")
    low = np.where(is_fp32, 4.0, 2.0)
    main = np.where(is_fp32, 0.0, dtype_bytes(batch, "main_params_dtype"))
    moments = np.where(batch["optimizer"] == code("optimizer", "sgd"), 0.0,
                       dtype_bytes(batch, "exp_avg_dtype")
                       + dtype_bytes(batch, "exp_avg_sq_dtype"))
    gradient = np.where(is_fp32, 4.0, dtype_bytes(batch, "grad_dtype"))
    optimizer = (main + moments) / np.where(zero >= 1, shards, 1.0)
    sharded = zero >= 3
    weight = np.where(sharded, np.where(is_fsdp, 4.0 / shards, low / shards), low)
    # FSDP's fp32 shard is the master copy itself.
    optimizer = np.where(sharded & is_fsdp, moments / shards, optimizer)
    gradient = np.where(zero >= 2, np.where(is_fsdp, 4.0, gradient) / shards, gradient)
    quantised = _quantised(batch, system) * np.where(sharded, 1.0 / shards, 1.0)
    # Gradients are cast to the optimizer's format where the buffer has another, a shard at once.
    cast = np.where(dtype_bytes(batch, "main_grads_dtype") != dtype_bytes(batch, "grad_dtype"),
                    dtype_bytes(batch, "main_grads_dtype"), 0.0)
    cast = np.where(is_fp32 | is_fsdp, 0.0, cast)
    up = np.where(upcasts & (dtype_bytes(batch, "exp_avg_dtype") < 4.0), 8.0, 0.0)
    step = (cast + up) / np.where(zero >= 1, shards, 1.0)
    return BytesPerParameter(weight, quantised, gradient, optimizer, step)


def _quantised(batch: Batch, system: SystemSpec) -> FloatArray:
    """fp8 copies of a matrix, less the bf16 weight where they replace it [B a parameter].

    Per-tensor scaling keeps one copy, and its transpose on Hopper, whose fp8 products take one
    layout only; block formats keep both directions with their scales. A reused gradient buffer
    saves the gathered parameters' buffer of MXFP8.
    """
    low = is_fp8(batch["precision"])
    hopper = system.accelerator.architecture == "hopper"
    per_tensor = np.isin(batch["precision"], [code("precision", p)
                                              for p in ("fp8-ds", "fp8-cs", "fp8-rowwise")])
    copies = np.where(per_tensor, 2.0 if hopper else 1.0, 2.0 * (1.0 + 1.0 / 32.0))
    replaces = np.where(batch["fp8_param_gather"] > 0, 2.0, 0.0)
    is_mx = batch["precision"] == code("precision", "mxfp8")
    buffer = np.where((batch["fp8_param_gather"] > 0) & is_mx & (batch["reuse_grad_buf"] <= 0),
                      2.0, 0.0)
    return np.where(low, copies - replaces + buffer, 0.0)
