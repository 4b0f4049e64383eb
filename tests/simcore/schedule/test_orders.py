"""Orders and activations in flight, against Megatron-Core's own schedules and the reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from schedule_cases import cases
from schedule_reference import most_alive, rank_ops

from simcore.schedule import in_flight_by_chunk, in_flight_chunks
from simcore.schedule.orders import rank_order

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "schedule_orders.json").read_text())["cases"]
SHAPE = ("pp", "vpp", "num_microbatches", "group_size")


def as_text(order):
    return " ".join(f"{'FB'[what]}{chunk}.{m}" for what, chunk, m in order.T)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: "-".join(str(c[k]) for k in SHAPE))
def test_orders_are_those_that_megatron_core_runs(case):
    shape = {name: case[name] for name in SHAPE}
    for rank, order in enumerate(case["orders"]):
        assert as_text(rank_order(case["kind"], **shape, rank=rank)) == order


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: "-".join(str(c[k]) for k in SHAPE))
def test_in_flight_is_that_of_megatron_core(case):
    shape = {name: case[name] for name in SHAPE}
    got = in_flight_chunks(case["kind"], **shape, rank=np.arange(case["pp"]))
    for order, most in zip(case["orders"], got, strict=True):
        ops = [(op[0], int(op[1:].split(".")[0]), 0) for op in order.split()]
        assert most_alive(ops, case["vpp"])[0] == most


@settings(max_examples=300, deadline=None)
@given(cases(max_microbatches=30))
def test_orders_and_in_flight_equal_the_reference(case):
    for rank in range(case.pp):
        ops = rank_ops(case.kind, case.pp, case.vpp, case.m, case.group, rank)
        order = rank_order(case.kind, **case.shape, rank=rank)
        assert [("FB"[w], c, i) for w, c, i in order.T] == ops
        most, mixes = most_alive(ops, case.vpp)
        assert in_flight_chunks(case.kind, **case.shape, rank=rank) == most
        got = in_flight_by_chunk(case.kind, **case.shape, rank=rank)
        assert tuple(got[0]) == next(mix for mix in mixes if sum(mix) == most)
        assert {tuple(row) for row in got} <= set(mixes)
        weights = np.random.default_rng(case.seed).random((case.vpp, 5))
        np.testing.assert_allclose((got @ weights).max(0), (np.array(mixes) @ weights).max(0))


@pytest.mark.parametrize(("kind", "pp", "vpp", "m", "rank", "chunks"), [
    ("interleaved", 4, 5, 8, 0, 23),   # llama3-70b tp8 pp4 vpp5
    ("interleaved", 4, 4, 32, 0, 19),
    ("1f1b", 4, 1, 8, 0, 4), ("1f1b", 4, 1, 8, 1, 3), ("1f1b", 4, 1, 8, 2, 2),
    ("1f1b", 4, 1, 2, 0, 2), ("1f1b", 1, 1, 7, 0, 1), ("gpipe", 4, 2, 8, 3, 16),
])
def test_in_flight_figures(kind, pp, vpp, m, rank, chunks):
    got = in_flight_chunks(kind, pp=pp, vpp=vpp, num_microbatches=m, group_size=pp, rank=rank)
    assert got == chunks


def test_in_flight_takes_arrays():
    got = in_flight_chunks(np.array(["interleaved", "1f1b"]), pp=np.array([4, 4]),
                           vpp=np.array([5, 1]), num_microbatches=np.array([8, 8]),
                           group_size=np.array([4, 4]), rank=np.array([0, 1]))
    assert got.tolist() == [23, 3]


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="schedule must be one of"):
        in_flight_chunks("some-other", pp=2, vpp=1, num_microbatches=2, group_size=2, rank=0)
