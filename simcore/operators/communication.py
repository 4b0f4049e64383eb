"""Collectives inside a layer: tensor, context and expert parallelism, and what hides them."""

from __future__ import annotations

import numpy as np

from simcore.formulas.collectives import Collective, collective_s
from simcore.inputs.fields import code
from simcore.inputs.model import AttentionKind, LayerKind, MlpKind
from simcore.local import Local
from simcore.operators.attention import key_value_width, query_width
from simcore.operators.base import Op, Phase, Term, make
from simcore.placement import Group, Placement, place
from simcore.typing import FloatArray, Num

GROUPED_DISPATCH_EFFICIENCY = 1.25
"""Fused dispatchers (DeepEP, HybridEP) against NCCL's all-to-all, in bandwidth
(DeepEP's README: 153-158 GB/s of 160 over NVLink, 43-58 of 50 over RDMA, de-duplicated)."""


def seconds(local: Local, kind: Collective, size_bytes: Num, group: Placement) -> FloatArray:
    """Time of one collective of a layer on the system's network, inside a step [s]."""
    network = local.system.network
    return network.in_step_slowdown * collective_s(kind, size_bytes=size_bytes, group=group,
                                                   network=network)


def tensor_parallel_ops(local: Local, kind: LayerKind, compute: list[Op]) -> list[Op]:
    """Two gathers and two scatters a layer and direction, or two all-reduces.

    Under sequence parallelism backward gathers each column-parallel layer's input once more.
    Of backward's collectives, those of the column-parallel layers start beside a product.
    Source: ``megatron/core/tensor_parallel/{layers,mappings}.py``.
    """
    h, size = local.model.hidden_size, local.bytes_per_value
    whole = size * local.tokens * h
    group = local.tp_placement
    gather = seconds(local, Collective.ALL_GATHER, whole, group)
    scatter = seconds(local, Collective.REDUCE_SCATTER, whole, group)
    reduce = seconds(local, Collective.ALL_REDUCE, whole, group)
    sp = local.on("sp")
    dense_mlp = kind.mlp is MlpKind.DENSE
    shared = (not dense_mlp and local.model.moe is not None
              and local.model.moe.shared_ffn_hidden_size > 0)
    pairs = 1.0 + (1.0 if dense_mlp or shared else 0.0)
    exposed_share = np.where(local.on("tp_comm_overlap"),
                             1.0 - local.software("tp_overlap_share"), 1.0)
    forward = np.where(sp, gather + scatter, reduce) * exposed_share
    # Backward: row-parallel layers gather the output's gradient first (exposed); column-parallel
    # ones re-gather their input and scatter the input's gradient beside the products.
    beside = np.where(sp, gather + scatter, reduce)
    products = sum((op.seconds for op in compute if op.phase is Phase.BACKWARD
                    and op.name in ("qkv_dgrad", "qkv_wgrad", "mlp_fc1_dgrad", "mlp_fc1_wgrad",
                                    "kv_up_dgrad", "kv_up_wgrad", "q_up_dgrad", "q_up_wgrad",
                                    "shared_fc1_dgrad", "shared_fc1_wgrad", "in_proj_dgrad",
                                    "in_proj_wgrad")), np.zeros_like(gather)) / pairs
    hidden = local.software("tp_backward_hidden_share") * np.minimum(beside, products)
    backward = (np.where(sp, gather, 0.0) + beside - hidden) * exposed_share
    moved = np.where(sp, 1.0, 2.0) * whole * (local.tp - 1) / local.tp
    ops = []
    for name, module in (("attention", "attn"), ("mlp", "mlp" if dense_mlp else "shared_experts")):
        if name == "mlp" and pairs < 2:
            continue
        ops += [make(local, f"tp_{name}_fwd", module, Phase.FORWARD, forward, term=Term.TP,
                     bytes_moved=2 * moved),
                make(local, f"tp_{name}_bwd", module, Phase.BACKWARD, backward, term=Term.TP,
                     bytes_moved=3 * moved)]
    return ops


