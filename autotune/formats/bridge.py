"""Megatron-Bridge (NeMo) recipes and overrides as a model and a strategy.

A recipe is Python; it is parsed and its assignments are read, nothing of it runs.

References
----------
megatron-bridge 0.3.1, ``recipes/common.py`` (`_pretrain_common`) and
``training/mixed_precision.py``: what a recipe starts from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

from autotune.formats.bridge_recipe import Recipe
from autotune.formats.imported import Arguments, Data, Ignored, Imported
from autotune.formats.megatron import from_arguments
from autotune.formats.megatron_flags import FLAG_OF_DEST, MODEL_FLAGS
from simcore.errors import InputError, Issue
from simcore.inputs.fields import FIELD
from simcore.inputs.load import load_model
from simcore.inputs.model import ModelSpec

COMMON: Mapping[str, object] = {
    "train.global_batch_size": 32, "train.micro_batch_size": 2, "dataset.seq_length": 4096,
    "ddp.grad_reduce_in_fp32": True, "ddp.overlap_grad_reduce": True,
    "ddp.overlap_param_gather": True, "ddp.use_distributed_optimizer": True,
    "mixed_precision": "bf16_mixed"}
"""What ``_pretrain_common`` sets."""
_READ = ("model", "ddp", "train", "optimizer", "mixed_precision", "comm_overlap", "dist")
_DEST = {flag.bridge_key: flag.dest for flag in FLAG_OF_DEST.values()}
_RECIPES: Mapping[str, Data] = {
    "fp8_delayed_scaling": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "fp8_current_scaling": {"fp8": "hybrid", "fp8_recipe": "tensorwise",
                            "fp8_param_gather": True},
    "fp8_subchannel_scaling": {"fp8": "hybrid", "fp8_recipe": "blockwise",
                               "fp8_param_gather": False},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True,
              "reuse_grad_buf_for_mxfp8_param_ag": True},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"}}
_QUIET = ("moe_flex_dispatcher_backend", "pipeline_dtype", "moe_router_padding_for_fp8",
          "moe_router_fusion", "rotary_base", "offload_modules", "batch_p2p_comm",
          "moe_a2a_overlap")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)\s*=\s*(.*)\Z", re.S)


def is_overrides(text: str) -> bool:
    """Tell whether a text is a list of dotted overrides."""
    lines = [line.strip() for line in text.splitlines()
             if line.strip() and not line.lstrip().startswith("#")]
    words = [w for line in lines for w in ([line] if " " not in line else line.split())]
    return bool(words) and all(_OVERRIDE.match(w.rstrip("\\")) or w == "\\" for w in words)


def from_overrides(text: str, *, name: str, where: str, model: str = "") -> Imported:
    """Read overrides such as ``model.tensor_model_parallel_size=4``, one a line or a word.

    Parameters
    ----------
    model : str
        The built-in model that they are for; else they must describe one.
    """
    values: dict[str, object] = {}
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        for word in line.split():
            if found := _OVERRIDE.match(word):
                values[found[1].removeprefix("cfg.")] = _literal(found[2].strip("'\""))
    return from_values(values, name=name, where=where, model=model)


def from_values(values: Mapping[str, object], *, name: str, where: str,
                model: str = "") -> Imported:
    """Read overrides by dotted key, on top of what every recipe starts from."""
    if not model and "model.num_layers" not in values:
        raise InputError(Issue(f"{where}: model", "is needed: the overrides describe none",
                               "name it with --model"))
    return _imported({**COMMON, **values}, name=name, where=where, model=model)


def _literal(text: str) -> object:
    if text in ("None", "null", "~"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("[") and text.endswith("]") and not set(text[1:-1]) & set("[](){}"):
        # Hydra's lists hold bare words.
        return [_literal(part.strip().strip("'\"")) for part in text[1:-1].split(",") if part]
    try:
        value = ast.literal_eval(text[:2000])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, (int, float, str, list)) else text


def from_recipe(text: str, *, name: str, where: str, recipe: str = "",
                model: str = "") -> Imported:
    """Read one recipe function of a Python file.

    Parameters
    ----------
    recipe : str
        The function's name; may be left out where the file has one.
    """
    read = Recipe(text, where=where, name=recipe)
    if not (model or read.model) and "model.num_layers" not in read.values:
        raise InputError(Issue(f"{where}: {read.name}: model", f"is {read.provider or 'unknown'}, "
                               "whose sizes stand in another file", "name it with --model"))
    values = {**(COMMON if read.is_pretraining else {}), **read.values}
    imported = _imported(values, name=name, where=f"{where}: {read.name}",
                         model=model or read.model)
    imported.ignored += [Ignored(what, "", "is not followed") for what in read.notes]
    return imported


def _imported(values: Mapping[str, object], *, name: str, where: str, model: str) -> Imported:
    arguments: dict[str, object] = {"add_bias_linear": False}
    for key, value in values.items():
        section, _, rest = key.partition(".")
        if section in _READ and rest:
            arguments[_DEST.get(key, rest.replace(".", "_"))] = value
    if arguments.get("seq_length") is None:
        arguments["seq_length"] = values.get("dataset.seq_length")
    arguments = {**_precision(values, where), **arguments}
    a = Arguments(arguments, where, spelled={f.dest: f.bridge_key
                                             for f in FLAG_OF_DEST.values()})
    spec = load_model(model) if model else None
    known = spec.name if spec else ""
    backend = arguments.get("moe_flex_dispatcher_backend")
    imported = from_arguments(
        a, name=name, framework="megatron-bridge", model_name=known,
        num_layers=spec.num_layers if spec else None, is_moe=spec.is_moe if spec else None)
    imported.kind = "megatron-bridge"
    # What neither recipe nor override says is the profile's default, not Megatron-LM's.
    told = {f.field for f in FLAG_OF_DEST.values() if f.dest in arguments}
    for field in list(imported.strategy):
        if (FIELD[field].group == "kernels" and field not in told
                and field not in ("cross_entropy", "cuda_graph", "attention")):
            del imported.strategy[field]
    if imported.model:
        imported.model["source"] = "Megatron-Bridge overrides"
    imported.ignored = [i for i in imported.ignored if i.name not in _QUIET
                        and not i.name.startswith("--") and i.value not in ("False", "None", "[]")]
    if spec:
        imported.ignored += _model_overrides(arguments, spec)
    if backend in ("deepep", "hybridep") and imported.strategy.get("dispatcher") == "alltoall":
        imported.ignored.append(Ignored("model.moe_flex_dispatcher_backend", str(backend),
                                        "used only with moe_token_dispatcher_type flex"))
    return imported


def _model_overrides(arguments: Mapping[str, object], spec: ModelSpec) -> list[Ignored]:
    """List sizes that are set and are not those of the model that is named."""
    found = []
    for flag in MODEL_FLAGS:
        value = arguments.get(flag.dest)
        start: Any = spec
        own = reduce(lambda part, name: getattr(part, name, None),
                     flag.field.split("."), start)
        if flag.field == "tied_embeddings":
            own = not own
        if value is not None and own is not None and str(value) != str(own):
            found.append(Ignored(flag.bridge_key, str(value)[:80],
                                 f"the model is {spec.name}, which has {own}"))
    return found


def _precision(values: Mapping[str, object], where: str) -> Data:
    named = str(values.get("mixed_precision") or "bf16_mixed").replace("-", "_")
    found: Data = {"bf16": not named.startswith("fp16"), "fp16": named.startswith("fp16")}
    if named not in ("bf16_mixed", "fp16_mixed"):
        recipe = next((v for k, v in _RECIPES.items() if k in named), None)
        if recipe is None:
            raise InputError(Issue(f"{where}: mixed_precision", f"'{named[:60]}' is not known",
                                   "use one of Megatron-Bridge's recipes, such as bf16_mixed"))
        found.update(recipe)
    return found
