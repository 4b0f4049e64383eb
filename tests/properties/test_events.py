"""The event simulation against the vectorised prediction, on random legal strategies."""

from __future__ import annotations

import numpy as np
import pytest
from test_simulator import MODELS, SYSTEMS, random_rows

from simcore.events import memory_track, operator_spans, run_orders, simulate_step
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import evaluate, predict
from simcore.schedule.orders import rank_order
from simcore.units import GIB

CASES = [(m, s, 10 * i + j) for i, m in enumerate(MODELS) for s in SYSTEMS for j in range(2)]
"""With 16 strategies each, a thousand."""


def steps(model, system, seed, count=16):
    rows = random_rows(load_model(model), load_system(system), seed)
    found = evaluate(load_model(model), load_system(system), rows.take(slice(count)))
    return [(found.row(i), simulate_step(found.row(i))) for i in range(len(found))]


@pytest.mark.parametrize(("model", "system", "seed"), CASES)
def test_makespan_and_memory_equal_the_prediction(model, system, seed):
    for prediction, step in steps(model, system, 7000 + seed):
        assert step.end_s == pytest.approx(prediction["step_time_s"], rel=1e-9)
        stages = prediction.to_dict()["memory"]["stages"]
        tracks = [memory_track(step, rank).peak_bytes / GIB for rank in range(step.pp)]
        np.testing.assert_allclose(tracks, [s["peak_memory_gib"] for s in stages], rtol=1e-9)
        assert max(tracks) == pytest.approx(prediction["peak_memory_bytes"] / GIB, rel=1e-9)


@pytest.mark.parametrize(("model", "system", "seed"), CASES[::9])
def test_operators_fill_each_operation(model, system, seed):
    for _, step in steps(model, system, 8000 + seed, 3):
        for rank, order in enumerate(step.run.orders):
            took = step.run.end_s[rank] - step.run.start_s[rank]
            for kind, chunk in {(k, c) for k, c, _ in order.T.tolist()}:
                spans = operator_spans(step, kind=kind, rank=rank, chunk=chunk)
                at = np.flatnonzero((order[0] == kind) & (order[1] == chunk))
                # Ends are sums of many operations; what is late in a step has fewer digits.
                np.testing.assert_allclose(sum(s.duration_s for s in spans), took[at], rtol=1e-7)
                starts = [s.start_s for s in spans]
                assert starts == sorted(starts)


def test_one_f_one_b_of_four_equal_stages():
    """Narayanan et al., arXiv:2104.04473: (m + p - 1)(f + b), at most p micro-batches alive."""
    pp, m = 4, 8
    one = np.ones((pp, 1))
    orders = [rank_order("1f1b", pp=pp, vpp=1, num_microbatches=m, group_size=1, rank=r)
              for r in range(pp)]
    run = run_orders(orders, vpp=1, forward_s=one, backward_s=2 * one, edge_s=0.0)
    assert run.ends_s.max() == (m + pp - 1) * 3
    assert run.start_s[3][0] == 3.0


def test_an_order_that_waits_for_itself_is_refused():
    backward_first = np.array([[1, 0], [0, 0], [0, 0]])
    with pytest.raises(ValueError, match="deadlocks"):
        run_orders([backward_first], vpp=1, forward_s=np.ones((1, 1)),
                   backward_s=np.ones((1, 1)), edge_s=0.0)


def test_stages_show_their_own_micro_batches_in_flight():
    """1F1B holds min(pp - stage, m) micro-batches (Narayanan et al., section 2.2)."""
    found = predict(load_model("llama3-70b"), load_system("h100-sxm"),
                    Strategy(gpus=64, tp=8, pp=4))
    kept = [s["activations_gib"] for s in found.to_dict()["memory"]["stages"]]
    assert kept[0] / kept[1] == pytest.approx(4 / 3)
    assert kept[1] / kept[2] == pytest.approx(3 / 2)
