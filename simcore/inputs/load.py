"""Find and read models, systems, frameworks and strategies, built in or in a user's file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from simcore.errors import InputError, Issue, nearest
from simcore.inputs.fields import FIELD
from simcore.inputs.framework import FrameworkSpec
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.inputs.yaml_io import read_data, require_mapping, validate

DATA = Path(__file__).resolve().parent.parent / "data"
MODELS, SYSTEMS, FRAMEWORKS = "models", "systems", "frameworks"
_SUFFIXES = (".yaml", ".yml", ".json")
_DERIVED = ("dp", "num_microbatches")
_TOP_KEYS = ("model", "system", "strategy")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class StrategyFile:
    """What a strategy file holds.

    Parameters
    ----------
    model, system : str or None
        What `load_model` and `load_system` take; None where the file does not say.
    strategy : Strategy
    """

    model: str | None
    system: str | None
    strategy: Strategy


def load_model(source: str | Path) -> ModelSpec:
    """Read a model.

    Parameters
    ----------
    source : str or Path
        A built-in name or alias, in any case; else a YAML or JSON file with `ModelSpec`'s keys,
        a Hugging Face `config.json`, or a folder that holds one.

    Raises
    ------
    InputError
        Unknown name, or a file that is no model, with all its problems at once.
    """
    name = _builtin_name(MODELS, str(source))
    if name is not None:
        return _builtin_model(name)
    path = _existing(source, "model", model_names())
    return _model_from_file(path)


def load_system(source: str | Path) -> SystemSpec:
    """Read a cluster: a built-in name or alias, else a YAML or JSON file."""
    name = _builtin_name(SYSTEMS, str(source))
    if name is not None:
        return _builtin_system(name)
    path = _existing(source, "system", system_names())
    return _spec_from_file(SystemSpec, path)


def load_framework(source: str | Path) -> FrameworkSpec:
    """Read a framework's profiles: a built-in name, else a YAML or JSON file."""
    name = _builtin_name(FRAMEWORKS, str(source))
    if name is not None:
        return _builtin_framework(name)
    path = _existing(source, "framework", framework_names())
    return _spec_from_file(FrameworkSpec, path)


def load_strategy_file(path: str | Path) -> StrategyFile:
    """Read a strategy file.

    It holds `model`, `system` and the strategy's fields, these at the top or below `strategy`.
    A model or system that is a file may be named relative to the strategy file's folder.

    Raises
    ------
    InputError
        With every unknown key and every illegal value at once.
    """
    path = Path(path)
    where = str(path)
    data = require_mapping(read_data(path), where=where)
    issues: list[Issue] = []
    names = {key: _named_source(path, data.get(key), key, issues) for key in ("model", "system")}
    nested = data.get("strategy")
    if nested is not None and not isinstance(nested, dict):
        issues.append(Issue(f"{where}: strategy", "must hold a mapping of fields to values"))
        nested = None
    fields: dict[str, object] = {}
    prefix = f"{where}: strategy." if nested else f"{where}: "
    top = {key: value for key, value in data.items() if key not in _TOP_KEYS}
    for key, value in (*top.items(), *(nested or {}).items()):
        if key in _DERIVED:
            issues.append(Issue(f"{prefix}{key}", "follows from the other fields",
                                "leave it out"))
        elif key in fields:
            issues.append(Issue(f"{prefix}{key}", "is given twice, at the top and in strategy"))
        elif key not in FIELD and key in top:
            issues.append(Issue(f"{where}: {str(key)[:80]}", "is not a known key",
                                nearest(str(key), (*_TOP_KEYS, *FIELD))))
        else:
            fields[key] = value
    try:
        strategy = Strategy.from_mapping(fields, where=prefix)
    except InputError as error:
        raise InputError((*issues, *error.issues)) from error
    if issues:
        raise InputError(issues)
    return StrategyFile(names["model"], names["system"], strategy)


def model_names() -> tuple[str, ...]:
    """Return the names of all built-in models, sorted."""
    return _names(MODELS)


def system_names() -> tuple[str, ...]:
    """Return the names of all built-in systems, sorted."""
    return _names(SYSTEMS)


