"""Arithmetic of Muon's orthogonalisation."""

from __future__ import annotations

import numpy as np

from simcore.typing import Num


def newton_schulz_flops(rows: Num, columns: Num, *, steps: int) -> Num:
    """Arithmetic of Newton-Schulz iterations on one matrix [FLOP].

    With the shorter side first, each step is A = X X^T, B = b A + c A A and X = a X + B X: two
    products of short x long x short and one of the short side's cube.

    Parameters
    ----------
    rows, columns : float or ndarray, shape (n,)
    steps : int

    Returns
    -------
    float or ndarray
        [FLOP]

    References
    ----------
    Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), section
    "Runtime analysis"; `newton_schulz` of NVIDIA's emerging_optimizers.

    Examples
    --------
    >>> newton_schulz_flops(2.0, 3.0, steps=1)
    64.0
    """
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    flops: Num = steps * (4.0 * short**2 * long + 2.0 * short**3)
    return flops
