"""Search spaces: files, overrides, and what `auto` means."""

from __future__ import annotations

from pathlib import Path

import pytest
from search_fake import FakeEngine, make_model, make_system

from autotune.search.auto import Facts, divisors, recompute_choices
from autotune.search.axes import ORDER, build_grid
from autotune.search.enumerate import domain
from autotune.search.problem import Problem
from autotune.space import SearchSpace, default_space, load_space, space_names
from simcore.errors import InputError
from simcore.inputs.fields import FIELD_NAMES, RECOMPUTE_BIT


def test_every_field_has_a_place_in_the_order() -> None:
    assert sorted(ORDER) == sorted(FIELD_NAMES)
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.parametrize("name", ["dense", "moe", "long_context"])
def test_built_in_spaces_load_and_have_axes(name: str) -> None:
    assert name in space_names()
    space = load_space(name).override({"gpus": 64, "gbs": 64})
    problem = Problem(make_model(experts=8), make_system(), space)
    grid = build_grid(problem, FakeEngine())
    assert all(domain(grid)[f] for f in grid.fields)


def test_defaults_follow_the_model() -> None:
    assert default_space(make_model()).name == "dense"
    assert default_space(make_model(experts=8)).name == "moe"
    assert default_space(make_model(), 131072).name == "long_context"


def test_values_lists_and_auto() -> None:
    space = SearchSpace("s", {"tp": None}).override(
        {"tp": "1,2, 4", "mbs": [2, 1], "sp": "true", "recompute": "none,full,moe_act+mlp",
         "pp": "auto", "pp_layout": "auto", "cp": None})
    assert space.axes == {"tp": (1, 2, 4), "mbs": (2, 1), "sp": (True,), "pp": None,
                          "recompute": ("none", "full", "mlp+moe_act"), "pp_layout": ("auto",)}


@pytest.mark.parametrize(("given", "says"), [
    ({"tq": 1}, "tq"), ({"tp": "1,x"}, "tp"), ({"tp": []}, "empty"), ({"gpus": "auto"}, "auto"),
    ({"precision": "bf17"}, "precision"), ({"tp": {"a": 1}}, "tp"), ({"zero": 4}, "zero")])
def test_bad_values_are_named(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        SearchSpace("s", {}).override(given)


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError) as caught:
        SearchSpace("s", {}).override({"tp": 0, "pp": "x", "foo": 1})
    assert len(caught.value.issues) == 3


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "mine.yaml"
    good.write_text("axes:\n  tp: [1, 2]\n  pp: auto\n")
    space = load_space(good)
    assert space.name == "mine"
    assert space.axes == {"tp": (1, 2), "pp": None}
    for text, says in (("axes: 3", "axes"), ("name: x", "axes"), ("axs: {}", "axs"),
                       ("axes: {tp: [0]}", "axes.tp"), ("axes: {tp: 1, tp: 2}", "duplicate"),
                       ("[1]", "mapping"), ("axes: {1: 2}", "text")):
        bad = tmp_path / "bad.yaml"
        bad.write_text(text)
        with pytest.raises(InputError, match=says):
            load_space(bad)
    with pytest.raises(InputError, match="dense"):
        load_space("dens")
    with pytest.raises(InputError):
        load_space(tmp_path / "missing.yaml")


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]
    assert divisors(49) == [1, 7, 49]


def facts(**more: int) -> Facts:
    return Facts(make_model(**more), make_system(), FakeEngine().split_choices)


def test_degrees_divide() -> None:
    f = facts(experts=6)
    assert [r[0] for r in f.automatic("tp")[1]({"gpus": 24})] == [1, 2, 3, 4, 6, 8]
    assert [r[0] for r in f.automatic("cp")[1]({"gpus": 24, "seq_len": 4096})] == [1, 2]
    assert [r[0] for r in f.automatic("ep")[1]({"gpus": 4})] == [1, 2]
    assert [r[0] for r in f.automatic("etp")[1]({"tp": 4})] == [1, 2, 4]
    assert [r[0] for r in f.automatic("mbs")[1]({"gbs": 12})] == [1, 2, 3, 4, 6]


def test_switches_that_do_nothing_are_off() -> None:
    f = facts()
    assert f.automatic("overlap_p2p")[1]({"pp": 4, "vpp": 1}) == ((0.0,),)
    assert f.automatic("overlap_p2p")[1]({"pp": 4, "vpp": 2}) == ((1.0,), (0.0,))
    assert f.automatic("sp")[1]({"tp": 1}) == ((0.0,),)
    assert f.automatic("overlap_param_gather")[1](
        {"zero": 0, "overlap_grad_reduce": 1}) == ((0.0,),)


def test_recompute_counts_are_whole_layers_of_each_chunk() -> None:
    f = facts()
    options = f.automatic("recompute_layers")[1]
    assert options({"recompute": 0, "pp": 2, "vpp": 1}) == ((-1.0,),)
    full = RECOMPUTE_BIT["full"]
    assert options({"recompute": full, "pp": 2, "vpp": 3}) == ((-1.0,), (3.0,))
    counts = [r[0] for r in options({"recompute": full, "pp": 1, "vpp": 1})]
    assert counts[0] == -1
    assert all(0 < c < 12 for c in counts[1:])


def test_recompute_choices_suit_the_model() -> None:
    dense = recompute_choices(make_model(), fused_attention=True)
    moe = recompute_choices(make_model(experts=8), fused_attention=False)
    assert RECOMPUTE_BIT["moe_act"] in moe
    assert RECOMPUTE_BIT["moe_act"] not in dense
    assert RECOMPUTE_BIT["core_attn"] in moe
    assert RECOMPUTE_BIT["core_attn"] not in dense
    assert len(set(dense)) == len(dense)
    assert len(set(moe)) == len(moe)


@pytest.mark.parametrize("name", ["expert_imbalance", "framework_version", "mtp"])
def test_fields_without_auto_say_so(name: str) -> None:
    with pytest.raises(InputError, match="has no 'auto'"):
        build_grid(Problem(make_model(), make_system(),
                           SearchSpace("s", {"gpus": (8,), "gbs": (8,), name: None})),
                   FakeEngine())
