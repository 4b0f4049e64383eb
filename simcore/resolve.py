"""Fill in every field that a strategy leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from simcore.batch import Batch, Column, is_constant
from simcore.inputs.codec import encode, parse
from simcore.inputs.fields import FIELD, FRAMEWORKS, RECOMPUTE_BIT, UNSET, code
from simcore.inputs.framework import FrameworkSpec, Profile
from simcore.inputs.load import load_framework
from simcore.inputs.model import MlpKind, ModelSpec
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
from simcore.typing import BoolArray, IntArray

DEFAULT_GBS = 1024
"""Sequences in a global batch where the user gives none."""
FULL = RECOMPUTE_BIT["full"]
_FP8_FROM, _FP8_UPTO = code("precision", "fp8-ds"), code("precision", "fp8-rowwise")


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version in order, ``core_r0.14.1`` -> (0, 14, 1), for comparison."""
    return tuple(int(part[:9]) for part in re.findall(r"\d+", version))


def select_profile(framework: FrameworkSpec, version: str | None) -> Profile:
    """Choose a framework's profile for a version.

    Parameters
    ----------
    framework : FrameworkSpec
        The profiles, oldest first.
    version : str or None
        None: the newest.

    Returns
    -------
    Profile
        The exact one, else the nearest earlier one, else the oldest.
    """
    wanted = framework.newest if version is None else version
    for profile in framework.profiles:
        if profile.version == wanted:
            return profile
    earlier = [p for p in framework.profiles if version_key(p.version) <= version_key(wanted)]
    return max(earlier, key=lambda p: version_key(p.version), default=framework.profiles[0])


def profile_codes(batch: Batch) -> tuple[tuple[Profile, ...], IntArray]:
    """Find the profile of every row.

    Returns
    -------
    profiles : tuple of Profile
        The distinct ones.
    index : ndarray, shape (n,)
        Which of them each row takes.
    """
    first, index = batch.group(("framework", "framework_version"))
    profiles = []
    for row in first:
        number, text = int(batch["framework"][row]), int(batch["framework_version"][row])
        name = FRAMEWORKS[max(number, 0)]
        version = None if text == UNSET else batch.texts[text]
        profiles.append(select_profile(load_framework(name), version))
    return tuple(profiles), index


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
        missing = self.unset(name)
        if not missing.any():
            return
        new = np.asarray(value, dtype=column.dtype)
        if missing.all():
            wide = max(new.size, 1)
            self.columns[name] = new.reshape(wide)
        else:
            self.columns[name] = np.where(missing, new, column)

    def text(self, value: str) -> int:
        """Code of a text, which joins the batch's texts if it is new."""
        if value not in self.texts:
            self.texts.append(value)
        return self.texts.index(value)

    def by_profile(self, name: str, otherwise: float) -> Column:
        """What the profiles say about a field, or a value for those that say nothing."""
        return np.array([_profile_code(p, name, otherwise) for p in self.profiles],
                        self.columns[name].dtype)[self.profile]

    def batch(self) -> Batch:
        columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            small = column.shape[0] == 1 and self.size != 1
            columns[name] = np.broadcast_to(column[0], (self.size,)) if small else column
        return Batch(columns, tuple(self.texts), self.size)


