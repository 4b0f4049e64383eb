"""Files that users bring: what they mean, what is said of the rest, what is refused."""

from __future__ import annotations

import ast
import importlib.metadata
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.commands.import_ import checked
from autotune.formats.bridge import from_overrides, from_recipe
from autotune.formats.imported import Imported, pattern_of
from autotune.formats.megatron import from_script
from autotune.formats.shell import Script
from autotune.formats.sniff import read_file
from simcore.errors import InputError
from simcore.inputs.load import load_model
from simcore.inputs.model import ModelSpec
from simcore.parameters import total_parameters

SHARED = Path(__file__).parents[4] / "shared" / "examples"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the files of users")
MINIMAL = ("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
           "--vocab-size 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 ")


def script(text: str, **more: int) -> Imported:
    return from_script(text, name="m", where="run.sh", **more)


def model_of(imported: Imported) -> ModelSpec:
    return ModelSpec.model_validate(checked(imported, where="f")["model"])


def message(text: str) -> str:
    with pytest.raises(InputError) as caught:
        script(text)
    return str(caught.value)


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(("name", "parameters", "fields"), [
    # Parameters as transformers counts them; degrees as the scripts' text says.
    ("llama3_70b_64gpu.sh", 70_553_706_496, {
        "gpus": 64, "tp": 4, "pp": 8, "vpp": 5, "gbs": 256, "mbs": 1, "seq_len": 8192, "sp": True,
        "zero": 1, "recompute": "core_attn", "cross_entropy": "fused",
        "cross_entropy_impl": "te", "precision": "bf16", "grad_dtype": "fp32"}),
    ("deepseek_v3_like_1024gpu.sh", 671_026_404_352, {
        "gpus": 1024, "tp": 1, "pp": 16, "ep": 32, "etp": 1, "pp_layout": "Et*3|(tt|)*29mL",
        "mtp": 1, "recompute": "layernorm+moe_act+mla_up_proj", "precision": "fp8-block",
        "dispatcher": "deepep", "exp_avg_dtype": "bf16", "main_grads_dtype": "fp32",
        "precision_aware_optimizer": True, "permute_fusion": True}),
    ("mixtral_8x7b_args.txt", 46_702_792_704, {
        "tp": 1, "pp": 4, "vpp": 8, "ep": 8, "gbs": 256, "dispatcher": "alltoall",
        "overlap_grad_reduce": False, "zero": 1, "grouped_gemm": True}),
])
def test_scripts_of_users(name: str, parameters: int, fields: dict) -> None:
    imported = read_file(str(SHARED / "megatron" / name))
    data = checked(imported, where=name)
    assert total_parameters(model_of(imported)) == parameters
    assert {key: data["strategy"].get(key) for key in fields} == fields
    assert all("dropout" in item["name"] for item in data["ignored"])


@pytest.mark.shared
@needs_shared
def test_every_file_of_simumax_is_imported() -> None:
    for path in sorted((SHARED / "simumax").rglob("*.json")):
        data = checked(read_file(str(path)), where=path.name)
        assert data["kind"] == "simumax"
        assert data["model"] or data["strategy"] or data["system"]
    for name, built_in in (("deepseekv3", "deepseek-v3"), ("llama3-70b", "llama3-70b"),
                           ("mixtral-8x7b", "mixtral-8x7b"), ("qwen3-32b", "qwen3-32b")):
        model = model_of(read_file(str(SHARED / "simumax" / "models" / f"{name}.json")))
        missing = 64 * 2 * 128 if name == "qwen3-32b" else 0  # its config has no q and k norms
        assert total_parameters(model) == total_parameters(load_model(built_in)) - missing


