"""A strategy: one value for every field, or None where it was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from simcore.errors import InputError, Issue, nearest
from simcore.inputs.codec import Value, parse
from simcore.inputs.fields import FIELD, FIELD_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How one model is trained on one cluster.

    Every attribute is a field of `simcore.inputs.fields.FIELDS`, where its meaning, legal
    values and default stand; None means that it was left out. A resolved strategy
    (`simcore.resolve`) has no None.
    """

    gpus: int | None = None
    seq_len: int | None = None
    gbs: int | None = None
    mbs: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    etp: int | None = None
    sp: bool | None = None
    zero: int | None = None
    dp_replicate: int | None = None
    cp_comm: str | None = None
    rank_order: str | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    pp_layout: str | None = None
    schedule: str | None = None
    microbatch_group_size: int | None = None
    mtp: int | None = None
    recompute: str | None = None
    recompute_layers: int | None = None
    recompute_method: str | None = None
    recompute_unit_layers: int | None = None
    activation_offload_layers: int | None = None
    precision: str | None = None
    grad_dtype: str | None = None
    fp8_param_gather: bool | None = None
    fp4_param_gather: bool | None = None
    reuse_grad_buf: bool | None = None
    optimizer: str | None = None
    precision_aware_optimizer: bool | None = None
    main_params_dtype: str | None = None
    main_grads_dtype: str | None = None
    exp_avg_dtype: str | None = None
    exp_avg_sq_dtype: str | None = None
    optimizer_offload: float | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    tp_comm_overlap: bool | None = None
    overlap_p2p: bool | None = None
    ep_comm_overlap: bool | None = None
    shared_expert_overlap: bool | None = None
    delay_wgrad_compute: bool | None = None
    dispatcher: str | None = None
    capacity_factor: float | None = None
    pad_to_capacity: bool | None = None
    expert_imbalance: float | None = None
    grouped_gemm: bool | None = None
    permute_fusion: bool | None = None
    attention: str | None = None
    cross_entropy: str | None = None
    cross_entropy_impl: str | None = None
    fused_swiglu: bool | None = None
    fused_rope: bool | None = None
    fused_norm: bool | None = None
    grad_accumulation_fusion: bool | None = None
    dropout: float | None = None
    cuda_graph: str | None = None
    framework: str | None = None
    framework_version: str | None = None

    def items(self) -> Iterator[tuple[str, Value | None]]:
        """Yield every field's name and value, in the table's order."""
        for name in FIELD_NAMES:
            yield name, getattr(self, name)

    def given(self) -> dict[str, Value]:
        """Return the fields that are set."""
        return {name: value for name, value in self.items() if value is not None}

    @classmethod
    def from_mapping(cls, raw: Mapping[str, object], *, where: str = "") -> Strategy:
        """Build a strategy from what a file or a command line holds.

        Parameters
        ----------
        raw : mapping
            Field names and values, as text or as numbers.
        where : str
            Put in front of every field's name in messages, such as ``run.yaml: strategy.``.

        Raises
        ------
        InputError
            With every unknown field and every illegal value at once.
        """
        values: dict[str, Value] = {}
        issues: list[Issue] = []
        for name, given in raw.items():
            if name not in FIELD:
                issues.append(Issue(f"{where}{str(name)[:80]}", "is not a strategy field",
                                    nearest(str(name), FIELD_NAMES)))
            elif given is not None:
                parsed = parse(FIELD[name], given, where=where)
                if isinstance(parsed, Issue):
                    issues.append(parsed)
                else:
                    values[name] = parsed
        if issues:
            raise InputError(issues)
        return cls(**values)  # type: ignore[arg-type]
