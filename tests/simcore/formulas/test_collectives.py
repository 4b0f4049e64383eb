"""Collectives against nccl-tests, and what must hold for every size, group and link."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.formulas.collectives import Collective, collective_s
from simcore.inputs.load import load_system, system_names
from simcore.inputs.system import Network, Provenance
from simcore.placement import Group

OPERATORS = Path(__file__).resolve().parents[4] / "shared" / "validation" / "operators"
KINDS = tuple(Collective)
MIB = 2.0**20

# nccl-tests on 8 H100 SXM, bf16, out of place, time in us at 64 MiB, 256 MiB and 1 GiB: SimuMax
# 1.2, simu_tools/efficency_test/nccl_fit.py.
H100_US = {
    "all_reduce": (328.4, 1090.5, 4022.4),
    "all_gather": (211.3, 730.2, 2734.1),
    "reduce_scatter": (205.3, 726.0, 2758.3),
    "all_to_all": (220.1, 761.2, 2822.3),
}
# The same from aiconfigurator-core 0.12.0, NCCL 2.27.3 on A100 SXM, 64 and 512 MiB.
A100_US = {
    ("all_gather", 2): (266, 1790), ("all_gather", 8): (352, 2288),
    ("reduce_scatter", 8): (327, 2207), ("all_to_all", 8): (348, 2314),
    ("all_reduce", 8): (595, 4226),
}


def network(**figures: float | bool) -> Network:
    base: dict[str, float | bool | str | Provenance] = {
        "provenance": Provenance.USER, "source": "test", "gpus_per_node": 8, "domain_size": 8,
        "scale_up_gb_per_s": 400.0, "scale_up_all_reduce_frac": 1.0,
        "scale_up_all_gather_frac": 1.0, "scale_up_all_to_all_frac": 1.0,
        "scale_up_p2p_frac": 1.0, "scale_up_latency_us": 0.0, "collective_base_us": 0.0,
        "scale_up_own_frac": 0.0, "nic_gb_per_s": 50.0, "scale_out_frac": 1.0,
        "scale_out_all_to_all_frac": 1.0, "scale_out_latency_us": 0.0}
    return Network.model_validate({**base, **figures})


def one_s(kind: str, size_bytes: float, group: Group, net: Network) -> float:
    return float(collective_s(kind, size_bytes=size_bytes, group=group, network=net))


@pytest.mark.parametrize("kind", list(H100_US))
def test_h100_node_within_6_percent_of_nccl_tests(kind: str) -> None:
    """Sizes that training uses; protocols change below 16 MiB."""
    net = load_system("h100-sxm").network
    for mib, measured_us in zip((64, 256, 1024), H100_US[kind], strict=True):
        error = one_s(kind, mib * MIB, Group(8), net) * 1e6 / measured_us - 1
        print(f"{kind} {mib} MiB: {error:+.1%}")
        assert abs(error) < 0.06


def test_a100_node_within_15_percent_of_nccl_tests() -> None:
    net = load_system("a100-sxm-80g").network
    for (kind, ranks), times_us in A100_US.items():
        for mib, measured_us in zip((64, 512), times_us, strict=True):
            error = one_s(kind, mib * MIB, Group(ranks), net) * 1e6 / measured_us - 1
            print(f"{kind} {ranks} ranks {mib} MiB: {error:+.1%}")
            assert abs(error) < 0.15


def rows(name: str) -> list[dict[str, str]]:
    path = OPERATORS / name
    if not path.exists():
        pytest.skip(f"{path} is not there (tables of measured runs)")
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


@pytest.mark.shared
def test_h100_raw_log_error_table() -> None:
    net = load_system("h100-sxm").network
    names = {"all2all": "all_to_all"}
    errors = []
    for row in rows("comm_h100_nccl_raw.csv"):
        if row["collective"].startswith("p2p") or float(row["bytes"]) < 16 * MIB:
            continue
        kind = names.get(row["collective"], row["collective"])
        predicted_us = one_s(kind, float(row["bytes"]), Group(8), net) * 1e6
        errors.append(predicted_us / float(row["time_us"]) - 1)
        print(f"{kind} {float(row['bytes']) / MIB:.0f} MiB: {errors[-1]:+.1%}")
    assert len(errors) == 40
    assert np.abs(errors).mean() < 0.04
    assert np.abs(errors).max() < 0.22


@pytest.mark.shared
@pytest.mark.parametrize(("table", "system", "mean"), [
    ("comm_b200.csv", "b200-sxm", 0.08), ("comm_a100_pcie.csv", "a100-pcie-80g", 0.09)])
def test_fitted_lines_of_other_nodes_error_table(table: str, system: str, mean: float) -> None:
    """Bandwidths that SimuMax fitted; its A100 PCIe rows tell quads and strides apart."""
    net = load_system(system).network
    errors = []
    for row in rows(table):
        kind = {"all2all": "all_to_all"}.get(row["collective"], row["collective"])
        if row["net"] == "inter_node" or kind == "p2p" or "fixed latency" in row["note"]:
            continue
        ranks, size = int(row["ranks"]), 512 * MIB
        stride = 8 // ranks if "not adjacent" in row["note"] else 1
        passes = 2 if kind == "all_reduce" else 1
        measured = (passes * size * (ranks - 1) / ranks / (float(row["bandwidth"]) * 2**30)
                    + float(row["latency_us"]) * passes * (ranks - 1) * 1e-6
                    + float(row["fixed_latency_us"] or 0) * 1e-6)
        group = Group(ranks, stride, world=8)
        errors.append(one_s(kind, size, group, net) / measured - 1)
        print(f"{row['net']} {kind} {ranks} ranks, stride {stride}: {errors[-1]:+.1%}")
    assert np.abs(errors).mean() < mean


def test_bus_bandwidth_factors_of_nccl_tests() -> None:
    """nccl-tests PERFORMANCE.md: (n-1)/n, twice that for an all-reduce, by hand for n = 4."""
    net = network()
    assert one_s("all_gather", 4e9, Group(4), net) == pytest.approx(3e9 / 400e9)
    assert one_s("reduce_scatter", 4e9, Group(4), net) == pytest.approx(3e9 / 400e9)
    assert one_s("all_reduce", 4e9, Group(4), net) == pytest.approx(6e9 / 400e9)
    assert one_s("all_to_all", 4e9, Group(4), net) == pytest.approx(3e9 / 400e9)
    assert one_s("p2p", 4e9, Group(4), net) == pytest.approx(4e9 / 400e9)


def test_members_of_a_node_pool_their_nics() -> None:
    """Two nodes of 8: eight rings share 15/16 of 16 GB over 8 x 50 GB/s; one a node: over 50."""
    net = network(scale_up_gb_per_s=4000.0)
    assert one_s("all_gather", 16e9, Group(16, 1), net) == pytest.approx(15e9 / 400e9)
    assert one_s("all_gather", 16e9, Group(2, 8), net) == pytest.approx(8e9 / 50e9)
    # A pair on either side: two rings.
    assert one_s("all_gather", 16e9, Group(4, 4), net) == pytest.approx(12e9 / 100e9)


def test_all_to_all_sends_what_leaves_the_node_over_its_own_nic() -> None:
    net = network(scale_up_gb_per_s=4000.0)
    assert one_s("all_to_all", 16e9, Group(16, 1), net) == pytest.approx(8e9 / 50e9)
    # With slow links inside, the share that stays and the forwarding to the rail decide.
    slow = network(scale_up_gb_per_s=50.0)
    assert one_s("all_to_all", 16e9, Group(16, 1), slow) == pytest.approx(
        (7e9 + 8e9 * 7 / 8) / 50e9)


def test_tensor_parallel_16_pays_for_the_nics() -> None:
    """Reported case L12."""
    net = load_system("h100-sxm").network
    inside = one_s("all_gather", 64 * MIB, Group(8), net)
    assert one_s("all_gather", 64 * MIB, Group(16), net) > inside
    assert one_s("p2p", 64 * MIB, Group(16), net) > 5 * one_s("p2p", 64 * MIB, Group(8), net)


def test_oversubscription_starts_above_the_leaf() -> None:
    flat, thin = network(leaf_nodes=4), network(leaf_nodes=4, oversubscription=2.0)
    for kind in KINDS:
        below, above = Group(4, 8), Group(8, 8)
        assert one_s(kind, 1e9, below, thin) == one_s(kind, 1e9, below, flat)
        assert one_s(kind, 1e9, above, thin) > one_s(kind, 1e9, above, flat)
        assert one_s(kind, 1e9, above, thin) <= 2 * one_s(kind, 1e9, above, flat)


def test_a_mesh_gives_a_pair_one_link_in_seven() -> None:
    """MI300X: 64 GB/s to each peer, so a pair moves half of 128 MB in 1 ms."""
    net = network(scale_up_gb_per_s=448.0, scale_up_is_mesh=True)
    assert one_s("all_gather", 128e6, Group(2), net) == pytest.approx(1e-3)
    assert one_s("all_gather", 128e6, Group(8), net) == pytest.approx(112e6 / 448e9)
    assert one_s("p2p", 64e6, Group(8), net) == pytest.approx(1e-3)


def test_the_switch_reduces_where_that_is_less() -> None:
    rings, switch = network(), network(scale_up_all_reduce_offload=True)
    # (n+1)/n of the size each way against 2 (n-1)/n.
    assert one_s("all_reduce", 8e9, Group(8), switch) == pytest.approx(9e9 / 400e9)
    assert one_s("all_reduce", 8e9, Group(8), rings) == pytest.approx(14e9 / 400e9)
    assert one_s("all_reduce", 8e9, Group(2), switch) == one_s("all_reduce", 8e9, Group(2), rings)


sizes = st.floats(1.0, 1e12)
strides = st.sampled_from([1, 2, 3, 4, 8, 12, 64, 512])
names = st.sampled_from(system_names())


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(KINDS), size=sizes, ranks=st.integers(2, 600), stride=strides,
       name=names)
def test_positive_finite_and_monotone_in_size(kind: str, size: float, ranks: int, stride: int,
                                              name: str) -> None:
    net = load_system(name).network
    group = Group(ranks, stride)
    time_s = one_s(kind, size, group, net)
    assert np.isfinite(time_s)
    assert time_s > 0
    assert one_s(kind, 2 * size, group, net) >= time_s
    # Never faster than all links together: NVLink or fabric of one GPU.
    floor = size * (ranks - 1) / ranks if kind != "p2p" else size
    assert time_s >= floor / (net.scale_up_gb_per_s * 1e9) * 0.99


@settings(max_examples=60, deadline=None)
@given(size=sizes, ranks=st.integers(1, 600), stride=strides, name=names)
def test_all_reduce_is_reduce_scatter_and_all_gather(size: float, ranks: int, stride: int,
                                                     name: str) -> None:
    net = load_system(name).network.model_copy(update={"scale_up_all_reduce_offload": False})
    group = Group(ranks, stride)
    both = one_s("reduce_scatter", size, group, net) + one_s("all_gather", size, group, net)
    assert one_s("all_reduce", size, group, net) == pytest.approx(both, rel=1e-12)
    offloaded = net.model_copy(update={"scale_up_all_reduce_offload": True})
    assert one_s("all_reduce", size, group, offloaded) <= both * (1 + 1e-12)


@pytest.mark.parametrize("name", system_names())
def test_one_rank_and_nothing_to_send_take_no_time(name: str) -> None:
    net = load_system(name).network
    for kind in KINDS:
        assert one_s(kind, 1e9, Group(1, 8), net) == 0.0
        assert one_s(kind, 0.0, Group(8), net) == 0.0


def test_rows_of_a_batch_are_single_predictions() -> None:
    net = load_system("b200").network
    ranks = np.array([1, 2, 3, 8, 16, 64, 100])
    size = np.geomspace(1e3, 1e9, len(ranks))
    stride = np.array([1, 1, 2, 1, 4, 8, 3])
    for kind in KINDS:
        together = collective_s(kind, size_bytes=size, group=Group(ranks, stride), network=net)
        alone = [one_s(kind, float(size[i]), Group(int(ranks[i]), int(stride[i])), net)
                 for i in range(len(ranks))]
        np.testing.assert_array_equal(together, alone)


def test_faster_links_are_never_slower() -> None:
    base = load_system("h100").network
    for name in ("scale_up_gb_per_s", "nic_gb_per_s"):
        faster = base.model_copy(update={name: 2 * getattr(base, name)})
        for kind in KINDS:
            for group in (Group(8), Group(32), Group(4, 8)):
                assert one_s(kind, 1e8, group, faster) <= one_s(kind, 1e8, group, base)
