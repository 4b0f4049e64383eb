"""How well the constants of one system hold on runs that they were not fitted to.

    python benchmarks/derive/step_constants.py ../shared/validation simumax/b200.csv

For each of the fixed folds (``folds.csv``) it takes the constants of the system that fit the
other folds best, and prints the errors on the fold left out: for the sustained factor alone, and
for it and the slowdown of collectives inside a step together.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autotune.compare import Library
from autotune.runs import Run, read_tables
from simcore.inputs.load import load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.prediction import predict

SUSTAINED = (-0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03)
"""Steps around the shipped factor."""
SLOWDOWNS = (1.06, 1.1, 1.15, 1.2, 1.23, 1.3)


def folds_of(path: Path, file: str) -> dict[str, str]:
    """Fold of each row of a table."""
    with path.open(encoding="utf-8") as stream:
        return {row["id"]: row["fold"] for row in csv.DictReader(
            line for line in stream if not line.startswith("#")) if row["file"] == file}


def variant(system: SystemSpec, sustained: float, slowdown: float) -> SystemSpec:
    """Return the system with other constants."""
    return system.model_copy(update={
        "efficiency": system.efficiency.model_copy(update={"sustained_frac": sustained}),
        "network": system.network.model_copy(update={"in_step_slowdown": slowdown})})


def model_of(run: Run, library: Library) -> ModelSpec:
    """Return a run's model, with its number of layers."""
    model = library.model(run)
    return model.with_layers(run.num_layers) if run.num_layers else model


def errors_pct(runs: Sequence[Run], library: Library, system: SystemSpec) -> np.ndarray:
    """Errors of the step time [%]."""
    return np.array([
        (predict(model_of(run, library), system, Strategy.from_mapping(run.fields))["step_time_s"]
         / run.measured["step_time_s"] - 1) * 100 for run in runs])


def main(folder: Path, file: str) -> None:
    """Print the errors on the folds left out."""
    folds = folds_of(folder / "folds.csv", file)
    runs = [run for run in read_tables([folder / file]).runs
            if run.id in folds and "step_time_s" in run.measured]
    library, system = Library(), load_system(runs[0].system)
    own = system.efficiency.sustained_frac, system.network.in_step_slowdown
    at = np.array([folds[run.id] for run in runs])
    found = {pair: errors_pct(runs, library, variant(system, *pair))
             for pair in itertools.product([float(own[0] + step) for step in SUSTAINED],
                                           sorted({*SLOWDOWNS, own[1]}))}
    print(f"{len(runs)} runs, constants in place: mean {np.abs(found[own]).mean():.2f} %")
    for title, pairs in (("sustained", [p for p in found if p[1] == own[1]]),
                         ("sustained and slowdown", list(found))):
        left, picks = np.zeros(len(runs)), []
        for fold in sorted(set(folds.values())):
            if not np.any(at == fold):
                continue
            best = min(pairs, key=lambda p: float(np.abs(found[p][at != fold]).mean()))
            left[at == fold] = np.abs(found[best][at == fold])
            picks.append(best)
        print(f"{title}: left out mean {left.mean():.2f}, p90 {np.percentile(left, 90):.2f}, "
              f"worst {left.max():.2f} %; constants {picks}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
