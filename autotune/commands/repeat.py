"""The command that predicts a strategy again, with no more options than it needs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from simcore.batch import Batch
from simcore.inputs.fields import FIELD, FIELD_NAMES
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.resolve import resolve


def fields_to_give(model: ModelSpec, system: SystemSpec,
                   strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Find the fields that have to be given so that defaults fill in the rest.

    Parameters
    ----------
    strategy : mapping
        Every field, resolved.

    Returns
    -------
    dict
        Names and values, in the table's order; always with ``gpus``.
    """
    wanted = {name: strategy[name] for name in FIELD_NAMES}
    given = {"gpus": wanted["gpus"]}
    # A field that is given can change the defaults of others, before and behind it.
    for _ in range(3):
        filled = _filled(model, system, tuple(given.items()))
        missing = [name for name in FIELD_NAMES if filled[name] != wanted[name]]
        for name in missing:
            if filled[name] != wanted[name]:
                given[name] = wanted[name]
                filled = _filled(model, system, tuple(given.items()))
        if all(filled[name] == wanted[name] for name in FIELD_NAMES):
            break
    return {name: given[name] for name in FIELD_NAMES if name in given}


@lru_cache(maxsize=256)
def _filled(model: ModelSpec, system: SystemSpec,
            given: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    """Every field; ranked strategies begin alike."""
    batch = Batch.from_strategies([Strategy(**dict(given))])
    return dict(resolve(model, system, batch).row(0).items())


TARGET = {"megatron": "megatron-lm", "megatron-bridge": "megatron-bridge",
          "torchtitan": "torchtitan", "deepspeed": "deepspeed", "fsdp": "fsdp"}
"""What `autotune export` writes for a framework."""


def export_command(model: str, system: str, given: Mapping[str, Any], framework: str,
                   file: str) -> str:
    """Write ``autotune export`` of a saved strategy, or of these fields; empty where no target
    is the framework's."""
    if framework not in TARGET:
        return ""
    own = ["autotune", "export", file] if file else [
        "autotune", "export", *shlex.split(predict_command(model, system, given))[2:]]
    return shlex.join([*own, "--to", TARGET[framework]])


def predict_command(model: str, system: str, given: Mapping[str, Any]) -> str:
    """Write ``autotune predict`` with these fields as options."""
    words = ["autotune", "predict", "--model", model, "--system", system]
    for name, value in given.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        words += [FIELD[name].option, shown]
    return shlex.join(words)
