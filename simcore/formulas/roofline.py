"""How long a kernel takes: the slower of arithmetic and memory, plus its launch."""

from __future__ import annotations

import numpy as np

from simcore.typing import Num


def roofline_s(flops: Num, bytes_moved: Num, *, flops_per_s: Num, bytes_per_s: Num,
               launch_s: Num = 0.0) -> Num:
    """Time of one kernel [s].

    Parameters
    ----------
    flops : float or ndarray, shape (n,)
        Arithmetic [FLOP].
    bytes_moved : float or ndarray, shape (n,)
        Traffic to device memory [B].
    flops_per_s, bytes_per_s : float or ndarray, shape (n,)
        Rates that are reached, not the peaks [FLOP/s], [B/s].
    launch_s : float or ndarray, shape (n,)
        Gap before the kernel [s].

    Returns
    -------
    float or ndarray, shape (n,)
        [s]

    References
    ----------
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model",
    CACM 52(4), 2009.

    Examples
    --------
    >>> float(roofline_s(2e12, 1e9, flops_per_s=1e12, bytes_per_s=1e12))
    2.0
    """
    return np.maximum(flops / np.asarray(flops_per_s), bytes_moved / np.asarray(bytes_per_s)) + (
        launch_s)


def gemm_shape_efficiency(m: Num, n: Num, k: Num, *, num_multiprocessors: float,
                          tile_m: float = 128.0, tile_n: float = 256.0,
                          half_depth: float = 256.0) -> Num:
    """Share of its sustained rate that a matrix product reaches for its shape.

    Output tiles are spread over the multiprocessors in waves, the last of which may be partly
    empty; a shallow product pays its prologue (`half_depth` is the k at which it is half of
    the time). Large products tend to 1.

    Parameters
    ----------
    m, n, k : float or ndarray, shape (n,)
        Rows and columns of the output, depth.
    num_multiprocessors : float
    tile_m, tile_n : float
        Output tile of a thread block (cuBLAS' usual 128 x 256 on Hopper).
    half_depth : float
        [elements]; 256 is four stages of a 64-deep pipeline.

    Returns
    -------
    float or ndarray, shape (n,)
        0 to 1.

    References
    ----------
    NVIDIA, "Matrix Multiplication Background User's Guide", sections on tile and wave
    quantization.
    """
    m, n, k = (np.maximum(np.asarray(x, np.float64), 1.0) for x in (m, n, k))
    tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n)
    used = (m * n) / (tiles * tile_m * tile_n)
    # cuBLAS takes smaller tiles or splits k where a single wave would leave most of the device
    # idle, so the waste of a wave is at most half of what whole tiles give.
    waves = np.ceil(tiles / num_multiprocessors)
    wave = tiles / (waves * num_multiprocessors)
    wave = np.maximum(wave, 0.5 + 0.5 * wave)
    return np.sqrt(used) * wave * k / (k + half_depth)
