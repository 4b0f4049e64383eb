"""Fit the scale-up figures of system files to measured collectives.

Reads `nccl_perf.parquet` of PyPI's aiconfigurator-core (Apache-2.0; a wheel is a zip archive,
unpack it first), which lists latency in ms by collective, 2/4/8 GPUs and message size in
2-byte elements, for NCCL 2.23 to 2.29. Needs pyarrow, which the project does not.

    pip download --no-deps aiconfigurator-core -d DIR && unzip DIR/*.whl -d DIR
    python benchmarks/derive/system_nccl.py DIR/aiconfigurator_core/systems/data

For each system it minimises the mean absolute log error of `collective_s` over sizes from 4 MiB
up and prints the keys of the YAML's `network` section and the errors that remain.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

from simcore.formulas.collectives import collective_s
from simcore.inputs.system import Network, Provenance
from simcore.placement import Group

SYSTEMS = {"a100_sxm": (300.0, False), "h100_sxm": (450.0, True), "h200_sxm": (450.0, True),
           "b200_sxm": (900.0, True), "b300_sxm": (900.0, True), "gb200": (900.0, True),
           "gb300": (900.0, True)}
"""NVLink one way [GB/s], and whether NVSwitch reduces (NVLS, third generation on)."""
OPS = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
       "all_reduce": "all_reduce", "alltoall": "all_to_all"}
START = {"scale_up_all_reduce_frac": 0.7, "scale_up_all_gather_frac": 0.75,
         "scale_up_all_to_all_frac": 0.7, "scale_up_own_frac": 0.35,
         "scale_up_latency_us": 2.0, "collective_base_us": 15.0}
Rows = list[tuple[str, int, float, float]]


def read_rows(root: Path, system: str) -> Rows:
    """Rows (collective, ranks, bytes, seconds) of the newest NCCL measured."""
    import pyarrow.parquet as pq

    files = sorted((root / system / "comm" / "nccl").glob("*/nccl_perf.parquet"))
    table = pq.read_table(files[-1]).to_pylist()
    return [(OPS[r["op_name"]], r["num_gpus"], 2.0 * r["message_size"], r["latency"] * 1e-3)
            for r in table if r["nccl_dtype"] == "half" and r["op_name"] in OPS
            and 2 * r["message_size"] >= 4 * 2**20]


def predicted(rows: Rows, figures: dict[str, float], link: float, *, offload: bool,
              ) -> np.ndarray:
    """Seconds by the model."""
    network = Network(provenance=Provenance.FITTED, source="fit", gpus_per_node=8,
                      domain_size=8, scale_up_gb_per_s=link, nic_gb_per_s=50.0,
                      scale_up_all_reduce_offload=offload, **figures)
    out = np.empty(len(rows))
    for kind in set(OPS.values()):
        at = np.array([r[0] == kind for r in rows])
        chosen = [r for r in rows if r[0] == kind]
        ranks = np.array([r[1] for r in chosen], np.int64)
        size = np.array([r[2] for r in chosen])
        out[at] = collective_s(kind, size_bytes=size, group=Group(ranks), network=network)
    return out


def fit(rows: Rows, link: float, *, offload: bool) -> tuple[dict[str, float], np.ndarray]:
    """Coordinate descent on the figures; returns them and the signed log errors."""
    measured = np.array([r[3] for r in rows])
    best, step = dict(START), 0.3

    def errors(figures: dict[str, float]) -> np.ndarray:
        return np.log(predicted(rows, figures, link, offload=offload) / measured)

    loss = np.abs(errors(best)).mean()
    while step > 0.003:
        improved = False
        for name in START:
            for factor in (1 + step, 1 / (1 + step)):
                value = best[name] * factor
                trial = {**best, name: min(value, 1.0) if name.endswith("frac") else value}
                trial_loss = np.abs(errors(trial)).mean()
                if trial_loss < loss - 1e-6:
                    best, loss, improved = trial, trial_loss, True
        step = step if improved else step / 2
    return best, errors(best)


def main(root: Path) -> None:
    """Print what each system's file takes."""
    for system, (link, offload) in SYSTEMS.items():
        rows = read_rows(root, system)
        figures, errors = fit(rows, link, offload=offload)
        print(f"{system}: " + " ".join(f"{k}={v:.3g}" for k, v in figures.items()))
        for kind in OPS.values():
            for ranks in (2, 4, 8):
                at = [i for i, r in enumerate(rows) if r[0] == kind and r[1] == ranks]
                if at:
                    shown = ", ".join(f"{rows[i][2] / 2**20:.0f}M {math.expm1(errors[i]):+.0%}"
                                      for i in at)
                    print(f"  {kind} {ranks}: {shown}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
