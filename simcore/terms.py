"""Terms of a rank's memory: so many of something, with the tensors that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from simcore.tensors import Tensors
from simcore.typing import FloatArray


class Term(NamedTuple):
    """Some tensors, alive together, of n candidates.

    Parameters
    ----------
    where : str
        What they belong to.
    number : ndarray, shape (n,)
        How many of them all are alive (layers times micro-batches).
    each : ndarray, shape (n,)
        Bytes of one, the sum over `tensors` [B].
    tensors : tuple of Tensor, or callable
        Arrays of shape (u,), or (n,) where they do not follow from the local combination alone;
        a callable makes those that only a listing needs.
    """

    where: str
    number: FloatArray
    each: FloatArray
    tensors: Tensors | Callable[[], Tensors]
    is_flat: bool = False
    """Whether the tensors hold all of it, `number` being their values."""

    @property
    def bytes(self) -> FloatArray:
        """All of them, (n,) [B]."""
        return self.number * self.each

    def times(self, share: FloatArray) -> Term:
        """Return a share of it."""
        return self._replace(number=self.number * share)


def total(terms: Iterable[Term], size: int) -> FloatArray:
    """Sum the bytes of some terms, (n,) [B]."""
    found = np.zeros(size)
    for term in terms:
        found = found + term.bytes
    return found
