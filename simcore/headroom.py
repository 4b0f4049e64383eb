"""How far routing may drift before a rank's experts fill the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.prediction import Prediction, bound
from simcore.units import GIB

MOST_IMBALANCE = 64.0
"""Imbalances are tried up to here."""
STEPS = 65


@dataclass(frozen=True)
class ExpertHeadroom:
    """Rows that the experts of one rank take in a micro-batch and layer.

    Parameters
    ----------
    imbalance : float
        Rows of the fullest rank over the even share, as predicted.
    rows : float
        Those rows [tokens x top-k].
    imbalance_at_limit : float or None
        Imbalance up to which the likely use stays within the memory; None: no imbalance that a
        capacity factor or the number of ranks allows exceeds it.
    headroom_rows : float or None
        Rows more than predicted that still fit; negative where too many are predicted.
    """

    imbalance: float
    rows: float
    imbalance_at_limit: float | None
    headroom_rows: float | None


def expert_headroom(prediction: Prediction, *,
                    limit_bytes: float | None = None) -> ExpertHeadroom | None:
    """Find how far routing may drift; None for a model without experts.

    Parameters
    ----------
    prediction : Prediction
    limit_bytes : float, optional
        Memory that may be used; all that the driver reports where it is left out [B].
    """
    found, i = prediction.predictions, prediction.index
    frame = found.frame
    if not frame.model.is_moe:
        return None
    limit = found.system.accelerator.memory_gib * GIB if limit_bytes is None else limit_bytes
    now = float(found.batch.real("expert_imbalance")[i])
    rows = float(frame.spread(frame.local.routed_rows)[i])
    # All rows of the expert group on one of its ranks.
    most = min(max(float(found.batch["ep"][i]), 1.0), MOST_IMBALANCE)
    tried = np.linspace(1.0, max(most, now, 1.0), STEPS)
    batch = found.batch.take(np.full(STEPS, i)).with_columns({"expert_imbalance": tried})
    used = bound(found.model, found.system, batch).device_memory_bytes
    if used[-1] <= limit:
        return ExpertHeadroom(now, rows, None, None)
    even = rows / now
    if used[0] > limit:
        return ExpertHeadroom(now, rows, 1.0, even - rows)
    at = int(np.argmax(used > limit))
    share = (limit - used[at - 1]) / (used[at] - used[at - 1])
    reach = float(tried[at - 1] + share * (tried[at] - tried[at - 1]))
    return ExpertHeadroom(now, rows, reach, even * reach - rows)
