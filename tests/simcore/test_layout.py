"""Splits of the layers, both notations, and the choices that a search tries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.batch import Batch
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.layout import (
    PipelineLayout,
    balanced,
    layout_text,
    layouts,
    num_chunks,
    parse_layout,
    split_choices,
    split_counts,
)
from simcore.resolve import resolve

BRIDGE = "4|4|4|4|4|4|4|4|4|4|4|4|4|4|4|1m"


def layout_of(model: str, layers: int | None = None, **fields: object) -> PipelineLayout | None:
    spec = load_model(model)
    spec = spec.with_layers(layers) if layers else spec
    given_batch = Batch.from_strategies([Strategy(gpus=4096, **fields)])  # type: ignore[arg-type]
    found, index = layouts(spec, resolve(spec, load_system("h100-sxm"), given_batch))
    return found[index[0]]


@pytest.mark.parametrize(("layers", "fields", "text"), [
    (80, {"pp": 4}, "20|20|20|20"),
    (80, {"pp": 4, "vpp": 5}, "|".join(["4"] * 20)),
    (80, {"pp": 1}, "80"),
    (30, {"pp": 4}, None),
    (30, {"pp": 4, "first_stage_layers": 7, "last_stage_layers": 7}, "7|8|8|7"),
    (94, {"pp": 4, "vpp": 8}, "2|" + "3|" * 30 + "2"),
    (94, {"pp": 12, "vpp": 8}, "0|" + "1|" * 94 + "0"),
    (126, {"pp": 16, "pp_layout": "auto"}, "7|" + "8|" * 14 + "7"),
    (126, {"pp": 16, "vpp": 8}, "0|" + "1|" * 126 + "0"),
    (46, {"pp": 4, "first_stage_layers": 10}, "10|12|12|12"),
    (46, {"pp": 4, "last_stage_layers": 10}, "12|12|12|10"),
    (46, {"pp": 4, "first_stage_layers": 12, "last_stage_layers": 12}, "12|11|11|12"),
    (46, {"pp": 4, "pp_layout": "auto"}, "11|12|12|11"),
    (80, {"pp": 16, "vpp": 2}, None),
    (80, {"pp": 1, "vpp": 2}, None),
    (20, {"pp": 1, "last_stage_layers": 1}, None),
    (46, {"pp": 4, "first_stage_layers": 11}, None),
    (48, {"pp": 4, "vpp": 3, "first_stage_layers": 10}, None),
    (80, {"pp": 4, "pp_layout": "20|20|20|19"}, None),
    (80, {"pp": 4, "pp_layout": "20|20|20|20", "first_stage_layers": 19}, None),
])
def test_split(layers: int, fields: dict[str, object], text: str | None) -> None:
    layout = layout_of("llama3-70b", layers, **fields)
    assert (None if layout is None else layout.text()) == text


def test_deepseek_layouts() -> None:
    by_default = layout_of("deepseek-v3", pp=16)
    assert by_default is not None
    assert by_default.text() == "3|4|4|4|4|4|4|4|4|4|4|4|4|4|4|2m"
    bridge = layout_of("deepseek-v3", pp=4, vpp=4, pp_layout=BRIDGE)
    assert bridge is not None
    assert bridge.text() == BRIDGE
    assert bridge.rank_layers().tolist() == [16, 16, 16, 13]
    counts = bridge.kind_counts(2)
    assert counts.shape == (4, 4, 2)
    assert counts[0, 0].tolist() == [3, 1]
    assert counts.sum(axis=(0, 1)).tolist() == [3, 58]
    letters = layout_of("deepseek-v3", pp=16, pp_layout="Et*4|(t*4|)*14tmL")
    assert letters is not None
    assert letters.text() == BRIDGE
    # Without MTP layers the mark is of no account.
    without = layout_of("deepseek-v3", pp=16, pp_layout=BRIDGE, mtp=0)
    assert without is not None
    assert without.text() == BRIDGE.rstrip("m")


def test_vpp_follows_from_a_layout() -> None:
    layout = layout_of("deepseek-v3", pp=4, pp_layout=BRIDGE)
    assert layout is not None
    assert layout.vpp == 4


@pytest.mark.parametrize(("text", "part"), [
    ("4|4|x", "must be layers of every chunk"),
    ("t*4|t*4L", "begin with E"),
    ("Et|t", "begin with E"),
    ("Etm|mL", "one chunk"),
    ("EtmtL", "behind all t"),
    ("1m|1m", "mark one chunk"),
    ("20|20|20", "chunks"),
    ("20|20|20|10", "all 80 layers"),
    ("Et*20|t*20|t*20|t*20mL", "every MTP layer"),
    ("(" * 50 + "t", "must be layers"),
    ("((t*99999)*99999)*99999", "must be layers"),
    ("40|0|20|20", "empty"),
])
def test_bad_layouts_say_why(text: str, part: str) -> None:
    problem = parse_layout(text, num_layers=80, pp=4, vpp=1, mtp=0)
    assert isinstance(problem, str)
    assert part in problem


def test_mtp_stands_behind_the_decoder() -> None:
    assert "behind" in str(parse_layout("20|20m|20|20", num_layers=80, pp=4, vpp=1, mtp=1))
    early = parse_layout("10|10|10|10|10|10|10m|10", num_layers=80, pp=4, vpp=2, mtp=1)
    assert isinstance(early, str)
    alone = parse_layout("30|30|20m|0", num_layers=80, pp=4, vpp=1, mtp=1)
    assert alone == ((30, 30, 20, 0), 2)


def test_num_chunks() -> None:
    assert num_chunks(BRIDGE) == 16
    assert num_chunks("Et*4|(t*4|)*14tmL") == 16
    assert num_chunks("auto") is None
    assert num_chunks("nonsense") is None


sizes = st.tuples(st.integers(1, 130), st.integers(1, 16), st.integers(1, 6))


@given(size=sizes, mtp=st.integers(0, 2))
@settings(max_examples=200, deadline=None)
def test_auto_places_every_layer_and_balances(size: tuple[int, int, int], mtp: int) -> None:
    layers, pp, vpp = size
    found = balanced(layers, pp, vpp, mtp)
    if found is None:
        assert layers < 2 * pp * vpp or (pp == 1 and vpp > 1)
        return
    counts, chunk = found
    text = layout_text(counts, chunk if mtp else None)
    assert parse_layout(text, num_layers=layers, pp=pp, vpp=vpp, mtp=mtp) == (counts, chunk)
    assert len(counts) == pp * vpp
    assert sum(counts) == layers
    assert min(counts) >= 0
    assert max(counts) <= -(-(layers + 2 + mtp) // (pp * vpp)) + 1


@given(size=sizes, window=st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_split_choices_are_legal_and_distinct(size: tuple[int, int, int], window: int) -> None:
    layers, pp, vpp = size
    choices = split_choices(layers, pp, vpp, window)
    assert len(set(choices)) == len(choices)
    for first, last in choices:
        counts = split_counts(layers, pp, vpp, first, last)
        assert counts is not None
        assert sum(counts) == layers
        ranks = [sum(counts[rank::pp]) for rank in range(pp)]
        assert (ranks[0], ranks[-1]) == (first, last)
        middle = ranks[1:-1] or [last]
        assert abs(first - middle[0]) <= window
        assert pp == 2 or abs(last - middle[0]) <= window


@given(size=sizes, first=st.integers(-2, 60), last=st.integers(-2, 60))
@settings(max_examples=300, deadline=None)
def test_split_counts_add_up(size: tuple[int, int, int], first: int, last: int) -> None:
    layers, pp, vpp = size
    counts = split_counts(layers, pp, vpp, first, last)
    if counts is not None:
        assert sum(counts) == layers
        assert len(counts) == pp * vpp
        assert min(counts) >= 0


def test_layouts_index_every_row() -> None:
    model, system = load_model("llama3-70b"), load_system("h100-sxm")
    rng = np.random.default_rng(1)
    rows = [Strategy(gpus=1024, pp=int(rng.choice([1, 2, 4, 8])), vpp=int(rng.choice([1, 5])))
            for _ in range(60)]
    batch = resolve(model, system, Batch.from_strategies(rows))
    found, index = layouts(model, batch)
    for i in range(len(rows)):
        layout = found[index[i]]
        assert (layout is None) == (rows[i].vpp == 5 and rows[i].pp in (1,))
        assert layout is None or (layout.pp, layout.vpp) == (rows[i].pp, rows[i].vpp)