def test_a_script_with_functions_loops_and_cases() -> None:
    imported = script("""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
MODEL=${1:-8b}
case $MODEL in
  8b) LAYERS=32; HIDDEN=4096 ;;
  *) LAYERS=80; HIDDEN=8192 ;;
esac
[[ -z "$TP" ]] && TP=2
add() { ARGS+=("$@"); }
ARGS=()
add --num-layers $LAYERS --hidden-size "$HIDDEN"
for flag in bf16 swiglu; do ARGS+=(--$flag); done
if [ -f /data/index ]; then ARGS+=(--fp16); else ARGS+=(--use-distributed-optimizer); fi
cat > hostfile <<EOF
--num-layers 99
EOF
srun bash -c "python pretrain_gpt.py ${ARGS[*]} --num-attention-heads 32 --seq-length 4096 \\
  --vocab-size 32000 --micro-batch-size 2 --global-batch-size $((TP * 64)) \\
  --tensor-model-parallel-size $TP --hidden-dropout 0 --attention-dropout 0 \\
  --save $(date +%s) --wandb-project x"
""")
    s = imported.strategy
    assert (s["gpus"], s["tp"], s["mbs"], s["gbs"], s["zero"]) == (32, 2, 2, 128, 1)
    assert imported.model["num_layers"] == 32
    assert imported.model["ffn_hidden_size"] == 10880  # int(4 * 4096 * 2/3 / 64) * 64
    assert any("-f /data/index" in item.reason for item in imported.ignored)


def test_what_matters_and_is_not_understood_is_listed() -> None:
    imported = script(MINIMAL + "--hidden-dropout 0 --attention-dropout 0 --log-interval 5 "
                      "--data-path a b --ddp-bucket-size 1000 --no-such-flag 3 --lr 1e-4")
    assert [item.name for item in imported.ignored] == ["ddp_bucket_size", "no_such_flag"] or [
        item.name for item in imported.ignored] == ["--ddp-bucket-size", "--no-such-flag"]


@pytest.mark.parametrize(("text", "part"), [
    ("python train.py --micro-batch-size $(nvidia-smi | wc -l)", "$(nvidia-smi | wc -l)"),
    ("python train.py --micro-batch-size `id`", "`id`"),
    (MINIMAL + "--tensor-model-parallel-size $TP", "$TP"),
    (MINIMAL + "--tensor-model-parallel-size x", "must be a whole number"),
    (MINIMAL + "--is-hybrid-model", "hybrid"),
    (MINIMAL + "--optimizer lion", "lion"),
    (MINIMAL + "--recompute-granularity selective --recompute-modules everything", "everything"),
    ("echo hello", "starts nothing"),
    ("A='" + MINIMAL, "never closed"),
    ("if true; then\n" * 100, "deeply"),
    ("$(" * 5000, "deeply"),
    ("A=x\n" + "A=$A$A$A$A$A$A$A$A\n" * 30, "too much text"),
    ("x" * (1 << 21), "longer"),
    ("\0\1\2" * 10, "not a text file"),
])
def test_hostile_or_wrong_scripts_are_refused_by_name(text: str, part: str) -> None:
    assert part in message(text)


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "touched"
    imported = script(f"X=$(touch {target})\n`touch {target}`\ntouch {target}\n"
                      f"python train.py {MINIMAL} --save $X; eval 'touch {target}'")
    assert imported.strategy["gbs"] == 8
    assert not target.exists()


