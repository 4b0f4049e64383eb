"""How much a step depends on each figure of the system: predicted anew with the figure changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.prediction import predict

FIGURES: Mapping[str, tuple[str, tuple[str, ...], bool]] = {
    "matrix rate": ("accelerator", ("peak_bf16_tflops", "peak_fp8_tflops", "peak_fp4_tflops"),
                    True),
    "memory bandwidth": ("accelerator", ("memory_bandwidth_gb_per_s",), True),
    "scale-up bandwidth": ("network", ("scale_up_gb_per_s",), True),
    "scale-up latency": ("network", ("scale_up_latency_us", "collective_base_us"), False),
    "NIC bandwidth": ("network", ("nic_gb_per_s",), True),
    "scale-out latency": ("network", ("scale_out_latency_us",), False),
    "kernel launch gap": ("efficiency", ("launch_s_per_kernel_us",), False),
}
"""What is varied: section of the system file, its figures, and whether more is better."""


@dataclass(frozen=True)
class Change:
    """What one changed figure does to a step.

    Parameters
    ----------
    figure : str
        Key of `FIGURES`.
    factor : float
        By which its figures were multiplied.
    is_better : bool
        Whether that is an improvement.
    step_time_s : float
        The step with it [s].
    step_pct : float
        Against the step as it is [%].
    """

    figure: str
    factor: float
    is_better: bool
    step_time_s: float
    step_pct: float


def with_figure(system: SystemSpec, figure: str, factor: float) -> SystemSpec:
    """Return a system whose figures of one kind are multiplied.

    Parameters
    ----------
    system : SystemSpec
    figure : str
        Key of `FIGURES`.
    factor : float
        Above zero.
    """
    section, names, _ = FIGURES[figure]
    part = getattr(system, section)
    changed = part.model_copy(update={name: getattr(part, name) * factor for name in names})
    return system.model_copy(update={section: changed})


def sensitivity(model: ModelSpec, system: SystemSpec, strategy: Strategy, *,
                share: float = 0.1) -> tuple[Change, ...]:
    """Predict a step with each figure of the system a share better and worse.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
    strategy : Strategy
    share : float
        Above 0 and below 1.

    Returns
    -------
    tuple of Change
        Two a figure, those that matter most first.

    Raises
    ------
    InputError
        Illegal strategy.
    """
    base = predict(model, system, strategy)["step_time_s"]
    found: list[tuple[Change, Change]] = []
    for figure, (_, _, more_is_better) in FIGURES.items():
        pair = []
        for is_better in (True, False):
            factor = 1.0 + share if more_is_better == is_better else 1.0 - share
            step = predict(model, with_figure(system, figure, factor), strategy)["step_time_s"]
            pair.append(Change(figure, factor, is_better, step, 100.0 * (step / base - 1.0)))
        found.append((pair[0], pair[1]))
    found.sort(key=lambda pair: -max(abs(change.step_pct) for change in pair))
    return tuple(change for pair in found for change in pair)
