"""Which points no other point beats in every respect."""

from __future__ import annotations

import numpy as np

from simcore.typing import BoolArray, FloatArray

_BLOCK = 2048
"""Points compared with a front at once: keeps the comparison table in the cache."""


def pareto_mask(losses: FloatArray) -> BoolArray:
    """Mark the points that no other point dominates.

    Parameters
    ----------
    losses : ndarray, shape (n, k)
        Smaller is better in every column.

    Returns
    -------
    ndarray of bool, shape (n,)
        True where no other point is at least as good everywhere and better somewhere; equal
        points do not dominate one another.
    """
    n, k = losses.shape
    if n == 0:
        return np.zeros(0, np.bool_)
    if k == 1:
        return np.asarray(losses[:, 0] == losses[:, 0].min(), np.bool_)
    if k == 2:
        return ~dominated_by(losses, losses)
    order = np.lexsort(losses.T[::-1])
    ranked = losses[order]
    front = np.empty((0, k))
    keep = np.zeros(n, np.bool_)
    for start in range(0, n, _BLOCK):
        block = ranked[start:start + _BLOCK]
        # A dominating point comes earlier in lexicographic order, so it is in the front that
        # was found so far, or in the block itself.
        alive = ~dominated_by(block, front)
        inside = block[alive]
        alive[alive] = ~dominated_by(inside, inside)
        keep[start:start + _BLOCK] = alive
        front = np.concatenate([front, block[alive]])
    mask = np.zeros(n, np.bool_)
    mask[order] = keep
    return mask


def dominated_by(points: FloatArray, front: FloatArray) -> BoolArray:
    """Mark the points that some point of a set dominates.

    Parameters
    ----------
    points : ndarray, shape (n, k)
    front : ndarray, shape (m, k)
        Any points; they need not be mutually non-dominated.

    Returns
    -------
    ndarray of bool, shape (n,)
        True where a point of `front` is no worse in every column and better in one.
    """
    n, k = points.shape
    if len(front) == 0:
        return np.zeros(n, np.bool_)
    if k == 1:
        return np.asarray(front[:, 0].min() < points[:, 0], np.bool_)
    if k == 2:
        return _dominated_2d(points, front)
    result = np.zeros(n, np.bool_)
    for start in range(0, n, _BLOCK):
        block = points[start:start + _BLOCK, None, :]
        no_worse = np.all(front[None] <= block, axis=2)
        better = np.any(front[None] < block, axis=2)
        result[start:start + _BLOCK] = np.any(no_worse & better, axis=1)
    return result


def _dominated_2d(points: FloatArray, front: FloatArray) -> BoolArray:
    """Do the same for two columns in O((n + m) log m)."""
    order = np.lexsort((front[:, 1], front[:, 0]))
    first, second = front[order, 0], np.minimum.accumulate(front[order, 1])
    best = np.concatenate([[np.inf], second])
    before = np.searchsorted(first, points[:, 0], side="left")
    up_to = best[np.searchsorted(first, points[:, 0], side="right")]
    # Better in the first column and no worse in the second, or the other way round.
    first_better = (before > 0) & (best[before] <= points[:, 1])
    return np.asarray(first_better | (up_to < points[:, 1]), np.bool_)