@given(st.lists(st.sampled_from([
    "if", "then", "fi", "else", "case", "esac", "in", "for", "do", "done", "{", "}", "(", ")",
    "((", "))", "$", "${", "$(", "`", "'", '"', "\\", "\n", ";", ";;", "&&", "||", "|", "<<EOF",
    "EOF", "A=", "A+=(", "$A", "${A[@]}", "${A:-", "x", "[", "]", "[[", "-eq", "1", " ", "#",
    "--num-layers", "--bf16", "f()", "=", "*", "$((1/0))", "$((9**9**9))", "\ud7ff", ">", "&"]),
    max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_followed_or_refused(words: list[str]) -> None:
    for joint in ("", " "):
        try:
            Script(joint.join(words), "run.sh")
            script(joint.join(words) + "\npython train.py " + MINIMAL)
        except InputError:
            pass


def test_layer_patterns() -> None:
    assert pattern_of("([0]*3+[1]*2)") == [0, 0, 0, 1, 1]
    assert pattern_of("([1]*2+[0]*1)*2") == [1, 1, 0, 1, 1, 0]
    assert pattern_of("[1]*99999999") is None
    assert pattern_of("__import__('os')") is None


RECIPE = '''
import torch
SIZE: int = 16384
def small_pretrain_config() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").to_provider()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.seq_length = SIZE
    cfg.model.recompute_granularity = "full"
    cfg.model.recompute_method = "block"
    cfg.model.recompute_num_layers = 1
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.mixed_precision = get_mixed_precision_config("bf16_with_fp8_current_scaling_mixed")
    cfg.ddp.grad_reduce_in_fp32 = False
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.optimizer.use_precision_aware_optimizer = True
    return cfg
'''


def test_a_recipe_is_read_and_not_run() -> None:
    imported = from_recipe(RECIPE, name="m", where="r.py")
    s = imported.strategy
    assert imported.model_name == "llama3-70b"
    assert (s["tp"], s["pp"], s["vpp"], s["seq_len"], s["gbs"], s["mbs"]) == (
        4, 4, 5, 16384, 512, 1)
    assert (s["recompute"], s["recompute_layers"]) == ("full", 5)
    assert (s["precision"], s["grad_dtype"], s["exp_avg_dtype"]) == ("fp8-cs", "bf16", "bf16")
    assert s["fp8_param_gather"] is True


def test_recipes_of_the_package() -> None:
    try:
        files = importlib.metadata.files("megatron-bridge") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("megatron-bridge is not installed")
    read = 0
    for file in files:
        if "recipes" not in str(file) or file.suffix != ".py":
            continue
        text = Path(str(file.locate())).read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_pretrain_config"):
                try:
                    checked(from_recipe(text, name="m", where=file.name, recipe=node.name),
                            where=file.name)
                    read += 1
                except InputError:
                    continue
    assert read >= 15


def test_overrides() -> None:
    imported = from_overrides("model.tensor_model_parallel_size=8 train.global_batch_size=64\n"
                              "ddp.overlap_param_gather=False  # comment", name="m",
                              where="o", model="llama3-8b")
    assert (imported.strategy["tp"], imported.strategy["gbs"]) == (8, 64)
    assert imported.strategy["overlap_param_gather"] is False
    with pytest.raises(InputError, match="--model"):
        from_overrides("model.tensor_model_parallel_size=8", name="m", where="o")


def test_torchtitan(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n'
                    '[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
                    '[parallelism]\ndata_parallel_shard_degree = 16\n'
                    'tensor_parallel_degree = 4\n[activation_checkpoint]\nmode = "selective"\n'
                    'selective_ac_option = "op"\n[quantize.linear.float8]\n'
                    'recipe_name = "rowwise"\n')
    imported = read_file(str(path))
    s = imported.strategy
    assert imported.model_name == "llama3-8b"
    assert (s["gpus"], s["gbs"], s["mbs"], s["tp"], s["zero"]) == (64, 32, 2, 4, 3)
    assert (s["recompute"], s["precision"], s["sp"]) == ("selective_op", "fp8-rowwise", True)
    path.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\n'
                    'pipeline_parallel_degree = 2\n'
                    'pipeline_parallel_schedule = "ZBVZeroBubble"\n')
    with pytest.raises(InputError, match="zbvzerobubble"):
        read_file(str(path))


def test_deepspeed(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({
        "train_batch_size": 256, "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "zero_hpz_partition_size": 8,
                              "offload_optimizer": {"device": "cpu"}}}))
    imported = read_file(str(path))
    s = imported.strategy
    assert (s["gpus"], s["gbs"], s["mbs"], s["zero"]) == (32, 256, 2, 2)
    assert (s["precision"], s["optimizer_offload"], s["overlap_grad_reduce"]) == (
        "bf16", 1.0, True)
    assert [i.name for i in imported.ignored] == ["zero_optimization.zero_hpz_partition_size"]
