"""Rules on the pipeline: split of the layers, schedule, micro-batch groups.

References
----------
Megatron-Core 0.19.2: ``transformer_config.py`` (uneven pipelines),
``pipeline_parallel/schedules.py`` (`forward_backward_pipelining_with_interleaving`),
``megatron/training/arguments.py``.
"""

from __future__ import annotations

import numpy as np

from simcore.degrees import remainder
from simcore.inputs.fields import code
from simcore.layout import LAYOUT_FIELDS, layouts, parse_layout, split_is_legal
from simcore.rules.base import Context, Rule, mask, words
from simcore.rules.fixes import make_rule
from simcore.schedule.split import DUAL_KINDS, SPLIT_KINDS
from simcore.typing import BoolArray, IntArray

SCHEDULES_OF = {
    "megatron": ("zero-bubble", "dualpipe", "dualpipev"),
    "torchtitan": ("zero-bubble", "dualpipev"),
}
"""Frameworks that run schedules with split backwards."""
SCHEDULE_SOURCES = {
    "zero-bubble": "sail-sg/zero-bubble on Megatron-LM; PyTorch's zero-bubble schedule",
    "dualpipe": "deepseek-ai/DualPipe around Megatron-Core's layers",
    "dualpipev": "deepseek-ai/DualPipe around Megatron-Core's layers; PyTorch's DualPipeV",
}
"""Where the schedules come from; no release of Megatron-LM has them itself."""
_STEP = ("gbs", "mbs", "gpus", "tp", "cp", "pp")
_GROUP = ("vpp", "schedule", "microbatch_group_size", *_STEP)


def _vpp_needs_pp(c: Context) -> BoolArray:
    bad: BoolArray = (c["vpp"] > 1) & (c["pp"] == 1)
    return bad


def _vpp_without_overlap(c: Context) -> BoolArray:
    # Two sends between the same two ranks would be in flight at once.
    bad: BoolArray = _interleaves(c) & (c["overlap_p2p"] == 0) & (c["pp"] == 2)
    return bad


def _interleaves(c: Context) -> BoolArray:
    """Tell where chunks are interleaved: several of them, without a schedule of their own."""
    rows: BoolArray = (c["vpp"] > 1) & ~c.any_of("schedule", *DUAL_KINDS)
    return rows


def _schedule_offered(c: Context) -> BoolArray:
    bad = c["schedule"] >= code("schedule", "zero-bubble")
    for name, kinds in SCHEDULES_OF.items():
        own = c["framework"] == code("framework", name)
        bad = bad & ~(own & c.any_of("schedule", *kinds))
    return mask(bad)


def _offered_message(c: Context) -> str:
    framework, kind = str(c.value("framework", 0)), str(c.value("schedule", 0))
    others = [name for name, kinds in SCHEDULES_OF.items() if kind in kinds]
    return (f"{kind} is no schedule of {framework}; {words(others, last='and')} "
            f"{'has' if len(others) == 1 else 'have'} it ({SCHEDULE_SOURCES[kind]})")


def _schedule_of_vpp(c: Context) -> BoolArray:
    interleaved = c.any_of("schedule", "interleaved")
    two = c.any_of("schedule", "dualpipev")
    bad: BoolArray = np.where(two, c["vpp"] != 2, interleaved != (c["vpp"] > 1))
    return bad


def _vpp_message(c: Context) -> str:
    if str(c.value("schedule", 0)) == "dualpipev":
        return f"holds 2 chunks a rank: vpp must be 2 (vpp {c.number('vpp', 0)})"
    return ("must be interleaved where vpp > 1, and only there "
            f"(vpp {c.number('vpp', 0)})")


def _needs_pp(c: Context) -> BoolArray:
    return mask(c.any_of("schedule", "gpipe", *SPLIT_KINDS) & (c["pp"] == 1))


def _dual_micro_batches(c: Context) -> BoolArray:
    m, pp = c.num_microbatches, c["pp"]
    uneven = c.any_of("schedule", "dualpipe") & (remainder(m, np.array([2])) != 0)
    return mask((c.any_of("schedule", *DUAL_KINDS) & (m < 2 * pp)) | uneven)


