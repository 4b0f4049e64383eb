"""Shipped systems and frameworks say what datasheets, drivers and measured tables say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simcore.errors import Issue
from simcore.inputs.codec import parse
from simcore.inputs.fields import FIELD, FRAMEWORKS
from simcore.inputs.framework import Profile
from simcore.inputs.load import load_framework, load_system, system_names
from simcore.inputs.system import Provenance
from simcore.profiles import version_key

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "simcore" / "data"
VALIDATION = ROOT.parent / "shared" / "validation"

# Vendors' datasheets: dense bf16 and fp8 TFLOPS, memory GB/s, link one way GB/s, GPUs it joins.
DATASHEET = {
    "a100-sxm-80g": (312, 0, 2039, 300, 8), "a100-sxm-40g": (312, 0, 1555, 300, 8),
    "a100-pcie-80g": (312, 0, 1935, 32, 4), "h100-sxm": (989, 1978, 3350, 450, 8),
    "h200-sxm": (989, 1978, 4800, 450, 8), "h800-sxm": (989, 1978, 3350, 200, 8),
    "h20-sxm": (148, 296, 4000, 450, 8), "b200-sxm": (2250, 4500, 7700, 900, 8),
    "b300-sxm": (2250, 4500, 7750, 900, 8), "gb200-nvl72": (2500, 5000, 8000, 900, 72),
    "gb300-nvl72": (2500, 5000, 8000, 900, 72), "mi300x": (1307, 2615, 5300, 448, 8),
    "mtt-s4000": (100, 0, 768, 120, 8), "mtt-s5000": (500, 1000, 1600, 392, 8),
}
# Memory as nvidia-smi or rocm-smi shows it, in MiB.
DRIVER_MIB = {
    "a100-sxm-80g": 81920, "a100-pcie-80g": 81920, "a100-sxm-40g": 40960, "h100-sxm": 81559,
    "h200-sxm": 143771, "h20-sxm": 97871, "b200-sxm": 183359, "b300-sxm": 275040,
    "gb200-nvl72": 189471, "gb300-nvl72": 284208, "mi300x": 196592,
}
MULTIPROCESSORS = {"a100-sxm-80g": 108, "h100-sxm": 132, "h200-sxm": 132, "h800-sxm": 132,
                   "h20-sxm": 78, "b200-sxm": 148, "mi300x": 304}
ALIASES = {"a100": "a100-sxm-80g", "h100": "h100-sxm", "h200": "h200-sxm", "h800": "h800-sxm",
           "h20": "h20-sxm", "b200": "b200-sxm", "b300": "b300-sxm", "gb200": "gb200-nvl72",
           "gb300": "gb300-nvl72", "MI300": "mi300x", "H100-SXM": "h100-sxm"}


def test_every_system_is_checked_here() -> None:
    assert set(system_names()) == set(DATASHEET)


@pytest.mark.parametrize("name", list(DATASHEET))
def test_rates_of_the_datasheet(name: str) -> None:
    system = load_system(name)
    chip, net = system.accelerator, system.network
    assert (chip.peak_bf16_tflops, chip.peak_fp8_tflops, chip.memory_bandwidth_gb_per_s,
            net.scale_up_gb_per_s, net.domain_size) == DATASHEET[name]
    assert chip.num_multiprocessors == MULTIPROCESSORS.get(name, chip.num_multiprocessors)


@pytest.mark.parametrize("name", list(DRIVER_MIB))
def test_memory_is_what_the_driver_shows(name: str) -> None:
    assert load_system(name).accelerator.memory_gib * 1024 == pytest.approx(
        DRIVER_MIB[name], abs=8)


@pytest.mark.parametrize("alias", list(ALIASES))
def test_aliases(alias: str) -> None:
    assert load_system(alias).name == ALIASES[alias]


@pytest.mark.parametrize("name", list(DATASHEET))
def test_files_are_in_order(name: str) -> None:
    system = load_system(name)
    path = DATA / "systems" / f"{name}.yaml"
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert system.name == name
    net, share = system.network, system.efficiency
    assert net.domain_size % net.gpus_per_node == 0 or net.gpus_per_node % net.domain_size == 0
    assert net.domain_used <= net.domain_size
    # Backward attention never reaches the forward's share, nor attention a plain product's.
    assert share.attention_backward_frac < share.attention_forward_frac <= share.gemm_bf16_frac + (
        0.1)
    for section in (system.accelerator, share, net):
        assert len(section.source) > 20


def test_aliases_are_unique() -> None:
    names = [n for s in system_names() for n in (s, *load_system(s).aliases)]
    assert len({n.lower() for n in names}) == len(names)


def test_announced_figures_are_tagged() -> None:
    for name in ("mtt-s4000", "mtt-s5000"):
        system = load_system(name)
        assert system.accelerator.provenance is Provenance.VENDOR_CLAIM
        assert system.network.provenance is Provenance.VENDOR_CLAIM


@pytest.mark.shared
def test_systems_and_frameworks_of_the_measured_tables_are_there() -> None:
    if not VALIDATION.exists():
        pytest.skip(f"{VALIDATION} is not there (tables of measured runs)")
    found: set[tuple[str, str]] = set()
    for path in VALIDATION.rglob("*.csv"):
        with path.open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(x for x in stream if not x.startswith("#")))
        found |= {(r["framework"], r["system"]) for r in rows if r.get("framework")}
    for framework, system in found:
        assert load_system(system).name == system
        assert load_framework(framework).name == framework


def profiles() -> list[tuple[str, Profile]]:
    return [(name, p) for name in FRAMEWORKS for p in load_framework(name).profiles]


@pytest.mark.parametrize(("name", "profile"), profiles(),
                         ids=[f"{n}-{p.version}" for n, p in profiles()])
def test_defaults_are_legal_values(name: str, profile: Profile) -> None:
    for key, value in profile.defaults.items():
        assert key in FIELD, f"{name} {profile.version}: {key}"
        parsed = parse(FIELD[key], value)
        assert not isinstance(parsed, Issue), str(parsed)
        assert parsed == value
    assert len(profile.source) > 40


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_versions_run_from_old_to_new(name: str) -> None:
    framework = load_framework(name)
    keys = [version_key(p.version) for p in framework.profiles]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert framework.newest == framework.profiles[-1].version
    released = [p.released for p in framework.profiles]
    assert released == sorted(released)
    # Launching a MoE layer never became dearer from one release to the next.
    costs = [p.moe_layer_cpu_us for p in framework.profiles]
    assert costs == sorted(costs, reverse=True)


def test_what_the_tables_say_of_frameworks() -> None:
    """The comment lines on top of the tables of measured runs."""
    newest = {n: load_framework(n).profiles[-1] for n in FRAMEWORKS}
    assert newest["megatron"].defaults["grad_dtype"] == "fp32"
    assert newest["megatron-bridge"].defaults["grad_dtype"] == "bf16"
    assert newest["nemo-megatron"].defaults["fp8_param_gather"] is True
    aleph = newest["aleph-alpha-scaling"]
    assert aleph.logits_gathered
    # 14 B a token and vocabulary entry: 2 in bf16, three copies of 4.
    assert 2 + 4 * aleph.logits_fp32_copies == 14
    assert aleph.defaults["zero"] == 1
    assert aleph.defaults["overlap_grad_reduce"] is False
    for name in ("fsdp", "torchtitan", "deepspeed"):
        assert newest[name].defaults["zero"] == 3
    assert newest["torchtitan"].defaults["recompute"] == "selective_op"
    by_version = {p.version: p for p in load_framework("megatron").profiles}
    # Transformer Engine 2.11 in the B200 runs; Megatron 0.12 in the A100 PCIe runs, whose head
    # has no lasting dummy (``tensor_parallel/layers.py``).
    assert not by_version["0.12"].head_dummy_gradient
    assert by_version["0.14"].head_dummy_gradient
    assert not by_version["0.12"].probabilities_in_dispatch
    assert by_version["0.14"].grouped_dummy_gradients
    assert by_version["0.14"].adam_upcast_moments
    assert not by_version["0.19"].adam_upcast_moments
