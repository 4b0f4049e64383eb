"""``autotune predict``."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.commands.failures import DONE, say
from autotune.commands.inputs import Problems, number, output_format, read_case, text
from autotune.commands.options import EXPLAINED


def run(values: Mapping[str, object]) -> int:
    """Predict one strategy and print it; done whatever the verdict."""
    style = output_format(values)
    problems, stage = Problems(), None
    what = text(values, "explain")
    if what is not None and what not in EXPLAINED:
        known = " or ".join(EXPLAINED)
        problems.add("--explain", f"must be {known}, got '{what[:60]}'", f"use {known}")
    if text(values, "stage") is not None:
        if what is None:
            problems.add("--stage", "needs --explain", "leave it out")
        stage = number(values, "stage", problems, minimum=0, maximum=4095, whole=True)
    case = problems.collect(lambda: read_case(values))
    problems.settle()
    if case is None:
        return DONE
    from autotune.report.emit import emit_explained, emit_prediction
    from simcore.prediction import predict

    prediction = predict(case.model, case.system, case.strategy)
    from autotune.risks import expert_rows, why_marginal
    data, given = prediction.to_dict(), tuple(case.strategy.given())
    data["marginal"] = why_marginal(prediction, case.strategy, data["memory"]["stages"])
    data["experts"] = expert_rows(prediction)
    if what is None:
        emit_prediction(data, style=style, given=given)
    elif what == "time":
        from autotune.report.time import emit_time, of_stage
        from simcore.time_listing import explain_time
        found = of_stage(explain_time(prediction), None if stage is None else int(stage))
        emit_time({**data, "explain": {"time": found}}, style=style)
    else:
        from simcore.explain import explain_memory
        listing = explain_memory(prediction, None if stage is None else int(stage))
        emit_explained({**data, "explain": {"memory": listing.to_dict()}}, style=style)
    if values.get("pictures") and style == "table":
        from autotune.report.pictures import print_prediction_pictures
        print_prediction_pictures(prediction, data)
    if data["verdict"] == "does_not_fit":
        say("note: it does not fit; 'autotune check' with the same options names changes that "
            "would make it fit")
    return DONE
