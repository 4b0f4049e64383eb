"""A strategy as torchtitan's TOML.

References
----------
torchtitan 0.2.2, ``torchtitan/config/job_config.py`` (names and defaults),
``distributed/pipeline_parallel.py`` (`pipeline_llm`: a pipeline takes its whole local batch at
once, in micro-batches) and ``distributed/parallel_dims.py`` (which degrees go together).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from autotune.formats.exported import Exported, Row, comment
from simcore.inputs.model import ModelSpec
from simcore.layout import split_counts
from simcore.layout_notation import stages_of

FLAVORS: Mapping[str, tuple[str, str]] = {
    "llama3-8b": ("llama3", "8B"), "llama3-70b": ("llama3", "70B"),
    "llama3.1-405b": ("llama3", "405B"), "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"), "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"), "qwen3-8b": ("qwen3", "8B"), "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"), "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b")}
"""Models that torchtitan 0.2.2 ships, by our names."""
SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe",
             "dualpipev": "DualPipeV"}
_QUANTIZED = {"fp8-cs": ("float8", "tensorwise"), "fp8-rowwise": ("float8", "rowwise"),
              "mxfp8": ("mx", "mxfp8_cublas")}
_FIXED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("grad_dtype", ("fp32",)), ("main_params_dtype", ("fp32",)), ("exp_avg_dtype", ("fp32",)),
    ("exp_avg_sq_dtype", ("fp32",)), ("optimizer", ("adam",)), ("optimizer_offload", (0,)),
    ("activation_offload_layers", (0,)), ("attention", ("flash",)),
    ("cross_entropy", ("unfused",)), ("dropout", (0,)), ("cuda_graph", ("none",)),
    ("mtp", (0,)), ("capacity_factor", (0,)), ("overlap_grad_reduce", (True,)),
    ("overlap_param_gather", (True,)), ("rank_order", ("tp-cp-dp-pp",)), ("zero", (2, 3)))
"""What torchtitan has no choice about."""
FILE = "torchtitan.toml"
Settings = list[tuple[str, str, object, str]]
"""Section, key, value and reason."""


def export_torchtitan(model: ModelSpec, row: Row) -> Exported:
    """Write a resolved strategy as a job configuration.

    Parameters
    ----------
    model : ModelSpec
    row : mapping
        Every field, resolved, and ``dp``.

    Returns
    -------
    Exported
        Its `issues` say what the file cannot express.
    """
    out = Exported("torchtitan")
    out.needs_framework(row, "torchtitan")
    for field, allowed in _FIXED:
        out.only(row, field, *allowed)
    name, flavor = FLAVORS.get(model.name, ("", ""))
    if not name:
        out.refuse("model", f"'{model.name}' is no flavor that torchtitan 0.2.2 ships",
                   f"use one of {', '.join(FLAVORS)}")
    settings: Settings = [("model", "name", name, "Model"), ("model", "flavor", flavor, "Size")]
    settings += _precision(out, model, row)
    settings += _batch(row)
    settings += _degrees(out, model, row)
    settings += _pipeline(out, model, row)
    settings += _recompute(out, model, row)
    settings += [("optimizer", "name", "AdamW", "Adam; its states are fp32"),
                 ("compile", "enable", row["fused_swiglu"],
                  "torch.compile fuses norm, rotary embedding and activation")]
    if len({row["fused_swiglu"], row["fused_rope"], row["fused_norm"]}) > 1:
        out.notes.append("torch.compile fuses norm, rotary embedding and activation together: "
                         "fused_norm and fused_rope cannot differ from fused_swiglu")
    if model.is_moe and row["expert_imbalance"] != 1:
        out.notes.append(f"expert_imbalance {row['expert_imbalance']} is what the data does")
    out.notes.append("dataset, tokenizer, learning rate and number of steps are yours to add")
    out.files[FILE] = toml_text(settings)
    out.reasons.update({f"{s}.{key}": why for s, key, _, why in settings})
    out.add("Job configuration", "--job.config_file", FILE)
    return out


def _precision(out: Exported, model: ModelSpec, row: Row) -> Settings:
    precision = str(row["precision"])
    out.only(row, "precision", "bf16", "fp32", *_QUANTIZED)
    compute = "float32" if precision == "fp32" else "bfloat16"
    found: Settings = [
        ("training", "dtype", "float32", "Sharded parameters and optimizer states are fp32"),
        ("training", "mixed_precision_param", compute, "Number format of the compute"),
        ("training", "mixed_precision_reduce", "float32", "Gradients are reduced in fp32")]
    if precision in _QUANTIZED:
        kind, recipe = _QUANTIZED[precision]
        converters = [f"quantize.linear.{kind}"]
        found.append((f"quantize.linear.{kind}", "recipe_name", recipe, "Scaling"))
        if kind == "float8":
            gathered = bool(row["fp8_param_gather"])
            found.append(("quantize.linear.float8", "enable_fsdp_float8_all_gather", gathered,
                          "Whether weights are gathered in fp8"))
        else:
            out.only(row, "fp8_param_gather", False)
        if model.is_moe:
            converters.append(f"quantize.grouped_mm.{kind}")
            found.append((f"quantize.grouped_mm.{kind}", "fqns", ["experts"],
                          "Experts run in the same format"))
        found.append(("model", "converters", converters, "Products that are quantised"))
    return found


def _batch(row: Row) -> Settings:
    gbs, dp, mbs, pp = (int(str(row[f])) for f in ("gbs", "dp", "mbs", "pp"))
    found: Settings = [
        ("training", "seq_len", row["seq_len"], "Tokens in a sequence"),
        ("training", "global_batch_size", gbs, "Sequences of a step"),
        ("training", "local_batch_size", gbs // dp if pp > 1 else mbs,
         "A pipeline takes all micro-batches of a step at once" if pp > 1 else "Micro-batch")]
    if pp > 1:
        found.append(("parallelism", "pipeline_parallel_microbatch_size", mbs, "Micro-batch"))
    return found


def _degrees(out: Exported, model: ModelSpec, row: Row) -> Settings:
    dp, replicas, tp, cp = (int(str(row[f])) for f in ("dp", "dp_replicate", "tp", "cp"))
    ep, etp = int(str(row["ep"])), int(str(row["etp"]))
    if dp % replicas:
        out.refuse("dp_replicate", f"must divide dp ({dp}) in torchtitan, got {replicas}")
    if tp > 1:
        out.only(row, "sp", True)
    found: Settings = [
        ("parallelism", "data_parallel_replicate_degree", replicas, "Copies of what is sharded"),
        ("parallelism", "data_parallel_shard_degree", max(1, dp // replicas), "Ranks of FSDP"),
        ("parallelism", "fsdp_reshard_after_forward", "always" if row["zero"] == 3 else "never",
         "zero 3 lets go of parameters after forward, zero 2 keeps them"),
        ("parallelism", "tensor_parallel_degree", tp, "Tensor-parallel size"),
        ("parallelism", "enable_async_tensor_parallel", row["tp_comm_overlap"],
         "Whether its collectives run beside the products"),
        ("parallelism", "context_parallel_degree", cp, "Context-parallel size")]
    if cp > 1:
        out.only(row, "cp_comm", "all_gather", "p2p")
        found.append(("parallelism", "context_parallel_rotate_method",
                      "allgather" if row["cp_comm"] == "all_gather" else "alltoall",
                      "How keys and values travel"))
    if model.is_moe and ep == 1 and etp != tp:
        out.refuse("etp", f"must be tp ({tp}) in torchtitan where ep is 1, got {etp}")
    if ep > 1:
        out.only(row, "etp", 1, tp)
        out.only(row, "dispatcher", "alltoall", "deepep")
        found += [("parallelism", "expert_parallel_degree", ep, "Expert-parallel size"),
                  ("parallelism", "expert_tensor_parallel_degree", etp,
                   "Tensor-parallel size of the experts"),
                  ("parallelism", "expert_parallel_comm_backend",
                   "deepep" if row["dispatcher"] == "deepep" else "standard",
                   "How tokens reach their experts")]
    return found


def chunk_layers(model: ModelSpec, row: Row) -> tuple[int, ...]:
    """Return the decoder layers of every pipeline chunk, in the model's order."""
    if row["pp_layout"] != "none":
        read = stages_of(str(row["pp_layout"]))
        if not isinstance(read, str):
            return read[0]
    pp, vpp, first, last = (int(str(row[f])) for f in (
        "pp", "vpp", "first_stage_layers", "last_stage_layers"))
    return split_counts(model.num_layers, pp, vpp, first, last) or (model.num_layers,)


