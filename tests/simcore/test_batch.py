"""Batches: rows in, the same rows out."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from simcore.batch import Batch, is_constant
from simcore.degrees import data_parallel, expert_data_parallel, num_microbatches
from simcore.inputs.fields import FIELD_NAMES, UNSET
from simcore.inputs.strategy import Strategy

ROWS = [Strategy(gpus=64, tp=2, pp=4, cp=2, ep=2, etp=1, gbs=128, mbs=2, recompute="mlp+moe"),
        Strategy(gpus=128, tp=8, pp=4, cp=1, ep=4, etp=2, gbs=64, mbs=1, pp_layout="4|4"),
        Strategy(gpus=64, tp=2, pp=1, cp=1, ep=8, etp=1, gbs=64, mbs=1, expert_imbalance=1.5)]


def test_strategy_has_exactly_the_fields_of_the_table() -> None:
    assert tuple(f.name for f in fields(Strategy)) == FIELD_NAMES


def test_rows_come_back() -> None:
    batch = Batch.from_strategies(ROWS)
    assert [batch.row(i) for i in range(len(batch))] == ROWS


def test_same_values_are_stored_once() -> None:
    batch = Batch.from_strategies(ROWS)
    assert is_constant(batch["sp"])
    assert batch["sp"].strides == (0,)
    assert not is_constant(batch["tp"])
    assert batch["sp"].tolist() == [UNSET] * 3


def test_real_is_float() -> None:
    batch = Batch.from_strategies(ROWS)
    assert batch.real("expert_imbalance").dtype == np.float64
    assert batch.real("tp").tolist() == [2.0, 8.0, 2.0]
    assert batch.real("vpp").tolist() == [-1.0] * 3


def test_from_columns_broadcasts_numbers() -> None:
    batch = Batch.from_columns({"gpus": 8, "tp": np.array([1, 2])}, size=2)
    assert batch.row(1) == Strategy(gpus=8, tp=2)


def test_with_columns_replaces() -> None:
    batch = Batch.from_strategies(ROWS).with_columns({"tp": np.array([1, 1, 1])})
    assert batch["tp"].tolist() == [1, 1, 1]
    assert batch.row(0).pp == 4


def test_degrees() -> None:
    batch = Batch.from_strategies(ROWS)
    assert data_parallel(batch).tolist() == [4, 4, 32]
    assert num_microbatches(batch).tolist() == [16, 16, 2]
    assert expert_data_parallel(batch).tolist() == [8, 4, 8]


def test_group_of_nothing() -> None:
    empty = Batch.from_strategies([])
    first, inverse = empty.group(("tp",))
    assert len(first) == len(inverse) == 0
    constant = Batch.from_strategies(ROWS[:1] * 3)
    first, inverse = constant.group(("tp", "pp"))
    assert first.tolist() == [0]
    assert inverse.tolist() == [0, 0, 0]


@pytest.mark.parametrize("scale", [1, 10**6])
def test_group_by_table_and_by_sorting_agree(scale: int) -> None:
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(1, 40, 500) * scale for name in ("tp", "pp", "cp", "gbs")}
    batch = Batch.from_columns(columns, size=500)
    first, inverse = batch.group(tuple(columns))
    keys = np.stack(list(columns.values()))
    assert len(first) == np.unique(keys, axis=1).shape[1]
    assert np.array_equal(keys[:, first[inverse]], keys)
    for k, row in enumerate(first):
        assert row == np.flatnonzero(inverse == k)[0]