def context_parallel_ops(local: Local, kind: LayerKind, compute: list[Op]) -> list[Op]:
    """Exchange of keys and values (ring, all-gather) or of heads (all-to-all).

    The ring sends one block while the kernel works on another (Ring Attention,
    arXiv 2310.01889); backward also returns the gradients. Source for the kinds: Transformer
    Engine ``attention/dot_product_attention/context_parallel.py``.
    """
    model, size = local.model, local.bytes_per_value
    cp = local.real("cp")
    if model.mla is not None:
        heads = model.num_attention_heads / local.tp
        qk = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
        key_value = heads * (qk + model.mla.v_head_dim)
        query_output = heads * (qk + model.mla.v_head_dim)
    elif kind.attention is AttentionKind.LINEAR and model.linear_attention is not None:
        lin = model.linear_attention
        # Only the state of each head passes from rank to rank.
        key_value = (lin.num_value_heads * lin.key_head_dim * lin.value_head_dim
                     / local.tp / np.maximum(local.tokens, 1.0))
        query_output = key_value
    else:
        key_value = 2.0 * key_value_width(local)
        query_output = 2.0 * query_width(local) / local.tp
    block = size * local.tokens * key_value
    group = local.cp_placement
    core = {phase: sum((op.seconds for op in compute
                        if op.module == "core_attn" and op.phase is phase), np.zeros_like(cp))
            for phase in Phase}
    step = seconds(local, Collective.P2P, block, group)
    kind_of = local.batch["cp_comm"]
    ops = []
    for phase, rounds in ((Phase.FORWARD, 1.0), (Phase.BACKWARD, 2.0)):
        # Each of cp - 1 steps hides behind the kernel on the block before it.
        ring = (cp - 1) * np.maximum(rounds * step - core[phase] / np.maximum(cp, 1), 0.05 * step)
        gathered = seconds(local, Collective.ALL_GATHER, block * cp, group)
        if phase is Phase.BACKWARD:
            gathered = gathered + seconds(local, Collective.REDUCE_SCATTER, block * cp, group)
        swap = seconds(local, Collective.ALL_TO_ALL,
                       size * local.tokens * (key_value + query_output), group) * rounds
        exposed = np.select([kind_of == code("cp_comm", "p2p"),
                             kind_of == code("cp_comm", "all_gather")], [ring, gathered], swap)
        if np.any(kind_of == code("cp_comm", "a2a+p2p")):
            exposed = np.where(
                kind_of == code("cp_comm", "a2a+p2p"),
                _two_levels(local, block, size * local.tokens * (key_value + query_output),
                            rounds, core[phase]), exposed)
        exposed = np.where(cp > 1, exposed, 0.0)
        ops.append(make(local, f"cp_{phase.value}", "core_attn", phase, exposed, term=Term.CP,
                        bytes_moved=rounds * block * (cp - 1)))
    return ops