def _pipeline(out: Exported, model: ModelSpec, row: Row) -> Settings:
    pp = int(str(row["pp"]))
    if pp == 1:
        return []
    out.only(row, "schedule", *SCHEDULES)
    if row["schedule"] == "interleaved":
        out.only(row, "microbatch_group_size", pp)
    start, parts = 0, []
    for count in chunk_layers(model, row):
        parts.append([f"layers.{i}" for i in range(start, start + count)])
        start += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    found: Settings = []
    if row["schedule"] == "dualpipev":
        found.append(("parallelism", "pipeline_parallel_expert_parallel_overlap", False,
                      "What is predicted does not overlap experts' exchange"))
    return [*found, ("parallelism", "pipeline_parallel_degree", pp, "Pipeline-parallel size"),
            ("parallelism", "pipeline_parallel_schedule", SCHEDULES.get(
                str(row["schedule"]), ""), "Order of forward and backward"),
            ("parallelism", "module_fqns_per_model_part", parts,
             f"Layers of every chunk; {len(parts) // pp} chunks a rank")]


def _recompute(out: Exported, model: ModelSpec, row: Row) -> Settings:
    what, section = str(row["recompute"]), "activation_checkpoint"
    out.only(row, "recompute", "none", "full", "selective_op")
    if what != "full":
        mode = "none" if what == "none" else "selective"
        found: Settings = [(section, "mode", mode, "What is recomputed in backward")]
        if what == "selective_op":
            found.append((section, "selective_ac_option", "op",
                          "Cheap operators and every second product"))
        return found
    if row["recompute_method"] == "uniform":
        out.only(row, "recompute_unit_layers", 1)
        return [(section, "mode", "full", "Every layer is recomputed")]
    layers, pp = int(str(row["recompute_layers"])), int(str(row["pp"]))
    counts = chunk_layers(model, row)
    of_rank = {sum(counts[rank::pp]) for rank in range(pp)}
    if row["schedule"] == "dualpipev":
        of_rank = {counts[rank] + counts[-1 - rank] for rank in range(pp)}
    if of_rank == {layers}:
        return [(section, "mode", "full", "Every layer is recomputed")]
    if len(of_rank) > 1 or max(of_rank) % layers:
        out.refuse("recompute_layers", "torchtitan recomputes every n-th layer: must divide the "
                   f"layers of every rank ({', '.join(map(str, sorted(of_rank)))}), got {layers}")
        return []
    return [(section, "mode", "selective", "Some layers are recomputed"),
            (section, "selective_ac_option", str(max(of_rank) // layers), "Every n-th layer")]


def toml_text(settings: Settings) -> str:
    """Write settings as TOML, each with its reason."""
    sections: dict[str, list[str]] = {}
    for section, key, value, why in settings:
        # JSON's strings, numbers, booleans and lists are TOML's.
        sections.setdefault(section, []).append(
            f"{key} = {json.dumps(value)}  # {comment(why)}")
    return "\n".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())
