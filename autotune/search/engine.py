"""What a search needs of the simulator, as a protocol, so that tests can put a small one in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from simcore.batch import Batch
from simcore.errors import Issue
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.typing import BoolArray, FloatArray


class RuleLike(Protocol):
    """A rule of `simcore.rules`."""

    @property
    def name(self) -> str: ...
    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def violated(self) -> Callable[[Any], BoolArray]: ...
    @property
    def issue(self) -> Callable[[Any, int], Issue]: ...


class BoundsLike(Protocol):
    """What is known of legal rows without running their pipelines."""

    @property
    def step_time_lower_s(self) -> FloatArray: ...
    @property
    def device_memory_bytes(self) -> FloatArray: ...
    @property
    def device_memory_high_bytes(self) -> FloatArray: ...


class PredictionLike(Protocol):
    """One strategy, predicted."""

    def to_dict(self) -> dict[str, Any]: ...


class PredictionsLike(Protocol):
    """Exact predictions of a batch."""

    @property
    def columns(self) -> Mapping[str, FloatArray]: ...
    @property
    def batch(self) -> Batch: ...
    def row(self, i: int) -> PredictionLike: ...


class Engine(Protocol):
    """The simulator as the search sees it."""

    @property
    def rules(self) -> Sequence[RuleLike]: ...
    def context(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> object: ...
    def resolve(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> Batch: ...
    def bound(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> BoundsLike: ...
    def evaluate(self, model: ModelSpec, system: SystemSpec,
                 batch: Batch) -> PredictionsLike: ...
    def split_choices(self, num_layers: int, pp: int, vpp: int,
                      window: int) -> Sequence[tuple[int, int]]: ...


class SimcoreEngine:
    """The simulator itself."""

    @property
    def rules(self) -> Sequence[RuleLike]:
        """All rules, in the order in which a strategy is blamed."""
        from simcore.rules import RULES
        return RULES

    def context(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> object:
        """Return what rules look at; only the fields known so far hold values."""
        from simcore.rules import Context
        return Context(model, system, batch, partial=True)

    def resolve(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> Batch:
        """Fill in the fields that were left out."""
        from simcore.resolve import resolve
        return resolve(model, system, batch)

    def bound(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> BoundsLike:
        """Bound step times from below and compute memory."""
        from simcore.prediction import bound
        return bound(model, system, batch)

    def evaluate(self, model: ModelSpec, system: SystemSpec,
                 batch: Batch) -> PredictionsLike:
        """Predict exactly."""
        from simcore.prediction import evaluate
        return evaluate(model, system, batch)

    def split_choices(self, num_layers: int, pp: int, vpp: int,
                      window: int) -> Sequence[tuple[int, int]]:
        """List uneven splits as (first, last), most balanced first."""
        from simcore.layout import split_choices
        return split_choices(num_layers, pp, vpp, window)
