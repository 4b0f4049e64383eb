"""Seconds of the optimizer's update on the device, on the CPU, and of Muon's orthogonalisation."""

from __future__ import annotations

import numpy as np

from simcore.formulas.muon import newton_schulz_flops
from simcore.frame import Class, Frame
from simcore.inputs.fields import code
from simcore.parameters import Parameter
from simcore.states import dtype_bytes, gradient_bytes, is_muon, shard_sizes
from simcore.typing import FloatArray, Num
from simcore.units import GB, TERA

MUON_STEPS = 5
"""Iterations of Newton-Schulz (Megatron-Core 0.19, ``optimizer_config.py``)."""
CPU_ADAM_BYTES = 28.0
"""Of host memory a parameter: the gradient and three states read, the states written, all fp32
(PyTorch's fused AdamW on a CPU, which `HybridDeviceOptimizer` runs)."""


def optimizer_s(frame: Frame, parameters: FloatArray, hidden: FloatArray,
                shards: FloatArray) -> FloatArray:
    """Time of zeroing the buffer, norm, clipping, update and new weights, (n,) [s].

    Adam reads and writes master weights and moments and reads the gradient; each element's
    traffic is twice its states' bytes, plus three passes over the gradient (norm, clip, read)
    and the written weight. The share on the CPU sends its gradients to the host, is updated
    there while the device updates the rest, and sends the new weights back: Megatron overlaps
    these only where asked (``--overlap-cpu-optimizer-d2h-h2d``).

    Parameters
    ----------
    parameters : ndarray, shape (n,)
        Of a rank, before they are sharded.
    hidden : ndarray, shape (n,)
        Those that Muon updates, without a second moment.
    shards : ndarray, shape (n,)
    """
    batch = frame.batch
    each = frame.system.accelerator.memory_bandwidth_gb_per_s * GB * (
        frame.system.efficiency.memory_frac)
    gradient = gradient_bytes(batch)
    moments = np.where(batch["optimizer"] == code("optimizer", "sgd"), 0.0,
                       dtype_bytes(batch, "exp_avg_dtype")
                       + dtype_bytes(batch, "exp_avg_sq_dtype"))
    ranks = np.where(batch["zero"] >= 1, np.maximum(shards, 1), 1)
    own = parameters / ranks
    states = own * (4.0 + moments) - hidden / ranks * dtype_bytes(batch, "exp_avg_sq_dtype")
    zeroed = parameters / np.where(batch["zero"] >= 2, np.maximum(shards, 1), 1)
    away = np.maximum(batch.real("optimizer_offload"), 0.0)
    update = (2.0 * states + own * (gradient + 2.0)) * (1.0 - away) / each
    norm = (own * 3.0 * gradient + zeroed * gradient) / each
    if not np.any(away > 0):
        return norm + update
    network = frame.system.network
    host = CPU_ADAM_BYTES / (network.host_memory_gb_per_s * GB)
    # PyTorch converts formats on the CPU, so gradients and weights travel as the device has
    # them (aten/src/ATen/native/cuda/Copy.cu).
    moved = (gradient + 2.0) / (network.pcie_gb_per_s * GB)
    total: FloatArray = norm + np.maximum(update, own * away * host) + own * away * moved
    return total


def orthogonalisation_s(frame: Frame, c: Class) -> FloatArray:
    """Time of Muon's Newton-Schulz iterations on a rank of class c, (n,) [s].

    Every rank works on its own part of a matrix (``muon_tp_mode`` blockwise, the default), so
    tensor parallelism adds no communication. Under a sharded optimizer each matrix is whole on
    one of the ranks (`LayerWiseDistributedOptimizer`), so that the fullest has at least the
    largest one. Queries, keys and values are one matrix each (``muon_split_qkv``).
    """
    layers = frame.stage(frame.tables.layers, c)
    dense_shards, expert_shards = (np.where(frame.batch["zero"] >= 1, s, 1.0)
                                   for s in shard_sizes(frame.batch))
    total = {False: np.zeros(len(frame)), True: np.zeros(len(frame))}
    largest = {False: np.zeros(len(frame)), True: np.zeros(len(frame))}
    for k, cost in enumerate(frame.layer_costs):
        counts = layers[:, k]
        if frame.has_mtp and k == frame.model.layers[-1]:
            counts = counts + frame.mtp_here(c)
        for tensor in cost.tensors:
            if not tensor.is_matrix:
                continue
            for part, copies in _split(frame, tensor):
                flops = frame.spread(_full(newton_schulz_flops(*part, steps=MUON_STEPS), frame))
                held = frame.spread(_full(copies, frame))
                total[tensor.is_expert] += counts * held * flops
                largest[tensor.is_expert] = np.maximum(largest[tensor.is_expert],
                                                       flops * (counts > 0))
    rate = TERA * frame.system.accelerator.peak_bf16_tflops * (
        frame.system.efficiency.sustained_frac * frame.system.efficiency.gemm_bf16_frac)
    flops = np.maximum(total[False] / dense_shards, largest[False]) + (
        np.maximum(total[True] / expert_shards, largest[True]))
    return is_muon(frame.batch) * flops / rate


def _full(value: Num, frame: Frame) -> FloatArray:
    return np.broadcast_to(np.asarray(value, np.float64), (len(frame.local.batch),))


def _split(frame: Frame, tensor: Parameter) -> list[tuple[tuple[Num, Num], Num]]:
    """Matrices that a tensor is orthogonalised in, with how many of them there are."""
    outputs, inputs = (np.asarray(side, np.float64) for side in tensor.shape)
    model = frame.model
    if tensor.name != "linear_qkv.weight":
        return [((outputs, inputs), np.asarray(tensor.copies, np.float64))]
    gates = 2 if model.attention_output_gate else 1
    heads = gates * model.num_attention_heads + 2 * model.num_query_groups
    query = outputs * model.num_attention_heads / heads
    key = outputs * model.num_query_groups / heads
    return [((query, inputs), float(gates)), ((key, inputs), 2.0)]