def framework_names() -> tuple[str, ...]:
    """Return the names of all built-in frameworks, sorted."""
    return _names(FRAMEWORKS)


def model_aliases(name: str) -> tuple[str, ...]:
    """Return the other names of a built-in model."""
    return _builtin_model(name).aliases


@cache
def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (DATA / folder).glob("*.yaml")))


@cache
def _named(folder: str, alias: str) -> str | None:
    """Built-in name of an alias in lower case; None: there is none."""
    found = None
    for name in _names(folder):
        path = DATA / folder / f"{name}.yaml"
        # To parse every file takes a tenth of a command's time.
        if alias not in path.read_text("utf-8").lower():
            continue
        if alias in _aliases(folder, name):
            found = name
    return found


@cache
def _aliases(folder: str, name: str) -> tuple[str, ...]:
    """Aliases of a built-in file, in lower case."""
    data = read_data(DATA / folder / f"{name}.yaml")
    aliases = data.get("aliases") if isinstance(data, dict) else None
    return tuple(str(a).lower() for a in aliases) if isinstance(aliases, list) else ()


def _builtin_name(folder: str, source: str) -> str | None:
    """Name of the built-in file that a name or alias means, None where there is none."""
    wanted = source.strip().lower()
    if wanted in _names(folder):
        return wanted
    # A path with a known ending is never an alias: the files need not be read to know.
    return None if wanted.endswith(_SUFFIXES) else _named(folder, wanted)


@cache
def _builtin_model(name: str) -> ModelSpec:
    return _spec_from_file(ModelSpec, DATA / MODELS / f"{name}.yaml")


@cache
def _builtin_system(name: str) -> SystemSpec:
    return _spec_from_file(SystemSpec, DATA / SYSTEMS / f"{name}.yaml")


@cache
def _builtin_framework(name: str) -> FrameworkSpec:
    return _spec_from_file(FrameworkSpec, DATA / FRAMEWORKS / f"{name}.yaml")


def _spec_from_file(kind: type[M], path: Path) -> M:
    return validate(kind, read_data(path), where=str(path))


def _model_from_file(path: Path) -> ModelSpec:
    data = require_mapping(read_data(path), where=str(path))
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    if "model_type" in data or "architectures" in data:
        # A twentieth of the start-up of commands that read no config.json.
        from simcore.inputs.hf import model_from_hf

        return model_from_hf(data, name=name, where=str(path))
    return validate(ModelSpec, {"name": name, "source": path.name, **data}, where=str(path))


def _existing(source: str | Path, what: str, known: tuple[str, ...]) -> Path:
    """Path of a user's file, or an error that names what is nearest."""
    path = Path(source)
    shown = str(source)[:120]
    is_named = bool(str(source).strip())
    if is_named and _holds(path, Path.is_dir):
        inner = path / "config.json"
        if what == "model" and _holds(inner, Path.is_file):
            return inner
        needed = "a folder with a config.json" if what == "model" else "a file"
        raise InputError(Issue(what, f"'{shown}' is a directory, {needed} is needed"))
    if is_named and _holds(path, Path.exists):
        if path.suffix.lower() not in _SUFFIXES:
            raise InputError(Issue(what, f"'{shown}' must end in .yaml, .yml or .json"))
        return path
    aliases = chain.from_iterable(_aliases(f"{what}s", name) for name in _names(f"{what}s"))
    hint = nearest(str(source), (*known, *aliases))
    raise InputError(Issue(what, f"{shown!r} is neither built in nor a file",
                           hint if hint.startswith("did") else nearest(str(source), known)))


def _holds(path: Path, test: Callable[[Path], bool]) -> bool:
    """Ask the file system about a path that a user wrote; an impossible one does not exist."""
    try:
        return test(path)
    except (OSError, ValueError):
        return False


def _named_source(path: Path, value: object, key: str, issues: list[Issue]) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        issues.append(Issue(f"{path}: {key}", "must be text: a built-in name or a file"))
        return None
    folder = MODELS if key == "model" else SYSTEMS
    beside = path.parent / value
    if _builtin_name(folder, value) is None and _holds(beside, Path.exists):
        return str(beside)
    return value
