"""A strategy as DeepSpeed's JSON.

References
----------
DeepSpeed 0.19.8, ``deepspeed/runtime/config.py`` and ``runtime/zero/config.py``: keys, and which
stages have what.
"""

from __future__ import annotations

import json
from typing import Any

from autotune.formats.exported import Exported, Row
from simcore.inputs.model import ModelSpec

FILE = "ds_config.json"
_OPTIMIZERS = {"adam": "AdamW", "sgd": "SGD", "muon": "Muon"}


def export_deepspeed(model: ModelSpec, row: Row) -> Exported:
    """Write a resolved strategy as a configuration of `deepspeed.initialize`.

    Parameters
    ----------
    model : ModelSpec
    row : mapping
        Every field, resolved, and ``dp`` and ``num_microbatches``.

    Returns
    -------
    Exported
        Its `issues` say what the file cannot express.
    """
    out = Exported("deepspeed")
    out.needs_framework(row, "deepspeed")
    out.only(row, "precision", "bf16", "fp16", "fp32")
    for field in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        out.only(row, field, "fp32")
    out.only(row, "activation_offload_layers", 0)
    out.only(row, "cuda_graph", "none")
    if row["rank_order"] != "tp-cp-dp-pp" and int(str(row["pp"])) > 1:
        out.only(row, "rank_order", "tp-cp-dp-pp")
    data: dict[str, Any] = {
        "train_batch_size": row["gbs"], "train_micro_batch_size_per_gpu": row["mbs"],
        "gradient_accumulation_steps": row["num_microbatches"],
        "zero_optimization": _zero(out, row),
        "data_types": {"grad_accum_dtype": row["grad_dtype"]},
        "communication_data_type": row["grad_dtype"],
        "optimizer": {"type": _OPTIMIZERS[str(row["optimizer"])]}}
    if row["precision"] != "fp32":
        data[str(row["precision"])] = {"enabled": True}
    out.reasons.update({
        "train_batch_size": "Sequences of a step over all ranks",
        "train_micro_batch_size_per_gpu": "Micro-batch",
        "gradient_accumulation_steps": f"Micro-batches of a step on each of {row['dp']} ranks",
        "zero_optimization.stage": f"zero {row['zero']}",
        "data_types.grad_accum_dtype": "Number format of accumulated gradients",
        "communication_data_type": "Number format of their reduction"})
    _program(out, model, row)
    out.files[FILE] = json.dumps(data, indent=2) + "\n"
    out.add("DeepSpeed's configuration", "--deepspeed", "--deepspeed_config", FILE)
    return out


def _zero(out: Exported, row: Row) -> dict[str, Any]:
    stage, share = int(str(row["zero"])), float(str(row["optimizer_offload"]))
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": row["overlap_grad_reduce"],
                            "contiguous_gradients": True, "reduce_scatter": True}
    if stage == 3:
        if not row["overlap_param_gather"]:
            zero["stage3_prefetch_bucket_size"] = 0
            out.reasons["zero_optimization.stage3_prefetch_bucket_size"] = (
                "Parameters are gathered where they are needed, none ahead")
    elif stage:
        # Stages 1 and 2 gather parameters at the end of the optimizer's step.
        out.only(row, "overlap_param_gather", False)
    if share:
        if stage < 3 and share != 1:
            out.only(row, "optimizer_offload", 0, 1)
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True, "ratio": share}
        out.reasons["zero_optimization.offload_optimizer"] = (
            "The CPU keeps and updates this share of the optimizer")
    return zero


def _program(out: Exported, model: ModelSpec, row: Row) -> None:
    """Note what the program does, which the file does not say."""
    if int(str(row["pp"])) > 1:
        out.notes.append(f"the pipeline is built in your program: PipelineModule(num_stages="
                         f"{row['pp']})")
    if model.is_moe and int(str(row["ep"])) > 1:
        out.notes.append("experts are placed in your program: deepspeed.moe.layer.MoE(ep_size="
                         f"{row['ep']})")
    what = str(row["recompute"])
    if what != "none":
        layers = ("every layer" if row["recompute_method"] == "uniform"
                  else f"the first {row['recompute_layers']} layers of a rank")
        out.notes.append(f"recomputation ({what}, {layers}) is turned on in your program; "
                         "gradient_checkpointing_enable() of Hugging Face recomputes full layers")
    out.notes.append(f"attention {row['attention']}, fused kernels and dropout belong to your "
                     f"model; sequences are {row['seq_len']} tokens")
    out.notes.append("learning rate and data are yours to add")