def _two_levels(local: Local, block: FloatArray, heads: FloatArray, rounds: float,
                core: FloatArray) -> FloatArray:
    """Hierarchical context parallelism: heads are exchanged inside, blocks go around outside.

    An exchange inside leaves each rank the tokens of its level and a part of the heads, which
    is as many bytes to pass around the outer ring as before (Transformer Engine,
    ``context_parallel.py``, ``cp_comm_type="a2a+p2p"``; Fang, Zhao, arXiv 2405.07719).
    """
    inner = local.cp_inner
    outer = np.maximum(local.batch["cp"] // inner, 1)
    network, tp = local.system.network, local.batch["tp"]
    swap = rounds * seconds(local, Collective.ALL_TO_ALL, heads, place(Group(inner, tp), network))
    step = seconds(local, Collective.P2P, block,
                   place(Group(np.minimum(outer, 2), tp * inner), network))
    ring = (outer - 1) * np.maximum(rounds * step - core / outer, 0.05 * step)
    total: FloatArray = swap + ring
    return total


def expert_parallel_ops(local: Local, kind: LayerKind, compute: list[Op]) -> list[Op]:
    """Dispatch and combine of a MoE layer, both directions.

    The all-to-all dispatcher sends each row to its expert's rank; the fused ones send a token
    once to a node and fan out inside; the all-gather dispatcher gathers every token of the
    group and scatters the sums (``megatron/core/transformer/moe/token_dispatcher.py``).
    """
    moe = local.model.moe
    if kind.mlp is not MlpKind.MOE or moe is None:
        return []
    row_bytes = local.bytes_per_value * local.model.hidden_size
    group, etp = local.ep_placement, local.real("etp")
    sent = local.dispatched_rows * row_bytes
    exchange = seconds(local, Collective.ALL_TO_ALL, sent, group)
    once = seconds(local, Collective.ALL_TO_ALL, sent * _copies_sent(local), group)
    fused = once / GROUPED_DISPATCH_EFFICIENCY
    tokens = local.tokens_sharded * row_bytes * local.real("ep")
    gather = seconds(local, Collective.ALL_GATHER, tokens, group)
    scatter = seconds(local, Collective.REDUCE_SCATTER, tokens, group)
    inner = np.where(etp > 1, seconds(local, Collective.ALL_GATHER, sent * etp,
                                      local.etp_placement), 0.0)
    inner_back = np.where(etp > 1, seconds(local, Collective.REDUCE_SCATTER, sent * etp,
                                           local.etp_placement), 0.0)
    kinds = local.batch["dispatcher"]
    is_gather = kinds == code("dispatcher", "allgather")
    is_fused = kinds >= code("dispatcher", "deepep")
    dispatch = np.where(is_gather, gather, np.where(is_fused, fused, exchange)) + inner
    combine = np.where(is_gather, scatter, np.where(is_fused, fused, exchange)) + inner_back
    ops = []
    for phase in Phase:
        total = dispatch + combine
        beside = sum((op.seconds for op in compute if op.phase is phase), np.zeros_like(total))
        shared = sum((op.seconds for op in compute
                      if op.phase is phase and op.module == "shared_experts"),
                     np.zeros_like(total))
        # 1F1B overlap runs the exchange beside another micro-batch's compute; delayed weight
        # gradients give backward's exchange more to hide behind.
        share = local.software("ep_overlap_share")
        share = np.where(local.on("delay_wgrad_compute"), 0.5 * (1.0 + share), share)
        hidden = np.where(local.on("ep_comm_overlap"),
                          np.minimum(total * share, beside * 0.9), 0.0)
        hidden = np.maximum(hidden, np.where(local.on("shared_expert_overlap"),
                                             np.minimum(total * 0.8, shared * 0.8), 0.0))
        ops.append(make(local, f"ep_{phase.value}", "moe_exchange", phase,
                        np.where((local.real("ep") > 1) | (etp > 1), total - hidden, 0.0),
                        term=Term.EP, bytes_moved=2 * sent))
    return ops


def _copies_sent(local: Local) -> FloatArray:
    """Share of a token's top-k copies that travel where one copy a node is enough, (u,).

    With experts drawn evenly, top-k of them touch nodes x (1 - (1 - 1/nodes)^topk) of the
    group's nodes.
    """
    moe = local.model.moe
    if moe is None:
        return np.ones(len(local.batch))
    per_domain = np.clip(local.system.network.domain_size / local.real("etp"), 1.0,
                         local.real("ep"))
    domains = np.maximum(local.real("ep") / per_domain, 1.0)
    reached = domains * (1.0 - (1.0 - 1.0 / domains) ** moe.topk)
    return np.where(domains > 1, np.minimum(reached / moe.topk, 1.0), 1.0)


def vocabulary_parallel_s(local: Local) -> tuple[FloatArray, FloatArray]:
    """Collectives of the ends: embedding's reduction, the head's gather and scalars [s], (u,).

    Returns
    -------
    embedding_s, head_s : ndarray
        Forward; backward of each costs the same.
    """
    whole = local.bytes_per_value * local.tokens * local.model.hidden_size
    group = local.tp_placement
    scatter = seconds(local, Collective.REDUCE_SCATTER, whole, group)
    gather = seconds(local, Collective.ALL_GATHER, whole, group)
    reduce = seconds(local, Collective.ALL_REDUCE, whole, group)
    scalars = 3 * seconds(local, Collective.ALL_REDUCE, 4.0 * local.tokens, group)
    logits = np.where(local.software("logits_gathered") > 0, seconds(
        local, Collective.ALL_GATHER, 2.0 * local.tokens * local.vocab, group), scalars)
    sp = local.on("sp")
    return np.where(sp, scatter, reduce), np.where(sp, gather, 0.0) + logits
