"""What failures, restarts and checkpoints leave of a run's time.

Failures come independently at a constant rate (exponential times between them). A run computes
for an interval, writes a checkpoint that blocks it, and so on; a failure loses what was done
since the last checkpoint, and costs a restart, in which the next failure may come too.

References
----------
J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of
the ACM 17(9), 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006: equations 20 (expected time) and 37 (interval).
"The Llama 3 Herd of Models", arXiv:2407.21783, table 5: 419 unexpected interruptions in 54 days
on 16,384 GPUs.
"""

from __future__ import annotations

import numpy as np

from simcore.typing import FloatArray, Num
from simcore.units import HOUR_S

LLAMA3_FAILURES, LLAMA3_DAYS, LLAMA3_GPUS = 419.0, 54.0, 16_384.0
FAILURES_PER_GPU_HOUR = LLAMA3_FAILURES / (LLAMA3_DAYS * 24.0 * LLAMA3_GPUS)
"""Unexpected interruptions: one in 3.09 h on 16,384 GPUs."""


def time_between_failures_s(gpus: Num, failures_per_gpu_hour: Num = FAILURES_PER_GPU_HOUR,
                            ) -> FloatArray:
    """Return the mean time between failures of a run, which any of its GPUs stops [s]."""
    return HOUR_S / (np.asarray(failures_per_gpu_hour, np.float64) * gpus)


def young_interval_s(checkpoint_s: Num, between_failures_s: Num) -> FloatArray:
    """Return Young's interval, sqrt(2 C M): time between two checkpoints [s].

    Parameters
    ----------
    checkpoint_s : float or ndarray
        Time that a checkpoint keeps the run from working, C [s].
    between_failures_s : float or ndarray
        Mean time between failures, M [s].
    """
    root: FloatArray = np.sqrt(2.0 * np.asarray(checkpoint_s, np.float64) * between_failures_s)
    return root


def daly_interval_s(checkpoint_s: Num, between_failures_s: Num) -> FloatArray:
    """Return Daly's higher-order interval: working time between two checkpoints [s].

    sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2 M, else M (equation 37).
    """
    cost = np.asarray(checkpoint_s, np.float64)
    mean = np.asarray(between_failures_s, np.float64)
    ratio = cost / (2.0 * mean)
    series = np.sqrt(2.0 * cost * mean) * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0) - cost
    return np.where(cost < 2.0 * mean, series, mean)


def effective_frac(interval_s: Num, *, checkpoint_s: Num, restart_s: Num,
                   between_failures_s: Num, lag_s: Num = 0.0) -> FloatArray:
    """Return the share of a run's time that goes into training.

    Parameters
    ----------
    interval_s : float or ndarray
        Working time between two checkpoints, tau [s].
    checkpoint_s, restart_s, between_failures_s : float or ndarray
        What a checkpoint keeps the run from working, C; R, from a failure until the run works
        again; M [s].
    lag_s : float or ndarray
        From the end of that pause until the checkpoint is safe, where it is written while the
        run goes on, L [s]. A failure within it falls back on the checkpoint before: on average
        each failure loses L more.

    Returns
    -------
    ndarray
        tau / (M e^((R + L)/M) (e^((tau + C)/M) - 1)), from Daly's equation 20.
    """
    tau = np.asarray(interval_s, np.float64)
    mean = np.asarray(between_failures_s, np.float64)
    lost = np.exp((np.asarray(restart_s, np.float64) + lag_s) / mean)
    share: FloatArray = tau / (mean * lost * np.expm1((tau + checkpoint_s) / mean))
    return share


def goodput_frac(gpus: Num, *, checkpoint_s: Num, restart_s: Num, pause_s: Num | None = None,
                 failures_per_gpu_hour: Num = FAILURES_PER_GPU_HOUR) -> FloatArray:
    """Return the share of time that trains, with checkpoints at Daly's interval.

    Parameters
    ----------
    gpus : int or ndarray
    checkpoint_s : float or ndarray
        From the start of a checkpoint until it is safe [s].
    restart_s : float or ndarray
        From a failure until the run works again [s].
    pause_s : float or ndarray, optional
        How long of `checkpoint_s` the run stands still; all of it where left out [s].
    failures_per_gpu_hour : float or ndarray
    """
    between = time_between_failures_s(gpus, failures_per_gpu_hour)
    pause = np.asarray(checkpoint_s if pause_s is None else pause_s, np.float64)
    return effective_frac(daly_interval_s(pause, between), checkpoint_s=pause,
                          restart_s=restart_s, between_failures_s=between,
                          lag_s=np.maximum(np.asarray(checkpoint_s) - pause, 0.0))
