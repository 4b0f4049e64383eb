"""The one table between strategy or model fields and Megatron-LM's arguments.

Both directions read it. A `Flag` is one argument of `pretrain_gpt.py` that carries exactly one of
our fields; `CHOICES` holds the fields whose values are written with several arguments; `QUIET`
says which of the others change neither memory nor time.

References
----------
Megatron-LM core 0.19.2, ``megatron/training/arguments.py`` (names, defaults and actions; the
oracle test compares every row with the real parser).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Scalar = int | float | bool | str | None


@dataclass(frozen=True)
class Flag:
    """One argument that carries one field.

    Parameters
    ----------
    field : str
        Strategy field, or key of the model where `is_model`.
    dest : str
        Attribute of Megatron's parsed arguments; also its key in YAML and in Megatron-Bridge.
    option : str
        On the command line.
    action : str
        ``store`` takes a value; ``true`` and ``false``: the option alone sets this.
    default : object
        What the parser takes where the option is missing.
    off : object
        Value of the field that is written by leaving the option out; None: the default's.
    is_model : bool
        Whether `field` is a key of the model.
    bridge : str
        Dotted key in a Megatron-Bridge `ConfigContainer`, where it is not ``model.DEST``.
    since : str
        First release that has the option, where older ones say it otherwise.
    """

    field: str
    dest: str
    option: str
    action: str = "store"
    default: Scalar = None
    off: Scalar = None
    is_model: bool = False
    bridge: str = ""
    since: str = ""

    @property
    def bridge_key(self) -> str:
        """Dotted key of a Megatron-Bridge override."""
        return self.bridge or f"model.{self.dest}"


def _flag(field: str, dest: str, default: Scalar = None, *, action: str = "store",
          option: str = "", off: Scalar = None, bridge: str = "", since: str = "",
          is_model: bool = False) -> Flag:
    return Flag(field, dest, option or "--" + dest.replace("_", "-"), action, default,
                off, is_model, bridge, since)


def _switch(field: str, dest: str, *, bridge: str = "") -> Flag:
    return _flag(field, dest, False, action="true", off=False, bridge=bridge)


def _off_switch(field: str, dest: str, option: str, *, bridge: str = "") -> Flag:
    return _flag(field, dest, True, action="false", off=True, option=option, bridge=bridge)


STRATEGY_FLAGS: tuple[Flag, ...] = (
    _flag("seq_len", "seq_length", bridge="model.seq_length"),
    _flag("gbs", "global_batch_size", bridge="train.global_batch_size"),
    _flag("mbs", "micro_batch_size", bridge="train.micro_batch_size"),
    _flag("tp", "tensor_model_parallel_size", 1, off=1),
    _flag("cp", "context_parallel_size", 1, off=1),
    _flag("pp", "pipeline_model_parallel_size", 1, off=1),
    _flag("vpp", "num_virtual_stages_per_pipeline_rank", off=1, since="0.12",
          bridge="model.virtual_pipeline_model_parallel_size"),
    _flag("ep", "expert_model_parallel_size", 1, off=1),
    _flag("etp", "expert_tensor_parallel_size"),
    _switch("sp", "sequence_parallel"),
    _flag("dp_replicate", "num_distributed_optimizer_instances", 1, off=1,
          bridge="ddp.num_distributed_optimizer_instances"),
    _flag("cp_comm", "cp_comm_type", "p2p"),
    _flag("first_stage_layers", "decoder_first_pipeline_num_layers",
          bridge="model.num_layers_in_first_pipeline_stage"),
    _flag("last_stage_layers", "decoder_last_pipeline_num_layers",
          bridge="model.num_layers_in_last_pipeline_stage"),
    _flag("pp_layout", "pipeline_model_parallel_layout", off="none"),
    _flag("microbatch_group_size", "microbatch_group_size_per_vp_stage",
          option="--microbatch-group-size-per-virtual-pipeline-stage"),
    _flag("mtp", "mtp_num_layers", off=0),
    _flag("activation_offload_layers", "cpu_offloading_num_layers", 0, off=0),
    _switch("fp8_param_gather", "fp8_param_gather", bridge="mixed_precision.fp8_param_gather"),
    _switch("fp4_param_gather", "fp4_param_gather", bridge="mixed_precision.fp4_param_gather"),
    _switch("reuse_grad_buf", "reuse_grad_buf_for_mxfp8_param_ag",
            bridge="mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"),
    _switch("precision_aware_optimizer", "use_precision_aware_optimizer",
            bridge="optimizer.use_precision_aware_optimizer"),
    _flag("main_params_dtype", "main_params_dtype", "fp32", bridge="optimizer.main_params_dtype"),
    _flag("main_grads_dtype", "main_grads_dtype", "fp32", bridge="optimizer.main_grads_dtype"),
    _flag("exp_avg_dtype", "exp_avg_dtype", "fp32", bridge="optimizer.exp_avg_dtype"),
    _flag("exp_avg_sq_dtype", "exp_avg_sq_dtype", "fp32", bridge="optimizer.exp_avg_sq_dtype"),
    _switch("overlap_grad_reduce", "overlap_grad_reduce", bridge="ddp.overlap_grad_reduce"),
    _switch("overlap_param_gather", "overlap_param_gather", bridge="ddp.overlap_param_gather"),
    _switch("tp_comm_overlap", "tp_comm_overlap", bridge="comm_overlap.tp_comm_overlap"),
    _off_switch("overlap_p2p", "overlap_p2p_comm", "--no-overlap-p2p-communication",
                bridge="comm_overlap.overlap_p2p_comm"),
    _switch("ep_comm_overlap", "overlap_moe_expert_parallel_comm",
            bridge="comm_overlap.overlap_moe_expert_parallel_comm"),
    _switch("shared_expert_overlap", "moe_shared_expert_overlap"),
    _switch("delay_wgrad_compute", "delay_wgrad_compute",
            bridge="comm_overlap.delay_wgrad_compute"),
    _flag("capacity_factor", "moe_expert_capacity_factor", off=0),
    _switch("pad_to_capacity", "moe_pad_expert_input_to_capacity"),
    _switch("grouped_gemm", "moe_grouped_gemm"),
    _switch("permute_fusion", "moe_permute_fusion"),
    _flag("cross_entropy_impl", "cross_entropy_fusion_impl", "native"),
    _off_switch("fused_rope", "apply_rope_fusion", "--no-rope-fusion"),
    _off_switch("fused_swiglu", "bias_swiglu_fusion", "--no-bias-swiglu-fusion",
                bridge="model.bias_activation_fusion"),
    _off_switch("grad_accumulation_fusion", "gradient_accumulation_fusion",
                "--no-gradient-accumulation-fusion"),
)
"""Strategy fields that one argument carries."""

Settings = Mapping[str, Scalar]
_FP8 = {"bf16": True}


def _maps(**values: Settings) -> Mapping[str, Settings]:
    return MappingProxyType({name.replace("__", "-"): MappingProxyType(dict(v))
                             for name, v in values.items()})


CHOICES: Mapping[str, Mapping[str, Settings]] = MappingProxyType({
    "precision": _maps(
        bf16={"bf16": True}, fp16={"fp16": True}, fp32={},
        fp8__ds={**_FP8, "fp8": "hybrid", "fp8_recipe": "delayed"},
        fp8__cs={**_FP8, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
        fp8__block={**_FP8, "fp8": "e4m3", "fp8_recipe": "blockwise"},
        mxfp8={**_FP8, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
        nvfp4={**_FP8, "fp4": "e2m1", "fp4_recipe": "nvfp4"}),
    "dispatcher": _maps(
        alltoall={"moe_token_dispatcher_type": "alltoall"},
        allgather={"moe_token_dispatcher_type": "allgather"},
        deepep={"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
        hybridep={"moe_token_dispatcher_type": "flex",
                  "moe_flex_dispatcher_backend": "hybridep"}),
    "zero": MappingProxyType({
        "0": {}, "1": {"use_distributed_optimizer": True},
        "2": {"use_distributed_optimizer": True, "use_megatron_fsdp": True,
              "data_parallel_sharding_strategy": "optim_grads"},
        "3": {"use_distributed_optimizer": True, "use_megatron_fsdp": True,
              "data_parallel_sharding_strategy": "optim_grads_params"}}),
    "cross_entropy": _maps(unfused={}, fused={"cross_entropy_loss_fusion": True}),
    "attention": _maps(flash={"attention_backend": "flash"},
                       unfused={"attention_backend": "unfused"}),
    "optimizer": _maps(adam={"optimizer": "adam"}, sgd={"optimizer": "sgd"},
                       muon={"optimizer": "muon"}),
    "rank_order": MappingProxyType({"tp-cp-dp-pp": MappingProxyType({}),
                                    "tp-cp-pp-dp": MappingProxyType(
                                        {"use_tp_pp_dp_mapping": True})}),
    "grad_dtype": _maps(fp32={}, bf16={"grad_reduce_in_bf16": True}, fp16={}),
})
"""Fields whose values are written with several arguments: value -> dest -> what it is set to.

