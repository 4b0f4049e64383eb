"""The frameworks that a strategy can be written for, and the programs that run them."""

from __future__ import annotations

from autotune.formats.exported import Exported, Row, bash_array
from simcore.inputs.model import ModelSpec
from simcore.inputs.system import SystemSpec

TARGETS = ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "fsdp", "json")
PROGRAMS = {
    "megatron-lm": ("pretrain_gpt.py",),
    "megatron-bridge": ("scripts/training/run_recipe.py",),
    "torchtitan": ("-m", "torchtitan.train"),
    "deepspeed": ("train.py",),
}
"""What torchrun starts; `fsdp` is a library without a program."""
OWN_PROGRAM = {"deepspeed": "train.py stands for your program, which calls deepspeed.initialize",
               "megatron-bridge": "name the recipe behind the launcher: --recipe NAME"}


def write(target: str, model: ModelSpec, system: SystemSpec, row: Row, *,
          with_model: bool) -> Exported:
    """Write a resolved strategy for one of `TARGETS` but json."""
    if target == "megatron-lm":
        from autotune.formats.megatron_export import export_megatron
        from autotune.formats.megatron_model_export import add_model

        out = export_megatron(model, system, row)
        if with_model:
            add_model(out, model, int(str(row["seq_len"])))
        else:
            out.notes.append("arguments of the model are left out (--with-model)")
        out.files["args.sh"] = args_script(out)
        return out
    if target == "megatron-bridge":
        from autotune.formats.bridge_export import export_bridge

        out = export_bridge(model, system, row)
        out.files["args.sh"] = args_script(out)
        return out
    if target == "torchtitan":
        from autotune.formats.torchtitan_export import export_torchtitan

        return export_torchtitan(model, row)
    if target == "deepspeed":
        from autotune.formats.deepspeed_export import export_deepspeed

        return export_deepspeed(model, row)
    from autotune.formats.fsdp_export import export_fsdp

    return export_fsdp(model, row)


def args_script(out: Exported) -> str:
    """Return arguments and variables as a file for bash to source."""
    return "# shellcheck shell=bash disable=SC2034\n" + "".join(
        f"# {name}={value}: {why}\n" for name, (value, why) in out.env.items()
    ) + bash_array("ARGS", out.lines)
