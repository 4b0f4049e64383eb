"""Time of collectives: latency, and bytes over the slowest of the links a group uses.

Sizes follow nccl-tests: the gathered output of an all-gather, the input of a reduce-scatter
and an all-reduce, all that one rank sends (to itself included) in an all-to-all, the message
of a send.

References
----------
[1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
    in MPICH", Int. J. High Performance Computing Applications 19 (2005), doi
    10.1177/1094342005051521, sections 4.1 (all-gather), 4.3 (all-to-all), 4.4
    (reduce-scatter) and 4.5 (all-reduce).
[2] NVIDIA nccl-tests, doc/PERFORMANCE.md: bytes a rank moves, (n-1)/n of the size, twice that
    for an all-reduce.
[3] NVIDIA NCCL, src/graph/tuning.cc: latency of a step by link and protocol; trees and
    NVLS for all-reduce, PAT (2.23) for all-gather and reduce-scatter.
[4] P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth broadcast,
    reduction and scan", Parallel Computing 35 (2009), doi 10.1016/j.parco.2009.09.001.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from simcore.inputs.system import Network
from simcore.placement import Group, Placement, place
from simcore.typing import FloatArray, Num
from simcore.units import GB, MICRO


class Collective(StrEnum):
    """Kinds of communication."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    P2P = "p2p"


def _links_frac(place_: Placement, network: Network) -> FloatArray:
    """Share of a GPU's scale-up links that the members in a domain can use [1]."""
    if not network.scale_up_is_mesh:
        return np.ones(np.shape(place_.per_domain))
    peers = np.maximum(place_.per_domain - 1, 1)
    return np.minimum(peers / max(network.domain_size - 1, 1), 1.0)


def _nic_bytes_per_s(place_: Placement, network: Network, frac: float) -> FloatArray:
    """Rate between domains of one GPU's share of the NICs; less above the leaf [bytes/s]."""
    rate = network.nic_gb_per_s * GB * frac
    return np.where(place_.leaves > 1, rate / network.oversubscription, rate)


def _ring_latency_s(place_: Placement, network: Network) -> FloatArray:
    """Latency of one pass over the group, an all-gather or a reduce-scatter [s].

    A chain through the members of a domain, and a tree of logarithmic depth over the domains.
    """
    inside = (place_.per_domain - 1) * network.scale_up_latency_us
    # A ceiling of log2 that does not depend on rounding: bits of (domains - 1).
    depth = np.frexp((place_.domains - 1).astype(np.float64))[1]
    return (inside + depth * network.scale_out_latency_us) * MICRO


def _pipelined_s(stream_s: FloatArray, step_us: float) -> FloatArray:
    """Time of a stream that is cut into chunks, each of which pays a step's latency [s].

    The best number of chunks makes it t + 2 sqrt(a t): many chunks pay latency, few leave the
    pipeline empty at its ends [4, section 2].
    """
    ends_s: FloatArray = 2 * np.sqrt(step_us * MICRO * stream_s)
    return stream_s + ends_s


def _moved_s(size_bytes: Num, place_: Placement, network: Network, *, passes: float,
             own_passes: float) -> FloatArray:
    """`passes` times (n-1)/n of the size over the slowest hop of the rings [s].

    Inside a domain a rank's own share costs part of one that is received, `own_passes` times.
    NCCL opens a ring for each NIC, so the g members of a domain carry the traffic between
    domains together, at g times one share.
    """
    size = np.asarray(size_bytes, np.float64)
    n = np.maximum(place_.ranks, 1).astype(np.float64)
    moved_bytes = passes * size * (n - 1) / n
    own_bytes = own_passes * size * network.scale_up_own_frac / n
    inside = (network.scale_up_gb_per_s * GB * network.scale_up_all_gather_frac
              * _links_frac(place_, network))
    between = place_.per_domain * _nic_bytes_per_s(place_, network, network.scale_out_frac)
    inside_s = np.where(place_.per_domain > 1, (moved_bytes + own_bytes) / inside, 0.0)
    between_s = np.where(place_.domains > 1, moved_bytes / between, 0.0)
    # The rings run through all links at once: the slowest hop sets the pace.
    return np.maximum(_pipelined_s(inside_s, network.scale_up_latency_us),
                      _pipelined_s(between_s, network.scale_out_latency_us))


def _ring_s(size_bytes: Num, place_: Placement, network: Network) -> FloatArray:
    """All-gather or reduce-scatter: one pass over the group [1, sections 4.1 and 4.4] [s]."""
    return _moved_s(size_bytes, place_, network, passes=1, own_passes=1) + _ring_latency_s(
        place_, network)


def _all_reduce_s(size_bytes: Num, place_: Placement, network: Network) -> FloatArray:
    """Reduce-scatter and all-gather [1, section 4.5], or in the switch where that is less [s].

    With NVLS a GPU reads its reduced share through the switch and multicasts it back, while
    the switch reads the shares of the others from it: (g+1)/g of the size each way.
    """
    if not network.scale_up_all_reduce_offload:
        return 2 * _ring_s(size_bytes, place_, network)
    latency_s = 2 * _ring_latency_s(place_, network)
    # Both passes in one kernel touch the own share once.
    rings_s = _moved_s(size_bytes, place_, network, passes=2, own_passes=1)
    size = np.asarray(size_bytes, np.float64)
    members = np.maximum(place_.per_domain, 1).astype(np.float64)
    rate = network.scale_up_gb_per_s * GB * network.scale_up_all_reduce_frac
    switch_s = size * (members + 1) / members / rate
    n = np.maximum(place_.ranks, 1).astype(np.float64)
    between = members * _nic_bytes_per_s(place_, network, network.scale_out_frac)
    between_s = np.where(place_.domains > 1, 2 * size * (n - 1) / n / between, 0.0)
    switch_s = np.maximum(_pipelined_s(switch_s, network.scale_up_latency_us),
                          _pipelined_s(between_s, network.scale_out_latency_us))
    # The switch helps from three members a domain on; a pair exchanges halves directly.
    return np.where(place_.per_domain > 2, np.minimum(rings_s, switch_s), rings_s) + latency_s


