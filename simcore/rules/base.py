"""What a rule is, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simcore.batch import Batch, is_constant
from simcore.degrees import quotient
from simcore.errors import Issue
from simcore.inputs.codec import Value, decode
from simcore.inputs.fields import FIELD, FRAMEWORKS, RECOMPUTE_BIT
from simcore.inputs.framework import Profile
from simcore.inputs.model import AttentionKind, MlpKind, ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.layout import LAYOUT_FIELDS
from simcore.profiles import profile_codes
from simcore.resolve import fullest_rank
from simcore.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Context:
    """Strategies under judgement.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    batch : Batch
        Resolved strategies.
    partial : bool
        Only the fields that the rule at hand reads have a meaning (a search that prunes axis
        by axis): nothing else may be looked at, suggestions included.
    given : Batch or None
        The same strategies before they were resolved, so that suggestions keep what the user
        chose and no more.
    rules : sequence of Rule
        What suggestions have to pass.
    """

    model: ModelSpec
    system: SystemSpec
    batch: Batch
    partial: bool = False
    given: Batch | None = None
    rules: Sequence[Rule] = ()

    def __getitem__(self, name: str) -> IntArray:
        """Return a column, shape (n,), or (1,) where all rows are the same."""
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, IntArray]:
        """Every column, cut to one row where all are the same; rules look them up hundreds of
        times."""
        return {name: column[:1] if is_constant(column) else column  # type: ignore[misc]
                for name, column in self.batch.columns.items()}

    def real(self, name: str) -> FloatArray:
        """Return a column of a FLOAT field, shape (n,) or (1,)."""
        return np.asarray(self[name], np.float64)

    def any_of(self, name: str, *values: str) -> BoolArray:
        """Tell where an ENUM field has one of some values, read-only; rules ask alike."""
        known = self._hits.get((name, values))
        if known is not None:
            return known
        column, choices = self[name], FIELD[name].choices
        hit = np.zeros(column.shape, np.bool_)
        for value in values:
            hit |= column == choices.index(value)
        hit.setflags(write=False)
        self._hits[name, values] = hit
        return hit

    @cached_property
    def _hits(self) -> dict[tuple[str, tuple[str, ...]], BoolArray]:
        return {}

    def recomputes(self, *modules: str) -> BoolArray:
        """Tell where any of some modules is recomputed."""
        bits = sum(RECOMPUTE_BIT[module] for module in modules)
        hit: BoolArray = (self["recompute"] & bits) != 0
        return hit

    def value(self, name: str, i: int) -> Value | None:
        """Return a field's value in row i, as users write it."""
        return decode(FIELD[name], float(self.batch[name][i]), self.batch.texts)

    def number(self, name: str, i: int) -> int:
        """Return an integer-coded field in row i."""
        return int(self.batch[name][i])

    def row(self, i: int) -> Context:
        """Return the context of row i alone."""
        index = np.array([i], np.int64)
        given = None if self.given is None else self.given.take(index)
        return Context(self.model, self.system, self.batch.take(index), self.partial, given,
                       self.rules)

    @cached_property
    def dp(self) -> IntArray:
        """Data-parallel size: reads gpus, tp, cp and pp."""
        ranks = np.maximum(self["tp"] * self["cp"] * self["pp"], 1)
        result: IntArray = np.maximum(quotient(self["gpus"], ranks), 1)
        return result

    @cached_property
    def num_microbatches(self) -> IntArray:
        """Micro-batches of a step: reads gbs, mbs and what `dp` reads."""
        return quotient(self["gbs"], np.maximum(self.dp * self["mbs"], 1))

    @cached_property
    def layout_rows(self) -> tuple[dict[str, IntArray], IntArray]:
        """Distinct values of the fields that place the layers, and which of them a row has."""
        rows, index = self.batch.group(LAYOUT_FIELDS)
        columns = {name: self[name] for name in LAYOUT_FIELDS}
        return {name: column[rows] if len(column) > 1 else column
                for name, column in columns.items()}, index[:1] if len(rows) == 1 else index

    @cached_property
    def fullest_rank(self) -> IntArray:
        """Layers of the fullest pipeline rank: reads `LAYOUT_FIELDS`."""
        columns, index = self.layout_rows
        most = fullest_rank(self.model, columns, self.batch.texts)
        return most if len(most) == 1 else most[index]

    def by_profile(self, ask: Callable[[str, Profile], bool]) -> BoolArray:
        """Ask something of each row's framework and profile: reads these two fields."""
        first, index = self._profiles
        answers = np.array([ask(name, profile) for name, profile in first], np.bool_)
        return answers if len(first) == 1 else answers[index]

    @cached_property
    def _profiles(self) -> tuple[list[tuple[str, Profile]], IntArray]:
        return profile_codes_of(self.batch)

    @property
    def has_dense_layers(self) -> bool:
        """Whether any layer has a dense MLP."""
        return any(kind.mlp is MlpKind.DENSE for kind in self.model.kinds)

    def has_attention(self, kind: AttentionKind) -> bool:
        """Whether any layer has this kind of attention."""
        return any(k.attention is kind for k in self.model.kinds)


def profile_codes_of(batch: Batch) -> tuple[list[tuple[str, Profile]], IntArray]:
    """Distinct frameworks with their profiles, and which of them each row has."""
    profiles, index = profile_codes(batch)
    first, _ = batch.group(("framework", "framework_version"))
    names = [FRAMEWORKS[int(batch["framework"][row])] for row in first]
    return list(zip(names, profiles, strict=True)), index


@dataclass(frozen=True)
class Rule:
    """One thing that must hold; serves the message, the mask and the tally.

    Parameters
    ----------
    name : str
        Identifies the rule in tallies.
    fields : tuple of str
        The fields that `violated` reads; it also sees the model and the system.
    violated : callable
        Context -> ndarray of bool that broadcasts to (n,).
    issue : callable
        (Context, row) -> Issue for a row that violates it.
    """

    name: str
    fields: tuple[str, ...]
    violated: Callable[[Context], BoolArray]
    issue: Callable[[Context, int], Issue] = field(repr=False)


def constant(value: bool) -> BoolArray:  # noqa: FBT001
    """Return a mask for all rows at once, from what the model or the system alone decide."""
    return np.array([value])


def mask(condition: object) -> BoolArray:
    """Return a condition as an array of bool; costs nothing where it is one."""
    return np.asarray(condition, np.bool_)


def words(values: Sequence[object], *, last: str = "or") -> str:
    """Join values as in a sentence: ``1, 2 or 4``."""
    texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"