def _dual_message(c: Context) -> str:
    even = " and an even number of them" if str(c.value("schedule", 0)) == "dualpipe" else ""
    return (f"{c.value('schedule', 0)} needs at least 2 pp ({2 * c.number('pp', 0)}) "
            f"micro-batches{even}, got gbs {c.number('gbs', 0)} and so "
            f"{int(c.num_microbatches[0])} micro-batches")


def _dualpipe_ranks(c: Context) -> BoolArray:
    return mask(c.any_of("schedule", "dualpipe") & (remainder(c["pp"], np.array([2])) != 0))


def _dualpipe_zero(c: Context) -> BoolArray:
    return mask(c.any_of("schedule", "dualpipe") & (c["zero"] > 1))


def _turned_split(c: Context) -> BoolArray:
    bad: BoolArray = c.any_of("schedule", "dualpipev") & _is_none(c, c["pp_layout"]) & (
        c["first_stage_layers"] != c["last_stage_layers"])
    return bad


def _split(c: Context) -> BoolArray:
    """Tell where the layers do not add up; explicit layouts are `_layout`'s."""
    columns, index = c.layout_rows
    pp, vpp = columns["pp"], columns["vpp"]
    # At pp 1, vpp above 1 is another rule's.
    legal = split_is_legal(c.model.num_layers, pp, np.where(pp == 1, 1, vpp),
                           columns["first_stage_layers"], columns["last_stage_layers"])
    bad: BoolArray = _is_none(c, columns["pp_layout"]) & ~legal
    return bad if len(bad) == 1 else bad[index]


def _is_none(c: Context, layout: IntArray) -> BoolArray:
    result: BoolArray = np.array([text == "none" for text in c.batch.texts], np.bool_)[layout]
    return result


def _layout(c: Context) -> BoolArray:
    rows = ~_is_none(c, c["pp_layout"])
    if not rows.any():
        return rows
    found, index = layouts(c.model, c.batch)
    illegal = np.array([layout is None for layout in found])[index]
    bad: BoolArray = rows & illegal
    return bad


def _split_message(c: Context) -> str:
    pp, vpp = c.number("pp", 0), c.number("vpp", 0)
    first, last = (c.number(n, 0) for n in ("first_stage_layers", "last_stage_layers"))
    layers = c.model.num_layers
    if pp == 1:
        return (f"a pipeline of one stage holds all {layers} layers, got "
                f"{first if first != layers else last}")
    if first < 0 and last < 0:
        return (f"{layers} layers do not divide into pp*vpp ({pp}*{vpp} = {pp * vpp}) chunks, and "
                "no split is given, got none")
    given = [f"{name} {value}" for name, value in (("first", first), ("last", last)) if value >= 0]
    return (f"{layers} layers must add up: the {pp} stages but the given ones share the rest "
            f"evenly, and each stage's layers divide by vpp ({vpp}), got {' and '.join(given)}")


def _end_at_fault(c: Context) -> str:
    whole = c.number("pp", 0) == 1 and c.number("first_stage_layers", 0) == c.model.num_layers
    return "last_stage_layers" if whole else "first_stage_layers"


def _layout_message(c: Context) -> str:
    pp, vpp, mtp = (c.number(n, 0) for n in ("pp", "vpp", "mtp"))
    text = str(c.value("pp_layout", 0))
    parsed = parse_layout(text, num_layers=c.model.num_layers, pp=pp, vpp=vpp, mtp=mtp)
    if isinstance(parsed, str):
        return parsed if "got " in parsed else f"{parsed}, got {text[:60]}"
    return "contradicts first_stage_layers or last_stage_layers: leave these out, got " + text[:60]


def _group_range(c: Context) -> BoolArray:
    size = c["microbatch_group_size"]
    bad: BoolArray = _interleaves(c) & ((size < c["pp"]) | (size > c.num_microbatches))
    return bad


def _group_rest(c: Context) -> BoolArray:
    rest = remainder(c.num_microbatches, np.maximum(c["microbatch_group_size"], 1))
    bad: BoolArray = _interleaves(c) & (rest > 0) & (rest < c["pp"])
    return bad


