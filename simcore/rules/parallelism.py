"""Rules on parallel degrees, batch and sequence.

References
----------
Megatron-Core 0.19.2: ``megatron/training/arguments.py`` (`validate_args`),
``megatron/core/transformer/transformer_config.py``, ``megatron/core/transformer/moe/``.
"""

from __future__ import annotations

import numpy as np

from simcore.degrees import head_exchange_ranks, remainder
from simcore.inputs.fields import FRAMEWORKS, UNSET
from simcore.inputs.framework import Profile
from simcore.inputs.model import AttentionKind
from simcore.profiles import version_key
from simcore.rules.base import Context, Rule, constant, mask, words
from simcore.rules.fixes import make_rule
from simcore.typing import BoolArray, IntArray

DENSE = ("gpus", "tp", "cp", "pp")
EXPERT = ("gpus", "etp", "ep", "pp")
_MEGATRON = ("megatron", "megatron-bridge", "nemo-megatron")
_DEGREES = ("tp", "cp", "pp", "vpp", "ep", "etp")
SUPPORT = {
    **dict.fromkeys((*_MEGATRON, "torchtitan"), _DEGREES),
    "megatron-deepspeed": ("tp", "pp", "ep", "etp"),
    "aleph-alpha-scaling": ("tp", "pp"),
    "deepspeed": ("pp", "ep"),
    "fsdp": (),
}
"""Parallel degrees above 1 that each framework knows."""
GROUPS_BELOW_TP_FROM = {"megatron": (0, 16), "megatron-bridge": (26, 2)}
"""Versions from which tp may exceed the query groups (megatron-core 0.16.1; 0.15.3 refuses)."""


def _unsupported(degree: str) -> np.ndarray:
    return np.array([degree not in SUPPORT[name] for name in FRAMEWORKS])


def _support_rule(degree: str) -> Rule:
    table = _unsupported(degree)
    able = [name for name in FRAMEWORKS if degree in SUPPORT[name]]

    def violated(c: Context) -> BoolArray:
        limit = c["tp"] if degree == "etp" else np.ones(1, np.int64)
        beyond: BoolArray = (c[degree] > 1) & (c[degree] != limit)
        return table[c["framework"]] & beyond

    fields = (degree, "framework") + (("tp",) if degree == "etp" else ())
    return make_rule(f"{degree}_supported", fields, violated,
                     f"above 1 needs a framework that has it ({words(able)})",
                     (degree, "framework"))


def _gpus_given(c: Context) -> BoolArray:
    bad: BoolArray = c["gpus"] == UNSET
    return bad


def _dense_grid(c: Context) -> BoolArray:
    bad: BoolArray = (c["gpus"] > 0) & (remainder(c["gpus"], c["tp"] * c["cp"] * c["pp"]) != 0)
    return bad


def _expert_grid(c: Context) -> BoolArray:
    if not c.model.is_moe:
        return constant(False)
    bad: BoolArray = (c["gpus"] > 0) & (remainder(c["gpus"], c["etp"] * c["ep"] * c["pp"]) != 0)
    return bad


def _experts_divide(c: Context) -> BoolArray:
    moe = c.model.moe
    if not c.model.is_moe or moe is None:
        return constant(False)
    bad: BoolArray = moe.num_experts % c["ep"] != 0
    return bad


def _dense_has_no_experts(c: Context) -> BoolArray:
    bad: BoolArray = (c["ep"] > 1) & (not c.model.is_moe)
    return bad


def _dense_has_no_etp(c: Context) -> BoolArray:
    bad: BoolArray = (c["etp"] != 1) & (not c.model.is_moe)
    return bad


def _heads(c: Context) -> BoolArray:
    bad: BoolArray = c.model.num_attention_heads % c["tp"] != 0
    return bad


def _heads_message(c: Context) -> str:
    heads = c.model.num_attention_heads
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    return f"must divide num_attention_heads ({heads}), so be {words(divisors[:12])}"


def _below_tp_allowed(name: str, profile: Profile) -> bool:
    start = GROUPS_BELOW_TP_FROM.get(name)
    return start is not None and version_key(profile.version) >= start


def _groups(c: Context) -> BoolArray:
    if c.model.mla is not None:
        return constant(False)
    groups, tp = c.model.num_query_groups, c["tp"]
    splits: BoolArray = groups % tp == 0
    if splits.all():
        return ~splits
    return mask(~splits & ~((tp % groups == 0) & c.by_profile(_below_tp_allowed)))


def _groups_message(c: Context) -> str:
    groups = c.model.num_query_groups
    if c.by_profile(_below_tp_allowed)[0]:
        return f"and num_query_groups ({groups}) must divide one another"
    name, version = c.value("framework", 0), c.value("framework_version", 0)
    return f"must divide num_query_groups ({groups}) in {name} {version}"