`grad_dtype` fp32 is what Megatron takes with bf16 unless ``--grad-reduce-in-bf16`` says otherwise;
with fp16 the buffer is fp16 unless ``--accumulate-allreduce-grads-in-fp32`` is given.
`attention` flash is also what ``auto`` and ``fused`` run. `recompute*`, `optimizer_offload` and
`cuda_graph` follow rules of their own below."""

OTHER_OPTIONS: Mapping[str, str] = MappingProxyType({
    "fp8": "--fp8-format", "fp4": "--fp4-format",
    "overlap_p2p_comm_warmup_flush": "--overlap-p2p-communication-warmup-flush",
})
"""Options whose names do not follow from their attribute."""

RECOMPUTE_MODULES = ("core_attn", "mlp", "layernorm", "moe", "moe_act", "mla_up_proj",
                     "shared_experts")
"""Of ``--recompute-modules``; the first alone is Megatron's default of ``selective``."""
CUDA_GRAPH_MODULES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess")

OLDER_OPTIONS: Mapping[str, Mapping[str, Scalar]] = MappingProxyType({
    "--recompute-activations": {"recompute_granularity": "selective"},
    "--checkpoint-activations": {"recompute_granularity": "full",
                                 "recompute_method": "uniform"},
    "--moe-enable-deepep": {"moe_token_dispatcher_type": "flex",
                            "moe_flex_dispatcher_backend": "deepep"},
    "--use-flash-attn": {"attention_backend": "flash"},
    "--use-rotary-position-embeddings": {"position_embedding_type": "rope"},
    "--enable-cuda-graph": {"cuda_graph_impl": "local"},
    "--external-cuda-graph": {"cuda_graph_impl": "transformer_engine"},
    "--overlap-p2p-communication": {"overlap_p2p_comm": True},
    "--moe-layer-recompute": {"recompute_granularity": "selective", "recompute_modules": "moe"},
})
"""Options of older releases and what they set."""


