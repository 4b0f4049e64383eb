"""Megatron-LM's own parser and validation as judge of exported arguments, on a CPU.

Needs megatron-core 0.19.2 and PyTorch (see `.ci/run`). Transformer Engine is taken to be there:
only its version is asked for.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import megatron_import  # noqa: F401
import torch
from megatron.core import utils as core_utils
from megatron.core.extensions import transformer_engine
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.transformer.moe import moe_utils
from megatron.training import arguments
from megatron.training.argument_utils import core_transformer_config_from_args
from packaging.version import Version

from autotune.formats.megatron_flags import CHOICES, STRATEGY_FLAGS
from simcore.layout_notation import stages_of

REFUSALS = (AssertionError, ValueError, RuntimeError, NotImplementedError, ImportError)
RUN = ("--train-iters", "10", "--lr", "1e-4", "--min-lr", "1e-5", "--lr-decay-style", "cosine",
       "--tokenizer-type", "NullTokenizer", "--mock-data", "--transformer-impl",
       "transformer_engine")
"""What a run needs beside model and strategy."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "fp8": torch.uint8}
_FUSED = ("fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index",
          "fused_sort_chunks_by_index_with_probs", "fused_unpermute",
          "fused_topk_with_score_function", "fused_compute_score_for_moe_aux_loss",
          "fused_moe_aux_loss", "fused_permute_and_pad_with_probs")


def pretend(architecture: str = "hopper", te_version: str = "2.9.0") -> None:
    """Answer for the device and for Transformer Engine; what Megatron logs is left out."""
    logging.getLogger("megatron").setLevel(logging.ERROR)
    major = {"ampere": 8, "hopper": 9, "blackwell": 10}[architecture]
    torch.cuda.get_device_capability = lambda *_: (major, 0)  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(  # type: ignore
        major=major, minor=0, name="stand-in", total_memory=80 << 30)
    torch.cuda.device_count = lambda: 8
    core_utils._te_version = Version(te_version)
    stand_in = lambda *_, **__: None  # noqa: E731
    rope_utils.fused_apply_rotary_pos_emb = stand_in
    rope_utils.fused_apply_rotary_pos_emb_thd = stand_in
    for name in _FUSED:
        for module in (moe_utils, transformer_engine):
            if getattr(module, name, 0) is None:
                setattr(module, name, stand_in)


