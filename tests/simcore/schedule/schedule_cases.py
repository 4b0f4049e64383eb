"""Random schedules for the property tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st


class Case(NamedTuple):
    kind: str
    pp: int
    vpp: int
    m: int
    group: int
    seed: int
    mode: str

    @property
    def shape(self):
        return {"pp": self.pp, "vpp": self.vpp, "num_microbatches": self.m,
                "group_size": self.group}

    def times(self, n):
        """forward_s, backward_s (pp, vpp, n) and edge_s (n,) of this case."""
        rng = np.random.default_rng(self.seed)
        shape = (self.pp, self.vpp, n)
        if self.mode == "random":
            forward, backward = rng.random(shape), rng.random(shape)
        elif self.mode == "integers":  # many equal paths
            forward = rng.integers(0, 4, shape) + 0.0
            backward = rng.integers(1, 4, shape) + 0.0
        elif self.mode == "noise":  # slow to become periodic
            forward = 1 + 0.02 * rng.random(shape)
            backward = 2 * forward
        else:  # 'uneven': embedding on the first chunk, a heavier head on the last
            forward = np.ones(shape)
            forward[0, 0] += 0.03
            forward[-1, -1] += 0.2 * rng.random(n)
            backward = 2 * forward
        return forward, backward, rng.choice([0.0, 0.002, 0.05, 1.0], n)


@st.composite
def cases(draw, max_microbatches=60, kinds=("1f1b", "interleaved", "gpipe")):
    kind = draw(st.sampled_from(kinds))
    pp = draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**31))
    mode = draw(st.sampled_from(("random", "integers", "noise", "uneven")))
    if kind != "interleaved":
        m = draw(st.integers(1, max_microbatches))
        vpp = 1 if kind == "1f1b" else draw(st.integers(1, 3))
        return Case(kind, pp, vpp, m, pp, seed, mode)
    group = draw(st.integers(pp, pp + 3))
    m = group * draw(st.integers(1, max(1, max_microbatches // group)))
    # A remainder must be 0 or at least pp: Megatron refuses the others.
    m += draw(st.sampled_from((0, *range(pp, group))))
    return Case(kind, pp, draw(st.integers(1, 4)), m, group, seed, mode)
