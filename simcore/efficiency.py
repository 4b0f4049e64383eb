"""Shares of a device's peak that its kernels reach, from measured tables or by formula.

The tables (``simcore/data/efficiency/*.npz``, made by ``benchmarks/derive/efficiency_tables.py``)
hold what kernels measured alone reach by shape. Between shapes they are interpolated linearly in
the logarithms of shape and rate; outside, the formula of tiles and waves carries on from the
nearest edge. Each look-up says where its figure comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from importlib.resources import files

import numpy as np

from simcore.formulas.roofline import gemm_shape_efficiency
from simcore.inputs.system import SystemSpec
from simcore.typing import BoolArray, FloatArray, IntArray, Num

GEMM_M = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
GEMM_N = GEMM_K = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
HEAD_DIMS = (64, 128, 192, 256)
"""192: latent attention's queries and keys of 192 with values of 128."""
UNITS = (4, 8, 16, 32, 64, 128, 256)
"""Sequences times query heads on the device."""
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
WINDOWS = (128.0, 1024.0)
NEAR = 1e-6
EDGE = 1.01
"""How far beyond the grid a shape still counts as inside."""


class Source(IntEnum):
    """Where the figure of a look-up comes from, the best first."""

    MEASURED = 0
    INTERPOLATED = 1
    TRANSFERRED = 2
    """Measured on another system, or in another direction or layout elsewhere."""
    FORMULA = 3


class Layout(IntEnum):
    """Which of a linear layer's products."""

    FORWARD = 0
    DATA_GRADIENT = 1
    WEIGHT_GRADIENT = 2


@dataclass(frozen=True)
class Found:
    """What a look-up gives, arrays of shape (u,)."""

    share: FloatArray
    """Of the dense peak, 0 to 1."""
    source: IntArray
    """`Source` codes."""


@lru_cache(maxsize=16)
def _arrays(name: str) -> dict[str, FloatArray]:
    """Arrays of a shipped table; rates as logarithms, flat."""
    with (files("simcore") / "data" / "efficiency" / f"{name}.npz").open("rb") as stream:
        loaded = np.load(stream)
        return {key: loaded[key].astype(np.float64) for key in loaded.files}


