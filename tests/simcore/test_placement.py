"""Groups sit where Megatron's rank grid puts them, and the link follows from that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.batch import Batch
from simcore.inputs.fields import code
from simcore.inputs.load import load_system
from simcore.inputs.system import Network, Provenance
from simcore.placement import Group, groups, place


def network(*, domain: int = 8, node: int = 8, used: int = 0, leaf_nodes: int = 32) -> Network:
    return Network(provenance=Provenance.USER, source="test", gpus_per_node=node,
                   domain_size=domain, domain_used=used, scale_up_gb_per_s=450.0,
                   nic_gb_per_s=50.0, leaf_nodes=leaf_nodes)


def batch(**fields: int) -> Batch:
    base = {"tp": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1, "dp_replicate": 1,
            "rank_order": code("rank_order", "tp-cp-dp-pp")}
    return Batch.from_columns({**base, **fields}, size=1)


def members(group: Group, base: int) -> list[int]:
    """Ranks of the group that starts at `base`, one by one."""
    ranks, stride = int(np.ravel(group.ranks)[0]), int(np.ravel(group.stride)[0])
    run = int(np.ravel(group.run)[0]) or ranks
    step = int(np.ravel(group.run_stride)[0])
    return [base + i * stride + j * step for j in range(ranks // run) for i in range(run)]


def grid_groups(grid: np.ndarray, axes: tuple[int, ...]) -> set[frozenset[int]]:
    """Groups along some axes of a grid of ranks."""
    moved = np.moveaxis(grid, axes, range(len(axes)))
    flat = moved.reshape(int(np.prod([grid.shape[a] for a in axes])), -1)
    return {frozenset(map(int, column)) for column in flat.T}


@pytest.mark.parametrize("pp_before_dp", [False, True])
def test_groups_are_those_of_the_rank_grid(pp_before_dp: bool) -> None:
    tp, cp, dp, pp = 2, 3, 4, 5
    gpus = tp * cp * dp * pp
    order = "tp-cp-pp-dp" if pp_before_dp else "tp-cp-dp-pp"
    found = groups(batch(gpus=gpus, tp=tp, cp=cp, pp=pp, ep=3, etp=2, dp_replicate=2,
                         rank_order=code("rank_order", order)))
    edp = gpus // (2 * 3 * pp)
    # Axes from slowest to fastest; index of (pp, dp, cp, tp) and of (pp, edp, ep, etp).
    if pp_before_dp:
        dense, experts = np.arange(gpus).reshape(dp, pp, cp, tp), np.arange(gpus).reshape(
            edp, pp, 3, 2)
        at_pp, at_dp = 1, 0
    else:
        dense, experts = np.arange(gpus).reshape(pp, dp, cp, tp), np.arange(gpus).reshape(
            pp, edp, 3, 2)
        at_pp, at_dp = 0, 1
    expected = {"tp": (dense, (3,)), "cp": (dense, (2,)), "dp": (dense, (at_dp,)),
                "pp": (dense, (at_pp,)), "etp": (experts, (3,)), "ep": (experts, (2,)),
                "tp_ep": (experts, (2, 3))}
    for name, (grid, axes) in expected.items():
        wanted = grid_groups(grid, axes)
        assert frozenset(members(found[name], 0)) in wanted, name
        assert len(members(found[name], 0)) == len(next(iter(wanted))), name
    # Shards are the inner half of the data-parallel ranks, replicas the outer.
    halves = dense.reshape(*dense.shape[:at_dp], 2, dp // 2, *dense.shape[at_dp + 1:])
    shards = grid_groups(halves, (at_dp + 1, 3))
    assert frozenset(members(found["dp_cp"], 0)) in shards
    assert frozenset(members(found["dp_replicate"], 0)) in grid_groups(halves, (at_dp,))


def test_tensor_parallel_16_on_nodes_of_8_crosses_nodes() -> None:
    """Reported case L12: an estimator charged it at NVLink speed."""
    found = place(groups(batch(gpus=64, tp=16))["tp"], network())
    assert (int(found.per_domain[0]), int(found.domains[0])) == (8, 2)
    inside = place(groups(batch(gpus=64, tp=8))["tp"], network())
    assert int(inside.domains[0]) == 1


def test_tp8_ep8_etp1_stays_in_a_node() -> None:
    found = place(groups(batch(gpus=64, tp=8, ep=8, etp=1))["ep"], network())
    assert (int(found.per_domain[0]), int(found.domains[0])) == (8, 1)
    # With experts split like the dense layers the same ep spans 64 ranks, one a node.
    spread = place(groups(batch(gpus=64, tp=8, ep=8, etp=8))["ep"], network())
    assert (int(spread.per_domain[0]), int(spread.domains[0])) == (1, 8)


def test_data_parallel_members_share_nodes_by_the_size_of_tp() -> None:
    for tp, together in ((1, 8), (2, 4), (4, 2), (8, 1)):
        found = place(groups(batch(gpus=256, tp=tp))["dp_cp"], network())
        assert int(found.per_node[0]) == together
        assert int(found.nodes[0]) == 32


def test_degrees_that_do_not_divide_the_node_straddle_it() -> None:
    assert int(place(groups(batch(gpus=24, tp=3))["tp"], network()).domains[0]) == 2
    # A job of one node has no other node to straddle to.
    assert int(place(groups(batch(gpus=6, tp=3))["tp"], network()).domains[0]) == 1


def test_jobs_of_several_racks_take_64_of_72_gpus() -> None:
    rack = load_system("gb200").network
    assert int(place(groups(batch(gpus=256, ep=64))["ep"], rack).domains[0]) == 1
    assert int(place(groups(batch(gpus=256, ep=128))["ep"], rack).domains[0]) == 2
    # A job of one rack has all of it.
    assert int(place(groups(batch(gpus=72, ep=72))["ep"], rack).domains[0]) == 1
    found = place(groups(batch(gpus=64, tp=8))["tp"], rack)
    assert (int(found.per_node[0]), int(found.nodes[0])) == (4, 2)


def test_a_group_wider_than_a_leaf_leaves_it() -> None:
    found = place(groups(batch(gpus=8 * 64, tp=8))["dp_cp"], network(leaf_nodes=16))
    assert (int(found.per_leaf[0]), int(found.leaves[0])) == (16, 4)


@settings(max_examples=150, deadline=None)
@given(inner=st.integers(1, 12), ranks=st.integers(1, 12), outer=st.integers(1, 6),
       domain=st.integers(1, 16))
def test_domains_bound_every_group_that_tiles_the_job(inner: int, ranks: int, outer: int,
                                                      domain: int) -> None:
    world = inner * ranks * outer
    found = place(Group(ranks, inner, world=world), network(domain=domain, node=domain))
    touched = [len({(block * inner * ranks + low + i * inner) // domain for i in range(ranks)})
               for block in range(outer) for low in range(inner)]
    domains = int(found.domains)
    assert max(touched) <= domains <= ranks
    assert 1 <= int(found.per_domain) <= ranks
    assert int(found.per_domain) == ranks // domains or int(found.per_domain) == 1
    if (domain % (inner * ranks) == 0 or (inner * ranks) % domain == 0) and (
            domain % inner == 0 or inner % domain == 0):
        assert max(touched) == domains


def test_arrays_of_groups_are_their_rows() -> None:
    tp = np.array([1, 2, 3, 8, 16, 64])
    together = place(Group(tp, 1, world=64), network())
    for i, ranks in enumerate(tp):
        alone = place(Group(int(ranks), 1, world=64), network())
        for name in together._fields:
            column = np.broadcast_to(getattr(together, name), tp.shape)
            assert int(column[i]) == int(getattr(alone, name)), name
