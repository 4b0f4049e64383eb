"""Find out what kind of file a user brings, and read it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from autotune.formats.imported import Arguments, Imported
from simcore.errors import InputError, Issue, nearest
from simcore.inputs.fields import FIELD
from simcore.inputs.yaml_io import read_data

KINDS = ("huggingface", "megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "simumax")
MAX_BYTES = 8 << 20
_DEEPSPEED = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization",
              "gradient_accumulation_steps")


def read_text(path: str) -> str:
    """Read a text file, or standard input for ``-``.

    Raises
    ------
    InputError
        There is none, it is too large or not text.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            if Path(path).exists() and not Path(path).is_file():
                # A pipe or a device may have no end.
                raise InputError(Issue(path[:200], "is not a regular file"))
            with Path(path).open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no path"
        raise InputError(Issue(path[:200], f"cannot be read: {reason}")) from error
    if len(data) > MAX_BYTES:
        raise InputError(Issue(path[:200], f"is larger than {MAX_BYTES >> 20} MiB"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Issue(path[:200], "is not a text file")) from error
    if "\0" in text:
        raise InputError(Issue(path[:200], "is not a text file"))
    return text.replace("\r\n", "\n")


def mapping_kind(data: Mapping[str, object]) -> str:
    """Kind of a JSON or YAML mapping; empty where it is none of another program's."""
    if {"head_num", "layer_num"} <= set(data) or {"world_size", "tp_size"} <= set(data) or (
            {"sys_name", "accelerator"} <= set(data)):
        return "simumax"
    if "model_type" in data or "architectures" in data:
        return "huggingface"
    if any(key in data for key in _DEEPSPEED):
        return "deepspeed"
    if "language_model" in data or "model_parallel" in data or "micro_batch_size" in data or (
            "tensor_model_parallel_size" in data):
        return "megatron-lm"
    inner = data.get("model")
    if isinstance(inner, dict) and any("parallel_size" in key for key in inner):
        return "megatron-bridge"
    return ""


def text_kind(text: str) -> str:
    """Kind of a text that is neither JSON nor YAML; empty where it is unknown."""
    from autotune.formats.bridge import is_overrides
    from autotune.formats.megatron import is_argument_text

    if "ConfigContainer" in text and "def " in text:
        return "megatron-bridge"
    if is_argument_text(text):
        return "megatron-lm"
    return "megatron-bridge" if is_overrides(text) else ""


def read_file(path: str, *, kind: str = "", recipe: str = "", model: str = "",
              vocab_size: int | None = None) -> Imported:
    """Read a file of another program.

    Parameters
    ----------
    path : str
        A file, a folder with a ``config.json``, or ``-`` for standard input.
    kind : str
        One of `KINDS`; found out where it is empty.
    recipe : str
        Function of a Megatron-Bridge file.
    model : str
        Built-in model, where the file leaves it to another.
    vocab_size : int or None
        Where the file leaves it to the tokenizer.

    Raises
    ------
    InputError
        It cannot be read, is of no known kind, or holds what is wrong or not modelled.
    """
    if kind and kind not in KINDS:
        raise InputError(Issue("--from", f"must be one of {', '.join(KINDS)}, got '{kind[:60]}'",
                               nearest(kind, KINDS)))
    source = path
    if path != "-" and Path(path).is_dir():
        source = str(Path(path) / "config.json")
    name = "model" if path == "-" else (
        Path(source).resolve().parent.name if Path(source).name == "config.json"
        else Path(source).stem)
    name = name[:200] or "model"
    text = read_text(source)
    suffix = Path(source).suffix.lower()
    if suffix == ".toml" or kind == "torchtitan":
        from autotune.formats.torchtitan import from_toml
        return from_toml(_toml(text, path), where=path)
    if suffix in (".json", ".yaml", ".yml") or text.lstrip().startswith("{"):
        return _from_mapping(_data(source, text), path=path, name=name, kind=kind, model=model,
                             vocab_size=vocab_size)
    found = kind or text_kind(text)
    if found == "megatron-lm":
        from autotune.formats.megatron import from_script
        return _kind(from_script(text, name=name, where=path, vocab_size=vocab_size), found)
    if found == "megatron-bridge":
        from autotune.formats import bridge
        if suffix == ".py" or "def " in text:
            return bridge.from_recipe(text, name=name, where=path, recipe=recipe, model=model)
        return bridge.from_overrides(text, name=name, where=path, model=model)
    raise InputError(Issue(path[:200], "is no file that is known here",
                           f"name its kind with --from: {', '.join(KINDS)}"))


def _kind(imported: Imported, kind: str) -> Imported:
    imported.kind = kind
    return imported


def _toml(text: str, path: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(Issue(path[:200], f"is not TOML: {str(error)[:120]}")) from error


def _data(source: str, text: str) -> dict[str, object]:
    import json

    if source != "-" and Path(source).suffix.lower() in (".json", ".yaml", ".yml"):
        data = read_data(Path(source))
    else:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(Issue(source, f"is not JSON: {str(error)[:120]}")) from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(Issue(source, "must hold a mapping"))
    return data


def _from_mapping(data: dict[str, object], *, path: str, name: str, kind: str, model: str,
                  vocab_size: int | None) -> Imported:
    found = kind or mapping_kind(data)
    match found:
        case "huggingface":
            from simcore.inputs.hf import model_from_hf
            spec = model_from_hf(data, name=name, where=path)
            return Imported(found, model=spec.model_dump(mode="json", exclude_defaults=True))
        case "simumax":
            return _simumax(data, path=path, name=name)
        case "deepspeed":
            from autotune.formats.deepspeed import strategy_from
            return strategy_from(data, where=path)
        case "megatron-lm":
            from autotune.formats.megatron import from_arguments
            a = Arguments(_flat(data), path)
            return _kind(from_arguments(a, name=name, framework="megatron",
                                        vocab_size=vocab_size), found)
        case "megatron-bridge":
            from autotune.formats.bridge import from_values
            return from_values(_dotted(data), name=name, where=path, model=model)
    if set(data) & {"num_layers", "hidden_size", "strategy", *FIELD}:
        raise InputError(Issue(path[:200], "is a file of autotune's own, no import is needed",
                               "give it to predict, check or search"))
    raise InputError(Issue(path[:200], "is no file that is known here",
                           f"name its kind with --from: {', '.join(KINDS)}"))


def _simumax(data: dict[str, object], *, path: str, name: str) -> Imported:
    from autotune.formats import simumax

    if "accelerator" in data:
        return simumax.system_from(data, where=path, name=name)
    if "layer_num" in data:
        return simumax.model_from(data, where=path, name=name)
    return simumax.strategy_from(data, where=path)


def _flat(data: Mapping[str, object]) -> dict[str, object]:
    """Put the sections of Megatron's YAML into one mapping; the last of a name counts."""
    found: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found.update(value)
        else:
            found[key] = value
    # The YAML names the activation, the command line has a switch for each.
    if found.get("activation_func") == "swiglu":
        found["swiglu"] = True
    elif found.get("activation_func") == "squaredrelu":
        found["squared_relu"] = True
    if found.get("num_query_groups"):
        found["group_query_attention"] = True
    return found


def _dotted(data: Mapping[str, object], prefix: str = "", depth: int = 0) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, dict) and depth < 8:
            found.update(_dotted(value, f"{prefix}{key}.", depth + 1))
        else:
            found[f"{prefix}{key}"] = value
    return found
