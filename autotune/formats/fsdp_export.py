"""A strategy as arguments of PyTorch's FSDP2.

References
----------
PyTorch 2.13, ``torch.distributed.fsdp`` (`fully_shard`, `MixedPrecisionPolicy`): names.
"""

from __future__ import annotations

import json
from typing import Any

from autotune.formats.exported import Exported, Row
from simcore.inputs.model import ModelSpec

FILE = "fsdp.json"
_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def export_fsdp(model: ModelSpec, row: Row) -> Exported:
    """Write a resolved strategy as settings of `fully_shard` and of the loop around it.

    Parameters
    ----------
    model : ModelSpec
    row : mapping
        Every field, resolved, and ``dp`` and ``num_microbatches``.

    Returns
    -------
    Exported
        Its `issues` say what the settings cannot express.
    """
    out = Exported("fsdp")
    out.needs_framework(row, "fsdp")
    # FSDP2 has no profile before 2025: 2023 is FSDP1 under Composer.
    out.only(row, "framework_version", "2025")
    out.only(row, "precision", *_TORCH)
    for field in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        out.only(row, field, "fp32")
    out.only(row, "cuda_graph", "none")
    out.only(row, "activation_offload_layers", 0)
    out.only(row, "overlap_grad_reduce", True)
    out.only(row, "overlap_param_gather", True)
    dp, replicas = int(str(row["dp"])), int(str(row["dp_replicate"]))
    mesh = {"mesh_shape": [dp], "mesh_dim_names": ["dp_shard"]}
    if replicas > 1:
        mesh = {"mesh_shape": [replicas, dp // replicas],
                "mesh_dim_names": ["dp_replicate", "dp_shard"]}
    data: dict[str, Any] = {
        "init_device_mesh": mesh,
        "fully_shard": {"reshard_after_forward": row["zero"] == 3},
        "mp_policy": {"param_dtype": _TORCH.get(str(row["precision"])),
                      "reduce_dtype": _TORCH[str(row["grad_dtype"])]},
        "optimizer": row["optimizer"],
        "batch": {"seq_len": row["seq_len"], "global_batch_size": row["gbs"],
                  "micro_batch_size": row["mbs"],
                  "gradient_accumulation_steps": row["num_microbatches"]},
        "compile_blocks": row["fused_swiglu"],
        "activation_checkpoint": _checkpoint(row)}
    out.reasons.update({
        "init_device_mesh": "One dimension shards; a first one holds copies (HSDP)",
        "fully_shard.reshard_after_forward": "True lets go of parameters after forward (zero 3), "
                                             "false keeps them (zero 2)",
        "mp_policy": "Compute and reduction; the sharded parameters stay fp32",
        "compile_blocks": "torch.compile of each block fuses norm, rotary embedding, activation"})
    out.files[FILE] = json.dumps(data, indent=2) + "\n"
    out.notes += [
        "call fully_shard on every block, then on the model, with the mesh, "
        "MixedPrecisionPolicy(**mp_policy) and these arguments; dtypes are attributes of torch",
        "gradients are reduced in every micro-batch (no set_requires_gradient_sync)"]
    if row["attention"] == "flash":
        out.notes.append("attention is scaled_dot_product_attention with its flash backend")
    if model.is_moe:
        out.notes.append("experts are replicated modules of a block: FSDP has no expert "
                         "parallelism")
    return out


def _checkpoint(row: Row) -> dict[str, Any]:
    what = str(row["recompute"])
    if what == "none":
        return {"mode": "none"}
    found: dict[str, Any] = {"mode": what}
    if row["recompute_method"] == "block":
        found["first_layers"] = row["recompute_layers"]
    elif row["recompute_unit_layers"] != 1:
        found["unit_layers"] = row["recompute_unit_layers"]
    return found
