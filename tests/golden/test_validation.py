"""Errors on the kept measured runs may not get worse; the table is printed.

``pytest --update-golden`` rewrites the ratchet; it is to be committed with the change that moves
it, in either direction.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.accuracy import report
from autotune.compare import Library, compare
from autotune.kept import kept_models, kept_runs
from autotune.report.validation import print_validation
from benchmarks.derive.intervals import coverage, order

RATCHET = Path(__file__).with_name("validation_ratchet.json")
SLACK_PCT = 0.05
"""Percent points that rounding on another machine may cost."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    data = report(compare(kept_runs().runs, Library(kept=kept_models())))
    return data


def figures(summary: dict[str, Any]) -> dict[str, float | int | None]:
    """What is held: errors, skipped rows, wrong verdicts and failed picks."""
    time_error, memory = summary["step_time"], summary["peak_memory"]
    return {
        "step_time_n": time_error["n"], "step_time_p50": time_error["median_abs_pct"],
        "step_time_mean": time_error["mean_abs_pct"], "step_time_p90": time_error["p90_abs_pct"],
        "peak_memory_n": memory["n"], "peak_memory_mean": memory["mean_abs_pct"],
        "peak_memory_max": memory["max_abs_pct"],
        "wrong_verdicts": summary["oom"]["false_fit"] + summary["oom"]["false_oom"],
        "failed_picks": summary["ranking"]["failed_picks"],
        "regret_mean": summary["ranking"]["regret_mean_pct"],
        "skipped": summary["skipped"]}


def test_errors_do_not_grow(found: dict[str, Any], update_golden: bool,
                            capsys: pytest.CaptureFixture[str]) -> None:
    now = {name: figures(s) for name, s in [*found["by_file"].items(), ("all", found["summary"])]}
    with capsys.disabled():
        print()
        print_validation(found)
    if update_golden:
        rounded = {name: {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
                   for name, row in now.items()}
        RATCHET.write_text(json.dumps(rounded, indent=1) + "\n")
        return
    held = json.loads(RATCHET.read_text())
    assert set(held) == set(now)
    worse = []
    for name, row in held.items():
        for key, limit in row.items():
            value = now[name][key]
            if key.endswith("_n"):
                if value < limit:
                    worse.append(f"{name}: {key} {value} fell below {limit}")
            elif limit is not None and (value is None or value > limit + SLACK_PCT):
                worse.append(f"{name}: {key} {value} exceeds {limit}")
    assert not worse, "\n".join(worse)


def test_every_row_has_a_prediction_or_a_reason(found: dict[str, Any]) -> None:
    assert all(r["skipped"] or r["predicted"]["step_time_s"] > 0 for r in found["rows"])


def test_pairs_that_are_told_apart_are_in_the_right_order() -> None:
    """Of runs left out by fold: nine of ten over all, eight of ten where it is close."""
    models = kept_models()
    outcomes = compare(kept_runs().runs, Library(kept=models))
    out = order(outcomes, {name: spec.is_moe for name, spec in models.items()})
    assert out["near_pairs"] > 300
    assert out["right"] >= 0.9
    assert out["near_right"] >= 0.8
    assert out["near_told"] >= 0.3


def test_intervals_hold_runs_left_out() -> None:
    """Eight of ten over all, 60 to 95 % in most tables."""
    models = kept_models()
    outcomes = compare(kept_runs().runs, Library(kept=models))
    rows = coverage(outcomes, {name: spec.is_moe for name, spec in models.items()})
    assert 0.75 <= sum(row[1] for row in rows) / len(rows) <= 0.85
    tables = [[row[1] for row in rows if row[0] == name] for name in {row[0] for row in rows}]
    assert sum(0.6 <= sum(t) / len(t) <= 0.95 for t in tables) >= 14
