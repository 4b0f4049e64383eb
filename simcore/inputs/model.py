"""What a model is made of, in Megatron's terms."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0, le=10_000_000)]
Positive = Annotated[int, Field(ge=1, le=10_000_000)]


class AttentionKind(StrEnum):
    """How a layer mixes tokens."""

    FULL = "full"
    SLIDING = "sliding"
    LINEAR = "linear"


class MlpKind(StrEnum):
    """What a layer's second half is."""

    DENSE = "dense"
    MOE = "moe"


class Norm(StrEnum):
    """Normalisation; a layer norm has a bias beside its weight."""

    RMSNORM = "rmsnorm"
    LAYERNORM = "layernorm"


class Activation(StrEnum):
    """Non-linearity of the MLP; a gated MLP multiplies its result with a second projection."""

    SILU = "silu"
    GELU = "gelu"
    RELU = "relu"
    SQUARED_RELU = "squared_relu"


class Frozen(BaseModel):
    """Base of every spec: unknown keys are refused, values are never coerced or changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(),
                              ignored_types=(cached_property,))


class Mla(Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    `q_lora_rank` 0 means that queries are projected in one step (Moonlight).
    """

    q_lora_rank: Count = 0
    kv_lora_rank: Positive
    qk_nope_head_dim: Positive
    qk_rope_head_dim: Positive
    v_head_dim: Positive


class Moe(Frozen):
    """Routed experts of a layer, and the shared expert beside them."""

    num_experts: Positive
    topk: Positive
    ffn_hidden_size: Positive
    shared_ffn_hidden_size: Count = 0
    shared_expert_gate: bool = False
    expert_bias: bool = False
    """Biases on the experts' matrices (GPT-OSS)."""
    router_bias: bool = False
    """A trained bias on the router (GPT-OSS); DeepSeek's correction bias is no parameter."""

    @model_validator(mode="after")
    def _topk(self) -> Self:
        if self.topk > self.num_experts:
            raise ValueError(f"topk ({self.topk}) must not exceed num_experts "
                             f"({self.num_experts})")
        return self


class LinearAttention(Frozen):
    """Gated delta-rule layers (Qwen3-Next, arXiv 2412.06464)."""

    num_key_heads: Positive
    num_value_heads: Positive
    key_head_dim: Positive
    value_head_dim: Positive
    conv_kernel: Positive = 4


class LayerKind(Frozen):
    """Layers that are alike: same attention, same MLP."""

    attention: AttentionKind
    mlp: MlpKind


