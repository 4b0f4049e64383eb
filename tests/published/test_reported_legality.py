"""Configurations that users reported (L1 to L12): verdict, rule, and nearest legal values.

Public issue threads of Megatron-LM, Megatron-Bridge and estimators; each case stands for its
kind. What is legal follows Megatron-Core 0.19.2 (`transformer_config.py`, `arguments.py`,
`pipeline_parallel/schedules.py`); tolerance none, since verdicts are exact.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.batch import Batch
from simcore.errors import Issue
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.layout import layouts
from simcore.placement import groups, place
from simcore.resolve import resolve
from simcore.rules import check

SYSTEM = load_system("h100-sxm")
DENSE, EXPERTS = load_model("llama3-70b"), load_model("deepseek-v3")


def model(base: ModelSpec = DENSE, **changes: object) -> ModelSpec:
    return ModelSpec.model_validate({**base.model_dump(), **changes})


def issues(spec: ModelSpec, strategy: Strategy) -> tuple[Issue, ...]:
    given = Batch.from_strategies([strategy])
    return check(spec, SYSTEM, resolve(spec, SYSTEM, given), given=given).issues(0)


def only(spec: ModelSpec, strategy: Strategy) -> str:
    found = issues(spec, strategy)
    assert found
    return "\n".join(str(issue) for issue in found)


def layers(spec: ModelSpec, strategy: Strategy) -> list[int]:
    found, index = layouts(spec, resolve(spec, SYSTEM, Batch.from_strategies([strategy])))
    layout = found[index[0]]
    assert layout is not None
    return [len(chunk) for chunk in layout.chunks]


def test_l1_layers_that_do_not_divide_into_chunks() -> None:
    strategy = Strategy(gpus=128, tp=8, pp=16, vpp=2)
    text = only(DENSE, strategy)
    assert "80 layers do not divide into pp*vpp (16*2 = 32) chunks" in text
    assert "first_stage_layers 12 and last_stage_layers 12" in text
    assert "vpp 1 or 5" in text
    assert not issues(DENSE, replace(strategy, first_stage_layers=12, last_stage_layers=12))
    assert sum(layers(DENSE, replace(strategy, pp_layout="auto"))) == 80


def test_l2_no_layer_is_dropped() -> None:
    spec = model(num_layers=30)
    strategy = Strategy(gpus=32, tp=8, pp=4)
    text = only(spec, strategy)
    assert "30 layers do not divide" in text
    assert "first_stage_layers 7 and last_stage_layers 7" in text
    assert layers(spec, replace(strategy, first_stage_layers=7, last_stage_layers=7)) == [
        7, 8, 8, 7]


def test_l3_a_split_must_add_up() -> None:
    text = only(model(num_layers=20), Strategy(gpus=8, last_stage_layers=1))
    assert "last_stage_layers: a pipeline of one stage holds all 20 layers, got 1" in text
    assert "last_stage_layers 20" in text


def test_l4_the_split_that_works_is_offered() -> None:
    spec = model(EXPERTS, num_layers=46, mtp_num_layers=0)
    strategy = Strategy(gpus=512, tp=8, pp=4, ep=16, etp=1)
    text = only(spec, strategy)
    assert "first_stage_layers 11 and last_stage_layers 11" in text
    split = replace(strategy, first_stage_layers=11, last_stage_layers=11)
    assert layers(spec, split) == [11, 12, 12, 11]


@pytest.mark.parametrize(("heads", "divisors", "offered"), [
    (28, "1, 2, 4, 7, 14 or 28", "1, 2 or 4"), (52, "1, 2, 4, 13, 26 or 52", "1, 2 or 4"),
    (12, "1, 2, 3, 4, 6 or 12", "1, 2 or 4")])
def test_l5_heads_divide_by_tp(heads: int, divisors: str, offered: str) -> None:
    spec = model(num_attention_heads=heads, num_query_groups=heads, hidden_size=128 * heads,
                 head_dim=128, ffn_hidden_size=2184 * heads)
    found = issues(spec, Strategy(gpus=64, tp=8))
    heads_issue = next(i for i in found if "num_attention_heads" in i.message)
    assert heads_issue.message == (
        f"must divide num_attention_heads ({heads}), so be {divisors}, got 8")
    # Of the divisors those that divide the GPUs too.
    assert heads_issue.fix == f"use {offered}"


def test_l6_query_groups_by_version() -> None:
    spec = model(num_query_groups=2)
    strategy = Strategy(gpus=64, tp=8)
    assert not issues(spec, strategy)
    text = only(spec, replace(strategy, framework_version="0.15"))
    assert "tp: must divide num_query_groups (2) in megatron 0.15, got 8. Use 1 or 2" in text
    assert issues(model(num_query_groups=2, num_attention_heads=66),
                  Strategy(gpus=66, tp=3, framework_version="0.19"))


def test_l7_experts_have_a_grid_of_their_own() -> None:
    strategy = Strategy(gpus=8, tp=2, pp=2, ep=8, etp=1)
    text = only(load_model("mixtral-8x7b"), strategy)
    assert "ep: etp*ep*pp (1*8*2 = 16) must divide gpus (8), got 8. Use 1, 2 or 4" in text
    assert not issues(load_model("mixtral-8x7b"), replace(strategy, ep=4))


@pytest.mark.parametrize(("strategy", "nearest"), [
    (Strategy(gpus=32, tp=4, gbs=65, mbs=4), "32, 64, 96"),
    (Strategy(gpus=7, gbs=256, mbs=2), "238, 252, 266")])
def test_l8_nearest_legal_gbs(strategy: Strategy, nearest: str) -> None:
    text = only(DENSE, strategy)
    assert "gbs: must be a multiple of dp*mbs" in text
    assert nearest in text


def test_l9_interleaving_needs_enough_micro_batches() -> None:
    spec = model(num_layers=48)
    strategy = Strategy(gpus=48, tp=8, pp=6, vpp=2, gbs=3)
    text = only(spec, strategy)
    assert "pp <= microbatch_group_size <= micro-batches" in text
    assert "Use 6, 12" in text
    assert not issues(spec, replace(strategy, gbs=6))
    # A rest of at least pp is legal, a smaller one is not.
    assert issues(spec, replace(strategy, gbs=26, microbatch_group_size=8))
    assert not issues(spec, replace(strategy, gbs=30, microbatch_group_size=8))


@pytest.mark.parametrize(("count", "pp", "vpp", "ends"), [
    (94, 12, 8, (0, 0)), (126, 16, 8, (0, 0)), (126, 8, 8, (1, 1)), (94, 4, 8, (2, 2))])
def test_l10_embedding_and_loss_count_as_a_layer(count: int, pp: int, vpp: int,
                                                 ends: tuple[int, int]) -> None:
    spec = model(num_layers=count)
    strategy = Strategy(gpus=8 * pp, tp=8, pp=pp, vpp=vpp, gbs=16 * pp)
    assert not issues(spec, strategy)
    found = layers(spec, strategy)
    assert sum(found) == count
    assert (found[0], found[-1]) == ends


@pytest.mark.parametrize(("pp", "vpp"), [(4, 1), (8, 1), (16, 1), (8, 2), (16, 4)])
def test_l10_61_layers_with_a_prediction_layer(pp: int, vpp: int) -> None:
    strategy = Strategy(gpus=8 * pp, pp=pp, vpp=vpp, ep=8)
    assert not issues(EXPERTS, strategy)
    assert sum(layers(EXPERTS, strategy)) == 61


def test_l10_61_layers_without_it_are_offered_a_split() -> None:
    strategy = Strategy(gpus=128, pp=16, ep=8, mtp=0)
    assert "first_stage_layers 2 and last_stage_layers 3" in only(EXPERTS, strategy)
    assert sum(layers(EXPERTS, replace(strategy, pp_layout="auto"))) == 61


def test_l12_the_link_follows_from_where_the_ranks_sit() -> None:
    spec = model(num_query_groups=16, num_attention_heads=64)
    strategy = Strategy(gpus=64, tp=16)
    assert not issues(spec, strategy)
    batch = resolve(spec, SYSTEM, Batch.from_strategies([strategy]))
    assert place(groups(batch)["tp"], SYSTEM.network).nodes.item() == 2
