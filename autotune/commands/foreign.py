"""Files of other programs where a command takes a model, a system or a strategy."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

from autotune.formats.imported import Imported
from simcore.errors import InputError, Issue
from simcore.inputs.load import load_model
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.inputs.yaml_io import read_data, validate

_OWN = (".yaml", ".yml", ".json")


@lru_cache(maxsize=8)
def foreign(source: str) -> Imported | None:
    """Read another program's file; None for a name, or a file of our own or Hugging Face's.

    What was not taken over is said on stderr, once.
    """
    path = Path(source)
    try:
        if source != "-" and (not source.strip() or not path.is_file()):
            return None
    except (OSError, ValueError):
        return None
    if path.suffix.lower() in _OWN:
        from autotune.formats.sniff import mapping_kind
        data = read_data(path)
        if not isinstance(data, dict) or mapping_kind(data) in ("", "huggingface"):
            return None
    from autotune.formats.sniff import read_file
    imported = read_file(source)
    for item in imported.ignored:
        shown = f" {item.value}" if item.value else ""
        sys.stderr.write(f"warning: {source}: ignored {item.name}{shown}: {item.reason}\n")
    return imported


def model_in(source: str) -> ModelSpec | None:
    """Model of another program's file; None where `load_model` has to read it.

    Raises
    ------
    InputError
        The file holds no model.
    """
    found = foreign(source)
    if found is None:
        return None
    if found.model_name:
        return load_model(found.model_name)
    if not found.model:
        raise InputError(Issue("--model", f"'{source[:120]}' holds no model ({found.kind})",
                               "use it with --strategy or --system"))
    return validate(ModelSpec, found.model, where=source)


def system_in(source: str) -> SystemSpec | None:
    """System of another program's file; None where `load_system` has to read it."""
    found = foreign(source)
    if found is None:
        return None
    if not found.system:
        raise InputError(Issue("--system", f"'{source[:120]}' holds no system ({found.kind})"))
    return validate(SystemSpec, found.system, where=source)


def strategy_in(source: str) -> Strategy | None:
    """Strategy of another program's file; None where `load_strategy_file` has to read it."""
    found = foreign(source)
    if found is None:
        return None
    if not found.strategy:
        raise InputError(Issue("--strategy", f"'{source[:120]}' holds no strategy ({found.kind})"))
    return Strategy.from_mapping(found.strategy, where=f"{source}: ")
