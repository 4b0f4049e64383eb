"""Where the time of a step goes, what resources gain, and how sure a step is."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from simcore.batch import Batch
from simcore.breakdown import TIME_TERMS
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.interval import RunClass, Spread, relative_interval, spread_of, spreads
from simcore.operator_table import operator_table
from simcore.prediction import Prediction, predict
from simcore.profiles import missing_version
from simcore.resolve import resolve
from simcore.time_listing import RESOURCES, gains, uses, without

CASES = (
    ("llama3-8b", {"gpus": 16, "tp": 2, "pp": 4, "gbs": 64}),
    ("llama3-8b", {"gpus": 16, "pp": 4, "gbs": 64, "recompute": "full", "recompute_layers": 3}),
    ("llama3-8b", {"gpus": 16, "pp": 4, "gbs": 64, "recompute": "mlp", "schedule": "dualpipe"}),
    ("llama3-8b", {"gpus": 16, "gbs": 64, "framework": "torchtitan"}),
    ("deepseek-v2-lite", {"gpus": 16, "ep": 8, "gbs": 64}),
)
TERMS = {"pp_comm": "pp_comm_s", "dp_comm": "dp_comm_s", "optimizer": "optimizer_s",
         "bubble": "bubble_s", "tp_comm": "tp_comm_s", "cp_comm": "cp_comm_s",
         "ep_comm": "ep_comm_s", "other": "other_s"}


def made(model: str, fields: dict[str, object]) -> Prediction:
    return predict(load_model(model), load_system("h100-sxm"), Strategy.from_mapping(fields))


@pytest.mark.parametrize(("model", "fields"), CASES)
def test_operators_sum_to_the_terms_of_the_busiest_stage_and_to_the_step(model, fields):
    prediction = made(model, fields)
    totals: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(TIME_TERMS, 0.0))
    for use in uses(prediction):
        name = TERMS.get(use.term, "compute_s")
        if use.phase == "recompute" and use.term in ("compute", "other"):
            name = "recompute_s"
        totals[use.stage][name] += use.time_s
    for terms in totals.values():
        assert sum(terms.values()) == pytest.approx(prediction["step_time_s"], rel=1e-9)
    stage = min(totals, key=lambda s: totals[s]["bubble_s"])
    for name in TIME_TERMS:
        assert totals[stage][name] == pytest.approx(
            prediction[name], abs=1e-9 * prediction["step_time_s"]), name


def test_gains_are_predictions_with_the_resource_changed():
    prediction = made(*CASES[0])
    found = {row["resource"]: row for row in gains(prediction)}
    assert set(found) == set(RESOURCES)
    assert all(row["gain_s"] >= 0 for row in found.values())
    assert found["tensor cores"]["gain_pct"] > found["NIC"]["gain_pct"]
    free = without(load_system("h100-sxm"), "NVLink")
    again = predict(load_model(CASES[0][0]), free, Strategy.from_mapping(CASES[0][1]))
    assert found["NVLink"]["step_time_s"] == pytest.approx(again["step_time_s"])


def test_the_cpu_bounds_small_layers_only():
    small = made("gpt2", {"gpus": 8, "gbs": 64, "seq_len": 256})
    assert next(r for r in gains(small) if r["resource"] == "CPU launch")["gain_s"] > 0


def test_operator_table_counts_the_work():
    rows = {(r["operator"], r["phase"]): r for r in operator_table(made(
        "llama3-8b", {"gpus": 8, "tp": 2, "gbs": 32, "seq_len": 4096}))}
    fc1 = rows["mlp_fc1_fwd", "forward"]
    # 4096 tokens, 2 x 14336 gated features over tp 2, hidden 4096.
    assert fc1["shape"] == "4096x14336x4096"
    assert fc1["layout"] == "TN"
    assert fc1["flop"] == 2 * 4096 * 14336 * 4096
    assert fc1["count"] == 32 * 8  # layers x micro-batches
    assert all(r["efficiency"] is None or 0 < r["efficiency"] <= 1 for r in rows.values())
    assert sum(r["share_of_step"] for r in rows.values()) <= 1


def test_an_interval_encloses_the_prediction_and_grows_with_what_is_unknown():
    known = spreads()
    own = RunClass("megatron-bridge", "h100-sxm", False, False)
    other = own._replace(system="mtt-s5000")
    assert all(spread.low <= 0 <= spread.high for spread in known.values())
    base = {own._replace(system=None, low_precision=None): Spread(-0.1, 0.1, 50, 0.05)}
    wide = spread_of(other, base)
    assert wide.high > 0.1
    assert wide.low < -0.1
    prediction = made(*CASES[0])
    assert prediction["step_time_s_p10"] <= prediction["step_time_s"]
    assert prediction["step_time_s"] <= prediction["step_time_s_p90"]


def test_a_version_without_a_profile_has_a_wider_interval():
    model, system = load_model("llama3-8b"), load_system("h100-sxm")
    width = []
    for version in ("0.16", "0.18"):
        given = Batch.from_strategies([Strategy(gpus=8, framework_version=version)])
        low, high, _ = relative_interval(model, system, resolve(model, system, given), given)
        width.append(float(np.log(high / low)[0]))
    assert width[1] == pytest.approx(1.25 * width[0])


@pytest.mark.parametrize(("asked", "used"), [
    ("0.16", ""), ("core_r0.16.0", ""), ("0.18", "of 0.16, the nearest earlier"),
    ("0.9", "of 0.1, the nearest earlier"), ("0.0.1", "of 0.1, the oldest"),
    ("99", "of 0.19, the nearest earlier")])
def test_the_profile_that_stands_in_for_a_version_is_named(asked, used):
    said = missing_version(Strategy(framework="megatron", framework_version=asked))
    assert (used in said) if used else not said