@dataclass(frozen=True)
class _Grid:
    """Rates over a grid, looked up between its points.

    Parameters
    ----------
    axes : tuple of ndarray
        Logarithms of the coordinates, rising.
    log_rates : ndarray, flat
    """

    axes: tuple[FloatArray, ...]
    log_rates: FloatArray

    @cached_property
    def corners(self) -> tuple[IntArray, IntArray]:
        """Offset of each corner of a cell, (2^d,), and strides, (d,)."""
        strides = np.ones(len(self.axes), np.int64)
        for axis in range(len(self.axes) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * len(self.axes[axis + 1])
        offsets = np.zeros(1, np.int64)
        for stride in strides[::-1]:
            offsets = np.concatenate([offsets, offsets + stride])
        return offsets, strides

    @cached_property
    def indices(self) -> tuple[FloatArray, ...]:
        """Numbers of the points of each axis."""
        return tuple(np.arange(len(axis), dtype=np.float64) for axis in self.axes)

    def at(self, *points: Num) -> tuple[FloatArray, BoolArray]:
        """Rates at points given as logarithms, (...,), and which of them are grid points.

        Beyond the grid its edge holds.
        """
        offsets, strides = self.corners
        log_rates = self.log_rates
        places = [np.interp(point, axis, index)
                  for point, axis, index in zip(points, self.axes, self.indices, strict=True)]
        lows = [np.minimum(place.astype(np.int64), len(axis) - 2)
                for place, axis in zip(places, self.axes, strict=True)]
        parts = [place - low for place, low in zip(places, lows, strict=True)]
        base = sum(low * stride for low, stride in zip(lows, strides, strict=True))
        corners = log_rates[np.asarray(base)[..., None] + offsets]
        for part in parts:
            # The first axis is the slowest: its halves stand one behind the other.
            half = corners.shape[-1] // 2
            corners = corners[..., :half] + part[..., None] * (
                corners[..., half:] - corners[..., :half])
        exact = parts[0] * (1.0 - parts[0]) < NEAR
        for part in parts[1:]:
            exact = exact & (part * (1.0 - part) < NEAR)
        return np.exp(corners[..., 0]), exact


@dataclass(frozen=True)
class Table:
    """Measured efficiencies of one device."""

    name: str
    is_transferred: bool
    """Whether it was measured on another system."""

    @cached_property
    def _gemm(self) -> dict[str, _Grid]:
        axes = tuple(np.log(axis) for axis in (GEMM_M, GEMM_N, GEMM_K))
        return {key.removeprefix("gemm_"): _Grid(axes, np.log(value).reshape(-1))
                for key, value in _arrays(self.name).items() if key.startswith("gemm_")}

    @cached_property
    def _attention(self) -> tuple[_Grid, ...]:
        """Forward and backward."""
        axes = tuple(np.log(axis) for axis in (HEAD_DIMS, UNITS, LENGTHS))
        return tuple(_Grid(axes, np.log(rates).reshape(-1))
                     for rates in _arrays(self.name)["attention"])

    @cached_property
    def _windows(self) -> FloatArray:
        return _arrays(self.name)["window"]

    @cached_property
    def _layouts(self) -> FloatArray:
        return np.concatenate([[1.0], _arrays(self.name)["layout"]])

    @property
    def backward_is_measured(self) -> bool:
        """Whether gradients' kernels were measured on this device, not on another."""
        return self.name in ("a100", "b200") and not self.is_transferred

    def gemm(self, dtype: str, m: FloatArray, n: FloatArray, k: FloatArray,
             layout: Layout | IntArray, *, num_multiprocessors: float) -> Found:
        """Share of the dtype's peak of products, kernels measured alone; arrays of one shape.

        `layout` broadcasts with them.
        """
        grid = self._gemm[dtype] if dtype in self._gemm else self._gemm["bf16"]
        share, exact = grid.at(np.log(m), np.log(n), np.log(k))
        beyond = ((m > EDGE * GEMM_M[-1]) | (m * EDGE < GEMM_M[0])
                  | (n > EDGE * GEMM_N[-1]) | (n * EDGE < GEMM_N[0])
                  | (k > EDGE * GEMM_K[-1]) | (k * EDGE < GEMM_K[0]))
        is_forward = np.equal(layout, Layout.FORWARD)
        source = np.where(exact & is_forward, Source.MEASURED, Source.INTERPOLATED)
        if self.is_transferred:
            source = np.full_like(source, Source.TRANSFERRED)
        elif not self.backward_is_measured:
            source = np.where(is_forward, source, Source.TRANSFERRED)
        if beyond.any():
            edge = (np.clip(m, GEMM_M[0], GEMM_M[-1]), np.clip(n, GEMM_N[0], GEMM_N[-1]),
                    np.clip(k, GEMM_K[0], GEMM_K[-1]))

            def formula(*shape: FloatArray) -> Num:
                return gemm_shape_efficiency(*shape, num_multiprocessors=num_multiprocessors)
            share = np.where(beyond, share * formula(m, n, k) / formula(*edge), share)
            source = np.where(beyond, Source.FORMULA, source)
        return Found(np.minimum(share * self._layouts[layout], 1.0), source)

    def attention(self, *, head_dim: float, units: FloatArray, length: FloatArray,
                  window: float, backward: bool) -> Found:
        """Share of the bf16 peak of fused causal attention.

        Parameters
        ----------
        head_dim : float
            Of queries and keys.
        units : ndarray, shape (u,)
            Sequences times query heads on the device.
        length : ndarray, shape (u,)
            [tokens]
        window : float
            [tokens]; 0: none.
        """
        # Below the grid the work on the device decides: fewer heads like a shorter sequence.
        few = np.minimum(units / UNITS[0], 1.0)
        grid = self._attention[backward]
        share, exact = grid.at(np.full_like(units, np.log(head_dim)), np.log(units),
                               np.log(length))
        share = share * few
        if window > 0:
            rates = np.interp(np.log(window), np.log([*WINDOWS, 8192.0]), [*self._windows, 1.0])
            share = share * np.where(window < length, rates, 1.0)
        beyond = (length > EDGE * LENGTHS[-1]) | (length * EDGE < LENGTHS[0]) | (few < 1)
        source = np.where(exact & (not backward), Source.MEASURED, Source.INTERPOLATED)
        if self.is_transferred or (backward and not self.backward_is_measured):
            source = np.full_like(source, Source.TRANSFERRED)
        return Found(np.minimum(share, 1.0), np.where(beyond, Source.FORMULA, source))


@lru_cache(maxsize=64)
def _table(name: str, is_transferred: bool) -> Table:
    return Table(name, is_transferred)


def table_of(system: SystemSpec) -> Table | None:
    """Return the table that a system's efficiencies come from; None: formula alone."""
    name = system.efficiency.kernel_table
    return _table(name, system.efficiency.kernel_table_transferred) if name else None
