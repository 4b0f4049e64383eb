"""Closed forms of the papers and the lower bound, against the recurrence."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import Case, cases

from simcore.formulas.pipeline import bubble_frac, lower_bound_s, uniform_makespan_s
from simcore.schedule import makespan


def bound_of(case, times, ranks=None):
    forward, backward, edge = times
    busy = forward + backward
    n = len(edge)
    ranks = np.arange(case.pp) if ranks is None else np.asarray(ranks)
    first = busy[:, 0]
    return lower_bound_s(
        pp=np.full(n, case.pp), vpp=np.full(n, case.vpp), num_microbatches=np.full(n, case.m),
        busy_before_s=(np.cumsum(first, axis=0) - first)[ranks], own_s=busy.sum(axis=1)[ranks],
        ranks_before=np.broadcast_to(ranks[:, None], (len(ranks), n)), edge_s=edge,
        is_1f1b=case.kind == "1f1b")


def exact_of(case, times):
    forward, backward, edge = times
    return makespan(case.kind, **case.shape, forward_s=forward, backward_s=backward,
                    edge_s=edge)[0]


def uniform(case):
    shape = (case.pp, case.vpp, 1)
    return np.full(shape, 1.0), np.full(shape, 2.0), np.zeros(1)


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 3, 8, 64])
def test_narayanan_2021_section_2_2_1_bubble_of_1f1b_and_gpipe(p, m):
    """t_pb / t_id = (p - 1) / m (arXiv:2104.04473)."""
    for kind in ("1f1b", "gpipe"):
        case = Case(kind, p, 1, m, p, 0, "")
        end = exact_of(case, uniform(case))[0]
        assert end / (3.0 * m) - 1 == pytest.approx(bubble_frac(p, 1, m), abs=1e-12)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("v", [2, 3, 5])
@pytest.mark.parametrize("groups", [1, 2, 5, 16])
def test_narayanan_2021_section_2_2_2_bubble_of_the_interleaved_schedule(p, v, groups):
    """t_pb / t_id = (1 / v) (p - 1) / m for m a multiple of p (arXiv:2104.04473)."""
    m = groups * p
    case = Case("interleaved", p, v, m, p, 0, "")
    end = exact_of(case, uniform(case))[0]
    assert end / (3.0 * v * m) - 1 == pytest.approx(bubble_frac(p, v, m), abs=1e-12)
    assert end == pytest.approx(uniform_makespan_s(p, v, m, 3.0))
    assert bound_of(case, uniform(case))[0] == pytest.approx(end)  # the bound is exact here


def test_1f1b_of_equal_stages_is_m_plus_p_minus_1_slots():
    case = Case("1f1b", 4, 1, 10, 4, 0, "")
    assert exact_of(case, uniform(case))[0] == (10 + 4 - 1) * 3.0
    assert uniform_makespan_s(4, 1, 10, 3.0) == pytest.approx(39.0)


@settings(max_examples=1000, deadline=None)
@given(cases(), st.booleans())
def test_the_lower_bound_never_exceeds_the_exact_time(case, first_and_last_only):
    times = case.times(6)
    ranks = sorted({0, case.pp - 1}) if first_and_last_only else None
    assert (bound_of(case, times, ranks) <= exact_of(case, times) * (1 + 1e-12)).all()


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_the_lower_bound_holds_for_any_choice_of_ranks(case, data):
    ranks = data.draw(st.lists(st.integers(0, case.pp - 1), min_size=1, max_size=4))
    times = case.times(3)
    bound = bound_of(case, times, ranks)
    assert (bound <= exact_of(case, times) * (1 + 1e-12)).all()
    assert (bound <= bound_of(case, times) * (1 + 1e-12)).all()


def test_rows_of_different_schedules_are_bounded_at_once():
    a, b = Case("1f1b", 4, 1, 9, 4, 1, "random"), Case("interleaved", 3, 2, 6, 3, 2, "random")
    parts = []
    for case in (a, b):
        forward, backward, edge = case.times(1)
        busy = forward + backward
        first = np.cumsum(busy[:, 0], axis=0) - busy[:, 0]
        ends = [0, case.pp - 1]
        parts.append((first[ends], busy.sum(axis=1)[ends], np.array(ends)[:, None], edge))
    before, own, ranks, edge = (np.concatenate(x, axis=-1) for x in zip(*parts, strict=True))
    got = lower_bound_s(pp=np.array([4, 3]), vpp=np.array([1, 2]),
                        num_microbatches=np.array([9, 6]), busy_before_s=before, own_s=own,
                        ranks_before=ranks, edge_s=edge, is_1f1b=np.array([True, False]))
    want = [bound_of(c, c.times(1), [0, c.pp - 1])[0] for c in (a, b)]
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_how_close_the_lower_bound_is():
    """Print it; and hold what is reached for uneven stages (embedding and a heavier head)."""
    rng = np.random.default_rng(0)
    gaps = defaultdict(list)
    for seed in range(60):
        pp = int(rng.choice([2, 4, 8]))
        m = pp * int(rng.integers(1, 9))
        for kind in ("1f1b", "interleaved"):
            vpp = int(rng.integers(2, 6)) if kind == "interleaved" else 1
            case = Case(kind, pp, vpp, m, pp, seed, "uneven")
            forward, backward, _ = case.times(20)
            times = forward, backward, np.full(20, 0.002)
            for ranks, which in ((None, "all ranks"), ([0, pp - 1], "first and last rank")):
                gaps[kind, which].append(1 - bound_of(case, times, ranks) / exact_of(case, times))
    for (kind, which), parts in gaps.items():
        gap = np.concatenate(parts)
        print(f"{kind}, {which}: equal in {np.mean(gap < 1e-12):.0%}, mean gap {gap.mean():.3%}, "
              f"largest {gap.max():.2%}")
        assert gap.mean() < 0.006
