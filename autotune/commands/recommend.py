"""``autotune recommend``."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.commands.failures import DONE
from autotune.commands.inputs import (
    Problems,
    given_fields,
    number,
    output_format,
    read_model,
    read_system,
)
from simcore.errors import InputError, NoFeasibleStrategyError


def run(values: Mapping[str, object]) -> int:
    """Say how few GPUs hold a model, and what a number of them holds."""
    style = output_format(values)
    problems = Problems()
    model = problems.collect(lambda: read_model(values))
    system = problems.collect(lambda: read_system(values))
    gpus = number(values, "gpus", problems, minimum=1, maximum=2**20, whole=True)
    problems.settle()
    if model is None or system is None:
        raise InputError(problems.issues)
    from autotune.recommend import Question, recommend

    given = {name: value for name, value in given_fields(values).items() if name != "gpus"}
    question = Question(model, system, given, marginal=not values.get("no_marginal"))
    # What is wrong with the fields is said before anything is searched.
    question.problem(gpus=int(gpus or 1))
    try:
        data = recommend(question, None if gpus is None else int(gpus))
    except NoFeasibleStrategyError as error:
        details = getattr(error, "details", None)
        if details is not None and style in ("json", "yaml"):
            from autotune.report.emit import emit_json, emit_yaml
            nothing = {"model": model.name, "system": system.name,
                       "gpus": None if gpus is None else int(gpus), "max_mbs": None,
                       "max_seq_len": None, "min_gpus": details["fits_on_gpus"],
                       "nearest_miss": details}
            (emit_json if style == "json" else emit_yaml)(nothing)
        raise
    from autotune.report.emit import emit_recommendation
    emit_recommendation(data, style=style)
    return DONE
