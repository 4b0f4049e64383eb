"""The one table of strategy fields.

A field has one name everywhere: attribute of `Strategy`, key in YAML and JSON, CLI option
(with ``-`` for ``_``), Optuna parameter and column of a table of runs. Everything that needs
the list (CLI options, columns of a `Batch`, the README's table of knobs) reads it from here.

How a value is stored in a column of numbers:

- INT, FLOAT: itself; BOOL: 0 or 1; ENUM: its index in `choices`;
- MODULES: a bit mask over `choices` (``none`` is 0);
- TEXT: index into the batch's table of texts.

A column holds `UNSET` where the field was left out and takes its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

DEFAULT_GBS = 1024
"""Global batch, in sequences, where none is given and it divides."""
UNSET = -1
"""Code of a field that was left out."""


class Kind(StrEnum):
    """How a field's value is written, checked and stored."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    ENUM = "enum"
    MODULES = "modules"
    TEXT = "text"


@dataclass(frozen=True)
class Field:
    """One field of a strategy.

    Parameters
    ----------
    name : str
        The field's only name.
    kind : Kind
        How it is written and stored.
    help : str
        What it is, in a sentence, with the framework's own flag where there is one.
    default : str
        In words, what the field becomes where it is left out.
    group : str
        Heading under which help texts and the README list it.
    choices : tuple of str
        Legal values of ENUM, modules of MODULES.
    minimum, maximum : float
        Legal range of INT and FLOAT, both ends included.
    not_modelled : mapping
        Values of the vocabulary that the simulator refuses by name, with the reason.
    """

    name: str
    kind: Kind
    help: str
    default: str
    group: str
    choices: tuple[str, ...] = ()
    minimum: float = 0
    maximum: float = 2**31 - 1
    not_modelled: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def option(self) -> str:
        """The CLI option, ``--first-stage-layers`` for ``first_stage_layers``."""
        return "--" + self.name.replace("_", "-")


PRECISIONS = ("bf16", "fp16", "fp32", "fp8-ds", "fp8-cs", "fp8-block", "mxfp8", "nvfp4",
              "fp8-rowwise")
DTYPES = ("fp32", "bf16", "fp16", "fp8")
FRAMEWORKS = ("megatron", "megatron-bridge", "nemo-megatron", "megatron-deepspeed",
              "aleph-alpha-scaling", "fsdp", "torchtitan", "deepspeed")
MEGATRON = ("megatron", "megatron-bridge", "nemo-megatron")
"""Frameworks on Megatron-Core."""
RECOMPUTE_MODULES = ("full", "core_attn", "mlp", "layernorm", "moe", "moe_act", "mla_up_proj",
                     "shared_experts", "selective_op")
CUDA_GRAPH_SCOPES = ("full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess")

_int, _float, _bool, _enum = Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.ENUM

