"""What `auto` means for each field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simcore.errors import InputError, Issue
from simcore.inputs.fields import FIELD, FRAMEWORKS, RECOMPUTE_BIT, UNSET, Kind, code
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec

Codes = tuple[float, ...]
Given = Mapping[str, float]
Options = Callable[[Given], tuple[Codes, ...]]

DERIVED_FROM: Mapping[str, tuple[str, ...]] = {
    "gbs": ("gpus", "tp", "cp", "pp", "mbs", "vpp", "pp_layout", "microbatch_group_size"),
    "vpp": ("pp", "pp_layout", "schedule"),
    "etp": ("tp",),
    "sp": ("tp",),
    "cp_comm": ("cp",),
    "first_stage_layers": ("pp", "vpp", "last_stage_layers", "pp_layout", "mtp"),
    "last_stage_layers": ("pp", "vpp", "first_stage_layers", "pp_layout", "mtp"),
    "pp_layout": ("pp", "vpp", "first_stage_layers", "last_stage_layers", "mtp"),
    "schedule": ("pp", "vpp"),
    "microbatch_group_size": ("pp", "vpp"),
    "recompute_layers": ("recompute", "pp", "vpp", "first_stage_layers", "last_stage_layers",
                         "pp_layout"),
    "recompute_method": ("recompute", "recompute_layers"),
    "fp8_param_gather": ("precision", "zero"),
    "reuse_grad_buf": ("precision", "fp8_param_gather", "zero"),
    "precision_aware_optimizer": ("optimizer", "optimizer_offload", "zero", "main_params_dtype",
                                  "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
    "main_params_dtype": ("optimizer", "zero", "precision_aware_optimizer"),
    "exp_avg_dtype": ("optimizer", "zero", "precision_aware_optimizer"),
    "exp_avg_sq_dtype": ("optimizer", "zero", "precision_aware_optimizer"),
    "main_grads_dtype": ("grad_dtype", "optimizer", "zero", "precision_aware_optimizer"),
    "overlap_grad_reduce": ("gpus", "tp", "pp", "zero"),
    "overlap_param_gather": ("gpus", "tp", "pp", "zero", "overlap_grad_reduce"),
    "tp_comm_overlap": ("tp", "sp"),
    "overlap_p2p": ("pp", "vpp", "schedule"),
    "ep_comm_overlap": ("ep",),
    "shared_expert_overlap": ("dispatcher", "ep_comm_overlap"),
    "delay_wgrad_compute": ("ep_comm_overlap",),
    "pad_to_capacity": ("capacity_factor",),
    "cross_entropy_impl": ("cross_entropy",),
}
"""Fields whose default depends on other fields: known only when those are."""

MAX_TP = 16
MIN_CP_TOKENS = 2048
"""Tokens a context-parallel rank keeps at least: less leaves nothing to hide the exchange in."""
MAX_VPP = 12
"""More chunks only add sends: the bubble is below a tenth of its size by then."""
MBS = (1, 2, 3, 4, 6, 8)
MAX_RECOMPUTE_COUNTS = 2
SPLIT_WINDOW = 2
"""Layers by which the first and the last stage may differ from the even share."""
_FULL = RECOMPUTE_BIT["full"]
_UNFUSED = code("attention", "unfused")


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _rows(values: Sequence[float]) -> tuple[Codes, ...]:
    return tuple((float(v),) for v in values)


def _switch(*, possible: bool) -> tuple[Codes, ...]:
    """On and off where the switch can do something; off alone where it cannot."""
    return _rows((1, 0)) if possible else _rows((0,))


@dataclass(frozen=True)
class Facts:
    """What automatic values follow from.

    Parameters
    ----------
    model : ModelSpec
    system : SystemSpec
    split_choices : callable
        `simcore.layout.split_choices`.
    """

    model: ModelSpec
    system: SystemSpec
    split_choices: Callable[[int, int, int, int], Sequence[tuple[int, int]]]

    def automatic(self, name: str) -> tuple[tuple[str, ...], Options]:
        """Return the fields that a field's automatic values depend on, and the values.

        Raises
        ------
        InputError
            The field has none.
        """
        table: dict[str, tuple[tuple[str, ...], Options]] = {
            "tp": (("gpus",), self._tp),
            "cp": (("gpus", "seq_len"), self._cp),
            "pp": (("gpus",), self._pp),
            "vpp": (("pp",), self._vpp),
            "ep": (("gpus",), self._ep),
            "etp": (("tp",), self._etp),
            "mbs": (("gbs",), lambda v: _rows([m for m in MBS if v["gbs"] % m == 0])),
            "sp": (("tp",), self._sp),
            "zero": (("framework",), _zero),
            "first_stage_layers": (("pp", "vpp", "last_stage_layers"), self._first),
            "last_stage_layers": (("pp", "vpp", "first_stage_layers"), self._last),
            "recompute": (("attention",), lambda v: _rows(recompute_choices(
                self.model, fused_attention=v["attention"] != _UNFUSED))),
            "recompute_layers": (("recompute", "pp", "vpp"), self._recompute_layers),
            "overlap_grad_reduce": (("gpus", "tp", "pp"), lambda v: _switch(
                possible=v["gpus"] > v["tp"] * v["pp"])),
            "overlap_param_gather": (("zero", "overlap_grad_reduce"), lambda v: _switch(
                possible=v["zero"] != 0 and v["overlap_grad_reduce"] != 0)),
            "tp_comm_overlap": (("tp", "sp"), lambda v: _switch(
                possible=v["tp"] > 1 and v["sp"] != 0)),
            "overlap_p2p": (("pp", "vpp"), lambda v: _switch(
                possible=v["pp"] > 1 and v["vpp"] > 1)),
            "ep_comm_overlap": (("ep",), lambda v: _switch(possible=v["ep"] > 1)),
            "shared_expert_overlap": (("ep_comm_overlap", "ep"), self._shared),
            "delay_wgrad_compute": (("ep_comm_overlap",), lambda v: _switch(
                possible=v["ep_comm_overlap"] == 1)),
            "precision": ((), lambda _: _rows(self._precisions())),
            "capacity_factor": ((), lambda _: _rows((0, 1, 1.25, 1.5))),
            "seq_len": ((), lambda _: _rows((self.model.seq_len, 2 * self.model.seq_len))),
            "microbatch_group_size": (("pp", "vpp"), lambda v: _rows(
                (v["pp"], 2 * v["pp"]) if v["pp"] > 1 and v["vpp"] > 1 else (UNSET,))),
            "recompute_unit_layers": (("recompute",), lambda v: _rows(
                (1, 2, 4) if v["recompute"] == _FULL else (UNSET,))),
        }
        if name in table:
            return table[name]
        field = FIELD[name]
        if field.kind is Kind.BOOL:
            return (), lambda _: _rows((1, 0))
        if field.kind is Kind.ENUM:
            rows = _rows([i for i, c in enumerate(field.choices)
                          if c not in field.not_modelled])
            return (), lambda _: rows
        raise InputError(Issue(name, "has no 'auto'", "give a value or a list"))

    def _tp(self, given: Given) -> tuple[Codes, ...]:
        network = self.system.network
        limit = max(min(network.domain_size, MAX_TP), min(network.gpus_per_node, 8))
        return _rows([d for d in divisors(int(given["gpus"])) if d <= limit])

    def _cp(self, given: Given) -> tuple[Codes, ...]:
        limit = max(1, int(given["seq_len"]) // MIN_CP_TOKENS)
        return _rows([d for d in divisors(int(given["gpus"])) if d <= limit])

    def _pp(self, given: Given) -> tuple[Codes, ...]:
        return _rows([d for d in divisors(int(given["gpus"])) if d <= self.model.num_layers + 2])

    def _even(self, pp: int, vpp: int) -> bool:
        """Tell whether layers split where no stage is given: see `simcore.layout`."""
        layers, chunks = self.model.num_layers, pp * vpp
        units = layers + 2 + self.model.mtp_num_layers
        return layers % chunks == 0 or (pp > 1 and layers + 2 > chunks and (
            (layers + 2) % chunks == 0 or units % chunks == 0))

    def _vpp(self, given: Given) -> tuple[Codes, ...]:
        pp = int(given["pp"])
        if pp == 1:
            return _rows((1,))
        most = min(MAX_VPP, -(-(self.model.num_layers + 2) // pp))
        # vpp 1 is always named, so that a pp without any split is blamed on the layers.
        return _rows([v for v in range(1, most + 1)
                      if v == 1 or len(self.splits({"pp": pp, "vpp": v})) > 1
                      or self._even(pp, v)])

    def splits(self, given: Given) -> tuple[Codes, ...]:
        """List (first, last) stage sizes: left out for the even split, then uneven ones."""
        pp, vpp = int(given["pp"]), max(1, int(given["vpp"]))
        uneven = self.split_choices(self.model.num_layers, pp, vpp, SPLIT_WINDOW) \
            if pp > 1 else ()
        rows = [(float(a), float(b)) for a, b in uneven]
        if self._even(pp, vpp) or not rows:
            rows.insert(0, (UNSET, UNSET))
        return tuple(rows)

    def _first(self, given: Given) -> tuple[Codes, ...]:
        last = given["last_stage_layers"]
        found = [a for a, b in self.splits(given) if last in (b, UNSET)]
        return _rows(list(dict.fromkeys(found)) or [UNSET])

    def _last(self, given: Given) -> tuple[Codes, ...]:
        first = given["first_stage_layers"]
        found = [b for a, b in self.splits(given) if first in (a, UNSET)]
        return _rows(list(dict.fromkeys(found)) or [UNSET])

    def _ep(self, given: Given) -> tuple[Codes, ...]:
        if self.model.moe is None:
            return _rows((1,))
        return _rows([d for d in divisors(self.model.moe.num_experts)
                      if int(given["gpus"]) % d == 0])

    def _sp(self, given: Given) -> tuple[Codes, ...]:
        if given["tp"] <= 1:
            return _rows((0,))
        # Megatron trains experts under tp with sequence parallelism only.
        return _rows((1,) if self.model.is_moe else (1, 0))

    def _etp(self, given: Given) -> tuple[Codes, ...]:
        if self.model.moe is None:
            return _rows((1,))
        return _rows(divisors(int(given["tp"])) if given["tp"] > 0 else (UNSET,))

    def _shared(self, given: Given) -> tuple[Codes, ...]:
        moe = self.model.moe
        return _switch(possible=moe is not None and moe.shared_ffn_hidden_size > 0
                       and given["ep"] > 1 and given["ep_comm_overlap"] != 1)

    def _recompute_layers(self, given: Given) -> tuple[Codes, ...]:
        """All layers of a rank, or some of them in steps of one a chunk."""
        if given["recompute"] != _FULL:
            return _rows((UNSET,))
        chunks = max(1, int(given["vpp"]))
        in_chunk = self.model.num_layers // (max(1, int(given["pp"])) * chunks)
        counts = list(range(1, in_chunk))
        if len(counts) > MAX_RECOMPUTE_COUNTS:
            step = in_chunk / (MAX_RECOMPUTE_COUNTS + 1)
            counts = sorted({round(step * i) for i in range(1, MAX_RECOMPUTE_COUNTS + 1)})
        return _rows([UNSET, *(chunks * c for c in counts)])

    def _precisions(self) -> list[int]:
        accelerator = self.system.accelerator
        names = ["bf16"]
        if accelerator.peak_fp8_tflops:
            names.append("fp8-cs")
            names.append("mxfp8" if accelerator.architecture == "blackwell" else "fp8-block")
        return [code("precision", n) for n in names]


def _zero(given: Given) -> tuple[Codes, ...]:
    name = FRAMEWORKS[max(0, int(given["framework"]))]
    if name in ("fsdp", "torchtitan"):
        return _rows((3, 2))
    # Megatron's stages 2 and 3 are another program (Megatron-FSDP), whose traffic beside compute
    # is modelled without the slowdown it causes: they are searched where the user lists them.
    return _rows((0, 1, 2, 3) if name == "deepspeed" else (1, 0))


def recompute_choices(model: ModelSpec, *, fused_attention: bool) -> list[int]:
    """List the recomputation settings that make sense for a model, as module masks.

    A fused attention kernel keeps next to nothing that recomputing it could free.
    """
    modules = ["none", "full", "layernorm"] + ["core_attn"] * (not fused_attention)
    if model.is_moe:
        modules += ["moe_act", "layernorm+moe_act", "moe"]
        if model.mla is not None:
            modules += ["mla_up_proj+moe_act", "layernorm+mla_up_proj+moe_act"]
    else:
        modules += ["mlp", "layernorm+mlp"]
    return [sum(RECOMPUTE_BIT[m] for m in text.split("+") if m != "none") for text in modules]
