"""What follows from a strategy's parallel degrees."""

from __future__ import annotations

import numpy as np

from simcore.batch import Batch
from simcore.typing import IntArray


def quotient(above: IntArray, below: IntArray) -> IntArray:
    """Divide whole numbers and round down, several times faster than integer division.

    Exact: both are below 2^52 and `below` is at least 1, so that a true quotient that is not
    whole lies further from the next whole number than its rounding error.

    Returns
    -------
    ndarray of int64
    """
    result: IntArray = np.floor(above / below).astype(np.int64)
    return result


def remainder(above: IntArray, below: IntArray) -> IntArray:
    """Return what `quotient` leaves."""
    result: IntArray = above - quotient(above, below) * below
    return result


def _ratio(above: IntArray, *below: IntArray) -> IntArray:
    product = np.ones(1, np.int64)
    for column in below:
        product = product * column
    return quotient(above, np.maximum(product, 1))


def data_parallel(batch: Batch) -> IntArray:
    """Ranks that see different data: gpus / (tp cp pp).

    Parameters
    ----------
    batch : Batch
        Resolved strategies.

    Returns
    -------
    ndarray, shape (n,)
        Whole numbers; 0 where the GPUs are too few.
    """
    return _ratio(batch["gpus"], batch["tp"], batch["cp"], batch["pp"])


def num_microbatches(batch: Batch) -> IntArray:
    """Micro-batches that a data-parallel rank runs in a step: gbs / (dp mbs), shape (n,)."""
    return _ratio(batch["gbs"], data_parallel(batch), batch["mbs"])


def head_exchange_ranks(batch: Batch, heads: int, groups: int, domain: int) -> IntArray:
    """Ranks of the inner level of hierarchical context parallelism (a2a+p2p), shape (n,).

    Parameters
    ----------
    batch : Batch
        Resolved strategies.
    heads, groups : int
        Attention heads and query groups of the model (all heads in latent attention).
    domain : int
        Ranks of a scale-up domain.

    Returns
    -------
    ndarray
        The largest part of cp that hands out whole heads and stays inside a domain: the first of
        Megatron's ``--hierarchical-context-parallel-sizes``; the second is cp over it.
    """
    tp, cp = batch["tp"], batch["cp"]
    found = np.ones(len(batch), np.int64)
    for size in range(2, int(cp.max(initial=1)) + 1):
        fits = (cp % size == 0) & ((heads // tp) % size == 0) & (
            np.maximum(groups // tp, 1) % size == 0) & (tp * size <= domain)
        found = np.where(fits, size, found)
    return found


def expert_data_parallel(batch: Batch) -> IntArray:
    """Ranks that hold the same experts: gpus / (etp ep pp), shape (n,)."""
    return _ratio(batch["gpus"], batch["etp"], batch["ep"], batch["pp"])
