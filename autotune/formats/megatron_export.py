"""A strategy as Megatron-LM's arguments.

References
----------
Megatron-LM core 0.19.2, ``megatron/training/arguments.py`` (`validate_args`) and
``megatron/core/transformer/transformer_config.py``: which arguments need which.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.formats.exported import Exported, Row
from autotune.formats.megatron_flags import (
    CHOICES,
    FLAG_OF_FIELD,
    OTHER_OPTIONS,
    STRATEGY_FLAGS,
    Flag,
    Scalar,
)
from simcore.inputs.fields import FIELD, MEGATRON
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.layout_notation import stages_of

EXPERT_FIELDS = frozenset({"ep", "etp", "grouped_gemm", "permute_fusion", "capacity_factor",
                           "pad_to_capacity", "shared_expert_overlap", "ep_comm_overlap"})
"""Fields of a model with experts."""
STATE_FIELDS = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_OWN = frozenset({"first_stage_layers", "last_stage_layers", "pp_layout", "vpp", "cp_comm",
                  "overlap_p2p", "microbatch_group_size", "cross_entropy_impl", *STATE_FIELDS})


def export_megatron(model: ModelSpec, system: SystemSpec, row: Row) -> Exported:
    """Write a resolved strategy as arguments of ``pretrain_gpt.py``.

    Parameters
    ----------
    model : ModelSpec
    system : SystemSpec
    row : mapping
        Every field, resolved.

    Returns
    -------
    Exported
        Its `issues` say what the arguments cannot express.
    """
    out = Exported("megatron-lm")
    if row["framework"] not in MEGATRON:
        out.refuse("framework", f"was predicted for {row['framework']}, got --to megatron-lm",
                   "predict it with --framework megatron first")
    for flag in STRATEGY_FLAGS:
        if flag.field not in _OWN and (model.is_moe or flag.field not in EXPERT_FIELDS):
            _plain(out, flag, row[flag.field])
    _pipeline(out, model, row)
    _recompute(out, row)
    _precision(out, row)
    _kernels(out, row)
    for field in ("zero", "optimizer", "rank_order", *(["dispatcher"] if model.is_moe else [])):
        _choice(out, field, str(row[field]))
    if row["optimizer"] == "muon":
        out.refuse("optimizer", "muon's arguments are not written", "use adam or sgd")
    _environment(out, system, row)
    _left_out(out, model, row)
    return out


def _why(field: str) -> str:
    return FIELD[field].help.partition(" (--")[0].rstrip(".")


def _plain(out: Exported, flag: Flag, value: object) -> None:
    if flag.off is not None and value == flag.off:
        return
    if flag.action != "store":
        if value is (flag.action == "true"):
            out.add(_why(flag.field), flag.option)
        return
    if value is not None:
        out.add(_why(flag.field), flag.option, value)


def _settings(out: Exported, why: str, settings: Mapping[str, Scalar]) -> None:
    words: list[object] = []
    for dest, value in settings.items():
        words.append(OTHER_OPTIONS.get(dest, "--" + dest.replace("_", "-")))
        if value is not True:
            words.append(value)
    if words:
        out.add(why, *words)


def _choice(out: Exported, field: str, value: str) -> None:
    if value not in CHOICES[field]:
        out.refuse(field, f"'{value}' has no argument in Megatron-LM",
                   f"use {', '.join(CHOICES[field])}")
        return
    _settings(out, f"{_why(field)}: {value}", CHOICES[field][value])


def _given(out: Exported, field: str, value: object) -> None:
    out.add(_why(field), FLAG_OF_FIELD[field].option, value)


def _pipeline(out: Exported, model: ModelSpec, row: Row) -> None:
    pp, vpp = int(str(row["pp"])), int(str(row["vpp"]))
    if row["schedule"] == "gpipe":
        out.refuse("schedule", "gpipe is no schedule of Megatron-LM", "use 1f1b")
    if row["pp_layout"] != "none":
        # The chunks that the layout names give vpp; the argument beside it is refused.
        text = megatron_layout(str(row["pp_layout"]), int(str(row["mtp"])))
        out.add("Layers of every chunk (E embedding, t decoder, m MTP, L loss); gives vpp "
                f"{vpp}", FLAG_OF_FIELD["pp_layout"].option, text)
    else:
        if vpp > 1:
            _given(out, "vpp", vpp)
        for field in ("first_stage_layers", "last_stage_layers"):
            if pp > 1 and (model.num_layers % pp or row[field] != model.num_layers // pp):
                _given(out, field, row[field])
    if pp > 1 and vpp > 1:
        if not row["overlap_p2p"]:
            out.add("Pipeline sends are not overlapped", FLAG_OF_FIELD["overlap_p2p"].option)
        if row["microbatch_group_size"] != pp:
            _given(out, "microbatch_group_size", row["microbatch_group_size"])
    if row["cp"] != 1:
        _given(out, "cp_comm", row["cp_comm"])


def megatron_layout(text: str, mtp: int) -> str:
    """Write a layout in Megatron's letters, ``4|3m`` as ``Etttt|tttmL``."""
    found = stages_of(text)
    if isinstance(found, str):
        return text
    counts, marked = found
    if marked is None and mtp:
        marked = len(counts) - 1
    parts = ["t" * n + ("m" * mtp if i == marked else "") for i, n in enumerate(counts)]
    return "E" + "|".join(parts) + "L"


