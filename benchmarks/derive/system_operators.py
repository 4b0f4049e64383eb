"""Derive the efficiency section of system files from measured operators.

    python benchmarks/derive/system_operators.py ../shared/validation/operators

For A100 PCIe and B200 it prints, over the tables `ops_*.csv`:

- gemm_bf16_frac: measured share of the peak over the shape's share
  (`gemm_shape_efficiency`), mean weighted by FLOP, of dense products;
- grouped_gemm_frac: grouped products over what the same model gives a dense product of the same
  total size;
- attention_*_frac: share of the peak of causal attention, the causal half counted, by direction.

Kernels measured alone; in a step B200 products run 1.06 to 1.13 times slower (power), so the
files hold the figure printed over 1.08 for B200 and say so.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from simcore.formulas.roofline import gemm_shape_efficiency

TABLES = {"ops_a100_pcie.csv": 108, "ops_b200.csv": 148}
"""Table, and multiprocessors of its device."""
TILE = 128.0


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a table whose first lines are comments."""
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def gemm_ratio(rows: list[dict[str, str]], multiprocessors: int) -> dict[str, np.ndarray]:
    """Columns: FLOP, measured share, share by shape, of dense and grouped products."""
    out: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows:
        if row["op"] not in ("gemm", "grouped_gemm"):
            continue
        m, n, k = (float(row[x]) for x in "mnk")
        groups = float(row["groups"] or 1)
        batch = float(row["batch"] or 1) if row["op"] == "gemm" else groups
        kind, each = row["op"], m
        if row["op"] == "gemm":
            m, k = (m, k * batch) if row["layout"] == "NT" else (m * batch, k)
        else:
            kind += f"_{row['stage']}"
            if row["stage"] == "bwd_grad_act":
                n, k = k, n
            elif row["stage"] == "bwd_grad_w":
                m, n, k, each = n, k, m, TILE
            m = m * groups if row["stage"] != "bwd_grad_w" else m * groups
        shape = gemm_shape_efficiency(m, n, k, num_multiprocessors=multiprocessors)
        waste = each / (np.ceil(each / TILE) * TILE)
        out[kind].append((2 * m * n * k, float(row["efficiency"]), float(shape * waste)
                          if groups > 1 else float(shape)))
    return {kind: np.array(values).T for kind, values in out.items()}


def weighted(flops: np.ndarray, share: np.ndarray, shape: np.ndarray) -> float:
    """Time-true mean: FLOP over the time it takes, both summed over the rows."""
    return float((flops / shape).sum() / (flops / share).sum())


def main(root: Path) -> None:
    """Print the figures of each table."""
    for name, multiprocessors in TABLES.items():
        rows = read(root / name)
        print(name)
        dense = 0.0
        for kind, (flops, share, shape) in gemm_ratio(rows, multiprocessors).items():
            frac = weighted(flops, share, shape)
            dense = frac if kind == "gemm" else dense
            spread = np.percentile(share / shape / frac, (10, 50, 90))
            print(f"  {kind:24s} {len(flops):4d} rows, frac {frac:.3f} "
                  f"({frac / dense:.2f} of dense), p10/50/90 of the rest {spread.round(2)}")
        found: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for row in rows:
            if row["op"].startswith("att"):
                head = (row["op"], row["seq"], row["heads"], row["qk_dim"], row["contiguous"])
                found[head].append(float(row["efficiency"]) / 2)
        for head, values in sorted(found.items()):
            print("  ", *head, [round(v, 3) for v in values])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
