"""Fill in every field that a strategy leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from simcore.batch import Batch, Column, as_column, constant, distinct, is_constant
from simcore.degrees import quotient
from simcore.inputs.codec import encode
from simcore.inputs.fields import DEFAULT_GBS, FIELD, MEGATRON, RECOMPUTE_BIT, UNSET, code
from simcore.inputs.framework import Profile
from simcore.inputs.model import AttentionKind, ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.layout import (
    LAYOUT_FIELDS,
    NO_SPLIT,
    default_ends,
    end_layers,
    layout_text,
    num_chunks,
    parse_layout,
    split_counts,
)
from simcore.profiles import profile_codes, version_key
from simcore.typing import BoolArray, IntArray

__all__ = ["DEFAULT_GBS", "FULL", "fullest_rank", "is_fp8", "profile_codes", "resolve",
           "version_key"]

FULL = RECOMPUTE_BIT["full"]
_FP8_FROM, _FP8_UPTO = code("precision", "fp8-ds"), code("precision", "fp8-rowwise")


def is_fp8(precision: IntArray) -> BoolArray:
    """Tell which precisions multiply in 8 bits or fewer."""
    result: BoolArray = (precision >= _FP8_FROM) & (precision <= _FP8_UPTO)
    return result


class _Resolver:
    """Columns of a batch while they are filled, each of shape (1,) or (n,)."""

    def __init__(self, model: ModelSpec, batch: Batch) -> None:
        self.model = model
        self.size = batch.size
        self.texts = list(batch.texts)
        self.columns: dict[str, Column] = {
            name: column[:1] if is_constant(column) else column
            for name, column in batch.columns.items()
        }
        self.profiles, index = profile_codes(batch)
        self.profile: IntArray = index[:1] if len(self.profiles) == 1 else index

    def __getitem__(self, name: str) -> IntArray:
        return cast(IntArray, self.columns[name])

    def unset(self, name: str) -> BoolArray:
        result: BoolArray = self.columns[name] == UNSET
        return result

    def fill(self, name: str, value: Column | BoolArray | float) -> None:
        """Give a field its default where it is unset."""
        column = self.columns[name]
        if not self.has_gaps(name):
            return
        new = as_column(value, column.dtype).reshape(-1)
        if len(column) > 1:
            new = as_column(np.where(column == UNSET, new, column), column.dtype)
        # What does not vary is stored once, which makes all that reads it cheaper.
        self.columns[name] = new[:1] if len(new) > 1 and (new == new[0]).all() else new

    def has_gaps(self, name: str) -> bool:
        """Tell whether a field is unset anywhere."""
        column = self.columns[name]
        if len(column) == 1:
            return bool(column[0] == UNSET)
        return bool((column == UNSET).any())

    def switch(self, name: str, able: BoolArray | bool, otherwise: float = 0) -> None:  # noqa: FBT001
        """Give a field its profile's default where its mechanism exists, else 0."""
        if self.has_gaps(name):
            default = self.by_profile(name, otherwise)
            self.fill(name, default * able if default.any() else 0)

    def text(self, value: str) -> int:
        """Code of a text, which joins the batch's texts if it is new."""
        if value not in self.texts:
            self.texts.append(value)
        return self.texts.index(value)

    def by_profile(self, name: str, otherwise: float) -> Column:
        """What the profiles say about a field, or a value for those that say nothing."""
        codes = as_column([_profile_code(p, name, otherwise) for p in self.profiles],
                          self.columns[name].dtype)
        return codes[self.profile]

    def batch(self) -> Batch:
        columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            small = column.shape[0] == 1 and self.size != 1
            columns[name] = constant(column, self.size) if small else column
        return Batch(columns, tuple(self.texts), self.size)


def _profile_code(profile: Profile, name: str, otherwise: float) -> float:
    if name not in profile.defaults:
        return otherwise
    return encode(FIELD[name], profile.defaults[name], [])


def resolve(model: ModelSpec, system: SystemSpec, batch: Batch) -> Batch:
    """Fill every field that is UNSET.

    The default is the framework profile's, else the one that `simcore.inputs.fields` names; a
    switch whose mechanism is absent (an overlap without the communication, experts in a dense
    model) becomes off. `recompute_layers` is the fullest rank's layers under full
    recomputation and 0 otherwise, since only full recomputation counts layers.

    Parameters
    ----------
    model, system : ModelSpec, SystemSpec
        What is trained, and where.
    batch : Batch
        Strategies with gaps.

    Returns
    -------
    Batch
        Without gaps but for `gpus`, which has no default; texts may have grown at the end.
        Resolving again changes nothing. The result need not be legal.
    """
    del system  # No default depends on it today; the signature leaves room.
    if batch.size == 0:
        return batch
    r = _Resolver(model, batch)
    for step in _STEPS:
        step(r)
    return r.batch()