def _recompute(out: Exported, row: Row) -> None:
    what, layers = str(row["recompute"]), int(str(row["recompute_layers"]))
    if what == "none":
        return
    if what == "selective_op":
        out.refuse("recompute", "selective_op is torchtitan's", "use full or modules")
    elif what != "full":
        out.add(f"Recompute in backward: {what}", "--recompute-granularity", "selective",
                "--recompute-modules", *what.split("+"))
    elif row["recompute_method"] == "uniform":
        out.add("Recompute every layer, in units of this many", "--recompute-granularity",
                "full", "--recompute-method", "uniform", "--recompute-num-layers",
                row["recompute_unit_layers"])
    else:
        vpp = int(str(row["vpp"]))
        if layers % vpp:
            out.refuse("recompute_layers", f"must divide by vpp ({vpp}): Megatron counts the "
                       f"layers of a chunk, got {layers}",
                       f"use {layers // vpp * vpp} or {(layers // vpp + 1) * vpp}")
        out.add("Recompute the first layers of every chunk", "--recompute-granularity", "full",
                "--recompute-method", "block", "--recompute-num-layers", layers // vpp)


def _precision(out: Exported, row: Row) -> None:
    precision, gradients = str(row["precision"]), row["grad_dtype"]
    _choice(out, "precision", precision)
    if precision == "fp16":
        if gradients == "fp32":
            out.add("Gradients are kept and reduced in fp32",
                    "--accumulate-allreduce-grads-in-fp32")
        elif gradients == "bf16":
            out.refuse("grad_dtype", "bf16 does not go with fp16", "use fp16 or fp32")
    elif precision != "fp32":
        _choice(out, "grad_dtype", str(gradients))
    if row["precision_aware_optimizer"]:
        for field in STATE_FIELDS:
            _given(out, field, row[field])
    share = float(str(row["optimizer_offload"]))
    if share:
        out.add("Share of the optimizer that the CPU keeps and updates",
                "--optimizer-cpu-offload", "--optimizer-offload-fraction", share)


def _kernels(out: Exported, row: Row) -> None:
    _choice(out, "attention", str(row["attention"]))
    _choice(out, "cross_entropy", str(row["cross_entropy"]))
    if row["cross_entropy"] == "fused":
        _given(out, "cross_entropy_impl", row["cross_entropy_impl"])
    out.add("Megatron's own default is 0.1", "--hidden-dropout", row["dropout"],
            "--attention-dropout", row["dropout"])
    graph = str(row["cuda_graph"])
    if graph == "local:full_iteration":
        out.add("Capture the step without the optimizer", "--cuda-graph-impl", "full_iteration")
    elif graph != "none":
        out.add("Capture these parts of every layer", "--cuda-graph-impl", "transformer_engine",
                "--cuda-graph-modules", *graph.partition(":")[2].split("+"))


def _environment(out: Exported, system: SystemSpec, row: Row) -> None:
    sharded = int(str(row["zero"])) > 1
    if system.accelerator.architecture in ("ampere", "hopper") and not sharded:
        if row["ep_comm_overlap"]:
            out.env["CUDA_DEVICE_MAX_CONNECTIONS"] = (
                "32", "streams of two micro-batches have to run beside each other")
        elif row["tp"] != 1 or row["cp"] != 1:
            out.env["CUDA_DEVICE_MAX_CONNECTIONS"] = (
                "1", "communication of tp and cp has to start in the order of its launch; "
                "Megatron checks it before Blackwell")
    if row["attention"] == "flash":
        out.env["NVTE_FLASH_ATTN"] = ("1", "FlashAttention is predicted")
        out.env["NVTE_FUSED_ATTN"] = ("0", "cuDNN's attention would be another kernel")


def _left_out(out: Exported, model: ModelSpec, row: Row) -> None:
    if row["expert_imbalance"] != 1 and model.is_moe:
        out.notes.append(f"expert_imbalance {row['expert_imbalance']} is what the data does; "
                         "no argument sets it")
    if not row["fused_norm"]:
        out.notes.append("fused_norm false follows from the layer specification that is used "
                         "(--transformer-impl local without Apex); no argument sets it")
    if int(str(row["zero"])) > 1:
        out.notes.append("Megatron-FSDP writes its own checkpoints")
        out.add("The only checkpoints that Megatron-FSDP writes", "--ckpt-format",
                "fsdp_dtensor")
    out.notes.append("data, tokenizer, learning rate and number of steps are yours to add")
