"""A strategy as overrides of a Megatron-Bridge recipe.

References
----------
megatron-bridge 0.6.2, ``training/config.py`` (`ConfigContainer` and its parts),
``training/mixed_precision.py``, ``training/comm_overlap.py``,
``training/utils/omegaconf_utils.py`` (how an override is read); Megatron-Core 0.19.2 for the
fields of the model, the optimizer and DDP.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.formats.exported import Exported, Row, comment
from autotune.formats.megatron_export import EXPERT_FIELDS, STATE_FIELDS, megatron_layout
from autotune.formats.megatron_flags import CHOICES, FLAG_OF_FIELD, STRATEGY_FLAGS
from simcore.inputs.fields import FIELD
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec

FILE = "overrides.py"
_OWN = frozenset({"first_stage_layers", "last_stage_layers", "pp_layout", "vpp", "cp_comm",
                  "microbatch_group_size", "cross_entropy_impl", "mtp", "capacity_factor",
                  "overlap_p2p", *STATE_FIELDS})
_TORCH = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16",
          "fp8": "torch.uint8"}
Override = tuple[str, object, str]
"""Dotted key, value and reason."""


def export_bridge(model: ModelSpec, system: SystemSpec, row: Row) -> Exported:
    """Write a resolved strategy as overrides, all of them: recipes differ in what they set.

    Parameters
    ----------
    model : ModelSpec
    system : SystemSpec
    row : mapping
        Every field, resolved.

    Returns
    -------
    Exported
        `args` are Hydra's overrides, `overrides.py` sets the same in Python. Its `issues` say
        what they cannot express.
    """
    out = Exported("megatron-bridge")
    out.needs_framework(row, "megatron-bridge", "megatron", "nemo-megatron")
    overrides: list[Override] = []
    for flag in STRATEGY_FLAGS:
        if flag.field not in _OWN and (model.is_moe or flag.field not in EXPERT_FIELDS):
            overrides.append((flag.bridge_key, row[flag.field], _why(flag.field)))
    overrides += _pipeline(out, model, row) + _recompute(out, row) + _precision(out, row)
    overrides += _sharding(out, row) + _kernels(row) + _graph(row)
    if model.is_moe:
        overrides += _experts(row)
    _environment(out, system, row)
    for key, value, why in overrides:
        out.add(why, f"{key}={hydra(value)}")
    out.files[FILE] = _python(overrides)
    if row["expert_imbalance"] != 1 and model.is_moe:
        out.notes.append(f"expert_imbalance {row['expert_imbalance']} is what the data does")
    out.notes += [
        "start from a recipe of the model; a recipe that names mixed_precision by a string, or "
        f"has no comm_overlap, takes {FILE} (apply(cfg)) in place of the overrides",
        "data, tokenizer, learning rate and number of steps are the recipe's"]
    return out


def _why(field: str) -> str:
    return FIELD[field].help.partition(" (--")[0].rstrip(".")


def _key(field: str) -> str:
    return FLAG_OF_FIELD[field].bridge_key


def _pipeline(out: Exported, model: ModelSpec, row: Row) -> list[Override]:
    pp, vpp = int(str(row["pp"])), int(str(row["vpp"]))
    out.only(row, "schedule", "1f1b", "interleaved")
    named = row["pp_layout"] != "none"
    layout = megatron_layout(str(row["pp_layout"]), int(str(row["mtp"]))) if named else None
    uneven = not named and pp > 1
    ends = {field: row[field] if uneven and (model.num_layers % pp or row[field]
                                             != model.num_layers // pp) else None
            for field in ("first_stage_layers", "last_stage_layers")}
    found: list[Override] = [
        (_key("pp_layout"), layout,
         "Layers of every chunk (E embedding, t decoder, m MTP, L loss)"),
        (_key("vpp"), vpp if vpp > 1 and not named else None,
         f"{_why('vpp')}{'; the layout names them' if named else ''}"),
        *[(_key(field), value, _why(field)) for field, value in ends.items()],
        (_key("mtp"), row["mtp"] or None, _why("mtp")),
        (_key("cp_comm"), row["cp_comm"] if row["cp"] != 1 else None, _why("cp_comm"))]
    if pp > 1:
        found.append((_key("overlap_p2p"), row["overlap_p2p"], _why("overlap_p2p")))
        found.append(("comm_overlap.batch_p2p_comm", not row["overlap_p2p"],
                      "Sends are batched where they are not overlapped"))
    if vpp > 1:
        found.append((_key("microbatch_group_size"), row["microbatch_group_size"],
                      _why("microbatch_group_size")))
    return found


def _recompute(out: Exported, row: Row) -> list[Override]:
    what, layers, vpp = (row[f] for f in ("recompute", "recompute_layers", "vpp"))
    granularity: object = None
    modules: object = None
    method: object = None
    number: object = None
    if what == "full":
        granularity, method = "full", row["recompute_method"]
        number = row["recompute_unit_layers"]
        if method == "block":
            number, rest = divmod(int(str(layers)), int(str(vpp)))
            if rest:
                out.refuse("recompute_layers", f"must divide by vpp ({vpp}): Megatron counts the "
                           f"layers of a chunk, got {layers}")
    elif what == "selective_op":
        out.only(row, "recompute", "none", "full")
    elif what != "none":
        granularity, modules = "selective", str(what).split("+")
    return [("model.recompute_granularity", granularity, f"Recompute in backward: {what}"),
            ("model.recompute_modules", modules, "Which modules"),
            ("model.recompute_method", method, _why("recompute_method")),
            ("model.recompute_num_layers", number, "Layers of a chunk, or of a unit")]


def _precision(out: Exported, row: Row) -> list[Override]:
    precision = str(row["precision"])
    able = [name for name in CHOICES["precision"] if name not in ("fp16", "fp32")]
    out.only(row, "precision", *able)
    settings = CHOICES["precision"].get(precision, {})
    why = f"{_why('precision')}: {precision}"
    found: list[Override] = [
        ("mixed_precision.bf16", True, why),
        *[(f"mixed_precision.{kind}", settings.get(kind), why) for kind in ("fp8", "fp4")],
        *[(f"mixed_precision.{kind}_recipe", settings[f"{kind}_recipe"], why)
          for kind in ("fp8", "fp4") if settings.get(kind)],
        ("mixed_precision.grad_reduce_in_fp32", row["grad_dtype"] == "fp32", _why("grad_dtype"))]
    out.only(row, "grad_dtype", "fp32", "bf16")
    if row["precision_aware_optimizer"]:
        found += [(_key(field), _TORCH[str(row[field])], _why(field)) for field in STATE_FIELDS]
    return found


def _sharding(out: Exported, row: Row) -> list[Override]:
    zero, share = int(str(row["zero"])), float(str(row["optimizer_offload"]))
    why = f"zero {zero}"
    strategy = {2: "optim_grads", 3: "optim_grads_params"}.get(zero, "no_shard")
    found: list[Override] = [
        # comm_overlap's own defaults would win over ddp's.
        *[(f"comm_overlap.{field}", row[field], _why(field))
          for field in ("overlap_grad_reduce", "overlap_param_gather")],
        ("ddp.use_distributed_optimizer", zero > 0, why),
        ("optimizer.use_distributed_optimizer", zero > 0, why),
        ("ddp.use_megatron_fsdp", zero > 1, why),
        ("ddp.data_parallel_sharding_strategy", strategy, why),
        ("optimizer.optimizer", row["optimizer"], _why("optimizer")),
        ("optimizer.optimizer_cpu_offload", share > 0, _why("optimizer_offload")),
        ("optimizer.optimizer_offload_fraction", share, _why("optimizer_offload")),
        ("dist.use_tp_pp_dp_mapping", row["rank_order"] == "tp-cp-pp-dp", _why("rank_order"))]
    if zero > 1:
        found.append(("checkpoint.ckpt_format", "fsdp_dtensor",
                      "The only checkpoints that Megatron-FSDP writes"))
    if row["optimizer"] == "muon":
        out.refuse("optimizer", "muon's settings are not written", "use adam or sgd")
    return found


def _kernels(row: Row) -> list[Override]:
    fused = row["cross_entropy"] == "fused"
    offloads = int(str(row["activation_offload_layers"])) > 0
    found: list[Override] = [
        ("model.cpu_offloading", offloads, _why("activation_offload_layers")),
        ("model.attention_backend", row["attention"], _why("attention")),
        ("model.cross_entropy_loss_fusion", fused, _why("cross_entropy")),
        ("model.hidden_dropout", row["dropout"], "Dropout"),
        ("model.attention_dropout", row["dropout"], "Dropout")]
    if fused:
        found.append((_key("cross_entropy_impl"), row["cross_entropy_impl"],
                      _why("cross_entropy_impl")))
    return found


def _graph(row: Row) -> list[Override]:
    graph = str(row["cuda_graph"])
    if graph == "none":
        return [("model.cuda_graph_impl", "none", "No part of the step is captured")]
    if graph == "local:full_iteration":
        return [("model.cuda_graph_impl", "full_iteration", "Capture the whole step"),
                ("rerun_state_machine.check_for_nan_in_loss", False,
                 "A captured step cannot be looked into")]
    return [("model.cuda_graph_impl", "transformer_engine", "Capture parts of every layer"),
            ("model.cuda_graph_modules", graph.partition(":")[2].split("+"), "These parts")]


def _experts(row: Row) -> list[Override]:
    settings: Mapping[str, object] = CHOICES["dispatcher"][str(row["dispatcher"])]
    factor = float(str(row["capacity_factor"]))
    return [*[(f"model.{dest}", value, _why("dispatcher")) for dest, value in settings.items()],
            (_key("capacity_factor"), factor or None, _why("capacity_factor"))]


def _environment(out: Exported, system: SystemSpec, row: Row) -> None:
    old = system.accelerator.architecture in ("ampere", "hopper")
    if old and int(str(row["zero"])) < 2 and (row["tp"] != 1 or row["cp"] != 1):
        out.env["CUDA_DEVICE_MAX_CONNECTIONS"] = (
            ("32", "streams of two micro-batches have to run beside each other")
            if row["ep_comm_overlap"] else
            ("1", "communication of tp and cp has to start in the order of its launch"))


def hydra(value: object) -> str:
    """Write a value as Hydra reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    text = str(value)
    # A layout's bars and stars are no bare word of Hydra's grammar.
    return f"'{text}'" if isinstance(value, str) and not text.replace(
        "_", "").replace(".", "").replace("+", "").isalnum() else text


def _python(overrides: list[Override]) -> str:
    head = '"""Overrides of a Megatron-Bridge recipe: cfg = apply(recipe())."""\n\n'
    lines = ["import torch  # noqa: F401",
             "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
             "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
             "from megatron.core.transformer.enums import AttnBackend", "", "",
             "def apply(cfg):", '    """Return the recipe\'s configuration with the strategy."""',
             '    cfg.mixed_precision = get_mixed_precision_config(cfg.mixed_precision or '
             '"bf16_mixed")',
             "    if cfg.comm_overlap is None:",
             "        cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)"]
    for key, value, why in overrides:
        text = repr(value)
        if str(value).startswith("torch."):
            text = str(value)
        elif key == "model.attention_backend":
            text = f"AttnBackend.{value}"
        lines.append(f"    cfg.{key} = {text}  # {comment(why)}")
    return head + "\n".join([*lines, "    return cfg"]) + "\n"
