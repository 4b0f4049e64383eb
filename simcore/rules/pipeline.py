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
from simcore.inputs.fields import FIELD
from simcore.layout import LAYOUT_FIELDS, layouts, parse_layout, split_is_legal
from simcore.rules.base import Context, Rule, mask
from simcore.rules.fixes import make_rule
from simcore.typing import BoolArray, IntArray

_STEP = ("gbs", "mbs", "gpus", "tp", "cp", "pp")


def _vpp_needs_pp(c: Context) -> BoolArray:
    bad: BoolArray = (c["vpp"] > 1) & (c["pp"] == 1)
    return bad


def _vpp_without_overlap(c: Context) -> BoolArray:
    # Two sends between the same two ranks would be in flight at once.
    bad: BoolArray = (c["vpp"] > 1) & (c["overlap_p2p"] == 0) & (c["pp"] == 2)
    return bad


def _schedule_not_modelled(c: Context) -> BoolArray:
    return c.any_of("schedule", *FIELD["schedule"].not_modelled)


def _schedule_of_vpp(c: Context) -> BoolArray:
    interleaved = c.any_of("schedule", "interleaved")
    known = interleaved | c.any_of("schedule", "1f1b", "gpipe")
    bad: BoolArray = (interleaved != (c["vpp"] > 1)) & known
    return bad


def _gpipe_needs_pp(c: Context) -> BoolArray:
    return mask(c.any_of("schedule", "gpipe") & (c["pp"] == 1))


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
    bad: BoolArray = (c["vpp"] > 1) & ((size < c["pp"]) | (size > c.num_microbatches))
    return bad


def _group_rest(c: Context) -> BoolArray:
    rest = remainder(c.num_microbatches, np.maximum(c["microbatch_group_size"], 1))
    bad: BoolArray = (c["vpp"] > 1) & (rest > 0) & (rest < c["pp"])
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
    bad: BoolArray = (c["vpp"] == 1) & (c["microbatch_group_size"] != c["pp"])
    return bad


def _p2p_without_vpp(c: Context) -> BoolArray:
    bad: BoolArray = (c["overlap_p2p"] == 1) & (c["vpp"] == 1)
    return bad


RULES: tuple[Rule, ...] = (
    make_rule("schedule_not_modelled", ("schedule",), _schedule_not_modelled,
              lambda c: f"{c.value('schedule', 0)} is not modelled", ("schedule",)),
    make_rule("vpp_needs_pp", ("vpp", "pp"), _vpp_needs_pp,
              "interleaving needs at least 2 pipeline ranks", ("vpp", "pp")),
    make_rule("schedule_fits_vpp", ("schedule", "vpp"), _schedule_of_vpp,
              lambda c: f"must be interleaved where vpp > 1, and only there (vpp "
              f"{c.number('vpp', 0)})", ("schedule", "vpp")),
    make_rule("gpipe_needs_pp", ("schedule", "pp"), _gpipe_needs_pp, "needs pp > 1",
              ("schedule", "pp")),
    make_rule("layers_divide", LAYOUT_FIELDS, _split, _split_message,
              ("first_stage_layers", "vpp", "pp"), where=_end_at_fault),
    make_rule("layout_fits", LAYOUT_FIELDS, _layout, _layout_message, ("pp_layout", "pp")),
    make_rule("overlap_p2p_needs_vpp", ("overlap_p2p", "vpp"), _p2p_without_vpp,
              "only an interleaved pipeline overlaps its sends: needs vpp > 1",
              ("overlap_p2p", "vpp")),
    make_rule("vpp_on_two_ranks_needs_overlap", ("vpp", "pp", "overlap_p2p"),
              _vpp_without_overlap, "interleaving without overlap_p2p needs pp > 2",
              ("overlap_p2p", "pp", "vpp")),
    make_rule("group_size_needs_vpp", ("microbatch_group_size", "vpp", "pp"),
              _group_without_vpp, "must be pp where nothing is interleaved",
              ("microbatch_group_size",)),
    make_rule("group_size_in_range", ("vpp", "microbatch_group_size", *_STEP), _group_range,
              _group_message, ("gbs", "vpp", "microbatch_group_size")),
    make_rule("group_leaves_no_rest", ("vpp", "microbatch_group_size", *_STEP), _group_rest,
              _rest_message, ("gbs", "vpp", "microbatch_group_size")),
)