def _profile_code(profile: Profile, name: str, otherwise: float) -> float:
    if name not in profile.defaults:
        return otherwise
    value = parse(FIELD[name], profile.defaults[name], where=f"{profile.version}: ")
    return otherwise if not isinstance(value, (bool, int, float, str)) else encode(
        FIELD[name], value, [])


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
    r.fill("sp", r.by_profile("sp", 1) * (r["tp"] > 1))
    r.fill("zero", r.by_profile("zero", 1))
    r.fill("cp_comm", np.where(r["cp"] > 1, r.by_profile("cp_comm", 0), 0))
    r.fill("rank_order", r.by_profile("rank_order", 0))
    r.fill("seq_len", r.model.seq_len)
    ranks = np.maximum(r["gpus"] // np.maximum(r["tp"] * r["cp"] * r["pp"], 1), 1) * r["mbs"]
    r.fill("gbs", -(-DEFAULT_GBS // ranks) * ranks)
    r.fill("mtp", r.model.mtp_num_layers)


def _pipeline(r: _Resolver) -> None:
    r.fill("pp_layout", r.text("none"))
    none = r.text("none")
    if (r["pp_layout"] != none).any():
        _vpp_of_layouts(r)
    r.fill("vpp", 1)
    first, last, by_text = default_ends(
        r.model.num_layers, r["pp"], r["vpp"], r["mtp"], r["first_stage_layers"],
        r["last_stage_layers"])
    by_text = by_text & (r["pp_layout"] == none)
    if by_text.any():
        r.columns["pp_layout"] = np.where(by_text, r.text("auto"), r["pp_layout"])
    texts = r["pp_layout"] != none
    if texts.any():
        _ends_of_layouts(r, texts)
    r.fill("first_stage_layers", first)
    r.fill("last_stage_layers", last)
    r.fill("schedule", np.where(r["vpp"] > 1, code("schedule", "interleaved"),
                                r.by_profile("schedule", code("schedule", "1f1b"))))
    r.fill("microbatch_group_size", r["pp"])


def _groups(r: _Resolver, names: tuple[str, ...],
            rows: BoolArray) -> list[tuple[tuple[int, ...], IntArray]]:
    """Distinct values of some fields among the rows that a mask names, and where they are."""
    mask = np.broadcast_to(rows, (r.size,))
    columns = [np.broadcast_to(r[name], (r.size,))[mask] for name in names]
    keys, inverse = np.unique(np.stack(columns), axis=1, return_inverse=True)
    places = np.flatnonzero(mask)
    return [(tuple(int(v) for v in keys[:, k]), places[inverse.ravel() == k])
            for k in range(keys.shape[1])]


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
        pp, vpp, first, last, text, mtp = key
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
    pp, first, last = columns["pp"], columns["first_stage_layers"], columns["last_stage_layers"]
    middle = np.where(pp > 2, (model.num_layers - first - last) // np.maximum(pp - 2, 1), 0)
    most: IntArray = np.maximum(np.maximum(first, last), middle)
    layout = columns["pp_layout"]
    for text in np.unique(layout):
        if texts[text] in ("none", "auto"):
            continue
        for ranks in np.unique(pp):
            here = (layout == text) & (pp == ranks)
            most = np.where(here, _fullest_of_text(texts[text], int(ranks), model.num_layers),
                            most)
    return most


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
    r.fill("fp8_param_gather", r.by_profile("fp8_param_gather", 0) * fp8 * sharded)
    r.fill("fp4_param_gather", 0)
    bridge = r["framework"] == code("framework", "megatron-bridge")
    mxfp8 = (r["precision"] == code("precision", "mxfp8")) & (r["fp8_param_gather"] == 1)
    reuse = np.where(bridge, 1, r.by_profile("reuse_grad_buf", 0))
    r.fill("reuse_grad_buf", reuse * mxfp8 * (r["zero"] == 1))


def _optimizer(r: _Resolver) -> None:
    r.fill("optimizer", r.by_profile("optimizer", 0))
    aware = ((r["precision_aware_optimizer"] != 0) & (r["zero"] >= 1)
             & (r["optimizer"] == code("optimizer", "adam")))
    dtypes = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    for name in dtypes:
        # Without the precision-aware optimizer there is nothing but fp32.
        r.fill(name, np.where(aware, r.by_profile(name, 0), 0))
    other = (r["main_grads_dtype"] > 0) | np.any(
        np.broadcast_arrays(*(r[name] > 0 for name in dtypes)), axis=0)
    r.fill("precision_aware_optimizer",
           np.where(aware, np.maximum(r.by_profile("precision_aware_optimizer", 0), other),
                    other))
    on = r["precision_aware_optimizer"] == 1
    r.fill("main_grads_dtype", np.where(on, r.by_profile("main_grads_dtype", UNSET), 0))
    r.fill("main_grads_dtype", r["grad_dtype"])
    r.fill("optimizer_offload", 0.0)


def _overlap(r: _Resolver) -> None:
    replicas = np.maximum(r["gpus"] // np.maximum(r["tp"] * r["pp"], 1), 1)
    r.fill("overlap_grad_reduce", r.by_profile("overlap_grad_reduce", 0) * (replicas > 1))
    r.fill("overlap_param_gather", r.by_profile("overlap_param_gather", 0)
           * ((r["zero"] >= 1) & (r["overlap_grad_reduce"] == 1)))
    r.fill("tp_comm_overlap", r.by_profile("tp_comm_overlap", 0)
           * ((r["tp"] > 1) & (r["sp"] == 1)))
    r.fill("overlap_p2p", r.by_profile("overlap_p2p", 1) * (r["vpp"] > 1))
    r.fill("dispatcher", r.by_profile("dispatcher", 0) if r.model.is_moe else 0)
    r.fill("ep_comm_overlap", r.by_profile("ep_comm_overlap", 0) * (r["ep"] > 1))
    moe = r.model.moe
    shared = r.model.is_moe and moe is not None and moe.shared_ffn_hidden_size > 0
    able = (r["dispatcher"] == code("dispatcher", "alltoall")) & (r["ep_comm_overlap"] == 0)
    r.fill("shared_expert_overlap", r.by_profile("shared_expert_overlap", 0) * able * shared)
    r.fill("delay_wgrad_compute", r.by_profile("delay_wgrad_compute", 0)
           * (r["ep_comm_overlap"] == 1))


def _experts(r: _Resolver) -> None:
    moe = r.model.is_moe
    r.fill("capacity_factor", r.by_profile("capacity_factor", 0) if moe else 0)
    r.fill("pad_to_capacity", r.by_profile("pad_to_capacity", 0)
           * (r.columns["capacity_factor"] > 0))
    r.fill("expert_imbalance", 1.0)
    r.fill("grouped_gemm", r.by_profile("grouped_gemm", 1) if moe else 0)
    r.fill("permute_fusion", r.by_profile("permute_fusion", 0) if moe else 0)


def _kernels(r: _Resolver) -> None:
    r.fill("attention", r.by_profile("attention", 0))
    r.fill("cross_entropy", r.by_profile("cross_entropy", 0))
    fused = r["cross_entropy"] == code("cross_entropy", "fused")
    r.fill("cross_entropy_impl", np.where(fused, r.by_profile("cross_entropy_impl", 0), 0))
    r.fill("fused_swiglu", r.by_profile("fused_swiglu", 1) if r.model.gated_mlp else 0)
    r.fill("fused_rope", r.by_profile("fused_rope", 1) if r.model.rotary else 0)
    r.fill("fused_norm", r.by_profile("fused_norm", 1))
    r.fill("grad_accumulation_fusion", r.by_profile("grad_accumulation_fusion", 1))
    r.fill("cuda_graph", r.by_profile("cuda_graph", 0))


_STEPS: tuple[Callable[[_Resolver], None], ...] = (
    _software, _parallelism, _pipeline, _recompute, _precision, _optimizer, _overlap, _experts,
    _kernels,
)


def has_dense_layers(model: ModelSpec) -> bool:
    """Tell whether any layer has a dense MLP."""
    return any(kind.mlp is MlpKind.DENSE for kind in model.kinds)
