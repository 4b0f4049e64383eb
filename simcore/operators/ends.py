"""Operators of a pipeline's ends: embedding, output head with its loss, MTP's own parts."""

from __future__ import annotations

import numpy as np

from simcore.inputs.fields import code
from simcore.kernels import elementwise, gemm
from simcore.local import Local
from simcore.operators.attention import norm_ops
from simcore.operators.base import Op, Phase
from simcore.typing import FloatArray

UNFUSED_LOSS_FP32_PASSES = 10.0
"""Passes over fp32 logits of Megatron's vocab-parallel cross entropy, forward and backward:
cast, maximum, subtraction, exponential, sum, division and the gradient's (count of the
kernels; SimuMax's table of memory-bound operators counts the same)."""
NATIVE_LOSS_PASSES = 6.0
"""bf16 passes of Megatron's compiled fused loss; Transformer Engine's needs four."""


def embedding_ops(local: Local) -> list[Op]:
    """Look-up (a read and a write a token) and the scattered gradient (read, read, write)."""
    values = local.tokens * local.model.hidden_size * local.bytes_per_value
    return [elementwise(local, "embedding_fwd", "embedding", Phase.FORWARD, 2 * values),
            elementwise(local, "embedding_bwd", "embedding", Phase.BACKWARD, 4 * values)]


def logits_width(local: Local) -> FloatArray:
    """Vocabulary entries that a rank's loss works on."""
    gathered = local.software("logits_gathered") > 0
    return np.where(gathered, local.vocab, local.vocab / local.tp)


def head_ops(local: Local) -> list[Op]:
    """Final norm, output projection (never in fp8) and cross entropy."""
    ops = norm_ops(local, "final_norm", "head") if local.model.final_norm else []
    ops += gemm(local, "head", "head", rows=local.tokens, out=local.vocab / local.tp,
                inner=local.model.hidden_size, low_precision=False)
    logits = local.tokens * logits_width(local)
    is_fused = local.batch["cross_entropy"] == code("cross_entropy", "fused")
    is_te = local.batch["cross_entropy_impl"] == code("cross_entropy_impl", "te")
    fused = np.where(is_te, 4.0, NATIVE_LOSS_PASSES) * local.bytes_per_value
    per_logit = np.where(is_fused, fused, UNFUSED_LOSS_FP32_PASSES * 4.0)
    return [*ops,
            elementwise(local, "loss_fwd", "head", Phase.FORWARD, 0.5 * per_logit * logits,
                        kernels=np.where(is_fused, 1.0, 8.0)),
            elementwise(local, "loss_bwd", "head", Phase.BACKWARD, 0.5 * per_logit * logits,
                        kernels=np.where(is_fused, 1.0, 4.0))]


def mtp_ops(local: Local) -> list[Op]:
    """What a multi-token-prediction layer has beside its decoder layer and its head."""
    h = local.model.hidden_size
    return [*norm_ops(local, "mtp_embedding_norm", "head"),
            *norm_ops(local, "mtp_hidden_norm", "head"),
            *gemm(local, "mtp_proj", "head", rows=local.tokens, out=h / local.tp,
                  inner=2.0 * h)]
