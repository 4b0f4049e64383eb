"""``autotune predict``."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.commands.failures import DONE
from autotune.commands.inputs import output_format, read_case


def run(values: Mapping[str, object]) -> int:
    """Predict one strategy and print it; done whatever the verdict."""
    style = output_format(values)
    case = read_case(values)
    from simcore.prediction import predict

    data = predict(case.model, case.system, case.strategy).to_dict()
    from autotune.report.emit import emit_prediction
    emit_prediction(data, style=style, given=tuple(case.strategy.given()))
    return DONE
