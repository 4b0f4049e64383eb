"""Constants that are fitted to training runs: few, and within their physical ranges."""

from __future__ import annotations

import json

import pytest

from autotune.kept import kept_left_out
from benchmarks.constants import MOST, PROBLEMS, Constant
from benchmarks.refit import RESULT

CONSTANTS = [c for problem in PROBLEMS for c in problem.constants]


def test_fitted_constants_are_few_and_listed_once() -> None:
    places = [c.place for c in CONSTANTS]
    assert len(set(places)) == len(places) <= MOST


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda c: c.place)
def test_shipped_value_is_physical(constant: Constant) -> None:
    """A share is no more than 1, a kernel passes over memory at most five times as often."""
    values = constant.values()
    assert values
    assert all(constant.low <= value <= constant.high for value in values), values


def test_every_problem_was_refitted_on_folds() -> None:
    """The README's spread comes from here: one ratio a fold, an error on rows left out."""
    found = json.loads(RESULT.read_text())
    assert set(found) == {problem.name for problem in PROBLEMS}
    for problem in PROBLEMS:
        own = found[problem.name]
        assert {row["place"] for row in own["constants"]} == {c.place for c in problem.constants}
        assert all(row["fold_ratios"] for row in own["constants"])
        assert own["errors"][problem.name]["left_out"]["n"] > 0


def test_validate_shows_the_errors_on_rows_left_out() -> None:
    found, kept = json.loads(RESULT.read_text()), kept_left_out()
    for problem in PROBLEMS:
        errors = found[problem.name]["errors"][problem.name]
        assert kept[problem.name]["mean_pct"] == errors["left_out_without_doubtful"]["mean"]
        assert kept[problem.name]["with_doubtful_mean_pct"] == errors["left_out"]["mean"]
