"""Zero-bubble, DualPipe and DualPipeV: published bubbles and memory, and the event simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.events.queue import run_orders
from simcore.schedule import in_flight_by_chunk, in_flight_chunks, makespan
from simcore.schedule.orders import rank_order
from simcore.schedule.split import SPLIT_KINDS, chunk_runs, routes

FORWARD, INPUT, WEIGHT = 1.2, 1.2, 0.7


def chunks(kind):
    return 1 if kind == "zero-bubble" else 2


def even(kind, pp, m, forward=FORWARD, inputs=INPUT, weight=WEIGHT):
    """Seconds that a rank idles, all stages alike and sends free."""
    full = np.full((pp, chunks(kind), 1), 1.0)
    end = makespan(kind, pp=pp, vpp=chunks(kind), num_microbatches=m, group_size=pp,
                   forward_s=forward * full, backward_s=(inputs + weight) * full,
                   weight_s=weight * full, edge_s=np.zeros(1))
    busy = chunk_runs(kind, m) * chunks(kind) * (forward + inputs + weight)
    return float(end.max()) - busy


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("m", [16, 40])
def test_zero_bubble_paper_table_2(pp, m):
    """(p - 1)(F + B - 2W) for ZB-H1, against (p - 1)(F + B) of 1F1B (arXiv 2401.10241)."""
    # In the paper's letters B is the input's gradient alone: (p - 1)(T_F + T_B - T_W).
    assert even("zero-bubble", pp, m, 1.0, 1.1, 0.7) == pytest.approx((pp - 1) * (1.0 + 1.1 - 0.7))


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 40), (8, 16), (8, 20), (16, 64)])
@pytest.mark.parametrize("weight", [0.7, 1.0, 1.2])
def test_dualpipe_readme_table(pp, m, weight):
    """(PP/2 - 1)(F&B + B - 3W), in which F and B less W take the same time."""
    both = FORWARD + INPUT + weight
    backward = INPUT + weight
    want = (pp / 2 - 1) * (both + backward - 3 * weight)
    assert even("dualpipe", pp, m, weight=weight) == pytest.approx(want, abs=1e-9)
    # "cut in half": PP counts stages, two on each of PP/2 ranks.
    half = pp // 2
    assert even("dualpipev", half, m, weight=weight) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("rank", range(8))
def test_in_flight_as_published(rank):
    alive = {"pp": 8, "num_microbatches": 32, "group_size": 8, "rank": rank}
    # ZB-H1: p micro-batches; DualPipe's table: PP + 1 of its stages, on every rank.
    for kind, vpp, want in (("zero-bubble", 1, 8), ("dualpipe", 1, 9), ("dualpipev", 2, 17)):
        assert in_flight_chunks(kind, vpp=vpp, **alive) == want
        mixes = in_flight_by_chunk(kind, vpp=vpp, **alive)
        assert mixes.sum(axis=1).max() == want


@pytest.mark.parametrize("kind", SPLIT_KINDS)
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (6, 14), (8, 32)])
def test_every_operation_runs_once(kind, pp, m):
    for rank in range(pp):
        order = rank_order(kind, pp=pp, vpp=chunks(kind), num_microbatches=m, group_size=pp,
                           rank=rank).T.tolist()
        kinds = {}
        for what, chunk, i in order:
            kinds.setdefault((chunk, i), []).append(what)
        assert len(kinds) == chunks(kind) * chunk_runs(kind, m)
        # A forward (4: paired) before either a whole backward or its two parts, in that order.
        assert {tuple(own) for own in kinds.values()} <= {(0, 1), (4, 1), (0, 2, 3), (4, 2, 3)}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SPLIT_KINDS), st.sampled_from((2, 4, 6)), st.integers(0, 12),
       st.integers(0, 2**31), st.sampled_from((0.0, 0.05, 1.0)))
def test_equals_the_event_simulation(kind, pp, more, seed, edge):
    m, rng = 2 * pp + 2 * more, np.random.default_rng(seed)
    shape = (pp, chunks(kind))
    forward, inputs, weight = rng.random(shape), rng.random(shape), rng.random(shape)
    got = makespan(kind, pp=pp, vpp=chunks(kind), num_microbatches=m, group_size=pp,
                   forward_s=forward[..., None], backward_s=(inputs + weight)[..., None],
                   weight_s=weight[..., None], edge_s=np.array([edge]))
    orders = [rank_order(kind, pp=pp, vpp=chunks(kind), num_microbatches=m, group_size=pp, rank=r)
              for r in range(pp)]
    run = run_orders(orders, vpp=chunks(kind), forward_s=forward, backward_s=inputs + weight,
                     edge_s=edge, weight_s=weight, ways=routes(kind, pp, chunks(kind)))
    np.testing.assert_allclose(got[:, 0], run.ends_s, rtol=1e-12)
    busy = chunk_runs(kind, m) * (forward + inputs + weight).sum(axis=1)
    assert (got[:, 0] >= busy * (1 - 1e-12)).all()


@pytest.mark.parametrize(("kind", "pp", "m"), [("dualpipe", 3, 8), ("dualpipe", 4, 9),
                                               ("dualpipe", 4, 6), ("dualpipev", 4, 7)])
def test_counts_that_the_repository_refuses(kind, pp, m):
    with pytest.raises(ValueError, match="needs at least 2 pp"):
        rank_order(kind, pp=pp, vpp=2, num_microbatches=m, group_size=pp, rank=0)
