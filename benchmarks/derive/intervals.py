"""Derive the spread of errors: ``python benchmarks/derive/intervals.py [FOLDS.csv]``.

Predicts the kept measured runs, groups their errors into classes (`simcore.interval.RunClass`)
and writes ``simcore/data/intervals.yaml``. To be run again whenever predicted times change. With
a table of folds (file, id, fold) it renews ``autotune/data/measured_folds.csv`` first.

Doubtful rows and rows that ran out of memory are left out. `coverage` repeats it five times
without a fold and counts how often the interval holds the rows of that fold.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from autotune.accuracy import NEAR, Pair, order_summary, question_pairs
from autotune.compare import Library, Outcome, compare
from autotune.kept import FOLDS, kept_folds, kept_models, kept_runs
from simcore.interval import RunClass, Spread, spread_of, wider
from simcore.typing import FloatArray

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "simcore" / "data" / "intervals.yaml"
FEWEST = 6
"""Runs that a class needs for percentiles of its own."""
PRIOR = 3.0
"""Models of a table that the next wider class counts for: errors of one model are alike, so it is
these, not runs, that tell of others."""
CAP = 60
"""Runs that a table counts for at most in a class."""
TAIL = 0.08
"""Share of a class' errors beyond each end. Less than a tenth, since runs left out scatter more
than those that the ends come from: with it 80 % of the runs left out are held."""
PAIR_SHARE = 0.6
"""Percentile of the size of the difference of two errors. Differences go both ways alike, so of
strategies that far apart (1 - 0.6) / 2 = one in five are in the wrong order."""
PAIR_CAP = 30
"""Pairs that a question counts for at most, so that no large table decides alone."""
PAIR_PRIOR = 5.0
"""Questions that the next wider class counts for."""
LOW_PRECISION = ("fp8", "mxfp8", "nvfp4")


def class_of(outcome: Outcome, models: dict[str, bool]) -> RunClass:
    """Class of a measured run."""
    run = outcome.run
    return RunClass(run.fields.get("framework") or "megatron", run.system, models[run.model],
                    str(run.fields.get("precision", "bf16")).startswith(LOW_PRECISION))


def log_error(outcome: Outcome) -> float:
    """ln(measured / predicted) of a step time."""
    return float(np.log(float(outcome.step_time_s or 1.0)
                        / float(outcome.predicted["step_time_s"])))


def usable(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Runs with a measured and a predicted step time that nobody doubts."""
    return [o for o in outcomes if o.predicted and o.step_time_s is not None
            and not o.run.doubtful]


def table_weights(runs: Sequence[Outcome]) -> FloatArray:
    """Weight of each run where a table counts as at most `CAP` runs, (n,)."""
    count = Counter(o.run.file for o in runs)
    return np.array([min(1.0, CAP / count[o.run.file]) for o in runs])


def weighted_quantiles(values: FloatArray, weights: FloatArray,
                       shares: Sequence[float]) -> FloatArray:
    """Quantiles of weighted values, linear between the middles of their weights."""
    order = np.argsort(values)
    at = (np.cumsum(weights[order]) - weights[order] / 2.0) / weights.sum()
    return np.interp(shares, at, values[order])


def pair_spread(pairs: Sequence[Pair]) -> tuple[float, int]:
    """`PAIR_SHARE` percentile of the difference of two errors, near pairs, and their questions.

    A question counts as at most `PAIR_CAP` pairs.
    """
    near = [p for p in pairs if abs(p.gap) <= NEAR]
    if not near:
        return 0.0, 0
    count = Counter(p.question for p in near)
    sizes = np.array([abs(p.error) for p in near])
    weights = np.array([min(1.0, PAIR_CAP / count[p.question]) for p in near])
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / weights.sum()
    at = min(int(np.searchsorted(share, PAIR_SHARE)), len(near) - 1)
    return float(sizes[order][at]), len(count)


def derive(outcomes: Sequence[Outcome], models: dict[str, bool]) -> dict[RunClass, Spread]:
    """Return the percentiles of every class, wide ones first.

    A class' own percentiles count as the models that it holds (a model in two tables twice), the
    next wider class' as `PRIOR` models. The ends enclose the prediction itself.
    """
    members: dict[RunClass, list[Outcome]] = defaultdict(list)
    for outcome in usable(outcomes):
        for key in dict.fromkeys(wider(class_of(outcome, models))):
            members[key].append(outcome)
    pairs = question_pairs(outcomes)
    by_class: dict[RunClass, list[Pair]] = defaultdict(list)
    for pair_of_runs in pairs:
        for key in dict.fromkeys(wider(class_of(pair_of_runs.first, models))):
            by_class[key].append(pair_of_runs)
    pooled = pair_spread(pairs)[0]
    found: dict[RunClass, Spread] = {}
    for key in sorted(members, key=lambda k: (sum(part is not None for part in k), str(k))):
        runs = members[key]
        if len(runs) < FEWEST:
            continue
        errors = np.array([log_error(o) for o in runs])
        low, high = weighted_quantiles(errors, table_weights(runs), (TAIL, 1.0 - TAIL))
        pair, questions = pair_spread(by_class[key])
        parent = next((found[k] for k in wider(key)[1:] if k in found and k != key), None)
        if parent is not None:
            models_seen = len({(o.run.file, o.run.model) for o in runs})
            own = models_seen / (models_seen + PRIOR)
            low, high = own * low + (1 - own) * parent.low, own * high + (1 - own) * parent.high
        prior = pooled if parent is None else parent.pair
        pair = (questions * pair + PAIR_PRIOR * prior) / (questions + PAIR_PRIOR)
        found[key] = Spread(min(float(low), 0.0), max(float(high), 0.0), len(runs), pair)
    return found


