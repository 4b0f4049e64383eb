"""Make the tables of kernel efficiencies in ``simcore/data/efficiency``.

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-*.whl -d aic
    python benchmarks/derive/efficiency_tables.py aic/aiconfigurator_core/systems/data \
        ../shared/validation/operators

Needs pandas and pyarrow. One ``.npz`` for each measured device; arrays are shares of the dense
peak of their data type, float16:

- ``gemm_<dtype>`` (m, n, k): forward products of aiconfigurator-core (Apache-2.0): the median of
  TensorRT-LLM, SGLang and vLLM in bf16, where all three call cuBLAS; the fastest of them in 8
  and 4 bits, where each has kernels of its own. Holes take the nearest smaller m.
- ``layout`` (2,): rate of data- and weight-gradient products over forward ones, the median over
  the shapes of SimuMax's operators (``ops_b200.csv``, ``ops_a100_pcie.csv``) against the grid;
  Hopper has the mean of the two.
- ``attention`` (direction, head size, sequences x heads, length), causal half counted. Forward:
  the fastest kernel of aiconfigurator-core, times what Transformer Engine reaches of it by the
  work on the device (heads x length) where SimuMax measured that, on B200 and A100. Backward:
  the saturated forward rate of the length, times backward's own curve over the work on the
  device: SimuMax's on B200 and A100, the mean of the two for Hopper.
- ``window`` (2,): rate under a window of 128 and 1024 tokens over the full causal one, on the
  FLOP left (aiconfigurator-core; 1 where not measured).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from simcore.efficiency import GEMM_K, GEMM_M, GEMM_N, HEAD_DIMS, LENGTHS, UNITS

OUT = Path(__file__).parents[2] / "simcore" / "data" / "efficiency"
PEAKS = {"a100": ("a100_sxm", 312, {}), "h100": ("h100_sxm", 989, {"fp8": 1978}),
         "h200": ("h200_sxm", 989, {"fp8": 1978}),
         "b200": ("b200_sxm", 2250, {"fp8": 4500, "nvfp4": 9000}),
         "b300": ("b300_sxm", 2250, {"fp8": 4500, "nvfp4": 14000}),
         "gb200": ("gb200", 2500, {"fp8": 5000, "nvfp4": 10000}),
         "gb300": ("gb300", 2500, {"fp8": 5000, "nvfp4": 15000})}
"""Device, folder, dense peaks [TFLOPS] (its system files)."""
DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
SIMUMAX = {"a100": ("ops_a100_pcie.csv", 312.0), "b200": ("ops_b200.csv", 2250.0)}
REFERENCE = 64 * 4096.0
"""Heads x length of a device that is full."""


def newest(folder: Path, kind: str, name: str) -> list[pd.DataFrame]:
    """Table of the newest release of each inference framework."""
    found = []
    for framework in ("trtllm", "sglang", "vllm"):
        files = sorted(folder.glob(f"{kind}/{framework}/*/{name}_perf.parquet"),
                       key=lambda p: [int(x) for x in "".join(
                           c if c.isdigit() else " " for c in p.parent.name).split()])
        if files:
            found.append(pd.read_parquet(files[-1]))
    return found


def gemm_grid(tables: Iterable[pd.DataFrame], dtype: str, peak_tflops: float) -> np.ndarray:
    """Shares of the peak over the grid, (m, n, k)."""
    shape = (len(GEMM_M), len(GEMM_N), len(GEMM_K))
    index = pd.MultiIndex.from_product([GEMM_M, GEMM_N, GEMM_K], names=["m", "n", "k"])
    columns = [t[t.gemm_dtype == DTYPES[dtype]].groupby(["m", "n", "k"]).latency.min()
               for t in tables]
    joined = pd.concat([c.reindex(index) for c in columns if len(c)], axis=1)
    best = joined.median(axis=1) if dtype == "bf16" else joined.min(axis=1)
    m, n, k = (best.index.get_level_values(x).to_numpy(np.float64) for x in "mnk")
    share = (2 * m * n * k / (best.to_numpy() * 1e-3) / (peak_tflops * 1e12)).reshape(shape)
    for i in range(1, shape[0]):
        share[i] = np.where(np.isnan(share[i]), share[i - 1], share[i])
    for j in range(1, shape[1]):
        share[:, j] = np.where(np.isnan(share[:, j]), share[:, j - 1], share[:, j])
    for j in range(1, shape[2]):
        share[:, :, j] = np.where(np.isnan(share[:, :, j]), share[:, :, j - 1], share[:, :, j])
    return np.exp(smoothed(np.log(np.clip(share, 1e-3, 1.0))))


def smoothed(values: np.ndarray) -> np.ndarray:
    """Average each value with its neighbours along every axis, one half its own weight.

    Neighbouring shapes scatter by some 10 % with the clock at which each happened to run.
    """
    for axis in range(values.ndim):
        padded = np.pad(values, [(1, 1) if a == axis else (0, 0) for a in range(values.ndim)],
                        mode="reflect", reflect_type="odd")
        values = sum(weight * np.take(padded, np.arange(values.shape[axis]) + shift, axis=axis)
                     for weight, shift in ((0.25, 0), (0.5, 1), (0.25, 2)))
    return values


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a table whose first lines are comments."""
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def on_grid(grid: np.ndarray, m: float, n: float, k: float) -> float:
    """Share at a shape, trilinear in logarithms."""
    values = np.log(grid)
    for axis, x in ((GEMM_M, m), (GEMM_N, n), (GEMM_K, k)):
        at = np.interp(np.log(x), np.log(axis), np.arange(len(axis)))
        low = min(int(at), len(axis) - 2)
        values = values[low] + (at - low) * (values[low + 1] - values[low])
    return float(np.exp(values))


