"""``autotune check``."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.commands.failures import DONE, NOTHING_FITS, say
from autotune.commands.inputs import output_format, read_case


def run(values: Mapping[str, object]) -> int:
    """Check one strategy: legality, then fit."""
    style = output_format(values)
    case = read_case(values)
    from simcore.errors import InputError
    from simcore.prediction import predict

    try:
        prediction = predict(case.model, case.system, case.strategy)
    except InputError as error:
        if style != "table":
            from autotune.report.emit import emit_illegal
            emit_illegal(case.model.name, case.system.name, case.strategy.given(), error.issues,
                         style=style)
        raise
    data = prediction.to_dict()
    fits = data["verdict"] != "does_not_fit"
    from autotune.changes import remedies
    from autotune.report.emit import emit_check
    from autotune.risks import why_marginal
    data["marginal"] = why_marginal(prediction, case.strategy, data["memory"]["stages"])
    changes = () if fits else tuple(change.to_dict() for change in remedies(
        case.model, case.system, case.strategy))
    emit_check(data, changes, style=style)
    if fits:
        return DONE
    limit, needed = data["system"]["memory_gib"], data["device_memory_gib"]
    way = f"with {changes[0]['change']} it would" if changes else "no single change helps"
    say(f"error: does not fit: {needed:.1f} GiB needed, {limit:.1f} GiB there; {way}")
    return NOTHING_FITS
