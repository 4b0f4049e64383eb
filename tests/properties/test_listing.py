"""The listing of memory adds up to the peak, on random strategies."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from test_simulator import HOLDS, MODELS, SEEDS, SYSTEMS, evaluated

from simcore.explain import explain_memory


@HOLDS
@given(name=st.sampled_from(MODELS), system=st.sampled_from(SYSTEMS), seed=SEEDS)
def test_tensors_add_up_to_the_peak_of_every_stage(name: str, system: str, seed: int) -> None:
    found = evaluated(name, system, seed)
    for i in range(len(found)):
        fullest = explain_memory(found.row(i))
        assert math.isclose(fullest.peak_bytes, found.row(i)["peak_memory_bytes"], rel_tol=1e-12)
        for stage in range(int(found.batch["pp"][i])):
            listing = explain_memory(found.row(i), stage)
            assert listing.peak_bytes <= fullest.peak_bytes
            total = math.fsum(t.bytes for t in listing.tensors)
            assert math.isclose(total, listing.peak_bytes, rel_tol=1e-9)
            for t in listing.tensors:
                whole = math.prod(t.shape) * t.value_bytes * t.count
                assert math.isclose(t.bytes, whole, rel_tol=1e-9), t.name
                assert t.source
