"""Tensors that the output head, its loss and multi-token prediction keep."""

from __future__ import annotations

import numpy as np

from simcore.activations import boundary
from simcore.inputs.fields import code
from simcore.local import Local
from simcore.operators.attention import norm_statistics_bytes
from simcore.operators.ends import logits_width
from simcore.tensors import Tensor, Tensors, total_bytes
from simcore.typing import FloatArray

LOSS = "Megatron-Core, tensor_parallel/cross_entropy.py"


def head_tensors(local: Local) -> tuple[Tensors, Tensors]:
    """Head and loss of one micro-batch: kept for backward, and beside it at its worst moment.

    The fused loss writes its gradient into the bf16 logits; the unfused one holds fp32 copies.
    At the head's backward the data gradient (gathered, and its shard) is alive.
    """
    model, size = local.model, local.bytes_per_value
    logits = (local.tokens, logits_width(local))
    is_fused = local.batch["cross_entropy"] == code("cross_entropy", "fused")
    native = local.batch["cross_entropy_impl"] == code("cross_entropy_impl", "native")
    kept = (
        boundary(local, "final_layernorm.input"),
        boundary(local, "final_layernorm.output"),
        Tensor("final_layernorm.statistics", (local.tokens_sharded,),
               norm_statistics_bytes(model.normalization),
               "Transformer Engine, pytorch/module/layernorm.py"),
        Tensor("output_layer.logits", logits, size, LOSS),
        # The compiled native loss keeps the exponentials.
        Tensor("cross_entropy.exponentials", logits, np.where(is_fused & native, 2.0, 0.0),
               "Megatron-Core, fusions/fused_cross_entropy.py"),
        Tensor("cross_entropy.fp32_logits", logits, np.where(is_fused, 0.0, 4.0), LOSS,
               local.software("logits_fp32_copies")))
    gradient = Tensor("output_layer.input_gradient",
                      (local.tokens, float(model.hidden_size)), size,
                      "Megatron-Core, tensor_parallel/layers.py")
    # A weight gradient that is no lasting buffer comes after the loss let go of its copies.
    weight = size * local.vocab / local.tp * model.hidden_size
    freed = sum((tensor.bytes for tensor in kept[4:]), np.zeros(len(local.batch)))
    transient = np.where(local.keeps_head_dummy, 0.0, np.maximum(weight - freed, 0.0))
    return kept, (
        gradient,
        boundary(local, "output_layer.input_gradient, scattered").times(
            np.where(local.on("sp"), 1.0, 0.0)),
        Tensor("output_layer.weight_gradient, less the loss' copies", (), transient,
               "Megatron-Core, tensor_parallel/layers.py"))


def mtp_tensors(local: Local) -> Tensors:
    """What an MTP layer keeps beside its decoder layer: its norms, projection and own head."""
    source = "Megatron-Core, transformer/multi_token_prediction.py"
    own = Tensor("mtp.norms_and_eh_proj",
                 (local.tokens_sharded, 6.0, float(local.model.hidden_size)),
                 local.bytes_per_value, source)
    return (own, *head_tensors(local)[0])


def head_saved(local: Local) -> tuple[FloatArray, FloatArray]:
    """Bytes of `head_tensors`, kept and beside, (u,) each."""
    kept, beside = head_tensors(local)
    return total_bytes(kept, len(local.batch)), total_bytes(beside, len(local.batch))


def mtp_saved(local: Local) -> FloatArray:
    """Bytes of `mtp_tensors`, (u,)."""
    return total_bytes(mtp_tensors(local), len(local.batch))
