"""What must hold of every batch, whatever is in it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.batch import Batch
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.resolve import resolve
from simcore.rules import RULES, Context, check

MODEL, EXPERTS = load_model("llama3-70b"), load_model("mixtral-8x7b")
SYSTEM = load_system("h100-sxm")

rows = st.builds(
    Strategy,
    gpus=st.sampled_from([8, 60, 64, 256]), tp=st.sampled_from([None, 1, 2, 3, 8]),
    pp=st.sampled_from([None, 1, 2, 4, 16]), vpp=st.sampled_from([None, 1, 2, 5]),
    cp=st.sampled_from([None, 1, 2]), ep=st.sampled_from([None, 1, 2, 8]),
    mbs=st.sampled_from([None, 1, 3]), gbs=st.sampled_from([None, 64, 100, 512]),
    sp=st.sampled_from([None, True, False]), zero=st.sampled_from([None, 0, 1, 3]),
    recompute=st.sampled_from([None, "none", "full", "core_attn+mlp"]),
    recompute_layers=st.sampled_from([None, 0, 4]),
    precision=st.sampled_from([None, "bf16", "fp8-cs", "fp16"]),
    pp_layout=st.sampled_from([None, "none", "auto", "20|20|20|20", "8|8|8|8", "nonsense"]),
    framework=st.sampled_from([None, "megatron", "fsdp", "torchtitan"]),
    exp_avg_dtype=st.sampled_from([None, "bf16"]),
    expert_imbalance=st.sampled_from([None, 1.0, 2.0]),
)
many = st.lists(rows, min_size=1, max_size=12)


@given(strategies=many)
@settings(max_examples=60, deadline=None)
def test_rows_come_back(strategies: list[Strategy]) -> None:
    batch = Batch.from_strategies(strategies)
    assert [batch.row(i) for i in range(len(batch))] == strategies


@given(strategies=many, data=st.data())
@settings(max_examples=60, deadline=None)
def test_take_and_chunks(strategies: list[Strategy], data: st.DataObject) -> None:
    batch = Batch.from_strategies(strategies)
    index = data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=6))
    taken = batch.take(np.array(index))
    assert [taken.row(i) for i in range(len(taken))] == [strategies[i] for i in index]
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))))
    masked = batch.take(keep)
    assert [masked.row(i) for i in range(len(masked))] == [
        s for s, k in zip(strategies, keep, strict=True) if k]
    size = data.draw(st.integers(1, 5))
    parts = list(batch.chunks(size))
    assert all(len(part) <= size for part in parts)
    assert [part.row(i) for part in parts for i in range(len(part))] == strategies


@given(strategies=many, names=st.lists(st.sampled_from(["tp", "pp", "sp", "framework", "gbs",
                                                        "expert_imbalance"]), unique=True))
@settings(max_examples=60, deadline=None)
def test_group_partitions_the_rows(strategies: list[Strategy], names: list[str]) -> None:
    first, inverse = Batch.from_strategies(strategies).group(names)
    keys = [tuple(getattr(s, name) for name in names) for s in strategies]
    assert [keys[first[k]] for k in inverse] == keys
    assert len({keys[i] for i in first}) == len(first)
    assert all(row == inverse.tolist().index(k) for k, row in enumerate(first))


@given(strategies=many)
@settings(max_examples=60, deadline=None)
def test_a_row_does_not_depend_on_its_neighbours(strategies: list[Strategy]) -> None:
    for model in (MODEL, EXPERTS):
        together = resolve(model, SYSTEM, Batch.from_strategies(strategies))
        report = check(model, SYSTEM, together)
        assert sum(report.tally().values()) == int((~report.ok).sum())
        for i, strategy in enumerate(strategies):
            alone = resolve(model, SYSTEM, Batch.from_strategies([strategy]))
            assert alone.row(0) == together.row(i)
            assert check(model, SYSTEM, alone).first[0] == report.first[i]
        again = resolve(model, SYSTEM, together)
        assert all(np.array_equal(again.columns[n], c) for n, c in together.columns.items())


@given(strategy=rows)
@settings(max_examples=60, deadline=None)
def test_refused_rows_have_issues_and_legal_ones_none(strategy: Strategy) -> None:
    for model in (MODEL, EXPERTS):
        given_batch = Batch.from_strategies([strategy])
        batch = resolve(model, SYSTEM, given_batch)
        report = check(model, SYSTEM, batch, given=given_batch)
        issues = report.issues(0)
        assert bool(issues) == (not report.ok[0])
        assert all(issue.message and len(str(issue)) < 900 for issue in issues)
        # A search that knows only some fields gets the same answers.
        partial = Context(model, SYSTEM, batch, partial=True)
        bad = [bool(np.broadcast_to(rule.violated(partial), (1,))[0]) for rule in RULES]
        assert any(bad) == bool(issues)