class ModelSpec(Frozen):
    """A decoder-only transformer.

    The names follow Megatron-Core's `TransformerConfig`. `layers` lists each layer's kind as an
    index into `kinds`, in order.
    """

    name: str = Field(min_length=1, max_length=200)
    aliases: tuple[str, ...] = ()
    """Other names under which a built-in model is found, such as its Hugging Face id."""
    family: str = "custom"
    source: str = Field(min_length=1)
    num_layers: Annotated[int, Field(ge=1, le=4096)]
    hidden_size: Positive
    num_attention_heads: Annotated[int, Field(ge=1, le=16384)]
    num_query_groups: Annotated[int, Field(ge=1, le=16384)]
    head_dim: Positive
    ffn_hidden_size: Positive
    """Width of the dense MLP (of the dense layers, in a model with experts)."""
    gated_mlp: bool = True
    activation: Activation = Activation.SILU
    vocab_size: Positive
    seq_len: Positive
    """Sequence length that is trained where the user gives none."""
    max_position_embeddings: Positive
    normalization: Norm = Norm.RMSNORM
    norm_bias: bool = True
    """Whether layer norms have a bias (MPT's have none); an RMS norm never has one."""
    tied_embeddings: bool = False
    learned_positions: bool = False
    rotary: bool = True
    attention_bias: bool = False
    """Biases on the query, key and value projections."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    attention_output_gate: bool = False
    """Queries are projected twice as wide, the second half gates the output (Qwen3-Next)."""
    qk_norm: bool = False
    """Norm over each head of queries and keys (one weight vector of head_dim each)."""
    qk_norm_full: bool = False
    """Norm over all heads at once (OLMo 2): weights as wide as the projections."""
    post_norms: bool = False
    """Two more norms a layer, behind attention and MLP (Gemma 2 and 3)."""
    no_pre_norms: bool = False
    """No norm before attention and MLP (OLMo 2, together with `post_norms`)."""
    final_norm: bool = True
    parallel_residual: bool = False
    attention_sinks: bool = False
    """One trained number a head (GPT-OSS)."""
    sliding_window: Count = 0
    mla: Mla | None = None
    moe: Moe | None = None
    linear_attention: LinearAttention | None = None
    attention_pattern: tuple[AttentionKind, ...] = (AttentionKind.FULL,)
    """Attention of layer i is entry i modulo the length."""
    moe_layers: tuple[bool, ...] | None = None
    """Which layers hold experts; None: where `moe` is given, all behind `first_dense_layers`."""
    first_dense_layers: Count = 0
    """Layers at the beginning that hold no experts (DeepSeek)."""
    mtp_num_layers: Annotated[int, Field(ge=0, le=16)] = 0
    """Multi-token-prediction layers that the model's config brings."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_attention_heads % self.num_query_groups and self.mla is None:
            raise ValueError(f"num_query_groups ({self.num_query_groups}) must divide "
                             f"num_attention_heads ({self.num_attention_heads})")
        if self.moe_layers is not None and len(self.moe_layers) != self.num_layers:
            raise ValueError(f"moe_layers must name every layer ({self.num_layers}), "
                             f"got {len(self.moe_layers)}")
        if self.moe_layers is not None and any(self.moe_layers) and self.moe is None:
            raise ValueError("moe_layers needs moe, the description of the experts")
        if self.moe_layers is not None and self.first_dense_layers:
            raise ValueError("moe_layers names every layer: leave out first_dense_layers")
        if not self.attention_pattern:
            raise ValueError("attention_pattern must name at least one kind of attention")
        if AttentionKind.SLIDING in self.attention_pattern and not self.sliding_window:
            raise ValueError("attention_pattern has sliding layers: sliding_window is needed")
        if AttentionKind.LINEAR in self.attention_pattern and self.linear_attention is None:
            raise ValueError("attention_pattern has linear layers: linear_attention is needed")
        return self

    @cached_property
    def is_moe(self) -> bool:
        """Whether any layer holds experts."""
        return any(kind.mlp is MlpKind.MOE for kind in self.layer_kinds)

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of every layer, in order."""
        pattern = self.attention_pattern
        has_moe = self.moe_layers or tuple(
            self.moe is not None and i >= self.first_dense_layers for i in range(self.num_layers))
        return tuple(
            LayerKind(attention=pattern[i % len(pattern)],
                      mlp=MlpKind.MOE if has_moe[i] else MlpKind.DENSE)
            for i in range(self.num_layers)
        )

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Distinct kinds, in the order of their first layer; an MTP layer is of the last one."""
        return tuple(dict.fromkeys(self.layer_kinds))

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Index into `kinds` of every layer."""
        index = {kind: i for i, kind in enumerate(self.kinds)}
        return tuple(index[kind] for kind in self.layer_kinds)

    def with_layers(self, num_layers: int) -> ModelSpec:
        """Return the model with another number of layers (a proxy run of the same shape).

        Layers beyond the model's own repeat its last layer.
        """
        moe_layers = self.moe_layers
        if moe_layers is not None:
            moe_layers = (moe_layers + moe_layers[-1:] * num_layers)[:num_layers]
        return self.model_validate(
            {**self.model_dump(), "num_layers": num_layers, "moe_layers": moe_layers})
