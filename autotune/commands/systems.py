"""``autotune systems``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.commands.failures import DONE
from autotune.commands.inputs import output_format, text
from simcore.inputs.load import load_system, system_names


def overview(name: str) -> dict[str, Any]:
    """Return a system's row of the list."""
    system = load_system(name)
    chip, net = system.accelerator, system.network
    return {"name": name, "vendor": chip.vendor, "memory_gib": chip.memory_gib,
            "memory_bandwidth_gb_per_s": chip.memory_bandwidth_gb_per_s,
            "peak_bf16_tflops": chip.peak_bf16_tflops, "peak_fp8_tflops": chip.peak_fp8_tflops,
            "gpus_per_node": net.gpus_per_node, "domain_size": net.domain_size,
            "scale_up_gb_per_s": net.scale_up_gb_per_s, "nic_gb_per_s": net.nic_gb_per_s,
            "provenance": chip.provenance.value, "aliases": list(system.aliases)}


def run(values: Mapping[str, object]) -> int:
    """List systems, or show one."""
    style = output_format(values)
    from autotune.report.catalogue import emit_list, emit_one

    name = text(values, "name")
    if name is not None:
        emit_one(load_system(name).model_dump(mode="json"), style=style)
    else:
        emit_list("systems", [overview(known) for known in system_names()], style=style)
    return DONE