_WORK = (
    Field("gpus", _int, "Number of GPUs (world size).", "required", "workload",
          minimum=1, maximum=2**20),
    Field("seq_len", _int, "Tokens in a sequence.",
          "the model's own, 8192 for llama3", "workload", minimum=1, maximum=2**27),
    Field("gbs", _int, "Global batch size, in sequences.",
          "1024, raised to the next multiple that gives every data-parallel rank whole "
          "micro-batches (whole groups of them where the pipeline is interleaved); in a search, "
          "one that every data-parallel size divides", "workload", minimum=1, maximum=2**27),
    Field("mbs", _int, "Micro-batch size, in sequences.", "1", "workload",
          minimum=1, maximum=2**20),
)
_PARALLEL = (
    Field("tp", _int, "Tensor-parallel size.", "1", "parallelism", minimum=1, maximum=4096),
    Field("cp", _int, "Context-parallel size.", "1", "parallelism", minimum=1, maximum=4096),
    Field("pp", _int, "Pipeline-parallel size.", "1", "parallelism", minimum=1, maximum=4096),
    Field("vpp", _int, "Model chunks a pipeline rank holds (1: not interleaved).",
          "1; 2 under dualpipev",
          "parallelism", minimum=1, maximum=1024),
    Field("ep", _int, "Expert-parallel size.", "1", "parallelism", minimum=1, maximum=4096),
    Field("etp", _int, "Tensor-parallel size of the experts.",
          "tp (Megatron's default); 1 in a model without experts", "parallelism",
          minimum=1, maximum=4096),
    Field("sp", _bool, "Sequence parallelism beside tp (--sequence-parallel).",
          "by framework; on where tp > 1 for Megatron, off at tp 1", "parallelism"),
    Field("zero", _int, "What data-parallel ranks shard: 0 nothing, 1 optimizer states, "
          "2 and gradients, 3 and parameters (FSDP).",
          "by framework; 1 for Megatron (distributed optimizer), 3 for FSDP", "parallelism",
          maximum=3),
    Field("dp_replicate", _int, "Replicas of the sharded group (HSDP; "
          "--num-distributed-optimizer-instances).", "1", "parallelism",
          minimum=1, maximum=2**20),
    Field("cp_comm", _enum, "How context-parallel ranks exchange keys and values "
          "(--cp-comm-type).", "p2p; all_gather in a model with sliding windows", "parallelism",
          ("p2p", "all_gather", "a2a", "a2a+p2p")),
    Field("rank_order", _enum, "Order in which ranks are laid out over the cluster, fastest "
          "first (tp-cp-pp-dp: --use-tp-pp-dp-mapping).", "tp-cp-dp-pp", "parallelism",
          ("tp-cp-dp-pp", "tp-cp-pp-dp")),
)
_PIPELINE = (
    Field("first_stage_layers", _int, "Decoder layers of the first pipeline stage, where the "
          "split is uneven (--decoder-first-pipeline-num-layers).", "the even share",
          "pipeline", maximum=4096),
    Field("last_stage_layers", _int, "Decoder layers of the last pipeline stage "
          "(--decoder-last-pipeline-num-layers).", "the even share", "pipeline",
          maximum=4096),
    Field("pp_layout", Kind.TEXT, "Decoder layers of every chunk in order ('4|4|4|1m', m: "
          "multi-token prediction; or Megatron's 'Et*4|(t*4|)*14tmL'), 'auto' for the most "
          "balanced split, 'none' for the even one.", "none", "pipeline"),
    Field("schedule", _enum, "Pipeline schedule.", "interleaved where vpp > 1, else 1f1b",
          "pipeline", ("1f1b", "interleaved", "gpipe", "zero-bubble", "dualpipe", "dualpipev")),
    Field("microbatch_group_size", _int, "Micro-batches that a virtual stage runs in a row "
          "(--microbatch-group-size-per-virtual-pipeline-stage).", "pp", "pipeline",
          minimum=1, maximum=2**20),
    Field("mtp", _int, "Multi-token-prediction layers that are trained.",
          "as the model's config says", "pipeline", maximum=16),
)
_RECOMPUTE = (
    Field("recompute", Kind.MODULES, "What is recomputed in backward: none, full, or modules "
          "joined by '+' (--recompute-granularity, --recompute-modules).",
          "none; selective_op under torchtitan", "recomputation", RECOMPUTE_MODULES),
    Field("recompute_layers", _int, "How many layers of a pipeline rank, over all its chunks, "
          "recompute, where not all do.", "all of them", "recomputation", maximum=4096),
    Field("recompute_method", _enum, "block: the first layers of each chunk, one by one; "
          "uniform: every layer, in units (--recompute-method).",
          "block where recompute_layers is given, else uniform", "recomputation",
          ("uniform", "block")),
    Field("recompute_unit_layers", _int, "Layers of one unit of uniform recomputation.", "1",
          "recomputation", minimum=1, maximum=4096),
    Field("activation_offload_layers", _int, "Layers of a rank whose activations go to host "
          "memory.", "0", "recomputation", maximum=4096),
)
_PRECISION = (
    Field("precision", _enum, "Number format of the matrix products.", "bf16", "precision",
          PRECISIONS),
    Field("grad_dtype", _enum, "Number format of the gradient buffer and its reduction.",
          "by framework; fp32 for Megatron, bf16 for Megatron-Bridge and NeMo", "precision",
          ("fp32", "bf16", "fp16")),
    Field("fp8_param_gather", _bool, "Weights are kept and all-gathered in fp8 "
          "(--fp8-param-gather).", "by framework; off for Megatron", "precision"),
    Field("fp4_param_gather", _bool, "Weights are kept and all-gathered in NVFP4 "
          "(--fp4-param-gather).", "by framework; off for Megatron", "precision"),
    Field("reuse_grad_buf", _bool, "MXFP8 parameter gather uses the gradient buffer "
          "(--reuse-grad-buf-for-mxfp8-param-ag).", "off; on under Megatron-Bridge with mxfp8 "
          "parameters", "precision"),
)
_OPTIMIZER = (
    Field("optimizer", _enum, "Optimizer; muon leaves embeddings, the head and vectors to Adam "
          "(--optimizer).", "adam", "optimizer", ("adam", "sgd", "muon")),
    Field("precision_aware_optimizer", _bool, "Optimizer states in the formats below "
          "(--use-precision-aware-optimizer).", "on where one of the formats is not fp32, or "
          "Megatron's optimizer is offloaded",
          "optimizer"),
    Field("main_params_dtype", _enum, "Master weights.", "fp32", "optimizer", DTYPES[:3]),
    Field("main_grads_dtype", _enum, "Gradients as the optimizer sees them.",
          "fp32; the gradient's under a precision-aware optimizer", "optimizer", DTYPES[:3]),
    Field("exp_avg_dtype", _enum, "First moment.", "fp32", "optimizer", DTYPES),
    Field("exp_avg_sq_dtype", _enum, "Second moment.", "fp32", "optimizer", DTYPES),
    Field("optimizer_offload", _float, "Share of the optimizer that is kept in host memory and "
          "updated by the CPU (--optimizer-cpu-offload --optimizer-offload-fraction).",
          "0", "optimizer", maximum=1),
)
_OVERLAP = (
    Field("overlap_grad_reduce", _bool, "Gradient reduction beside the last backward "
          "(--overlap-grad-reduce).", "by framework", "overlap"),
    Field("overlap_param_gather", _bool, "Parameter all-gather beside the first forward "
          "(--overlap-param-gather).", "by framework", "overlap"),
    Field("tp_comm_overlap", _bool, "Tensor-parallel collectives split and run beside the "
          "matrix products (--tp-comm-overlap).", "off", "overlap"),
    Field("overlap_p2p", _bool, "Pipeline sends beside compute (--overlap-p2p-communication).",
          "on where vpp > 1, else off", "overlap"),
    Field("ep_comm_overlap", _bool, "Expert all-to-all of one micro-batch beside the compute of "
          "another (--overlap-moe-expert-parallel-comm).", "off", "overlap"),
    Field("shared_expert_overlap", _bool, "Shared expert beside the expert all-to-all "
          "(--moe-shared-expert-overlap).", "off", "overlap"),
    Field("delay_wgrad_compute", _bool, "Weight gradients later, beside communication "
          "(--delay-wgrad-compute).", "off", "overlap"),
)
_MOE = (
    Field("dispatcher", _enum, "How tokens reach their experts (--moe-token-dispatcher-type).",
          "alltoall", "experts", ("alltoall", "allgather", "deepep", "hybridep")),
    Field("capacity_factor", _float, "Rows an expert accepts over its even share; 0: dropless "
          "(--moe-expert-capacity-factor).", "0", "experts", maximum=1024),
    Field("pad_to_capacity", _bool, "Every expert gets exactly its capacity "
          "(--moe-pad-expert-input-to-capacity).", "off", "experts"),
    Field("expert_imbalance", _float, "Rows of the fullest expert rank over the even share.",
          "1 (balanced)", "experts", minimum=1, maximum=4096),
    Field("grouped_gemm", _bool, "Experts of a rank in one grouped product "
          "(--moe-grouped-gemm).", "on", "experts"),
    Field("permute_fusion", _bool, "Fused permutation of tokens (--moe-permute-fusion).",
          "by framework", "experts"),
)
_KERNELS = (
    Field("attention", _enum, "Attention kernel.", "flash", "kernels", ("flash", "unfused")),
    Field("cross_entropy", _enum, "Loss kernel (--cross-entropy-loss-fusion).",
          "by framework", "kernels", ("unfused", "fused")),
    Field("cross_entropy_impl", _enum, "Implementation of the fused loss "
          "(--cross-entropy-fusion-impl).", "by framework; native for Megatron", "kernels",
          ("te", "native")),
    Field("fused_swiglu", _bool, "Activation and gate in one kernel.", "by framework",
          "kernels"),
    Field("fused_rope", _bool, "Rotary embedding in one kernel.", "by framework", "kernels"),
    Field("fused_norm", _bool, "Normalisation in one kernel.", "by framework", "kernels"),
    Field("grad_accumulation_fusion", _bool, "Weight gradients accumulate inside the product.",
          "by framework", "kernels"),
    Field("dropout", _float, "Dropout probability of hidden states and attention "
          "(--hidden-dropout, --attention-dropout).", "0", "kernels", maximum=1),
    Field("cuda_graph", Kind.MODULES, "Captured part of the step: none, local:full_iteration, "
          "or transformer_engine:SCOPES joined by '+'.", "none", "kernels",
          CUDA_GRAPH_SCOPES),
)
_SOFTWARE = (
    Field("framework", _enum, "Training framework, with its memory and overlap behaviour.",
          "megatron", "software", FRAMEWORKS),
    Field("framework_version", Kind.TEXT, "Version of the framework; one without a profile "
          "takes the nearest earlier one.", "the newest profile", "software"),
)

FIELDS: tuple[Field, ...] = (
    _WORK + _PARALLEL + _PIPELINE + _RECOMPUTE + _PRECISION + _OPTIMIZER + _OVERLAP + _MOE
    + _KERNELS + _SOFTWARE
)
FIELD: Mapping[str, Field] = MappingProxyType({f.name: f for f in FIELDS})
FIELD_NAMES: tuple[str, ...] = tuple(FIELD)

RECOMPUTE_BIT: Mapping[str, int] = MappingProxyType(
    {name: 1 << i for i, name in enumerate(RECOMPUTE_MODULES)}
)
CUDA_GRAPH_BIT: Mapping[str, int] = MappingProxyType(
    {name: 1 << i for i, name in enumerate(CUDA_GRAPH_SCOPES)}
)


def code(name: str, value: str) -> int:
    """Code of an ENUM's value, ``code("precision", "bf16") == 0``."""
    return FIELD[name].choices.index(value)
