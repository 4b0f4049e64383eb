"""``autotune efficiency``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from autotune.commands.failures import DONE, warn
from autotune.commands.inputs import given_fields, output_format, read_case
from simcore.errors import InputError, Issue
from simcore.inputs.fields import FIELD, Kind

MOST = 1000
"""Combinations of a grid at most."""


def combinations(values: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield the values of the fields that were given as lists, every combination of them.

    Raises
    ------
    InputError
        More than `MOST` combinations.
    """
    lists = {name: [part.strip() for part in str(value).split(",") if part.strip()]
             for name, value in given_fields(values).items()
             if FIELD[name].kind is not Kind.TEXT and "," in str(value)}
    total = 1
    for parts in lists.values():
        total *= len(parts)
    if total > MOST:
        raise InputError(Issue("grid", f"must have at most {MOST} combinations, got {total}",
                               "give shorter lists"))
    for chosen in itertools.product(*lists.values()):
        yield dict(zip(lists, chosen, strict=True))


def run(values: Mapping[str, object]) -> int:
    """Show the operators of one strategy, or of every legal one of a grid."""
    style = output_format(values)
    grid = list(combinations(values))
    from autotune.report.time import emit_efficiency
    from simcore.operator_table import operator_table
    from simcore.prediction import predict

    points, head, problem = [], {}, None
    for varied in grid:
        try:
            case = read_case({**values, **varied})
            prediction = predict(case.model, case.system, case.strategy)
        except InputError as error:
            problem = error
            if len(grid) > 1:
                at = ", ".join(f"{name} {value}" for name, value in varied.items())
                warn(f"left out {at}: {'; '.join(str(issue) for issue in error.issues[:2])}")
            continue
        data = prediction.to_dict()
        head = {"model": data["model"], "system": data["system"]}
        points.append({"varied": varied, "strategy": data["strategy"],
                       "step_time_s": data["step_time_s"],
                       "operators": operator_table(prediction)})
    if problem is not None and not points:
        raise problem
    emit_efficiency({**head, "strategies": points}, style=style)
    return DONE
