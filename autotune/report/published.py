"""Errors that others publish on the same runs, to stand beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PUBLISHED: Mapping[str, str] = MappingProxyType({
    # SimuMax 1.2, docs/b200/b200_release_v1.2_summary.json: mean over the same 20 rows.
    "simumax/b200.csv": "SimuMax 1.2: time 7.1 %, memory 0.46 %",
    # SimuMax 1.0, docs/FULL_RESULTS.md: only the largest errors stand out.
    "simumax/a100_pcie.csv": "SimuMax 1.0: time up to 3.8 %, memory up to 4.8 %",
    # vTrain, MICRO 2024, section 6.1.
    "vtrain2024/single.csv": "vTrain: time 8.4 %",
    "vtrain2024/multi.csv": "vTrain: time 14.7 %",
    # Calculon, calculon/llm/validation.py, on 8 runs of the paper.
    "papers/korthikanti2022.csv": "Calculon: time 3.7 %",
})


def published_error(file: str) -> str:
    """Return what others report on a table; empty where nothing is known."""
    path = file.replace("\\", "/")
    return next((text for name, text in PUBLISHED.items() if path.endswith(name)), "")
