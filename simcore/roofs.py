"""Peak rates of a system in SI units."""

from __future__ import annotations

from simcore.local import Local
from simcore.units import TERA


def bf16_flops_per_s(local: Local) -> float:
    """Dense bf16 peak [FLOP/s]."""
    return local.system.accelerator.peak_bf16_tflops * TERA
