"""From options to a model, a system and a strategy, all problems at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from autotune.commands.failures import warn
from autotune.commands.options import FORMATS
from simcore.errors import InputError, Issue, nearest
from simcore.inputs.fields import FIELD_NAMES
from simcore.inputs.load import StrategyFile, load_model, load_strategy_file, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.profiles import missing_version

DEFAULT_SYSTEM = "h100-sxm"
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """One strategy for one model on one system."""

    model: ModelSpec
    system: SystemSpec
    strategy: Strategy


class Problems:
    """Collects what is wrong with several inputs, to report it at once."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []

    def add(self, where: str, message: str, fix: str = "") -> None:
        """Note one problem."""
        self.issues.append(Issue(where, message, fix))

    def collect(self, read: Callable[[], T]) -> T | None:
        """Run a reader; note what is wrong and return None."""
        try:
            return read()
        except InputError as error:
            self.issues.extend(error.issues)
            return None

    def settle(self) -> None:
        """Raise what was noted, if anything."""
        if self.issues:
            raise InputError(self.issues)


def output_format(values: Mapping[str, object]) -> str:
    """Return the format asked for.

    Raises
    ------
    InputError
        It is none of those known.
    """
    name = str(values.get("format") or "table").strip().lower()
    if name not in FORMATS:
        raise InputError(Issue("--format", f"must be one of {', '.join(FORMATS)}, "
                                           f"got '{name[:60]}'", nearest(name, FORMATS)))
    return name


def text(values: Mapping[str, object], name: str) -> str | None:
    """Return an option's text; None where it was left out."""
    value = values.get(name)
    return None if value is None else str(value)


def given_fields(values: Mapping[str, object]) -> dict[str, object]:
    """Return the strategy fields that were given as options, as written."""
    return {name: values[name] for name in FIELD_NAMES if values.get(name) is not None}


def number(values: Mapping[str, object], name: str, problems: Problems, *, minimum: float,
           maximum: float, whole: bool = False) -> float | None:
    """Read an option that is a number; None where it was left out or is wrong."""
    raw = text(values, name)
    if raw is None:
        return None
    try:
        value = float(raw)
    except ValueError:
        value = float("nan")
    if not minimum <= value <= maximum or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        span = f"{kind} from {minimum:.10g} to {maximum:.10g}"
        problems.add("--" + name.replace("_", "-"), f"must be {span}, got '{raw[:60]}'",
                     f"use {span}")
        return None
    return value


def read_model(values: Mapping[str, object], default: str | None = None) -> ModelSpec:
    """Load the model that the options (or the strategy file) name."""
    source = text(values, "model") or default
    if source is None:
        raise InputError(Issue("--model", "is needed",
                               "use a name that 'autotune models' lists, or a config.json"))
    from autotune.commands.foreign import model_in
    return model_in(source) or load_model(source)


def read_system(values: Mapping[str, object], default: str | None = None) -> SystemSpec:
    """Load the system that the options (or the strategy file) name."""
    source = text(values, "system") or default or DEFAULT_SYSTEM
    from autotune.commands.foreign import system_in
    return system_in(source) or load_system(source)


def read_strategy(path: str) -> StrategyFile:
    """Load a strategy file, of our own or of another program; the latter is its own model."""
    from autotune.commands.foreign import foreign, strategy_in

    strategy = strategy_in(path)
    if strategy is None:
        return load_strategy_file(Path(path))
    found = foreign(path)
    has_model = found is not None and bool(found.model or found.model_name)
    return StrategyFile(path if has_model else None, None, strategy)


def warn_of_version(strategy: Strategy) -> None:
    """Warn where another version's profile stands in for the framework's version."""
    message = missing_version(strategy)
    if message:
        warn(message)


def read_case(values: Mapping[str, object]) -> Case:
    """Load what ``predict`` and ``check`` work on.

    Raises
    ------
    InputError
        With every problem of model, system, strategy file and options.
    """
    problems = Problems()
    path = text(values, "strategy")
    file = None
    if path is not None:
        file = problems.collect(lambda: read_strategy(path))
    options = problems.collect(lambda: Strategy.from_mapping(given_fields(values)))
    model = system = None
    if path is None or file is not None or text(values, "model"):
        model = problems.collect(lambda: read_model(values, file.model if file else None))
    system = problems.collect(lambda: read_system(values, file.system if file else None))
    strategy = file.strategy if file else Strategy()
    if options is not None:
        strategy = replace(strategy, **options.given())  # type: ignore[arg-type]
        if strategy.gpus is None and (path is None or file is not None):
            problems.add("gpus", "is needed", "use --gpus N, the number of GPUs of the run")
    problems.settle()
    if model is None or system is None:
        raise InputError(Issue("--model", "is needed"))
    warn_of_version(strategy)
    return Case(model, system, strategy)
