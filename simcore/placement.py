"""Where the ranks of a communication group sit: in one scale-up domain, in how many nodes.

Megatron lays out dense groups over the global ranks as tp-cp-dp-pp, fastest first, and expert
groups as etp-ep-edp-pp over the same ranks; `rank_order` tp-cp-pp-dp swaps the last two. The
link a group uses follows from the strides of that grid, never from the group's size alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcore.batch import Batch
from simcore.inputs.fields import code
from simcore.inputs.system import Network
from simcore.typing import IntArray

Ints = IntArray | int


@dataclass(frozen=True)
class Group:
    """Ranks that communicate, one kind of group for each of n strategies.

    Member ``i + j * run`` stands at ``base + i * stride + j * run_stride``: runs of `run`
    members at `stride`, repeated at `run_stride`.

    Parameters
    ----------
    ranks : int or ndarray, shape (n,)
        Members of the group.
    stride : int or ndarray, shape (n,)
        Distance of neighbours in global rank order.
    run : int or ndarray, shape (n,)
        Members of a run; 0: all of them, one run.
    run_stride : int or ndarray, shape (n,)
        Distance of the starts of two runs.
    world : int or ndarray, shape (n,)
        Number of GPUs of the job; 0: unknown, the group's own span.
    """

    ranks: Ints
    stride: Ints = 1
    run: Ints = 0
    run_stride: Ints = 0
    world: Ints = 0


class Placement(NamedTuple):
    """How a group spreads over the cluster; int64 arrays that broadcast with the group's.

    `per_domain` members share a scale-up domain and the group touches `domains` of them; the
    same for nodes and for leaves (the nodes below one leaf switch). Where members spread
    unevenly the count is the average, rounded down, at least 1.
    """

    ranks: IntArray
    per_domain: IntArray
    domains: IntArray
    per_node: IntArray
    nodes: IntArray
    per_leaf: IntArray
    leaves: IntArray


def _touched(ranks: IntArray, stride: IntArray, size: IntArray) -> IntArray:
    """Blocks of `size` consecutive ranks that the worst-placed of the groups touches.

    Groups tile the ranks: their starts are multiples of ``ranks * stride``, plus less than
    `stride`. Where `stride` divides `size`, a block has ``slots`` members and a group starts
    ``offset`` slots into one, `offset` a multiple of gcd(ranks, slots). Where it does not,
    any offset is taken as possible.
    """
    slots = np.maximum(size // stride, 1)
    offset = slots - np.gcd(ranks, slots)
    tiled = -(-(ranks + offset) // slots)
    loose = ((ranks - 1) * stride + size - 1) // size + 1
    regular = (size % stride == 0) | (stride % size == 0)
    return np.minimum(np.where(regular, tiled, loose), ranks)


def _spread(group: Group, size: Ints) -> tuple[IntArray, IntArray]:
    """Members a block of `size` consecutive ranks holds, and blocks that the group touches."""
    ranks, stride = np.asarray(group.ranks, np.int64), np.asarray(group.stride, np.int64)
    run = np.where(np.asarray(group.run) > 0, group.run, ranks)
    runs = np.maximum(ranks // np.maximum(run, 1), 1)
    run_stride = np.where(np.asarray(group.run_stride) > 0, group.run_stride, run * stride)
    world = np.where(np.asarray(group.world) > 0, group.world, runs * run_stride)
    block = np.asarray(size, np.int64)
    touched = _touched(run, stride, block) * _touched(runs, run_stride, block)
    touched = np.minimum(np.minimum(touched, ranks), -(-world // block))
    touched = np.maximum(touched, 1)
    return np.maximum(ranks // touched, 1), touched


def domain_ranks(group: Group, network: Network) -> IntArray:
    """Consecutive ranks of the job that share a scale-up domain, shape of the group [1].

    A job that fits in one domain has the whole of it; a larger one takes
    `Network.domain_used` GPUs of each (64 of the 72 of an NVL72 rack).
    """
    span = np.asarray(group.ranks, np.int64) * np.asarray(group.stride, np.int64)
    world = np.where(np.asarray(group.world) > 0, group.world, span)
    used = network.domain_used or network.domain_size
    return np.where(world <= network.domain_size, network.domain_size, used).astype(np.int64)


def place(group: Group, network: Network) -> Placement:
    """Count the members of a group that share a domain, a node and a leaf.

    Parameters
    ----------
    group : Group
        Groups of n strategies.
    network : Network
        Sizes of node, domain and leaf.

    Returns
    -------
    Placement
        Of the worst-placed of the groups that tile the job's ranks.

    Notes
    -----
    Nodes are full and in rank order, as launchers fill them. Where degrees do not divide the
    node (tp 3 on nodes of 8) some groups straddle two nodes, and they set the pace.

    References
    ----------
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", arXiv 2104.04473, section 3; megatron/core/parallel_state.py,
    `RankGenerator`.

    Examples
    --------
    >>> from simcore.inputs.system import Network, Provenance
    >>> node = Network(provenance=Provenance.USER, source="example", gpus_per_node=8,
    ...                domain_size=8, scale_up_gb_per_s=450.0, nic_gb_per_s=50.0)
    >>> place(Group(16, 1), node).domains.item()
    2
    """
    ranks = np.asarray(group.ranks, np.int64)
    per_domain, domains = _spread(group, domain_ranks(group, network))
    per_node, nodes = _spread(group, network.gpus_per_node)
    per_leaf, leaves = _spread(group, network.gpus_per_node * network.leaf_nodes)
    return Placement(ranks, per_domain, domains, per_node, nodes, per_leaf, leaves)


def groups(batch: Batch) -> dict[str, Group]:
    """Communication groups of a resolved batch.

    Parameters
    ----------
    batch : Batch
        Resolved and legal, n rows.

    Returns
    -------
    dict of str to Group, arrays of shape (n,)
        ``tp``, ``cp``, ``dp``, ``pp``, ``etp``, ``ep``; ``tp_ep`` (etp and ep together, over
        which an all-gather dispatcher works); ``dp_cp`` and ``edp``, over which dense and
        expert parameters are sharded; ``dp_replicate`` and ``edp_replicate``, over which the
        shards are replicated (HSDP).

    Notes
    -----
    Shard groups are the inner, contiguous part of the data-parallel ranks and replicas the
    outer part, in Megatron (`num_distributed_optimizer_instances`) as in torchtitan.
    """
    gpus, tp, cp, pp = batch["gpus"], batch["tp"], batch["cp"], batch["pp"]
    ep, etp = batch["ep"], batch["etp"]
    replicas = np.maximum(batch["dp_replicate"], 1)
    dp = np.maximum(gpus // (tp * cp * pp), 1)
    edp = np.maximum(gpus // (etp * ep * pp), 1)
    pp_first = batch["rank_order"] == code("rank_order", "tp-cp-pp-dp")
    between = np.where(pp_first, pp, 1)
    shards, expert_shards = np.maximum(dp // replicas, 1), np.maximum(edp // replicas, 1)
    dp_stride, edp_stride = tp * cp * between, etp * ep * between
    return {
        "tp": Group(tp, 1, world=gpus),
        "cp": Group(cp, tp, world=gpus),
        "dp": Group(dp, dp_stride, world=gpus),
        "dp_cp": Group(cp * shards, tp, cp, dp_stride, gpus),
        "dp_replicate": Group(replicas, dp_stride * shards, world=gpus),
        "pp": Group(pp, np.where(pp_first, tp * cp, gpus // pp), world=gpus),
        "etp": Group(etp, 1, world=gpus),
        "ep": Group(ep, etp, world=gpus),
        "tp_ep": Group(etp * ep, 1, world=gpus),
        "edp": Group(expert_shards, edp_stride, world=gpus),
        "edp_replicate": Group(replicas, edp_stride * expert_shards, world=gpus),
    }
