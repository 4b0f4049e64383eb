"""What a training framework does with memory, kernels and overlap, as data."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from simcore.inputs.model import Frozen

Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class MemoryStyle(StrEnum):
    """Which tensors layers keep and how states are held."""

    TE = "transformer-engine"
    LOCAL = "megatron-local"
    FSDP = "fsdp"


class Profile(Frozen):
    """One version of one framework.

    `defaults` are field values that the framework takes where the user says nothing, under
    the strategy's own field names.
    """

    version: str
    released: str
    defaults: dict[str, int | float | bool | str] = {}
    memory_style: MemoryStyle = MemoryStyle.TE
    dummy_weight_gradients: bool = True
    """One bf16 buffer a distinct weight shape under fused gradient accumulation (TE >= 2.3)."""
    grouped_dummy_gradients: bool = True
    """The same for experts (TE >= 2.10)."""
    head_dummy_gradient: bool = True
    """The same for the output head, whose linear layer is Megatron's own (Megatron >= 0.13)."""
    adam_upcast_moments: bool = False
    """FusedAdam casts bf16 moments to fp32 temporaries (TE 2.11)."""
    probabilities_in_dispatch: bool = True
    logits_fp32_copies: Annotated[float, Field(ge=0, le=8)] = 1
    """fp32 copies of the logits that the unfused loss holds at its peak, beside bf16 ones."""
    gradient_reduction_bytes: Annotated[float, Field(ge=0, le=4)] = 0
    """Of a gradient on the wire; 0: as in the buffer."""
    gradient_all_reduce: bool = False
    """Gradients are all-reduced although their owners are sharded."""
    data_parallel_gb_per_s: Annotated[float, Field(ge=0, le=1e4)] = 0
    """What the library's data-parallel collectives reach a GPU across nodes, with as many members
    on a node as there are nodes; it goes with the root of members over nodes: members share a
    node's NICs, and paths collide where there are many nodes. 0: the network's."""
    logits_gathered: bool = False
    """Every tensor rank holds the logits of the whole vocabulary."""
    norm_keeps_fp32: bool = False
    """An unfused norm that keeps fp32 intermediates (16 B an element and layer)."""
    expandable_segments: bool = False
    """Launched with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."""
    attention_dropout: bool = False
    """Unfused attention that keeps dropout's mask and output whatever the probability."""
    frees_pipeline_output: bool = True
    overlap_grad_reduce_share: Share = 0.9
    """Share of the gradient reduction that backward can hide at most."""
    overlap_param_gather_share: Share = 0.9
    attention_rate_frac: Rate | dict[str, Rate] = 1.0
    """Rate of its fused attention kernel over the system's, or that by architecture (1 where it
    is not named): FlashAttention 2 has no kernels for Hopper's and Blackwell's units
    (FlashAttention-3, arXiv 2407.08608, figure 5)."""
    fp8_rate_frac: Rate = 1.0
    """Rate of its fp8 products, with what they wait for, over the newest libraries'."""
    elementwise_passes: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Traffic of its element-wise kernels over the fused ones', where the switches of fusion do
    not say it: eager kernels, casts and copies between them."""
    moe_passes: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Traffic of its router and permutation over what the rows alone need: padding,
    probabilities, masks and the copies between the kernels."""
    softmax_passes: Annotated[float, Field(ge=1, le=5)] = 1.0
    """Traffic over the scores of its unfused attention, over a fused scale, mask and softmax."""
    straggler_frac: Annotated[float, Field(ge=0, le=0.05)] = 0.0035
    """Growth of a step with each doubling of the nodes: the slowest one sets the pace."""
    tp_overlap_share: Share = 0.65
    tp_backward_hidden_share: Share = 0.5
    """Of a collective that starts beside a product of backward, at most, by the product's time
    (`LinearWithGradAccumulationAndAsyncCommunication` of Megatron-Core). Half: both share the
    multiprocessors; between SimuMax's B200 rows (less) and Korthikanti et al. (more)."""
    ep_overlap_share: Share = 0.8
    fsdp_prefetch_share: Share = 0.95
    moe_layer_cpu_us: Annotated[float, Field(ge=0, le=1e6)] = 4000
    """CPU time of launching a MoE layer, forward and backward, of one micro-batch."""
    dense_layer_cpu_us: Annotated[float, Field(ge=0, le=1e6)] = 900
    moe_sync_us: Annotated[float, Field(ge=0, le=1e5)] = 0
    """Device idle in a MoE layer, forward and backward, of one micro-batch, whatever its size:
    routing in many small kernels and the host's wait for the counts of tokens, under dispatchers
    that learn them on the host."""
    grouped_launch_us: Annotated[float, Field(ge=0, le=1e4)] = 9
    """CPU time of one expert's product inside a grouped one: B200 operators of SimuMax with 154
    to 308 rows an expert take 8.7 to 9.4 us each, whatever their size."""
    step_overhead_us: Annotated[float, Field(ge=0, le=1e7)] = 5000
    """Once a step: data, logging, synchronisation."""
    source: str


class FrameworkSpec(Frozen):
    """A framework and its versions, oldest first."""

    name: str
    description: str = ""
    newest: str
    profiles: tuple[Profile, ...] = Field(min_length=1)
