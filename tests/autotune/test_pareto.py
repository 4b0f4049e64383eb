"""Pareto masks against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.pareto import dominated_by, pareto_mask


def brute(points: np.ndarray, front: np.ndarray) -> np.ndarray:
    return np.array([any((f <= p).all() and (f < p).any() for f in front) for p in points],
                    np.bool_).reshape(-1)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.integers(0, 40), st.integers(1, 6), st.integers(0, 10**6))
def test_equal_to_brute_force(k: int, n: int, levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, levels + 1, size=(n, k)).astype(float)
    front = rng.integers(0, levels + 1, size=(n // 2, k)).astype(float)
    assert np.array_equal(pareto_mask(points), ~brute(points, points))
    assert np.array_equal(dominated_by(points, front), brute(points, front))


def test_many_points_in_three_dimensions() -> None:
    points = np.random.default_rng(0).random((5000, 3))
    mask = pareto_mask(points)
    assert not dominated_by(points[mask], points).any()
    assert dominated_by(points[~mask], points[mask]).all()


def test_infinite_losses_are_dominated() -> None:
    points = np.array([[1.0, np.inf], [2.0, 1.0], [3.0, 2.0]])
    assert pareto_mask(points).tolist() == [True, True, False]