def _group_message(c: Context) -> str:
    return (f"interleaving needs pp <= microbatch_group_size <= micro-batches, got pp "
            f"{c.number('pp', 0)}, microbatch_group_size {c.number('microbatch_group_size', 0)}, "
            f"gbs {c.number('gbs', 0)} and so {int(c.num_microbatches[0])} micro-batches")


def _rest_message(c: Context) -> str:
    return ("interleaving needs micro-batches that leave no rest, or one of at least pp "
            f"({c.number('pp', 0)}), over microbatch_group_size "
            f"({c.number('microbatch_group_size', 0)}), got gbs {c.number('gbs', 0)} and so "
            f"{int(c.num_microbatches[0])} micro-batches")


def _group_without_vpp(c: Context) -> BoolArray:
    bad: BoolArray = ~_interleaves(c) & (c["microbatch_group_size"] != c["pp"])
    return bad


def _p2p_without_vpp(c: Context) -> BoolArray:
    bad: BoolArray = (c["overlap_p2p"] == 1) & ~_interleaves(c)
    return bad


RULES: tuple[Rule, ...] = (
    make_rule("schedule_offered", ("schedule", "framework"), _schedule_offered,
              _offered_message, ("schedule", "framework")),
    make_rule("vpp_needs_pp", ("vpp", "pp"), _vpp_needs_pp,
              "interleaving needs at least 2 pipeline ranks", ("vpp", "pp")),
    make_rule("schedule_fits_vpp", ("schedule", "vpp"), _schedule_of_vpp, _vpp_message,
              ("schedule", "vpp")),
    make_rule("schedule_needs_pp", ("schedule", "pp"), _needs_pp, "needs pp > 1",
              ("schedule", "pp")),
    make_rule("dualpipe_pairs_ranks", ("schedule", "pp"), _dualpipe_ranks,
              lambda c: "dualpipe pairs ranks from both ends: pp must be even, got "
              f"{c.number('pp', 0)}", ("pp", "schedule")),
    make_rule("dual_micro_batches", ("schedule", *_STEP), _dual_micro_batches, _dual_message,
              ("gbs", "schedule", "pp")),
    make_rule("dualpipe_shards_states_only", ("schedule", "zero"), _dualpipe_zero,
              "dualpipe keeps both copies of a stage whole: needs zero 0 or 1",
              ("zero", "schedule")),
    make_rule("turned_pipeline_is_even", ("schedule", *LAYOUT_FIELDS), _turned_split,
              "dualpipev's first rank holds both ends: first_stage_layers must equal "
              "last_stage_layers (or give pp_layout)",
              ("first_stage_layers", "pp_layout", "schedule")),
    make_rule("layers_divide", LAYOUT_FIELDS, _split, _split_message,
              ("first_stage_layers", "vpp", "pp"), where=_end_at_fault),
    make_rule("layout_fits", LAYOUT_FIELDS, _layout, _layout_message, ("pp_layout", "pp")),
    make_rule("overlap_p2p_needs_vpp", ("overlap_p2p", "vpp", "schedule"), _p2p_without_vpp,
              "only an interleaved pipeline overlaps its sends: needs vpp > 1",
              ("overlap_p2p", "vpp")),
    make_rule("vpp_on_two_ranks_needs_overlap", ("vpp", "pp", "overlap_p2p", "schedule"),
              _vpp_without_overlap, "interleaving without overlap_p2p needs pp > 2",
              ("overlap_p2p", "pp", "vpp")),
    make_rule("group_size_needs_vpp", ("microbatch_group_size", "vpp", "pp", "schedule"),
              _group_without_vpp, "must be pp where nothing is interleaved",
              ("microbatch_group_size",)),
    make_rule("group_size_in_range", _GROUP, _group_range, _group_message,
              ("gbs", "vpp", "microbatch_group_size")),
    make_rule("group_leaves_no_rest", _GROUP, _group_rest, _rest_message,
              ("gbs", "vpp", "microbatch_group_size")),
)