def _software(r: _Resolver) -> None:
    r.fill("framework", code("framework", "megatron"))
    codes = np.array([r.text(p.version) for p in r.profiles], np.int64)
    # The profile's own name replaces what was asked for, so that outputs show what is used.
    r.columns["framework_version"] = codes[r.profile]


def _parallelism(r: _Resolver) -> None:
    for name in ("tp", "cp", "pp", "ep", "mbs", "dp_replicate"):
        r.fill(name, r.by_profile(name, 1))
    r.fill("etp", r["tp"] if r.model.is_moe else 1)
    r.switch("sp", r["tp"] > 1, 1)
    r.fill("zero", r.by_profile("zero", 1))
    ring_free = any(kind.attention is AttentionKind.SLIDING for kind in r.model.kinds)
    # Transformer Engine has no ring for sliding windows.
    r.switch("cp_comm", r["cp"] > 1, code("cp_comm", "all_gather") if ring_free else 0)
    r.fill("rank_order", r.by_profile("rank_order", 0))
    r.fill("seq_len", r.model.seq_len)
    r.fill("mtp", r.model.mtp_num_layers)


def _pipeline(r: _Resolver) -> None:
    r.fill("pp_layout", r.text("none"))
    none = r.text("none")
    if (r["pp_layout"] != none).any():
        _vpp_of_layouts(r)
    r.fill("vpp", np.where(r["schedule"] == code("schedule", "dualpipev"), 2, 1))
    ends = ("first_stage_layers", "last_stage_layers")
    if any(r.has_gaps(name) for name in ends):
        _ends_by_default(r, none)
    if (r["pp_layout"] != none).any():
        _ends_of_layouts(r, r["pp_layout"] != none)
    r.fill("schedule", np.where(r["vpp"] > 1, code("schedule", "interleaved"),
                                r.by_profile("schedule", code("schedule", "1f1b"))))
    r.fill("microbatch_group_size", r["pp"])
    if r.has_gaps("gbs"):
        ranks = np.maximum(quotient(r["gpus"], r["tp"] * r["cp"] * r["pp"]), 1) * r["mbs"]
        # Interleaving runs micro-batches in whole groups.
        dual = r["schedule"] >= code("schedule", "dualpipe")
        unit = ranks * np.where(dual, 2, np.where(
            r["vpp"] > 1, np.maximum(r["microbatch_group_size"], 1), 1))
        r.fill("gbs", np.ceil(DEFAULT_GBS / unit).astype(np.int64) * unit)


def _ends_by_default(r: _Resolver, none: int) -> None:
    names = ("pp", "vpp", "mtp", "first_stage_layers", "last_stage_layers", "pp_layout")
    rows, index = distinct([r[name] for name in names], r.size)
    pp, vpp, mtp, head, tail, layout = (
        r[name][rows] if len(r[name]) > 1 else r[name] for name in names)
    first, last, by_text = default_ends(r.model.num_layers, pp, vpp, mtp, head, tail)
    by_text, explicit = by_text & (layout == none), layout != none
    if by_text.any():
        r.columns["pp_layout"] = np.broadcast_to(
            np.where(by_text, r.text("auto"), layout), rows.shape)[index]
    # Explicit layouts say it themselves.
    for name, value, given in (("first_stage_layers", first, head),
                               ("last_stage_layers", last, tail)):
        new = np.where(by_text | explicit, given, value)
        column = np.broadcast_to(new, rows.shape)
        r.columns[name] = column[:1] if len(rows) == 1 else column[index]


def _groups(r: _Resolver, names: tuple[str, ...],
            rows: BoolArray) -> list[tuple[tuple[int, ...], IntArray]]:
    """Distinct values of some fields among the rows that a mask names, and where they are."""
    mask = np.broadcast_to(rows, (r.size,))
    columns = [np.broadcast_to(r[name], (r.size,))[mask] for name in names]
    places = np.flatnonzero(mask)
    first, inverse = distinct(columns, len(places))
    return [(tuple(int(column[row]) for column in columns), places[inverse == k])
            for k, row in enumerate(first.tolist())]


def _set(r: _Resolver, name: str, places: IntArray, value: int) -> None:
    column = np.array(np.broadcast_to(r[name], (r.size,)))
    column[places] = value
    r.columns[name] = column if (column != column[0]).any() else column[:1].copy()