def layout_rates(rows: list[dict[str, str]], grid: np.ndarray) -> tuple[float, float]:
    """Rates of NN and NT products over TN ones, against the grid."""
    ratio: dict[str, list[float]] = {"TN": [], "NN": [], "NT": []}
    for row in rows:
        if row["op"] == "gemm":
            m, n, k = (float(row[x]) for x in "mnk")
            ratio[row["layout"]].append(float(row["efficiency"]) / on_grid(grid, m, n, k))
    middle = {name: float(np.median(values)) for name, values in ratio.items()}
    return middle["NN"] / middle["TN"], middle["NT"] / middle["TN"]


def attention_points(rows: list[dict[str, str]], op: str, width: int) -> dict[tuple[int, int],
                                                                             float]:
    """Measured share of the peak by heads and length, causal half counted."""
    return {(int(row["heads"]), int(row["seq"])): float(row["efficiency"]) / 2 for row in rows
            if row["op"] == op and int(row["qk_dim"]) == width and row["contiguous"] == "True"}


def forward_grid(tables: Iterable[pd.DataFrame], peak_tflops: float) -> np.ndarray:
    """Forward share by head size, units and length; head size 192 is set by the caller."""
    grid = np.full((len(HEAD_DIMS), len(UNITS), len(LENGTHS)), np.nan)
    frames = []
    for table in tables:
        rows = table[table.attn_dtype.isin(["bfloat16", "float16"])
                     & table.kv_cache_dtype.isin(["bfloat16", "float16"])]
        if "window_size" in rows:
            rows = rows[rows.window_size <= 0]
        rows = rows[rows.num_key_value_heads * 2 <= rows.num_heads]
        rows = rows.assign(units=rows.batch_size * rows.num_heads)
        frames.append(rows.groupby(["head_dim", "units", "isl"]).latency.median())
    best = pd.concat(frames, axis=1).min(axis=1)
    for d, dim in enumerate(HEAD_DIMS):
        for u, units in enumerate(UNITS):
            for s, length in enumerate(LENGTHS):
                latency = best.get((dim, units, length))
                if latency is not None:
                    flops = 4 * units * dim * length * length / 2
                    grid[d, u, s] = flops / (latency * 1e-3) / (peak_tflops * 1e12)
    return filled(grid)


def filled(grid: np.ndarray) -> np.ndarray:
    """Fill holes: fewer or more units like the nearest, other head sizes like 128."""
    middle = HEAD_DIMS.index(128)
    order = [middle, *(d for d in range(len(HEAD_DIMS)) if d != middle)]
    for d in order:
        own = grid[d]
        for u in range(1, own.shape[0]):
            own[u] = np.where(np.isnan(own[u]), own[u - 1], own[u])
        for u in range(own.shape[0] - 2, -1, -1):
            own[u] = np.where(np.isnan(own[u]), own[u + 1], own[u])
        for s in range(1, own.shape[1]):
            own[:, s] = np.where(np.isnan(own[:, s]), own[:, s - 1], own[:, s])
        if np.isnan(own).any():
            factor = np.nanmedian(own / grid[middle]) if not np.isnan(own).all() else (
                (HEAD_DIMS[d] / 128) ** 0.4 if HEAD_DIMS[d] < 128 else 1.0)
            grid[d] = np.where(np.isnan(own), grid[middle] * factor, own)
    return grid


def curve(points: dict[tuple[int, int], float], base: dict[float, float]) -> tuple[np.ndarray,
                                                                                   np.ndarray]:
    """Measured over modelled share by work (heads x length), at 4096 tokens."""
    work = sorted((heads * length, value / base[heads]) for (heads, length), value
                  in points.items() if length == 4096 and heads in base)
    return np.array([w for w, _ in work], np.float64), np.array([v for _, v in work])


