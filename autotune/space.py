"""What is searched: for every field a value, a list of values, or `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from simcore.errors import InputError, Issue, nearest
from simcore.inputs.codec import Value, parse
from simcore.inputs.fields import FIELD, FIELD_NAMES, Kind
from simcore.inputs.model import ModelSpec
from simcore.inputs.yaml_io import parse_yaml, read_data, require_mapping

AUTO = "auto"
Values = tuple[Value, ...] | None
"""Values of an axis in their order; None stands for `auto`."""

NO_AUTO = ("gpus", "framework_version")
LONG_SEQ_LEN = 65536
"""From here on the default space is the one for long contexts."""


@dataclass(frozen=True)
class SearchSpace:
    """A named set of axes.

    Parameters
    ----------
    name : str
    axes : mapping of str to tuple or None
        Values by field; one value fixes the field, None lets the model, the system and the
        other fields decide (`auto`). Fields left out take their defaults.
    source : str
        File that it was read from.
    """

    name: str
    axes: Mapping[str, Values]
    source: str = ""

    def override(self, given: Mapping[str, object], *, where: str = "") -> SearchSpace:
        """Return the space with some axes replaced.

        Parameters
        ----------
        given : mapping
            Field names to a value, a list, text such as ``1,2,4``, or ``auto``.
        where : str
            Put in front of field names in messages.

        Raises
        ------
        InputError
            With every unknown field and every illegal value.
        """
        issues: list[Issue] = []
        axes = dict(self.axes)
        for name, raw in given.items():
            if raw is not None:
                axes[name] = _axis(name, raw, issues, where=where)
        if issues:
            raise InputError(issues)
        return SearchSpace(self.name, axes, self.source)


def _axis(name: str, raw: object, issues: list[Issue], *, where: str) -> Values:
    field = FIELD.get(name)
    if field is None:
        issues.append(Issue(f"{where}{str(name)[:80]}", "is not a strategy field",
                            nearest(str(name), FIELD_NAMES)))
        return ()
    # The layout that is called 'auto' is a value of its own.
    if isinstance(raw, str) and raw.strip().lower() == AUTO and field.kind is not Kind.TEXT:
        if name in NO_AUTO:
            issues.append(Issue(where + name, "has no 'auto'", "give a value or a list"))
        return None
    parts = raw.split(",") if isinstance(raw, str) else raw
    parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    if not parts:
        issues.append(Issue(where + name, "is an empty list", "give a value, a list or auto"))
    values: list[Value] = []
    for part in parts:
        value = parse(field, part, where=where)
        if isinstance(value, Issue):
            issues.append(value)
        elif value not in values:
            values.append(value)
    return tuple(values)


def space_names() -> list[str]:
    """Names of the spaces that are built in."""
    return sorted(p.name.removesuffix(".yaml") for p in files("search_spaces").iterdir()
                  if p.name.endswith(".yaml"))


def load_space(source: str | Path) -> SearchSpace:
    """Read a space: a built-in name, else a file.

    Raises
    ------
    InputError
        An unknown name, an unreadable file, or what is wrong inside it.
    """
    text = str(source)
    names = space_names()
    if text.lower() in names:
        where = f"search_spaces/{text.lower()}.yaml"
        data = parse_yaml((files("search_spaces") / f"{text.lower()}.yaml").read_text("utf-8"),
                          where=where)
    elif "/" in text or "." in text or Path(text).exists():
        where, data = text, read_data(Path(text))
    else:
        raise InputError(Issue("space", f"'{text[:80]}' is not known", nearest(text, names)))
    mapping = require_mapping(data, where=where)
    issues = [Issue(f"{where}: {key[:60]}", "is not a known key",
                    nearest(key, ("name", "description", "axes")))
              for key in mapping if key not in ("name", "description", "axes")]
    axes: dict[str, Values] = {}
    if "axes" not in mapping:
        issues.append(Issue(f"{where}: axes", "is needed"))
    else:
        raw = require_mapping(mapping["axes"], where=f"{where}: axes")
        axes = {name: _axis(name, value, issues, where=f"{where}: axes.")
                for name, value in raw.items()}
    if issues:
        raise InputError(issues)
    return SearchSpace(str(mapping.get("name", Path(text).stem)), axes, where)


def default_space(model: ModelSpec, seq_len: int | None = None) -> SearchSpace:
    """Choose the built-in space for a model: experts, long context or dense."""
    if model.is_moe:
        return load_space("moe")
    return load_space("long_context" if (seq_len or model.seq_len) >= LONG_SEQ_LEN else "dense")
