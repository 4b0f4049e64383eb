"""What a cluster is made of: accelerator, links, and how fast they go in practice."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from simcore.inputs.model import Frozen

Rate = Annotated[float, Field(ge=1e-3, le=1e9)]
Frac = Annotated[float, Field(gt=0, le=1)]
Micros = Annotated[float, Field(ge=0, le=1e6)]


class Provenance(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured"
    FITTED = "fitted"
    DATASHEET = "datasheet"
    TRANSFERRED = "transferred"
    VENDOR_CLAIM = "vendor-claim"
    USER = "user"


class Figures(Frozen):
    """Source and kind of the figures of one section."""

    provenance: Provenance
    source: str = Field(min_length=1)


class Accelerator(Figures):
    """One device."""

    vendor: str
    architecture: str
    """Chip generation (ampere, hopper, cdna3, ...): decides fp8 copies and workspaces."""
    peak_bf16_tflops: Rate
    """Dense matrix rate, without sparsity."""
    peak_fp8_tflops: Annotated[float, Field(ge=0)] = 0
    """0: no fp8 units; fp8 strategies are refused."""
    peak_fp4_tflops: Annotated[float, Field(ge=0)] = 0
    memory_gib: Rate
    """As the driver reports it."""
    memory_bandwidth_gb_per_s: Rate
    num_multiprocessors: Annotated[int, Field(ge=1, le=4096)]
    l2_cache_mib: Rate = 50
    power_w: Rate = 700
    price_per_hour_usd: Annotated[float, Field(ge=0)] = 0
    """0: unknown; the objective `cost` then needs --price-per-gpu-hour."""


class Efficiency(Figures):
    """How much of the peaks kernels reach in a training step.

    Each is a share of the peak named; `simcore.kernels` says how they combine with the shape.
    """

    kernel_table: str = Field(default="", pattern="^[a-z0-9]*$")
    """Table of measured products and attention (``simcore/data/efficiency``); empty: the
    shares below, with the formula of tiles and waves."""
    kernel_table_transferred: bool = False
    """Whether the table was measured on another system."""
    sustained_frac: Frac = 0.95
    """Rate of products and attention inside a long step over the same kernels measured alone:
    clocks fall under power and heat, and neighbours share the memory."""
    fp8_over_table: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Rate of the 8-bit products of training (cuBLAS) over the table's inference kernels, never
    beyond the peak; fitted to training runs."""
    fp4_over_table: Annotated[float, Field(gt=0, le=2)] = 1.0
    gemm_bf16_frac: Frac
    """Large matrix product, bf16, sustained in a step."""
    gemm_fp8_frac: Frac = 0.6
    gemm_fp4_frac: Frac = 0.5
    """Large matrix product in NVFP4, of the fp4 peak."""
    grouped_gemm_frac: Frac = 0.8
    """Grouped product over dense ones of four of its experts' rows."""
    attention_forward_frac: Frac
    """Fused causal attention, head size 128, long sequence, of the bf16 peak."""
    attention_backward_frac: Frac
    memory_frac: Frac
    """Element-wise kernels, of the memory bandwidth."""
    permute_frac: Frac = 0.5
    launch_s_per_kernel_us: Micros = 5.0
    """GPU-side gap between kernels that no graph removes."""
    cpu_launch_us: Micros = 6.0
    """Time the CPU needs to launch one kernel."""
    cpu_launch_frac: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Time of launching a layer over the framework profile's: below 1 for a faster host."""


class Network(Figures):
    """Links, one way and a GPU. A group inside `domain_size` GPUs uses the scale-up link."""

    gpus_per_node: Annotated[int, Field(ge=1, le=4096)]
    domain_size: Annotated[int, Field(ge=1, le=4096)]
    """GPUs that reach each other over the scale-up link (NVLink domain)."""
    domain_used: Annotated[int, Field(ge=0, le=4096)] = 0
    """GPUs of a domain that a job of several domains takes; 0: all (64 of 72 in NVL72)."""
    scale_up_gb_per_s: Rate
    scale_up_all_reduce_frac: Frac = 0.75
    scale_up_all_gather_frac: Frac = 0.7
    scale_up_all_to_all_frac: Frac = 0.6
    scale_up_p2p_frac: Frac = 0.7
    scale_up_latency_us: Micros = 5.0
    """A step of a ring."""
    collective_base_us: Micros = 15.0
    """Of any collective, whatever its group: launch and synchronisation."""
    scale_up_own_frac: Annotated[float, Field(ge=0, le=1)] = 0.35
    """Time of a rank's own share, which is copied and starts the pipeline, over that of one
    received: why a pair reaches three quarters of the bandwidth of eight."""
    in_step_slowdown: Annotated[float, Field(ge=1, le=1.5)] = 1.0
    """Time of a layer's collective inside a training step over the same one alone: buffers that
    are not registered, neighbours on the multiprocessors, late members."""
    scale_up_is_mesh: bool = False
    """Direct links without a switch: a group of n uses only n-1 of the links (MI300X)."""
    scale_up_all_reduce_offload: bool = False
    """The switch reduces (NVLS): an all-reduce moves each byte about once."""
    nic_gb_per_s: Rate
    """Of one GPU's share of the node's NICs."""
    nics_per_node: Annotated[int, Field(ge=1, le=4096)] = 8
    scale_out_frac: Frac = 0.8
    scale_out_all_to_all_frac: Frac = 0.6
    scale_out_latency_us: Micros = 15.0
    rail_optimised: bool = True
    """GPU i of each node hangs on switch i; traffic between rails crosses the spine."""
    oversubscription: Annotated[float, Field(ge=1, le=64)] = 1.0
    """Downlinks over uplinks above the leaf; 1: full bisection."""
    leaf_nodes: Annotated[int, Field(ge=1, le=65536)] = 32
    """Nodes below one leaf switch (or rail group), where oversubscription starts."""
    pcie_gb_per_s: Rate = 55
    """To the host, one way, for offload."""
    host_memory_gb_per_s: Rate = 55
    """Of the host's memory, a GPU's share that an optimizer on the CPU reaches: two sockets of
    eight channels of DDR5-4800 (614 GB/s, DGX H100) over eight GPUs, at 0.7."""


class SystemSpec(Frozen):
    """A cluster of one kind of node."""

    name: str = Field(min_length=1, max_length=200)
    aliases: tuple[str, ...] = ()
    description: str = ""
    accelerator: Accelerator
    efficiency: Efficiency
    network: Network
