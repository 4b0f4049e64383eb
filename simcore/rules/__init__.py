"""Which strategies are legal: every rule written once, for message, mask and tally."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simcore.batch import Batch
from simcore.errors import Issue
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.rules import optimizer, overlap, parallelism, pipeline, precision, recompute
from simcore.rules.base import Context, Rule
from simcore.typing import BoolArray, IntArray

__all__ = ["RULES", "Context", "Rule", "RuleReport", "check", "rules_by_fields"]

RULES: tuple[Rule, ...] = (parallelism.RULES + pipeline.RULES + precision.RULES
                           + optimizer.RULES + recompute.RULES + overlap.RULES)
"""All rules, in the order in which a strategy is blamed."""


@dataclass(frozen=True)
class RuleReport:
    """What is wrong with each strategy of a batch.

    Parameters
    ----------
    context : Context
        What was judged.
    first : ndarray, shape (n,)
        Index into `RULES` of the first rule that a row violates, -1 where it is legal.
    """

    context: Context
    first: IntArray

    @property
    def ok(self) -> BoolArray:
        """Where a strategy is legal, shape (n,)."""
        legal: BoolArray = self.first < 0
        return legal

    def tally(self) -> dict[str, int]:
        """Count the refused rows by the first rule that they violate."""
        counts = np.bincount(self.first[self.first >= 0], minlength=len(RULES))
        return {rule.name: int(n) for rule, n in zip(RULES, counts, strict=True) if n}

    def issues(self, i: int) -> tuple[Issue, ...]:
        """Say everything that is wrong with row i."""
        one = self.context.row(i)
        return tuple(rule.issue(one, 0) for rule in RULES
                     if np.broadcast_to(rule.violated(one), (1,))[0])


def check(model: ModelSpec, system: SystemSpec, batch: Batch, *,
          given: Batch | None = None) -> RuleReport:
    """Judge resolved strategies.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
        Resolved strategies.
    given : Batch, optional
        The same before they were resolved: suggestions then keep what the user chose, and
        take defaults anew. Without it a field that has its default's value counts as left out.

    Returns
    -------
    RuleReport
    """
    context = Context(model, system, batch, given=given, rules=RULES)
    first = np.full(len(batch), -1, np.int64)
    for number, rule in enumerate(RULES):
        bad = rule.violated(context)
        # A third of the time of `any`, sixty times a strategy.
        if np.count_nonzero(bad):
            first[np.broadcast_to(bad, first.shape) & (first < 0)] = number
    return RuleReport(context, first)


def rules_by_fields() -> Mapping[str, tuple[Rule, ...]]:
    """Group the rules by each field that they read."""
    found: dict[str, list[Rule]] = {}
    for rule in RULES:
        for name in rule.fields:
            found.setdefault(name, []).append(rule)
    return {name: tuple(rules) for name, rules in found.items()}