def spread(work: np.ndarray, known: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Interpolate a curve over the logarithm of the work."""
    result: np.ndarray = np.interp(np.log(work), np.log(known[0]), known[1])
    return result


def window_rates(tables: Iterable[pd.DataFrame]) -> np.ndarray:
    """Rate under windows of 128 and 1024 tokens over the full one, on the FLOP left."""
    rates = []
    for window in (128, 1024):
        found = []
        for table in tables:
            if "window_size" not in table:
                continue
            keys = ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim",
                    "kv_cache_dtype"]
            rows = table[table.attn_dtype.isin(["bfloat16"]) & (table.isl >= 4096)
                         & (table.num_heads * table.batch_size >= 32)]
            full = rows[rows.window_size <= 0].groupby(keys).latency.min()
            own = rows[rows.window_size == window].groupby(keys).latency.min()
            both = pd.concat([full, own], axis=1, join="inner")
            length = both.index.get_level_values("isl").to_numpy(np.float64)
            left = (window - window**2 / (2 * length)) / (length / 2)
            ratio = both.iloc[:, 0].to_numpy() / both.iloc[:, 1].to_numpy() * left
            if len(ratio):
                found.append(float(np.median(ratio)))
        rates.append(min(max(found), 1.0) if found else 1.0)
    return np.array(rates)


def main(folder: Path, operators: Path) -> None:
    """Write one table a device."""
    measured = {name: read(operators / file) for name, (file, _) in SIMUMAX.items()}
    grids, forwards, windows = {}, {}, {}
    for name, (place, bf16, low) in PEAKS.items():
        gemms = newest(folder / place, "gemm", "gemm")
        attention = newest(folder / place, "attention", "context_attention")
        peaks = {"bf16": bf16} | ({"fp8": low["fp8"], "fp8_block": low["fp8"]} if low else {}) | (
            {"nvfp4": low["nvfp4"]} if "nvfp4" in low else {})
        grids[name] = {d: gemm_grid(gemms, d, p) for d, p in peaks.items()}
        forwards[name] = forward_grid(attention, bf16)
        windows[name] = window_rates(attention)
    layouts = {n: layout_rates(measured[n], grids[n]["bf16"]) for n in SIMUMAX}
    work = np.array(UNITS, np.float64)[:, None] * np.array(LENGTHS, np.float64)
    middle, long = HEAD_DIMS.index(128), LENGTHS.index(4096)
    of_forward, of_backward, wide = {}, {}, {}
    for name in SIMUMAX:
        points = {k: attention_points(measured[name], f"attention_{k}", 128)
                  for k in ("fwd", "bwd")}
        mla = {k: attention_points(measured[name], f"attention_{k}", 192) for k in ("fwd", "bwd")}
        base = {h: forwards[name][middle, UNITS.index(h), long] for h in UNITS}
        full = points["fwd"][64, 4096]
        of_forward[name] = curve(points["fwd"], base)
        of_backward[name] = curve(points["bwd"], dict.fromkeys(UNITS, full))
        wide[name] = [float(np.median([mla[k][p] / points[k][p] for p in mla[k]
                                       if p in points[k]])) for k in ("fwd", "bwd")]
    for name in PEAKS:
        own = "a100" if name == "a100" else "b200" if name.startswith(("b", "gb")) else ""
        forward, names = forwards[name].copy(), [own] if own else list(SIMUMAX)
        if own:
            forward = forward * spread(work, of_forward[own])
        widths = np.mean([wide[n] for n in names], axis=0)
        forward[HEAD_DIMS.index(192)] = forward[middle] * widths[0]
        # Backward at a full device, by length, times its curve over the work.
        shape = np.mean([spread(work, of_backward[n]) for n in names], axis=0)
        backward = np.empty_like(forward)
        for d in range(len(HEAD_DIMS)):
            for s, length in enumerate(LENGTHS):
                sat = np.interp(np.log(REFERENCE / length), np.log(UNITS), forward[d, :, s])
                backward[d, :, s] = sat * shape[:, s]
        backward[HEAD_DIMS.index(192)] = backward[middle] * widths[1]
        layout = np.mean([layouts[n] for n in names], axis=0)
        arrays = {f"gemm_{d}": g for d, g in grids[name].items()} | {
            "layout": layout, "attention": np.clip(np.stack([forward, backward]), 1e-3, 1.0),
            "window": windows[name]}
        np.savez_compressed(OUT / f"{name}.npz", **{k: v.astype(np.float16)
                                                    for k, v in arrays.items()})
        print(name, {k: v.shape for k, v in arrays.items()}, "layout", layout.round(3), "window",
              windows[name].round(2), "wide", widths.round(2),
              {k: float(v.max().round(3)) for k, v in arrays.items()})
    for name in SIMUMAX:
        print(name, "forward", of_forward[name], "backward", of_backward[name])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