def _linear_heads(c: Context) -> BoolArray:
    linear = c.model.linear_attention
    if linear is None or not c.has_attention(AttentionKind.LINEAR):
        return constant(False)
    ranks = c["tp"] * c["cp"]
    bad: BoolArray = ((linear.num_key_heads % ranks != 0)
                      | (linear.num_value_heads % ranks != 0))
    return bad


def _ffn(c: Context) -> BoolArray:
    widths = [c.model.ffn_hidden_size] if c.has_dense_layers else []
    if c.model.is_moe and c.model.moe is not None and c.model.moe.shared_ffn_hidden_size:
        widths.append(c.model.moe.shared_ffn_hidden_size)
    return _none_divides(widths, c["tp"])


def _expert_ffn(c: Context) -> BoolArray:
    moe = c.model.moe
    return _none_divides([moe.ffn_hidden_size] if c.model.is_moe and moe else [], c["etp"])


def _none_divides(widths: list[int], degree: IntArray) -> BoolArray:
    bad = np.zeros(degree.shape, np.bool_)
    for width in widths:
        bad |= width % degree != 0
    return bad


def _sp_without_tp(c: Context) -> BoolArray:
    bad: BoolArray = (c["sp"] == 1) & (c["tp"] == 1)
    return bad


def _moe_tp_needs_sp(c: Context) -> BoolArray:
    if not c.model.is_moe:
        return constant(False)
    bad: BoolArray = (c["tp"] > 1) & (c["sp"] == 0)
    return bad & c.any_of("framework", *_MEGATRON, "torchtitan")


def _cp_sequence(c: Context) -> BoolArray:
    bad: BoolArray = (c["cp"] > 1) & (remainder(c["seq_len"], 2 * c["cp"]) != 0)
    return bad


def _sp_sequence(c: Context) -> BoolArray:
    bad: BoolArray = (c["sp"] == 1) & (remainder(c["seq_len"], c["cp"] * c["tp"]) != 0)
    return bad


def _cp_comm_needs_cp(c: Context) -> BoolArray:
    bad: BoolArray = (c["cp"] == 1) & (c["cp_comm"] != 0)
    return bad


def _hierarchical_cp(c: Context) -> BoolArray:
    both = c.any_of("cp_comm", "a2a+p2p")
    if not both.any():
        return both
    groups = c.model.num_attention_heads if c.model.mla else c.model.num_query_groups
    inner = head_exchange_ranks(c.batch, c.model.num_attention_heads, groups,
                                c.system.network.domain_size)
    return mask(both & ((inner < 2) | (c["cp"] <= inner)))


def _hierarchical_offered(c: Context) -> BoolArray:
    return mask(c.any_of("cp_comm", "a2a+p2p")
                & ~c.any_of("framework", "megatron", "megatron-bridge", "nemo-megatron"))


