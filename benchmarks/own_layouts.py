"""NVIDIA's published layouts against an exact search that is given no layout.

    PYTHONPATH=. python -m benchmarks.own_layouts FOLDER [MOST]

For each row of the Megatron-Bridge tables (each distinct job once) the default space is searched
with GPUs, batch, sequence length, precision and framework version fixed, and the published
layout's step is set against the best one found. Then the order of layouts that were published
for one model, GPUs and precision is compared with the predicted one.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.compare import Library, Outcome, compare
from autotune.runs import Run, read_tables

SLACK = 0.08
APART = 0.05
SEARCH_S = 120
TABLES = "nvidia_megatron_bridge"


def best(folder: Path, run: Run) -> dict[str, Any] | None:
    """Return the best strategy of the search, None where it ends in an error."""
    model = folder / "models" / f"{run.model}.json"
    fields = {name: run.fields[name] for name in (
        "gpus", "gbs", "seq_len", "precision", "framework", "framework_version")
        if name in run.fields}
    argv = [sys.executable, "-m", "autotune", "search", "--model", str(model),
            "--system", run.system, "--format", "json", "--top", "1"]
    for name, value in fields.items():
        argv += [f"--{name.replace('_', '-')}", value]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SEARCH_S, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        return None
    results: list[dict[str, Any]] = json.loads(done.stdout)["ranked"]
    return results[0]


def pair_order(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Pairs of layouts whose measured and predicted order agree, and how many there are."""
    groups: dict[tuple[object, ...], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        if o.predicted and o.step_time_s and not o.run.doubtful:
            groups[o.run.model, o.run.system, *(o.run.fields.get(f) for f in (
                "gpus", "precision", "seq_len"))].append(o)
    right = total = 0
    for own in groups.values():
        for a, b in itertools.combinations(own, 2):
            measured = _per_sequence_s(a) / _per_sequence_s(b)
            if _layout(a) == _layout(b) or abs(measured - 1.0) <= APART:
                continue
            total += 1
            right += (_predicted_s(a) > _predicted_s(b)) == (measured > 1.0)
    return right, total


def _layout(o: Outcome) -> tuple[object, ...]:
    return tuple(o.run.fields.get(f) for f in (
        "tp", "cp", "pp", "vpp", "ep", "mbs", "recompute", "dispatcher", "cuda_graph"))


def _per_sequence_s(o: Outcome) -> float:
    return float(o.step_time_s or 0.0) / float(o.run.fields["gbs"])


def _predicted_s(o: Outcome) -> float:
    return float(o.predicted["step_time_s"]) / float(o.run.fields["gbs"])


def main(argv: Sequence[str]) -> int:
    """Print each row, and both shares."""
    folder, most = Path(argv[0]), int(argv[1]) if len(argv) > 1 else None
    outcomes = compare(read_tables([folder / TABLES]).runs, Library())
    seen: set[tuple[object, ...]] = set()
    near = total = 0
    for o in outcomes:
        key = (o.run.model, o.run.system, *(o.run.fields.get(f) for f in (
            "gpus", "gbs", "seq_len", "precision", "framework_version")), _layout(o))
        if not o.predicted or o.run.doubtful or key in seen or (most and total >= most):
            continue
        seen.add(key)
        found = best(folder, o.run)
        if found is None:
            print(f"{o.run.id} {o.run.file}: the search found nothing")
            total += 1
            continue
        slower = float(o.predicted["step_time_s"]) / float(found["step_time_s"]) - 1.0
        fits = o.predicted["verdict"] != "does_not_fit"
        total += 1
        near += fits and slower <= SLACK
        strategy = found["strategy"]
        print(f"{o.run.id} {o.run.fields.get('framework_version')}: {o.predicted['verdict']}, "
              f"{slower:+.1%} of the best,",
              " ".join(f"{n}{strategy[n]}" for n in ("tp", "cp", "pp", "vpp", "ep", "mbs")),
              strategy.get("recompute"))
    print(f"published layouts that fit and are within {SLACK:.0%} of the best: {near} of {total}")
    right, pairs = pair_order(outcomes)
    print(f"pairs of layouts over {APART:.0%} apart in the measured order: {right} of {pairs}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