def _all_to_all_s(size_bytes: Num, place_: Placement, network: Network) -> FloatArray:
    """Pairwise exchange [1, section 4.3]: the share that leaves the domain takes the NIC [s].

    On rails a message to another rail first crosses the scale-up link to the GPU that hangs on
    it (PXN), so that it loads both links; otherwise it goes through the spine.
    """
    size = np.asarray(size_bytes, np.float64)
    n = np.maximum(place_.ranks, 1).astype(np.float64)
    g = np.minimum(place_.per_domain, place_.ranks).astype(np.float64)
    outside = size * (n - g) / n
    above_leaf = size * np.maximum(n - place_.per_leaf, 0) / n
    inside = size * (g - 1) / n
    other_rails = outside * (g - 1) / np.maximum(g, 1)
    if network.rail_optimised:
        inside = inside + other_rails
    else:
        above_leaf = np.maximum(above_leaf, other_rails)
    above_leaf = np.where(place_.leaves > 1, above_leaf,
                          0.0 if network.rail_optimised else above_leaf)
    up = (network.scale_up_gb_per_s * GB * network.scale_up_all_to_all_frac
          * _links_frac(place_, network))
    nic = network.nic_gb_per_s * GB * network.scale_out_all_to_all_frac
    between_s = np.maximum(outside / nic, above_leaf * network.oversubscription / nic)
    # All peers are sent to at once: measured latency is the same for 2 and 8 members.
    steps_us = network.scale_up_latency_us + np.where(
        place_.domains > 1, network.scale_out_latency_us, 0.0)
    # Both kinds of link work at the same time.
    own = size * network.scale_up_own_frac / n
    return np.maximum(_pipelined_s((inside + own) / up, network.scale_up_latency_us),
                      _pipelined_s(between_s, network.scale_out_latency_us)) + steps_us * MICRO


def _p2p_s(size_bytes: Num, place_: Placement, network: Network) -> FloatArray:
    """One send to the neighbour in the group, over the slowest of the group's hops [s]."""
    size = np.asarray(size_bytes, np.float64)
    up = network.scale_up_gb_per_s * GB * network.scale_up_p2p_frac
    if network.scale_up_is_mesh:
        up /= max(network.domain_size - 1, 1)
    nic = _nic_bytes_per_s(place_, network, network.scale_out_frac)
    crosses = place_.domains > 1
    latency_us = np.where(crosses, network.scale_out_latency_us, network.scale_up_latency_us)
    return size / np.where(crosses, nic, up) + latency_us * MICRO


_BODY = {
    Collective.ALL_REDUCE: (_all_reduce_s, 2),
    Collective.ALL_GATHER: (_ring_s, 1),
    Collective.REDUCE_SCATTER: (_ring_s, 1),
    Collective.ALL_TO_ALL: (_all_to_all_s, 1),
    Collective.P2P: (_p2p_s, 0),
}
"""Formula of each kind, and how many collectives' base latency it pays."""


def collective_s(kind: Collective | str, *, size_bytes: Num, group: Group | Placement,
                 network: Network) -> FloatArray:
    """Time of one collective, nothing else on the links [s].

    Parameters
    ----------
    kind : Collective or str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``p2p``.
    size_bytes : float or ndarray, shape (n,)
        Gathered output (all-gather), input (reduce-scatter, all-reduce), all that a rank sends
        (all-to-all), message (p2p) [bytes].
    group : Group or Placement
        Where the members sit (a placement where it is known); the groups beside it run at the
        same time, so each GPU has its own share of the node's NICs and no more.
    network : Network
        Links of the system.

    Returns
    -------
    ndarray, shape (n,)
        Exactly 0 for groups of one and for nothing to send [s].

    Notes
    -----
    Time is latency, plus bytes over bandwidth, plus the ends of the pipeline, which grow with
    the root of both. Left out: the switch of protocols below some 16 MiB (times of 8 H100 are
    up to a third shorter or longer there), and contention with kernels that compute.
    All-reduce equals reduce-scatter plus all-gather wherever the switch does not reduce.
    Between domains the latency grows with log2 of their number (trees for all-reduce, PAT for
    the others in NCCL 2.23 and later; older all-gathers are rings whose latency is linear in
    it, which buckets of Megatron's size hide).

    References
    ----------
    [1] Thakur et al. 2005; [2] nccl-tests PERFORMANCE.md; [3] NCCL tuning.cc; [4] Sanders et al.
    2009 (see the module).

    Examples
    --------
    >>> from simcore.inputs.system import Network, Provenance
    >>> node = Network(provenance=Provenance.USER, source="example", gpus_per_node=8,
    ...                domain_size=8, scale_up_gb_per_s=450.0, nic_gb_per_s=50.0)
    >>> float(collective_s("all_gather", size_bytes=1e9, group=Group(1), network=node))
    0.0
    """
    body, calls = _BODY[Collective(kind)]
    place_ = group if isinstance(group, Placement) else place(group, network)
    time_s = body(size_bytes, place_, network) + calls * network.collective_base_us * MICRO
    idle = (place_.ranks <= 1) | (np.asarray(size_bytes) <= 0)
    return np.where(idle, 0.0, time_s)
