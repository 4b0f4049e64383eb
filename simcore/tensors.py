"""Records of tensors: the memory model sums their bytes, and an explanation lists them.

A tensor's bytes are the product of its shape, the bytes of a value and how many of it are alive,
so that what is listed and what is summed are one formula.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simcore.typing import FloatArray, Num


@dataclass(frozen=True)
class Tensor:
    """One tensor (or several alike) of a layer and micro-batch, for many candidates at once.

    Parameters
    ----------
    name : str
        What it is, the module's name first where it has one.
    shape : tuple of float or ndarray, shape (u,)
    value_bytes : float or ndarray, shape (u,)
        Bytes of a value; 0 where a candidate does not have the tensor [B].
    source : str
        Where the formula comes from: a framework's file or a paper.
    count : float or ndarray, shape (u,)
        How many are alive; negative where a saved tensor of this name is freed by then.
    """

    name: str
    shape: tuple[Num, ...]
    value_bytes: Num
    source: str
    count: Num = 1.0

    @cached_property
    def bytes(self) -> Num:
        """All of them together, shape (u,) [B]."""
        total: Num = self.value_bytes * self.count
        for side in self.shape:
            total = total * side
        return total

    def times(self, count: Num) -> Tensor:
        """Return `count` as many of it."""
        return replace(self, count=self.count * count)


Tensors = tuple[Tensor, ...]


def total_bytes(tensors: Iterable[Tensor], size: int) -> FloatArray:
    """Sum the bytes of some tensors, shape (u,) [B]."""
    total = np.zeros(size)
    for tensor in tensors:
        total += tensor.bytes
    return total


@dataclass(frozen=True)
class Saved:
    """Tensors of one layer and micro-batch, of u combinations, and their bytes, (u,).

    Parameters
    ----------
    size : int
        Combinations, u.
    kept_tensors : tuple of Tensor
        Saved for backward, with the selective recomputation of the strategy.
    input_tensors : tuple of Tensor
        Saved where the whole layer is recomputed.
    full_tensors : tuple of Tensor
        Saved without any recomputation; alive while a recomputed layer runs backward.
    backward_tensors : tuple of Tensor
        Beside the saves at the worst moment of the layer's backward; those of a negative count
        are saved ones that have been freed before.
    forward_tensors : tuple of Tensor
        Beside the saves at the worst moment of the layer's forward.
    """

    size: int
    kept_tensors: Tensors
    input_tensors: Tensors
    full_tensors: Tensors
    backward_tensors: Tensors
    forward_tensors: Tensors

    @cached_property
    def kept(self) -> FloatArray:
        """Bytes of `kept_tensors`, (u,)."""
        return total_bytes(self.kept_tensors, self.size)

    @cached_property
    def input_only(self) -> FloatArray:
        """Bytes of `input_tensors`, (u,)."""
        return total_bytes(self.input_tensors, self.size)

    @cached_property
    def full(self) -> FloatArray:
        """Bytes of `full_tensors`, (u,)."""
        return total_bytes(self.full_tensors, self.size)

    @cached_property
    def backward(self) -> FloatArray:
        """Bytes of `backward_tensors`, (u,); may be negative."""
        return total_bytes(self.backward_tensors, self.size)

    @cached_property
    def forward(self) -> FloatArray:
        """Bytes of `forward_tensors`, (u,)."""
        return total_bytes(self.forward_tensors, self.size)