def _vpp_of_layouts(r: _Resolver) -> None:
    """Where vpp is unset, a layout's chunks say how many a rank holds, as in Megatron."""
    missing = r.unset("vpp") & (r["pp"] > 0)
    if not missing.any():
        return
    for (text, pp), places in _groups(r, ("pp_layout", "pp"), missing):
        chunks = num_chunks(r.texts[text])
        if chunks and chunks % pp == 0:
            _set(r, "vpp", places, chunks // pp)


def _ends_of_layouts(r: _Resolver, rows: BoolArray) -> None:
    """First and last stage of explicit layouts; layouts that these express become 'none'."""
    for key, places in _groups(r, LAYOUT_FIELDS, rows):
        pp, vpp, first, last, text, mtp, _ = key
        parsed = parse_layout(r.texts[text], num_layers=r.model.num_layers, pp=pp, vpp=vpp,
                              mtp=mtp)
        if isinstance(parsed, str):
            ends = (NO_SPLIT, NO_SPLIT)
        else:
            counts, chunk = parsed
            ends = end_layers(counts, pp)
        given = (ends[0] if first == UNSET else first, ends[1] if last == UNSET else last)
        _set(r, "first_stage_layers", places, given[0])
        _set(r, "last_stage_layers", places, given[1])
        if isinstance(parsed, str) or given != ends:
            continue
        plain = split_counts(r.model.num_layers, pp, vpp, *ends) == counts and (
            not mtp or chunk == pp * vpp - 1)
        canonical = "none" if plain else layout_text(counts, chunk if mtp else None)
        _set(r, "pp_layout", places, r.text(canonical))


def fullest_rank(model: ModelSpec, columns: Mapping[str, IntArray],
                 texts: tuple[str, ...] | list[str]) -> IntArray:
    """Decoder layers of the rank that holds most; a guess where the split is illegal.

    Parameters
    ----------
    model : ModelSpec
        Its layers.
    columns : mapping of str to ndarray, shapes that broadcast to (n,)
        At least the `LAYOUT_FIELDS`, resolved.
    texts : sequence of str
        What pp_layout's codes point into.

    Returns
    -------
    ndarray, shape (n,) or (1,)
    """
    size = max(len(columns[name]) for name in LAYOUT_FIELDS)
    rows, index = distinct([columns[name] for name in LAYOUT_FIELDS], size)
    pp, first, last, layout = (
        columns[name][rows] if len(columns[name]) > 1 else columns[name]
        for name in ("pp", "first_stage_layers", "last_stage_layers", "pp_layout"))
    middle = np.where(pp > 2, (model.num_layers - first - last) // np.maximum(pp - 2, 1), 0)
    most: IntArray = np.maximum(np.maximum(first, last), middle)
    for text in np.unique(layout):
        if texts[text] in ("none", "auto"):
            continue
        for ranks in np.unique(pp):
            here = (layout == text) & (pp == ranks)
            most = np.where(here, _fullest_of_text(texts[text], int(ranks), model.num_layers),
                            most)
    schedule = columns["schedule"][rows] if len(columns["schedule"]) > 1 else columns["schedule"]
    # DualPipe's ranks hold two stages each.
    most = np.where(schedule == code("schedule", "dualpipe"),
                    np.minimum(2 * most, model.num_layers), most)
    return most if len(most) == 1 else most[index]


def _fullest_of_text(text: str, pp: int, num_layers: int) -> int:
    chunks = num_chunks(text)
    if not chunks or pp < 1 or chunks % pp:
        return num_layers
    parsed = parse_layout(text, num_layers=num_layers, pp=pp, vpp=chunks // pp, mtp=0)
    counts = () if isinstance(parsed, str) else parsed[0]
    return max((sum(counts[rank::pp]) for rank in range(pp)), default=num_layers)


def _recompute(r: _Resolver) -> None:
    r.fill("recompute", r.by_profile("recompute", 0))
    full = r["recompute"] == FULL
    given = ~r.unset("recompute_layers")
    method = np.where(full & given, code("recompute_method", "block"),
                      code("recompute_method", "uniform"))
    r.fill("recompute_method", method)
    if (full & ~given).any():
        most = fullest_rank(r.model, cast(Mapping[str, IntArray], r.columns), r.texts)
        r.fill("recompute_layers", np.where(full, most, 0))
    r.fill("recompute_layers", 0)
    r.fill("recompute_unit_layers", 1)
    r.fill("activation_offload_layers", 0)


def _precision(r: _Resolver) -> None:
    r.fill("precision", r.by_profile("precision", 0))
    fp8 = is_fp8(r["precision"])
    r.fill("grad_dtype", r.by_profile("grad_dtype", code("grad_dtype", "fp32")))
    sharded = r["zero"] >= 1
    is_fp4 = r["precision"] == code("precision", "nvfp4")
    r.switch("fp8_param_gather", fp8 & sharded & ~is_fp4)
    r.switch("fp4_param_gather", is_fp4 & sharded)
    bridge = r["framework"] == code("framework", "megatron-bridge")
    mxfp8 = (r["precision"] == code("precision", "mxfp8")) & (r["fp8_param_gather"] == 1)
    reuse = bridge | (r.by_profile("reuse_grad_buf", 0) == 1)
    r.fill("reuse_grad_buf", reuse & mxfp8 & (r["zero"] == 1) if mxfp8.any() else 0)


def _optimizer(r: _Resolver) -> None:
    r.fill("optimizer", r.by_profile("optimizer", 0))
    able = (r["zero"] >= 1) & (r["optimizer"] == code("optimizer", "adam"))
    dtypes = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    for name in dtypes:
        # Without the precision-aware optimizer there is nothing but fp32.
        r.switch(name, able & (r["precision_aware_optimizer"] != 0))
    r.fill("optimizer_offload", 0.0)
    # Megatron's optimizer on the CPU is built on the precision-aware one.
    offloads = (r.columns["optimizer_offload"] > 0) & _is_megatron(r)
    other = (r["main_grads_dtype"] > 0) | offloads
    for name in dtypes:
        other = other | (r[name] > 0)
    asked = r.by_profile("precision_aware_optimizer", 0) == 1
    r.fill("precision_aware_optimizer", other | (able & asked) if asked.any() else other)
    on = r["precision_aware_optimizer"] == 1
    r.fill("main_grads_dtype", np.where(on, r.by_profile("main_grads_dtype", UNSET), 0))
    r.fill("main_grads_dtype", r["grad_dtype"])


def _is_megatron(r: _Resolver) -> BoolArray:
    codes = [code("framework", name) for name in MEGATRON]
    found: BoolArray = np.isin(r["framework"], codes)
    return found


def _overlap(r: _Resolver) -> None:
    if r.has_gaps("overlap_grad_reduce"):
        r.switch("overlap_grad_reduce", quotient(r["gpus"], r["tp"] * r["pp"]) > 1)
    r.switch("overlap_param_gather", (r["zero"] >= 1) & (r["overlap_grad_reduce"] == 1))
    r.switch("tp_comm_overlap", (r["tp"] > 1) & (r["sp"] == 1))
    r.switch("overlap_p2p", r["schedule"] == code("schedule", "interleaved"), 1)
    r.switch("dispatcher", r.model.is_moe)
    r.switch("ep_comm_overlap", r["ep"] > 1)
    moe = r.model.moe
    shared = r.model.is_moe and moe is not None and moe.shared_ffn_hidden_size > 0
    able = (r["dispatcher"] != code("dispatcher", "allgather")) & (r["ep_comm_overlap"] == 0)
    r.switch("shared_expert_overlap", able & shared)
    r.switch("delay_wgrad_compute", r["ep_comm_overlap"] == 1)


def _experts(r: _Resolver) -> None:
    moe = r.model.is_moe
    r.switch("capacity_factor", moe)
    r.switch("pad_to_capacity", r.columns["capacity_factor"] > 0)
    r.fill("expert_imbalance", 1.0)
    r.switch("grouped_gemm", moe, 1)
    r.switch("permute_fusion", moe)


def _kernels(r: _Resolver) -> None:
    r.fill("attention", r.by_profile("attention", 0))
    r.fill("cross_entropy", r.by_profile("cross_entropy", 0))
    fused = r["cross_entropy"] == code("cross_entropy", "fused")
    r.switch("cross_entropy_impl", fused)
    r.switch("fused_swiglu", r.model.gated_mlp, 1)
    r.switch("fused_rope", r.model.rotary, 1)
    r.fill("fused_norm", r.by_profile("fused_norm", 1))
    r.fill("grad_accumulation_fusion", r.by_profile("grad_accumulation_fusion", 1))
    r.fill("dropout", 0.0)
    r.fill("cuda_graph", r.by_profile("cuda_graph", 0))


_STEPS: tuple[Callable[[_Resolver], None], ...] = (
    _software, _parallelism, _pipeline, _recompute, _precision, _optimizer, _overlap, _experts,
    _kernels,
)
