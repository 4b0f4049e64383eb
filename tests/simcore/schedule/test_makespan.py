"""The recurrence against a plain event simulation, and what must hold of any schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from schedule_cases import Case, cases
from schedule_reference import simulate

from simcore.schedule import base, makespan
from simcore.schedule.plan import make_plan

N = 3


def run(case, times):
    forward, backward, edge = times
    return makespan(case.kind, **case.shape, forward_s=forward, backward_s=backward, edge_s=edge)


@settings(max_examples=400, deadline=None)
@given(cases())
@example(Case("1f1b", 2, 1, 34, 2, 0, "integers"))
@example(Case("interleaved", 4, 2, 57, 6, 0, "noise"))
def test_equals_the_reference_simulation(case):
    forward, backward, edge = times = case.times(N)
    got = run(case, times)
    for i in range(N):
        want = simulate(case.kind, pp=case.pp, vpp=case.vpp, m=case.m, group=case.group,
                        forward=forward[..., i], backward=backward[..., i], edge=edge[i])
        np.testing.assert_allclose(got[:, i], want, rtol=1e-12)


@pytest.mark.parametrize("shape", [("1f1b", 4, 1, 300, 4), ("1f1b", 8, 1, 200, 8),
                                   ("interleaved", 4, 5, 128, 4), ("interleaved", 3, 2, 82, 5)])
@pytest.mark.parametrize("mode", ["random", "integers", "noise", "uneven"])
def test_periods_are_skipped_exactly(shape, mode, monkeypatch):
    case = Case(*shape, 5, mode)
    assert make_plan(*shape).block is not None
    times = case.times(200)
    quick = run(case, times)
    monkeypatch.setattr(base, "_PERIODIC_RTOL", -1.0)  # nothing counts as periodic
    np.testing.assert_allclose(quick, run(case, times), rtol=1e-12)
    forward, backward, edge = times
    want = simulate(case.kind, pp=case.pp, vpp=case.vpp, m=case.m, group=case.group,
                    forward=forward[..., 7], backward=backward[..., 7], edge=edge[7])
    np.testing.assert_allclose(quick[:, 7], want, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(cases(max_microbatches=200))
def test_a_row_does_not_depend_on_the_rows_beside_it(case):
    forward, backward, edge = times = case.times(12)
    together = run(case, times)
    alone = [run(case, (forward[..., i:i + 1], backward[..., i:i + 1], edge[i:i + 1]))
             for i in range(12)]
    assert (together == np.concatenate(alone, axis=1)).all()


def test_chunks_of_candidates_do_not_matter(monkeypatch):
    case = Case("interleaved", 4, 3, 64, 4, 1, "noise")
    times = case.times(300)
    whole = run(case, times)
    monkeypatch.setattr(base, "_BUFFER_BYTES", 1e5)
    assert (run(case, times) == whole).all()


@settings(max_examples=100, deadline=None)
@given(cases())
def test_rank_0_finishes_last_and_no_rank_beats_its_work(case):
    forward, backward, _ = times = case.times(N)
    end = run(case, times)
    assert (end[0] >= end).all()
    busy = case.m * (forward + backward).sum(axis=1)
    assert (end >= busy * (1 - 1e-12)).all()


@settings(max_examples=60, deadline=None)
@given(cases())
def test_longer_operations_never_finish_earlier(case):
    forward, backward, edge = case.times(N)
    longer = run(case, (1.1 * forward, backward, edge + 0.01))
    assert (longer >= run(case, (forward, backward, edge)) * (1 - 1e-12)).all()


def test_one_rank_has_no_bubble_and_no_sends():
    times = np.full((1, 1, 2), 3.0), np.full((1, 1, 2), 5.0), np.full(2, 7.0)
    assert run(Case("1f1b", 1, 1, 9, 1, 0, ""), times).tolist() == [[72.0, 72.0]]


def test_inputs_are_left_alone_and_no_candidates_are_fine():
    case = Case("1f1b", 4, 1, 64, 4, 3, "random")
    times = case.times(5)
    for array in times:
        array.setflags(write=False)
    run(case, times)
    assert run(case, case.times(0)).shape == (4, 0)


@pytest.mark.parametrize("kind", ["1f1b", "zero-bubble", "some-other"])
def test_bad_schedules_are_refused(kind):
    with pytest.raises(ValueError, match="schedule"):
        run(Case(kind, 2, 2, 4, 2, 0, ""), (np.ones((2, 2, 1)), np.ones((2, 2, 1)), np.zeros(1)))


def test_an_order_that_deadlocks_is_refused():
    case = Case("interleaved", 4, 3, 9, 4, 0, "random")  # remainder 1 < pp: Megatron refuses
    forward, backward, edge = times = case.times(1)
    with pytest.raises(ValueError, match="deadlock"):
        simulate(case.kind, pp=4, vpp=3, m=9, group=4, forward=forward[..., 0],
                 backward=backward[..., 0], edge=edge[0])
    with pytest.raises(ValueError, match="deadlock"):
        run(case, times)
