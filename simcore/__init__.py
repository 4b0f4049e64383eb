"""Analytical simulator of training large language models: memory and speed of a strategy.

Everything here is pure: no printing, no clock, no I/O beyond the package's data files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcore.batch import Batch
    from simcore.errors import InputError, Issue, NoFeasibleStrategyError, SimcoreError
    from simcore.inputs.load import load_model, load_system
    from simcore.inputs.model import ModelSpec
    from simcore.inputs.strategy import Strategy
    from simcore.inputs.system import SystemSpec
    from simcore.prediction import Bounds, Prediction, Predictions, bound, evaluate, predict
    from simcore.resolve import resolve
    from simcore.rules import check

_PUBLIC = {
    "Batch": "batch", "InputError": "errors", "Issue": "errors",
    "NoFeasibleStrategyError": "errors", "SimcoreError": "errors", "load_model": "inputs.load",
    "load_system": "inputs.load", "ModelSpec": "inputs.model", "Strategy": "inputs.strategy",
    "SystemSpec": "inputs.system", "Bounds": "prediction", "Prediction": "prediction",
    "Predictions": "prediction", "bound": "prediction", "evaluate": "prediction",
    "predict": "prediction", "resolve": "resolve", "check": "rules",
}

__all__ = [
    "Batch", "Bounds", "InputError", "Issue", "ModelSpec", "NoFeasibleStrategyError",
    "Prediction", "Predictions", "SimcoreError", "Strategy", "SystemSpec", "bound", "check",
    "evaluate", "load_model", "load_system", "predict", "resolve",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use: numpy and pydantic cost a tenth of a second each."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'simcore' has no attribute '{name}'")
    value = getattr(import_module(f"simcore.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value