def _a2a_heads(c: Context) -> BoolArray:
    a2a = c.any_of("cp_comm", "a2a")
    if not a2a.any():
        return a2a
    tp, cp = c["tp"], c["cp"]
    heads = c.model.num_attention_heads // tp
    groups = heads if c.model.mla else np.maximum(c.model.num_query_groups // tp, 1)
    bad: BoolArray = (heads % cp != 0) | (groups % cp != 0)
    return bad & a2a


def _sliding_ring(c: Context) -> BoolArray:
    if not c.has_attention(AttentionKind.SLIDING):
        return constant(False)
    return (c["cp"] > 1) & c.any_of("cp_comm", "p2p")


def _gbs(c: Context) -> BoolArray:
    bad: BoolArray = remainder(c["gbs"], c.dp * c["mbs"]) != 0
    return bad


def _gbs_message(c: Context) -> str:
    return (f"must be a multiple of dp*mbs ({int(c.dp[0])}*{c.number('mbs', 0)}), so that every "
            f"data-parallel rank has whole micro-batches, got {c.number('gbs', 0)}")


def _product(*names: str) -> str:
    return "*".join(names)


def _grid_message(*names: str) -> str:
    return f"must divide by {_product(*names)}"


def _ffn_message(c: Context) -> str:
    shared = c.model.moe.shared_ffn_hidden_size if c.model.is_moe and c.model.moe else 0
    parts = [f"ffn_hidden_size ({c.model.ffn_hidden_size})"] if c.has_dense_layers else []
    parts += [f"the shared expert's width ({shared})"] if shared else []
    return f"must divide {words(parts, last='and')}"


def _num_experts(c: Context) -> int:
    return c.model.moe.num_experts if c.model.moe else 0


def _message_dense(c: Context) -> str:
    tp, cp, pp, gpus = (c.number(n, 0) for n in ("tp", "cp", "pp", "gpus"))
    return f"must be a multiple of tp*cp*pp ({tp}*{cp}*{pp} = {tp * cp * pp}), got {gpus}"


def _message_expert(c: Context) -> str:
    etp, ep, pp, gpus = (c.number(n, 0) for n in ("etp", "ep", "pp", "gpus"))
    return (f"etp*ep*pp ({etp}*{ep}*{pp} = {etp * ep * pp}) must divide gpus ({gpus}), "
            f"got {ep}")


def _a2a_message(c: Context) -> str:
    return (f"a2a hands out heads: cp ({c.number('cp', 0)}) must divide heads/tp and query "
            f"groups/tp ({c.model.num_attention_heads} and {c.model.num_query_groups} over "
            f"tp {c.number('tp', 0)})")


RULES: tuple[Rule, ...] = (
    make_rule("gpus_given", ("gpus",), _gpus_given, "is needed", ("gpus",)),
    *(_support_rule(degree) for degree in _DEGREES),
    make_rule("hierarchical_cp_has_two_levels", ("cp_comm", "cp", "tp"), _hierarchical_cp,
              lambda c: "a2a+p2p exchanges heads inside a scale-up domain and goes around a ring "
              "outside: a part of cp must divide the heads and query groups of a tensor rank and "
              f"fit beside tp in {c.system.network.domain_size} GPUs, and leave a ring, got cp "
              f"{c.number('cp', 0)} and tp {c.number('tp', 0)}", ("cp_comm", "cp", "tp")),
    make_rule("hierarchical_cp_offered", ("cp_comm", "framework"), _hierarchical_offered,
              "a2a+p2p is Transformer Engine's: only Megatron's frameworks have it",
              ("cp_comm", "framework")),
    make_rule("ep_needs_experts", ("ep",), _dense_has_no_experts,
              "must be 1 in a model without experts", ("ep",)),
    make_rule("etp_needs_experts", ("etp",), _dense_has_no_etp,
              "must be 1 in a model without experts", ("etp",)),
    make_rule("heads_divide_by_tp", ("tp",), _heads,
              _heads_message,
              ("tp",)),
    make_rule("query_groups_and_tp", ("tp", "framework", "framework_version"), _groups,
              _groups_message, ("tp",)),
    make_rule("linear_heads_divide", ("tp", "cp"), _linear_heads,
              "and cp: tp*cp must divide the heads of linear attention", ("tp", "cp")),
    make_rule("ffn_divides_by_tp", ("tp",), _ffn, _ffn_message, ("tp",)),
    make_rule("expert_ffn_divides_by_etp", ("etp",), _expert_ffn,
              lambda c: "must divide the experts' width "
              f"({c.model.moe.ffn_hidden_size if c.model.moe else 0})", ("etp",)),
    make_rule("experts_divide_by_ep", ("ep",), _experts_divide,
              lambda c: f"must divide num_experts ({_num_experts(c)})", ("ep",)),
    make_rule("gpus_divide_by_dense_grid", DENSE, _dense_grid, _message_dense,
              ("gpus", "pp", "tp", "cp")),
    make_rule("gpus_divide_by_expert_grid", EXPERT, _expert_grid, _message_expert,
              ("ep", "etp", "pp", "gpus")),
    make_rule("sp_needs_tp", ("sp", "tp"), _sp_without_tp, "needs tp > 1", ("sp", "tp")),
    make_rule("moe_with_tp_needs_sp", ("sp", "tp", "framework"), _moe_tp_needs_sp,
              "experts with tp > 1 need sequence parallelism", ("sp", "tp")),
    make_rule("seq_len_divides_by_cp", ("seq_len", "cp"), _cp_sequence,
              lambda c: f"must be a multiple of 2*cp (2*{c.number('cp', 0)}), the halves that "
              "balance causal attention", ("seq_len", "cp")),
    make_rule("seq_len_divides_by_tp", ("seq_len", "cp", "tp", "sp"), _sp_sequence,
              lambda c: "must be a multiple of cp*tp under sequence parallelism "
              f"({c.number('cp', 0)}*{c.number('tp', 0)})", ("seq_len", "tp", "cp")),
    make_rule("cp_comm_needs_cp", ("cp_comm", "cp"), _cp_comm_needs_cp,
              "must be p2p where cp is 1", ("cp_comm", "cp")),
    make_rule("a2a_heads_divide", ("cp_comm", "cp", "tp"), _a2a_heads, _a2a_message,
              ("cp_comm", "cp", "tp")),
    make_rule("sliding_windows_in_a_ring", ("cp_comm", "cp"), _sliding_ring,
              "sliding-window attention is not supported around a ring", ("cp_comm", "cp")),
    make_rule("gbs_divides", ("gbs", "mbs", *DENSE), _gbs, _gbs_message, ("gbs", "mbs")),
)