def _model(field: str, dest: str, default: Scalar = None, *, action: str = "store",
           option: str = "") -> Flag:
    return _flag(field, dest, default, action=action, option=option, is_model=True)


MODEL_FLAGS: tuple[Flag, ...] = (
    _model("num_layers", "num_layers"),
    _model("hidden_size", "hidden_size"),
    _model("ffn_hidden_size", "ffn_hidden_size"),
    _model("num_attention_heads", "num_attention_heads"),
    _model("num_query_groups", "num_query_groups", 1),
    _model("head_dim", "kv_channels"),
    _model("max_position_embeddings", "max_position_embeddings"),
    _model("vocab_size", "vocab_size"),
    _model("normalization", "normalization", "LayerNorm"),
    _model("gated_mlp", "swiglu", False, action="true"),
    _model("qk_norm", "qk_layernorm", False, action="true"),
    _model("attention_output_gate", "attention_output_gate", False, action="true"),
    _model("tied_embeddings", "untie_embeddings_and_output_weights", False, action="true"),
    _model("moe.num_experts", "num_experts"),
    _model("moe.topk", "moe_router_topk", 2),
    _model("moe.ffn_hidden_size", "moe_ffn_hidden_size"),
    _model("moe.shared_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    _model("moe.shared_expert_gate", "moe_shared_expert_gate", False, action="true"),
    _model("mla.q_lora_rank", "q_lora_rank"),
    _model("mla.kv_lora_rank", "kv_lora_rank", 32),
    _model("mla.qk_nope_head_dim", "qk_head_dim", 128),
    _model("mla.qk_rope_head_dim", "qk_pos_emb_head_dim", 64),
    _model("mla.v_head_dim", "v_head_dim", 128),
    _model("linear_attention.num_key_heads", "linear_num_key_heads", 16),
    _model("linear_attention.num_value_heads", "linear_num_value_heads", 32),
    _model("linear_attention.key_head_dim", "linear_key_head_dim", 128),
    _model("linear_attention.value_head_dim", "linear_value_head_dim", 128),
    _model("linear_attention.conv_kernel", "linear_conv_kernel_dim", 4),
)
"""Model fields that one argument carries; `tied_embeddings` is the opposite of its argument."""

FLAG_OF_FIELD: Mapping[str, Flag] = MappingProxyType({f.field: f for f in STRATEGY_FLAGS})
FLAG_OF_DEST: Mapping[str, Flag] = MappingProxyType(
    {f.dest: f for f in (*STRATEGY_FLAGS, *MODEL_FLAGS)})

RULED = frozenset({
    # Read together by `autotune.formats.megatron`.
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
    "num_layers_per_virtual_pipeline_stage", "virtual_pipeline_model_parallel_size",
    "optimizer_cpu_offload", "optimizer_offload_fraction", "cuda_graph_impl",
    "cuda_graph_modules", "cuda_graph_scope", "use_torch_fsdp2", "transformer_impl",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32", "group_query_attention",
    "multi_latent_attention", "moe_layer_freq", "position_embedding_type", "add_bias_linear",
    "add_qkv_bias", "squared_relu", "quick_geglu", "openai_gelu", "window_size",
    "window_attn_skip_freq", "softmax_type", "linear_attention_freq",
    "experimental_attention_variant", "hidden_dropout", "attention_dropout",
    "encoder_num_layers", "decoder_num_layers", "encoder_seq_length", "padded_vocab_size",
    "fp8_param", "add_position_embedding", "world_size", "bias_gelu_fusion",
    "make_vocab_size_divisible_by",
})
"""Arguments that are read by rules, several together."""

QUIET = re.compile(
    r"(log|save|load|lr|ckpt|dist_ckpt|async_|data_path|data_cache|data_args|per_split|per_dataset"
    r"|train_data|valid_data|test_data|dataloader|tokenizer|wandb|tensorboard|timing|profile"
    r"|pytorch_profiler|rl_|grpo|langrl|inference|inprocess|ft_|fim_|dino|swin|vision|img_|adam_"
    r"|muon_|lion_|sgd_|one_logger|app_tag|straggler|straggler_|fault_|error_|rerun|check_|retro"
    r"|non_persistent|flight|eval|exit|rope|rotary|yarn|mscale|use_checkpoint|override|manual_gc"
    r"|num_dataset|no_log|enable_one|record_|nvtx|ict_|bert_|indexer|retriever|mask_|distributed_"
    r"timeout|distributed_backend|moe_router_(?!topk$|padding|force)|moe_aux|moe_z|moe_token_drop|moe_per"
    r"_layer|moe_routing|sft|tiktoken|vocab_file|merge_file|iterations_to|start_eval|test_|mup_"
    r"|use_mup|mtp_loss|refit|tp_comm_bootstrap|fp8_margin|fp8_interval"
    r"|fp8_amax|replication|verify_|gpu_sniff|activation_func|glu_linear|result_rejected)\w*"
    r"|split|seed|finetune|mock_data|train_iters|train_samples|weight_decay\w*|clip_grad"
    r"|start_weight_decay|end_weight_decay|num_workers|loss_scale|initial_loss_scale|hysteresis"
    r"|min_(lr|loss_scale)|loss_scale_window|use_mcore_models|norm_epsilon|layernorm_epsilon"
    r"|init_method_\w+|embedding_init\w+|warmup|decoupled_\w+|use_gloo_process_groups|no_mmap\w*"
    r"|use_cpu_initialization|perform_initialization|apply_layernorm_1p|layernorm_zero\w+"
    r"|disable_gloo\w+|reset_(position_ids|attention_mask)|eod_mask_loss|short_seq_prob|spec"
    r"|create_attention_mask_in_dataloader|data_parallel_random_init|mmap_bin_files|trust_remote\w+"
    r"|calculate_per_token_loss|ddp_average_in_collective|use_dist_ckpt|vocab_extra_ids|pipeline_"
    r"dtype|params_dtype|autocast\w*|yaml_cfg|local_rank|lazy_mpu_init|te_rng_tracker|disable_msc"
    r"|enable_msc|enable_experimental|apply_query_key_layer_scaling"
    r"|null_tokenizer\w*|chat_template|trust_\w+|no_weight_decay\w+|pretrained_checkpoint"
    r"|data_sharding|adlr_\w+|object_storage\w+|auto_detect\w+|use_mp_args\w+|exit_\w+"
    r"|deprecated_use_mcore_models|distribute_ckpt\w*|strict_fsdp\w+|barrier_with\w+|blend\w*"
    r"|train_sync_interval|memory_snapshot_path|report_theoretical_memory|qk_clip\w*"
    r"|run_workload_inspector_server|config_logger_dir|tensorboard_dir|use_te_rng_tracker"
    r"|no_(save|load)_\w+"
    r"|skip_train|full_validation|metadata_path|special_tokens|\w*straggler\w*|calc_ft\w+"
    r"|mid_level\w+|clone_scatter\w+"
    r"|average_in_collective|cuda_graph_warmup_steps|use_legacy_\w+|enable_ft_package"
    r"|use_persistent_ckpt_worker|dump_param\w+|offset_sampling\w+|apply_wd\w+")
"""Arguments that change neither memory nor the time of a step."""
