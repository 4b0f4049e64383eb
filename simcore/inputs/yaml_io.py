"""Read YAML and JSON strictly, and turn pydantic's findings into our messages."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from simcore.errors import InputError, Issue

MAX_BYTES = 4 * 2**20
"""Nothing that describes a model or a cluster is larger; a hostile file may be."""
MAX_DEPTH = 40
M = TypeVar("M", bound=BaseModel)
_Base: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Base):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> object:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key '{str(key)[:60]}'", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads no as False, 1:30 as 90 and 2024-01-01 as a date. Only what YAML 1.2 calls a
# boolean, a null or a number is one here; the rest stays text, and the typed check that follows
# says so.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in found
            if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool",
                           "tag:yaml.org,2002:int", "tag:yaml.org,2002:float")]
    for first, found in _StrictLoader.yaml_implicit_resolvers.items()
}


def _resolve(tag: str, pattern: str, first: str) -> None:
    import re
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern),
                                        list(first))


_resolve("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolve("int", r"^[-+]?[0-9]{1,18}$", "-+0123456789")
_resolve("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$",
         "-+0123456789.")


def _construct_int(loader: object, node: yaml.ScalarNode) -> int:
    return int(node.value)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def read_text(path: Path) -> str:
    """Read a small text file.

    Raises
    ------
    InputError
        The path is missing, a directory, unreadable, too large or no UTF-8 text.
    """
    try:
        if path.is_dir():
            raise InputError(Issue(str(path), "is a directory, a file is needed"))
        if not path.exists():
            raise InputError(Issue(str(path), "does not exist"))
        if not path.is_file():
            # A pipe or a device may have no end.
            raise InputError(Issue(str(path), "is not a regular file"))
        if path.stat().st_size > MAX_BYTES:
            raise InputError(Issue(str(path), f"is larger than {MAX_BYTES // 2**20} MiB"))
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Issue(str(path)[:200], f"cannot be read: {reason}")) from error
    if len(data) > MAX_BYTES:
        raise InputError(Issue(str(path), f"is larger than {MAX_BYTES // 2**20} MiB"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Issue(str(path), "is not UTF-8 text")) from error


def parse_yaml(text: str, *, where: str) -> object:
    """Parse YAML (JSON is a subset) without the traps of YAML 1.1.

    Raises
    ------
    InputError
        Malformed text, duplicate keys, aliases, several documents, or nesting too deep.
    """
    try:
        if "*" in text and any(isinstance(e, yaml.AliasEvent)
                               for e in yaml.parse(text, Loader=_Base)):
            # Aliases of aliases grow without bound when they are walked.
            raise InputError(Issue(where, "uses YAML aliases (*name), which are not allowed"))
        loader = _StrictLoader(text)
        try:
            data: object = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(Issue(where, f"is not valid YAML: {place}{problem}")) from error
    except (RecursionError, ValueError) as error:
        raise InputError(Issue(where, f"is not valid YAML: {str(error)[:100]}")) from error
    return data


def parse_json(text: str, *, where: str) -> object:
    """Parse JSON, refusing duplicate keys and numbers that JSON does not have."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in items:
            if key in found:
                raise ValueError(f"duplicate key '{key[:60]}'")
            found[key] = value
        return found

    def constant(name: str) -> object:
        raise ValueError(f"{name} is not a JSON number")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise InputError(Issue(where, f"is not valid JSON: {str(error)[:160]}")) from error


def read_data(path: Path) -> object:
    """Read a YAML or JSON file, by its ending."""
    text = read_text(path)
    if path.suffix.lower() == ".json":
        return parse_json(text, where=str(path))
    return parse_yaml(text, where=str(path))


def require_mapping(data: object, *, where: str) -> dict[str, object]:
    """Return `data` as a mapping with text keys, or say that the file must hold one."""
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise InputError(Issue(where, f"must hold a mapping of keys to values, got {kind}"))
    wrong = [key for key in data if not isinstance(key, str)]
    if wrong:
        raise InputError([Issue(f"{where}: {str(key)[:60]}", "every key must be text")
                          for key in wrong[:20]])
    return data


def validate(kind: type[M], data: object, *, where: str) -> M:
    """Check a mapping against a spec and report all problems at once.

    Raises
    ------
    InputError
        One issue a problem, with file and key path.
    """
    mapping = require_mapping(data, where=where)
    try:
        # Strict, so that no text or boolean passes for a number; by way of JSON, where a list is
        # a tuple and text an enum's value.
        return kind.model_validate_json(json.dumps(mapping), strict=True)
    except ValidationError as error:
        raise InputError([_issue(kind, e, where) for e in error.errors()]) from error  # type: ignore[arg-type]
    except RecursionError as error:
        raise InputError(Issue(where, "is nested too deeply")) from error
    except (TypeError, ValueError) as error:
        raise InputError(Issue(where, f"holds what JSON cannot: {str(error)[:100]}")) from error


def _issue(kind: type[BaseModel], error: dict[str, object], where: str) -> Issue:
    from simcore.errors import nearest

    loc = [str(part) for part in error["loc"]]  # type: ignore[attr-defined]
    path = ".".join(loc)
    place = f"{where}: {path}" if path else where
    given = repr(error.get("input"))
    given = given if len(given) <= 60 else given[:57] + "..."
    match error["type"]:
        case "missing":
            return Issue(place, "is needed")
        case "extra_forbidden":
            return Issue(place, "is not a known key",
                         nearest(loc[-1], _keys_at(kind, loc[:-1])))
        case "value_error":
            return Issue(place, str(error["msg"]).removeprefix("Value error, "))
        case _:
            message = str(error["msg"])
            return Issue(place, f"{message[:1].lower()}{message[1:]}, got {given}")


def _keys_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    """Keys that a spec knows at a path; the top's where the path leaves the spec."""
    current: type[BaseModel] = kind
    for part in path:
        field = current.model_fields.get(part)
        if field is None:
            break
        options = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if not inner:
            break
        current = inner[0]
    return list(current.model_fields)
