"""``autotune models``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.commands.failures import DONE
from autotune.commands.inputs import output_format, text
from simcore.inputs.load import load_model, model_aliases, model_names
from simcore.inputs.model import ModelSpec


def _parameters(model: ModelSpec) -> dict[str, Any]:
    from simcore.parameters import active_parameters, total_parameters
    return {"parameters": total_parameters(model),
            "active_parameters": active_parameters(model)}


def describe(model: ModelSpec) -> dict[str, Any]:
    """Return one model's figures."""
    known = model.name in model_names()
    return {"name": model.name, "aliases": list(model_aliases(model.name)) if known else [],
            **_parameters(model), **model.model_dump(mode="json", exclude={"name"})}


def overview(name: str) -> dict[str, Any]:
    """Return a model's row of the list."""
    model = load_model(name)
    kind = "moe" if model.is_moe else "dense"
    return {"name": name, "kind": kind, **_parameters(model), "num_layers": model.num_layers,
            "hidden_size": model.hidden_size, "num_attention_heads": model.num_attention_heads,
            "num_query_groups": model.num_query_groups, "seq_len": model.seq_len,
            "aliases": list(model_aliases(name))}


def run(values: Mapping[str, object]) -> int:
    """List models, or show one."""
    style = output_format(values)
    from autotune.report.catalogue import emit_list, emit_one

    name = text(values, "name")
    if name is not None:
        emit_one(describe(load_model(name)), style=style)
    else:
        emit_list("models", [overview(known) for known in model_names()], style=style)
    return DONE
