"""YAML of Megatron-LM and Megatron-Bridge, and sizes that a recipe sets for a named model."""

from __future__ import annotations

from pathlib import Path

from autotune.formats.bridge import from_overrides
from autotune.formats.megatron import from_script
from autotune.formats.sniff import read_file

MEGATRON = """
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 4
  ffn_hidden_size: 4096
  activation_func: swiglu
  normalization: RMSNorm
  add_bias_linear: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  sequence_parallel: true
  bf16: true
micro_batch_size: 2
global_batch_size: 64
seq_length: 2048
vocab_size: 32000
max_position_embeddings: 2048
position_embedding_type: rope
use_distributed_optimizer: true
"""
BRIDGE = """
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  num_layers: 40
  hidden_size: 4096
train:
  micro_batch_size: 1
  global_batch_size: 256
ddp:
  overlap_grad_reduce: true
"""


def test_yaml_of_megatron(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MEGATRON)
    found = read_file(str(tmp_path / "run.yaml"))
    m, s = found.model, found.strategy
    assert found.kind == "megatron-lm"
    assert (m["num_layers"], m["hidden_size"], m["num_query_groups"], m["ffn_hidden_size"]) == (
        24, 1024, 4, 4096)
    assert m.get("gated_mlp", True)
    assert m.get("normalization", "rmsnorm") == "rmsnorm"
    assert (s["tp"], s["pp"], s["sp"], s["mbs"], s["gbs"], s["zero"], s["seq_len"]) == (
        2, 4, True, 2, 64, 1, 2048)


def test_nested_yaml_of_bridge_lists_sizes_that_are_not_the_models(tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text(BRIDGE)
    found = read_file(str(tmp_path / "cfg.yaml"), model="llama3-8b")
    s = found.strategy
    assert found.kind == "megatron-bridge"
    assert (s["tp"], s["pp"], s["sp"], s["mbs"], s["gbs"], s["overlap_grad_reduce"]) == (
        4, 2, True, 1, 256, True)
    # 40 layers are not Llama 3 8B's, 4096 is its hidden size.
    assert [(i.name, i.value) for i in found.ignored] == [("model.num_layers", "40")]


def test_what_changes_time_or_memory_is_told() -> None:
    loud = ("--rampup-batch-size 8 8 100", "--variable-seq-lengths", "--use-sharp",
            "--nccl-communicator-config-path f", "--disable-bf16-reduced-precision-matmul",
            "--empty-unused-memory-level 2", "--attention-softmax-in-fp32",
            "--moe-deepep-num-sms 20", "--moe-router-force-load-balancing")
    base = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
            "--vocab-size 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 "
            "--hidden-dropout 0 --attention-dropout 0 --lr 1e-4 --save x ")
    found = from_script(base + " ".join(loud), name="m", where="f")
    assert {i.name.lstrip("-").replace("_", "-") for i in found.ignored} == {
        option.split()[0].lstrip("-") for option in loud}


def test_overrides_of_a_named_model() -> None:
    found = from_overrides("model.num_layers=8 model.moe_router_topk=4 "
                           "model.tensor_model_parallel_size=2", name="m", where="f",
                           model="mixtral-8x7b")
    assert {(i.name, i.value) for i in found.ignored} == {
        ("model.num_layers", "8"), ("model.moe_router_topk", "4")}