def coverage(outcomes: Sequence[Outcome], models: dict[str, bool],
             ) -> list[tuple[str, bool, float, float]]:
    """File, whether the interval holds it, width and error in percent, of rows left out."""
    folds = kept_folds()
    rows = []
    for fold in sorted(set(folds.values())):
        known = derive([o for o in outcomes if folds[o.run.file, o.run.id] != fold], models)
        for o in usable(outcomes):
            if folds[o.run.file, o.run.id] != fold:
                continue
            spread = spread_of(class_of(o, models), known)
            error = log_error(o)
            rows.append((o.run.file, spread.low <= error <= spread.high,
                         100.0 * (np.exp(spread.high) - np.exp(spread.low)),
                         100.0 * abs(np.exp(-error) - 1.0)))
    return rows


def order(outcomes: Sequence[Outcome], models: dict[str, bool]) -> dict[str, Any]:
    """How often pairs whose two runs are left out together are told apart, and rightly."""
    folds = kept_folds()

    def fold_of(outcome: Outcome) -> int:
        return folds[outcome.run.file, outcome.run.id]

    told: list[tuple[Pair, float]] = []
    for fold in sorted(set(folds.values())):
        known = derive([o for o in outcomes if fold_of(o) != fold], models)
        told += [(p, max(spread_of(class_of(o, models), known).pair
                         for o in (p.first, p.second)))
                 for p in question_pairs([o for o in outcomes if fold_of(o) == fold])]
    return order_summary(told)


def write(found: dict[RunClass, Spread]) -> None:
    """Write the data file."""
    classes = []
    for key, spread in found.items():
        entry = {k: v for k, v in key._asdict().items() if v is not None}
        entry |= {"low": round(spread.low, 5), "high": round(spread.high, 5),
                  "runs": spread.runs}
        classes.append(entry | {"pair": round(spread.pair, 5)})
    head = ("# Percentiles of ln(measured / predicted) step time by class of runs; made by\n"
            "# benchmarks/derive/intervals.py from the kept measured runs.\n")
    OUT.write_text(head + yaml.safe_dump({"classes": classes}, sort_keys=False), "utf-8")


def write_folds(table: Path) -> None:
    """Keep the folds of the kept runs: a digit a row, in their order."""
    lines = [line for line in table.read_text("utf-8").splitlines() if not line.startswith("#")]
    folds = {(row["file"], row["id"]): row["fold"] for row in csv.DictReader(lines)}
    digits: dict[str, str] = {}
    for run in kept_runs().runs:
        digits[run.file] = digits.get(run.file, "") + folds[run.file, run.id]
    (ROOT / "autotune" / "data" / FOLDS).write_text(
        "file,folds\n" + "".join(f"{name},{text}\n" for name, text in digits.items()), "utf-8")


def main(argv: Sequence[str]) -> None:
    """Make the files again and print how often the intervals hold."""
    if argv:
        write_folds(Path(argv[0]))
    models = {name: spec.is_moe for name, spec in kept_models().items()}
    outcomes = compare(kept_runs().runs, Library(kept=kept_models()))
    write(derive(outcomes, models))
    rows = coverage(outcomes, models)
    for name in [*dict.fromkeys(row[0] for row in rows), ""]:
        own = [row for row in rows if not name or row[0] == name]
        width, error = np.median([r[2] for r in own]), np.mean([r[3] for r in own])
        held = np.mean([r[1] for r in own])
        sys.stdout.write(f"{name or 'all':70} {len(own):5d}  holds {held:.0%}"
                         f"  width {width:.1f} %  over error {width / error:.2f}\n")
    found = order(outcomes, models)
    for name, which in (("", "all"), ("near_", f"under {NEAR:.0%} apart")):
        sys.stdout.write(f"pairs of one question, left out, {which}: {found[name + 'pairs']}, "
                         f"told apart {found[name + 'told']:.0%}, in the right order "
                         f"{found[name + 'right']:.0%}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