def judge(words: Sequence[str], env: Mapping[str, str], world: int) -> tuple[Any, str]:
    """Parse and validate; the parsed arguments, or None with Megatron's message."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0", **env)
    kept, said = sys.argv, io.StringIO()
    sys.argv = ["pretrain_gpt.py", *words, *RUN]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                args = arguments.parse_args()
            except SystemExit:
                return None, "parse: " + said.getvalue().strip().splitlines()[-1]
            try:
                arguments.validate_args(args)
                args.padded_vocab_size = args.vocab_size
                core_transformer_config_from_args(args)
            except REFUSALS as error:
                return None, f"{type(error).__name__}: {error}"[:300]
    finally:
        sys.argv = kept
    return args, ""


def differences(args: Any, row: Mapping[str, Any], *, is_moe: bool) -> list[str]:
    """Say where validated arguments mean another strategy than the row."""
    wrong: list[str] = []

    def same(name: str, got: object, want: object) -> None:
        if got != want:
            wrong.append(f"{name}: Megatron has {got}, the strategy {want}")

    same("dp", args.data_parallel_size, row["dp"])
    same("vpp", args.virtual_pipeline_model_parallel_size or 1, row["vpp"])
    same("zero", int(args.use_distributed_optimizer), min(1, row["zero"]))
    same("dropout", args.hidden_dropout, row["dropout"])
    plain = {f.field: f for f in STRATEGY_FLAGS}
    names = ["seq_len", "gbs", "mbs", "tp", "cp", "pp", "sp", "overlap_grad_reduce",
             "overlap_param_gather", "tp_comm_overlap", "fp8_param_gather",
             "precision_aware_optimizer", "delay_wgrad_compute", "grad_accumulation_fusion"]
    if is_moe:
        names += ["ep", "etp", "grouped_gemm", "pad_to_capacity", "ep_comm_overlap",
                  "shared_expert_overlap", "permute_fusion"]
    for name in names:
        same(name, getattr(args, plain[name].dest), row[name])
    choices = ["precision", "cross_entropy", "optimizer", "rank_order",
               *(["dispatcher"] if is_moe else [])]
    for name in choices:
        for dest, want in CHOICES[name][str(row[name])].items():
            same(name, getattr(args, dest), want)
    if row["precision"] not in ("fp16", "fp32"):
        same("grad_dtype", "fp32" if args.accumulate_allreduce_grads_in_fp32 else "bf16",
             row["grad_dtype"])
    if row["vpp"] > 1:
        same("overlap_p2p", args.overlap_p2p_comm, row["overlap_p2p"])
        # TransformerConfig takes pp where none is given.
        same("microbatch_group_size", args.microbatch_group_size_per_vp_stage or row["pp"],
             row["microbatch_group_size"])
    wrong += _layers(args, row) + _kernels(args, row)
    kind = row["recompute"]
    if kind == "none":
        same("recompute", args.recompute_granularity, None)
    elif kind != "full":
        same("recompute", sorted(args.recompute_modules), sorted(kind.split("+")))
    elif row["recompute_method"] == "block":
        same("recompute_layers", args.recompute_num_layers * row["vpp"],
             row["recompute_layers"])
    return wrong


def _layers(args: Any, row: Mapping[str, Any]) -> list[str]:
    """Compare which layers every chunk holds, as Megatron's own functions place them."""
    pp, vpp = int(row["pp"]), int(row["vpp"])
    layout = args.pipeline_model_parallel_layout
    if row["pp_layout"] != "none":
        counts = [text.count("t") for text in str(layout).split("|")] if isinstance(
            layout, str) else [sum(kind.name == "decoder" for kind in layout.layout[rank][chunk])
                               for chunk in range(vpp) for rank in range(pp)]
        want = list(stages_of(row["pp_layout"])[0])
        return [] if counts == want else [f"pp_layout: Megatron has {counts}, not {want}"]
    first, last = args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers
    ranks = pp - (first is not None) - (last is not None)
    even = (args.num_layers - (first or 0) - (last or 0)) / max(ranks, 1)
    ends = [even if first is None else first, even if last is None else last]
    wanted = [row["first_stage_layers"], row["last_stage_layers"]]
    return [] if ends == wanted else [f"stage layers: Megatron has {ends}, not {wanted}"]


def _kernels(args: Any, row: Mapping[str, Any]) -> list[str]:
    """Compare attention, loss, CUDA graphs and the optimizer's formats."""
    pairs = [("attention", args.attention_backend.name, row["attention"]),
             ("fused_rope", args.apply_rope_fusion, row["fused_rope"])]
    if row["cross_entropy"] == "fused":
        pairs.append(("cross_entropy_impl", args.cross_entropy_fusion_impl,
                      row["cross_entropy_impl"]))
    if row["precision_aware_optimizer"]:
        pairs += [(name, getattr(args, name), DTYPES[row[name]]) for name in (
            "main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")]
    graph = str(row["cuda_graph"])
    impl = {"none": "none", "local:full_iteration": "full_iteration"}.get(
        graph, "transformer_engine")
    pairs.append(("cuda_graph", args.cuda_graph_impl, impl))
    if impl == "transformer_engine":
        scopes = sorted(getattr(m, "name", m) for m in args.cuda_graph_modules)
        pairs.append(("cuda_graph", scopes, sorted(graph.partition(":")[2].split("+"))))
    return [f"{name}: Megatron has {got}, the strategy {want}" for name, got, want in pairs
            if got != want]
