"""Lets layers of the real Megatron-Core run under fake tensors on a machine without CUDA.

Replaced are what asks for a device (streams, random states, pinned memory), the norm and the
core attention, whose eager versions keep more than the fused kernels do, and what reads a value
off a tensor. The replacements keep for backward what Transformer Engine's and FlashAttention's
kernels keep; nothing here computes a value, so only sizes mean anything.

References
----------
Transformer Engine ``pytorch/module/rmsnorm.py`` (input, weight, one fp32 statistic a token);
Dao 2023 (arXiv 2307.08691), section 3.1 (queries, keys, values, output, fp32 log-sum-exp).
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import megatron_import  # noqa: F401
import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel import random as tensor_random
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.torch_norm import WrappedTorchNorm

Grads = tuple[torch.Tensor | None, ...]


class RmsNormKept(torch.autograd.Function):
    """Keeps its input, its weight and one fp32 statistic a token."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Grads:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class RmsNorm(torch.nn.Module):
    """RMSNorm with the weight that Megatron's has."""

    def __init__(self, config: Any, hidden_size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return RmsNormKept.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]


class FlashKept(torch.autograd.Function):
    """Keeps queries, keys, values, the output that it hands on and the log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length, batch, heads, _ = q.shape
        out = q.new_empty(length, batch, heads * v.shape[-1])
        ctx.save_for_backward(q, k, v, out,
                              q.new_empty(batch, heads, length, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Grads:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


class FlashAttention(torch.nn.Module):
    """Core attention with the constructor and the call of Megatron's."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any,
                **__: Any) -> torch.Tensor:
        return FlashKept.apply(q, k, v)  # type: ignore[no-any-return, no-untyped-call]


class EvenRows:
    """Rows of every expert where all have the same number, which a fake tensor cannot say."""

    def __init__(self, rows: int, experts: int) -> None:
        self.rows = [rows // experts] * experts

    def tolist(self) -> list[int]:
        return self.rows


class Idle:
    """A CUDA stream or event that there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: Any) -> None:
        return


def norm_of(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any
            ) -> torch.nn.Module:
    """Build a norm that allows sequence parallelism, which Megatron's wrapper does not."""
    if config.normalization == "RMSNorm":
        return RmsNorm(config, hidden_size)
    norm = torch.nn.LayerNorm(hidden_size, eps=eps, dtype=config.params_dtype)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def _replace_device() -> None:
    cuda: Any = torch.cuda
    tensor: Any = torch.Tensor
    cuda.current_device = lambda: "cpu"
    cuda.device_count = lambda: 8
    cuda.synchronize = cuda.manual_seed = lambda *_, **__: None
    cuda.Stream = cuda.Event = Idle
    cuda.current_stream = cuda.stream = Idle
    tensor.cuda = lambda self, *_, **__: self
    tensor.record_stream = lambda self, stream: None
    made = torch.tensor

    def unpinned(*args: Any, **keys: Any) -> torch.Tensor:
        keys.pop("pin_memory", None)
        return made(*args, **keys)

    torch.tensor = unpinned


def _replace_random() -> None:
    """Random states of a device that is not there; nothing random is kept."""
    @contextlib.contextmanager
    def fork(self: Any, name: str = "") -> Iterator[None]:
        yield

    state = torch.get_rng_state()
    module: Any = tensor_random
    module.CudaRNGStatesTracker.fork = fork
    module._get_cuda_rng_state = lambda *_, **__: state
    module._set_cuda_rng_state = lambda *_, **__: None
    torch.cuda.get_rng_state = lambda *_, **__: state  # type: ignore[assignment]
    torch.cuda.set_rng_state = lambda *_, **__: None  # type: ignore[assignment]
    if not hasattr(module, "FP8GlobalStateManager"):
        # Named without a guard where Transformer Engine is missing.
        module.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: False)
        module.activation_recompute_forward = lambda **_: contextlib.nullcontext()
        module.fp8_autocast = lambda *_, **__: contextlib.nullcontext()
    # Sharing the storage of a recomputed output would compile an extension.
    module._get_share_storage = lambda: lambda out, recomputed: None


def _replace_experts() -> None:
    forward: Any = SequentialMLP.forward

    def even(self: Any, rows: torch.Tensor, per_expert: Any, probabilities: Any) -> Any:
        if self.num_local_experts > 1:
            per_expert = EvenRows(rows.shape[0], self.num_local_experts)
        return forward(self, rows, per_expert, probabilities)

    SequentialMLP.forward = even


def replace() -> None:
    """Bring all of the replacements in; call before a model is built."""
    norm: Any = WrappedTorchNorm
    provider: Any = LocalSpecProvider
    norm.__new__ = norm_of
    provider.core_attention = lambda self: FlashAttention
    _replace_device()
    _replace_random()
    _replace_experts()
