"""What a rank holds from start to end: states, buffers and workspaces; and its host memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcore.activations import boundary
from simcore.frame import Class, Frame
from simcore.rank_parameters import holdings
from simcore.states import BytesPerParameter, is_muon
from simcore.tensors import Tensor, Tensors
from simcore.terms import Term
from simcore.typing import FloatArray
from simcore.units import MIB

TE_WORKSPACE_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB}
"""cuBLAS workspace of Transformer Engine (``pytorch/module/base.py``,
`get_cublas_workspace_size_bytes`): 32 MiB from Hopper on, else 4."""
GROUPED_GEMM_STREAMS = 4.0
CUBLAS_HEAD_BYTES = 8.0 * MIB
MUON_STEP_BYTES = 12.0
"""Of the largest matrix a value, in the step: update, product and next iterate in fp32
(`newton_schulz` of NVIDIA's emerging_optimizers)."""
STATES_SOURCE = "Megatron-LM, docs/source/api-guide/dist_optimizer.md"


def state_terms(frame: Frame, c: Class) -> tuple[dict[str, tuple[Term, ...]], tuple[Term, ...]]:
    """Weights, gradients and optimizer states of class c, and the step's temporaries."""
    own = frame.parameters(c)
    weights = [Term("", np.ones(len(frame)), own.dense * frame.dense_bytes.weight
                    + own.dense_matrices * frame.dense_bytes.quantised,
                    _weights(frame, c, is_expert=False))]
    gradients, optimizer, step = _buffers(frame, "dense", frame.dense_bytes, own.dense,
                                          own.dense_hidden, own.dense_largest)
    if frame.model.is_moe:
        each = frame.expert_bytes
        weights.append(Term("", np.ones(len(frame)), own.expert * each.weight
                            + own.expert_matrices * each.quantised,
                            _weights(frame, c, is_expert=True)))
        more = _buffers(frame, "experts", each, own.expert, own.expert_hidden, own.expert_largest)
        gradients, optimizer, step = (a + b for a, b in zip(
            (gradients, optimizer, step), more, strict=True))
    if np.any(is_muon(frame.batch)):
        largest = np.maximum(own.dense_largest, own.expert_largest)
        step = (*step, _flat("newton_schulz.iterates", largest, MUON_STEP_BYTES,
                             "emerging_optimizers, muon_utils.py (newton_schulz)"))
    return {"weights": tuple(weights), "gradients": gradients, "optimizer": optimizer}, step


def _flat(name: str, values: FloatArray, value_bytes: FloatArray | float, source: str) -> Term:
    """One buffer of so many values."""
    each = value_bytes if isinstance(value_bytes, np.ndarray) else np.full(values.shape,
                                                                           value_bytes)
    return Term("", values, each,
                (Tensor(name, (values,), value_bytes, source),), is_flat=True)


def _buffers(frame: Frame, name: str, each: BytesPerParameter, own: FloatArray,
             hidden: FloatArray, largest: FloatArray) -> tuple[tuple[Term, ...], ...]:
    """Gradients, optimizer states and the step's temporaries of dense or expert parameters.

    Muon has no second moment; and each of its matrices is whole on one rank of the sharded group
    (`LayerWiseDistributedOptimizer`), so that the fullest rank has at least the largest one.
    """
    zero, shards = frame.batch["zero"], each.shards
    split = np.where(zero >= 1, shards, 1.0)
    split_gradients = np.where(zero >= 2, shards, 1.0)

    def states(state: str, values: FloatArray, value_bytes: FloatArray) -> Term:
        return _flat(f"{state} ({name})", values / split, value_bytes * split, STATES_SOURCE)

    optimizer: tuple[Term, ...] = (
        states("main_param", own, each.main), states("exp_avg", own, each.exp_avg),
        states("exp_avg_sq", own - hidden, each.exp_avg_sq))
    if np.any(hidden):
        excess = np.maximum(largest - hidden / split, 0.0) * split
        optimizer = (*optimizer, states("largest matrix beyond the even share", excess,
                                        each.main + each.exp_avg))
    gradients = _flat(f"main_grad ({name})", own / split_gradients,
                      each.gradient * split_gradients, STATES_SOURCE)
    return (gradients,), optimizer, (states("step's casts", own, each.step),)


def _weights(frame: Frame, c: Class, *, is_expert: bool) -> Callable[[], Tensors]:
    """Every weight of class c with its copies in low precision, for a listing."""
    each = frame.expert_bytes if is_expert else frame.dense_bytes

    def tensors() -> Tensors:
        sharded = frame.batch["zero"] >= 3
        split = np.where(sharded, each.shards, 1.0)
        found = []
        for part in holdings(frame, c):
            for own in part.tensors():
                if own.is_expert is not is_expert:
                    continue
                low = each.quantised * (own.has_copies and part.name == "layers")
                shape = tuple(np.asarray(side, np.float64) for side in own.shape)
                if np.any(sharded):
                    shape = (own.elements / own.copies / split,)
                found.append(Tensor(f"{part.name}.{own.name}", shape,
                                    (each.weight + low) * split,
                                    "Megatron-Core modules; Transformer Engine, pytorch/tensor/",
                                    part.number * np.asarray(own.copies, np.float64)))
        return tuple(found)

    return tensors


def fixed_terms(frame: Frame, c: Class) -> tuple[Term, ...]:
    """Workspaces, dummy gradients, the head's gather buffer, and ZeRO's gathered layers."""
    architecture = frame.system.accelerator.architecture
    ones, n = np.ones(len(frame)), len(frame)
    workspace = TE_WORKSPACE_BYTES.get(architecture, 4 * MIB)
    if frame.model.is_moe:
        workspace *= 1.0 + GROUPED_GEMM_STREAMS
    has_head = frame.stage(frame.tables.has_head, c).astype(np.float64)
    local = frame.local
    sp = frame.spread(np.where(local.on("sp"), 1.0, 0.0))
    whole = frame.spread(local.bytes_per_value * frame.model.hidden_size * local.tokens)
    layers, head = frame.dummy_gradients_bytes(c)
    gather = boundary(local, "output_layer.gather_buffer")
    return (
        _flat("cublas_workspace (Transformer Engine)", np.full(n, workspace), 1.0,
              "Transformer Engine, pytorch/module/base.py (get_cublas_workspace_size_bytes)"),
        Term("", ones, layers,
             lambda: frame.costs.dummy_gradients(int(frame.kinds_held(c)[0]))[0]),
        Term("", ones, head, lambda: (frame.costs.dummy_gradients(
            int(frame.kinds_held(c)[0]))[1].times(has_head),)),
        Term("", has_head * sp, whole, lambda: (Tensor(
            gather.name, (local.tokens, float(frame.model.hidden_size)), local.bytes_per_value,
            "Megatron-Core, tensor_parallel/layers.py (get_global_memory_buffer)"),)),
        _flat("cublas_workspace (PyTorch)", has_head * CUBLAS_HEAD_BYTES, 1.0,
              "PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp"),
        *_gathered(frame, c))


def _gathered(frame: Frame, c: Class) -> tuple[Term, ...]:
    """Under ZeRO-3: two gathered layers and the gradient of one (prefetch of the next); under
    ZeRO-2 the bucket that is being reduced."""
    zero = frame.batch["zero"]
    if not np.any(zero >= 2):
        return ()
    largest = np.zeros(len(frame))
    for cost in frame.layer_costs:
        largest = np.maximum(largest, frame.spread(cost.parameters.dense
                                                   + cost.parameters.expert))
    has_head = frame.stage(frame.tables.has_head, c)
    ends = has_head * frame.spread(frame.costs.end_parameters[1])
    gradient = np.where(frame.is_fsdp, 4.0, 2.0)
    whole, source = (zero >= 3).astype(np.float64), "PyTorch, distributed/fsdp/_fully_shard"
    reduced = np.where(zero >= 3, np.maximum(largest, ends), np.where(zero == 2, largest, 0.0))
    return (_flat("all_gather.layers, one in use and one prefetched", 2.0 * whole * largest, 2.0,
                  source),
            _flat("all_gather.output_layer", whole * ends, 2.0, source),
            _flat("reduce_scatter.input", reduced, gradient, source))


def host_bytes(frame: Frame, c: Class) -> FloatArray:
    """Host memory of a rank for an offloaded optimizer, (n,) [B]."""
    host = np.zeros(len(frame))
    if np.any(frame.batch["optimizer_offload"] > 0):
        own = frame.parameters(c)
        host = own.dense * frame.dense_bytes.host
        if frame.model.is_moe:
            host = host + own.expert * frame.expert_bytes.host
    return host
