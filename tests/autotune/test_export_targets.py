"""Exports judged by the frameworks that read them."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.export import export
from autotune.commands.inputs import Case
from autotune.formats.bridge_export import hydra
from autotune.formats.exported import Exported
from autotune.formats.sniff import read_file
from simcore import predict
from simcore.errors import InputError
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy

ROOT = Path(__file__).parents[2]
HOPPER = load_system("h100-sxm")
BRIDGE = [
    ("llama3-70b", {"gpus": 256, "tp": 8, "pp": 4, "vpp": 5, "precision": "fp8-cs"}),
    ("deepseek-v3", {"gpus": 1024, "pp": 16, "ep": 32, "gbs": 2048, "recompute": "mlp+moe_act",
                     "dispatcher": "deepep"}),
    ("llama3-8b", {"gpus": 64, "zero": 3, "recompute": "full", "overlap_param_gather": True}),
    ("llama3-8b", {"gpus": 64, "exp_avg_dtype": "bf16", "cuda_graph": "transformer_engine:attn"}),
]
TITAN = [
    ("llama3-8b", {"gpus": 64, "gbs": 128}),
    ("llama3-70b", {"gpus": 256, "tp": 8, "pp": 4, "vpp": 2, "gbs": 256, "zero": 2}),
    ("llama3.1-405b", {"gpus": 512, "tp": 8, "pp": 8, "pp_layout": "auto", "vpp": 2,
                       "gbs": 512, "recompute": "full"}),
    ("llama3-8b", {"gpus": 64, "precision": "fp8-rowwise", "dp_replicate": 4, "tp": 2}),
    ("deepseek-v3", {"gpus": 512, "pp": 4, "ep": 16, "gbs": 2048, "mtp": 0, "vpp": 2,
                     "pp_layout": "auto", "dispatcher": "deepep"}),
    ("llama3-8b", {"gpus": 64, "cp": 2, "cp_comm": "all_gather", "recompute": "full",
                   "recompute_layers": 16}),
]
DEEPSPEED: list[dict[str, Any]] = [
    {"gpus": 64}, {"gpus": 64, "zero": 2, "optimizer_offload": 1.0, "overlap_param_gather": False},
    {"gpus": 64, "optimizer_offload": 0.5, "precision": "fp16", "grad_dtype": "fp32"},
    {"gpus": 64, "pp": 4, "zero": 1, "overlap_param_gather": False, "mbs": 2}]
MEGATRON: list[tuple[str, dict[str, Any]]] = [
    ("llama3-70b", {"gpus": 1024, "tp": 8, "pp": 4, "vpp": 5, "tp_comm_overlap": True}),
    ("deepseek-v3", {"gpus": 1024, "pp": 16, "ep": 32, "gbs": 2048, "pp_layout": "auto",
                     "recompute": "mlp+moe_act", "dispatcher": "deepep", "vpp": 2}),
    ("llama3-70b", {"gpus": 1024, "tp": 8, "pp": 4, "vpp": 5, "recompute": "full",
                    "recompute_layers": 10}),
    ("llama3-8b", {"gpus": 64, "cp": 2, "recompute": "layernorm", "zero": 0}),
    ("mixtral-8x7b", {"gpus": 64, "pp": 4, "ep": 8, "capacity_factor": 1.25}),
    ("qwen3-30b-a3b", {"gpus": 64, "ep": 8, "dispatcher": "allgather"}),
    ("llama3-8b", {"gpus": 64, "precision": "fp8-cs", "grad_dtype": "bf16",
                   "optimizer_offload": 0.5, "cuda_graph": "transformer_engine:attn"})]
TRIPS = [("megatron-lm", *case) for case in MEGATRON] + [
    ("megatron-bridge", *case) for case in BRIDGE] + [("torchtitan", *case) for case in TITAN] + [
    # Which layers a rank holds stands in the program, not in DeepSpeed's file.
    ("deepspeed", "llama3-8b", fields) for fields in DEEPSPEED if "pp" not in fields]


@pytest.mark.parametrize(("target", "model", "fields"), TRIPS)
def test_what_is_exported_is_read_back(target: str, model: str, fields: dict[str, Any],
                                       tmp_path: Path) -> None:
    own = {"framework": "megatron" if target == "megatron-lm" else target, **fields}
    case = Case(load_model(model), HOPPER, Strategy(**own))
    row = predict(case.model, HOPPER, case.strategy).to_dict()
    out = export(case, target, with_model=target == "megatron-lm")
    name = {"megatron-lm": "args.sh", "torchtitan": "torchtitan.toml",
            "deepspeed": "ds_config.json"}.get(target, "overrides.txt")
    file = tmp_path / name
    file.write_text(out.files.get(name, "\n".join(out.args)))
    read = read_file(str(file), kind=target, model="" if target == "megatron-lm" else model)
    assert not [item.name for item in read.ignored]
    # The number of GPUs is the launcher's.
    found = Strategy.from_mapping({"gpus": fields["gpus"], **read.strategy})
    spec = ModelSpec.model_validate(read.model) if target == "megatron-lm" else case.model
    back = predict(spec, HOPPER, found).to_dict()
    assert back["strategy"] == row["strategy"]
    assert back["model"]["parameters"] == row["model"]["parameters"]


def written(model: str, target: str, **fields: object) -> Exported:
    fields = {"framework": target, **fields}
    return export(Case(load_model(model), HOPPER, Strategy(**fields)), target)  # type: ignore


@pytest.mark.parametrize(("model", "fields"), TITAN)
def test_torchtitan_means_the_strategy(model: str, fields: dict[str, Any]) -> None:
    out = tomllib.loads(written(model, "torchtitan", **fields).files["torchtitan.toml"])
    p, t = out["parallelism"], out["training"]
    degrees = [p["data_parallel_replicate_degree"], p["data_parallel_shard_degree"],
               p["tensor_parallel_degree"], p["context_parallel_degree"],
               p.get("pipeline_parallel_degree", 1)]
    product = 1
    for degree in degrees:
        product *= degree
    assert product == fields["gpus"]
    parts = p.get("module_fqns_per_model_part")
    if parts:
        # Every layer once, in order, and a pipeline takes all its micro-batches at once.
        layers = [int(n.split(".")[1]) for part in parts for n in part if n.startswith("layers")]
        assert layers == list(range(load_model(model).num_layers))
        assert len(parts) == fields["pp"] * fields.get("vpp", 1)
        assert t["local_batch_size"] * degrees[0] * degrees[1] == t["global_batch_size"]


@pytest.mark.parametrize(("target", "model", "fields", "field"), [
    ("torchtitan", "llama3-8b", {"gpus": 64, "dropout": 0.1}, "dropout"),
    ("torchtitan", "mixtral-8x7b", {"gpus": 64}, "model"),
    ("torchtitan", "llama3-8b", {"gpus": 64, "framework": "megatron"}, "framework"),
    ("torchtitan", "llama3-8b", {"gpus": 64, "recompute": "mlp"}, "recompute"),
    ("torchtitan", "llama3-8b", {"gpus": 64, "attention": "unfused"}, "attention"),
    ("deepspeed", "llama3-8b", {"gpus": 64, "zero": 1}, "overlap_param_gather"),
    ("deepspeed", "llama3-8b", {"gpus": 64, "zero": 1, "optimizer_offload": 0.5,
                                "overlap_param_gather": False}, "optimizer_offload"),
    ("fsdp", "llama3-8b", {"gpus": 64, "framework_version": "2023"}, "framework_version"),
    ("megatron-bridge", "llama3-8b", {"gpus": 64, "optimizer": "muon"}, "optimizer"),
    ("megatron-bridge", "llama3-8b", {"gpus": 64, "precision": "fp16", "grad_dtype": "fp32"},
     "precision"),
])
def test_what_a_target_cannot_express_is_refused_by_name(
        target: str, model: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        written(model, target, **fields)
    assert field in [issue.where for issue in refused.value.issues]


def test_bridge_overrides_are_hydras_words() -> None:
    out = written(*BRIDGE[1][:1], "megatron-bridge", **BRIDGE[1][1])  # type: ignore[arg-type]
    assert {"model.tensor_model_parallel_size=1", "model.expert_model_parallel_size=32",
            "model.recompute_modules=[mlp,moe_act]", "model.moe_flex_dispatcher_backend=deepep",
            "model.moe_token_dispatcher_type=flex", "train.global_batch_size=2048",
            "mixed_precision.fp8=null", "mixed_precision.grad_reduce_in_fp32=false",
            } <= set(out.args)
    assert hydra("Ettt|ttL") == "'Ettt|ttL'"
    compile(out.files["overrides.py"], "overrides.py", "exec")


def _fields(*files: Path) -> dict[str, set[str]]:
    """Fields of every class, its bases' included as far as they stand in these files."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in files:
        tree = ast.parse(file.read_text())
        renamed = {a.asname: a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                   for a in node.names if a.asname}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)
                         and isinstance(item.target, ast.Name)}
                own.setdefault(node.name, set()).update(names)
                bases.setdefault(node.name, set()).update(
                    renamed.get(b.id, b.id) for b in node.bases if isinstance(b, ast.Name))

    def all_of(name: str, seen: frozenset[str]) -> set[str]:
        found = set(own.get(name, ()))
        for base in bases.get(name, set()) - seen:
            found |= all_of(base, seen | {base})
        return found

    return {name: all_of(name, frozenset((name,))) for name in own}


def _places() -> list[Path]:
    """Folders of the namespace that Megatron's packages share."""
    spec = importlib.util.find_spec("megatron")
    return [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()]


_SOURCES = ("bridge/training/*.py", "bridge/models/gpt_provider.py", "training/config/*.py",
            "core/transformer/transformer_config.py", "core/model_parallel_config.py",
            "core/optimizer/optimizer_config.py",
            "core/distributed/distributed_data_parallel_config.py")


@pytest.mark.oracle
@pytest.mark.skipif(not any((place / "bridge").is_dir() for place in _places()),
                    reason="needs megatron-bridge")
@pytest.mark.parametrize(("model", "fields"), BRIDGE)
def test_bridge_has_every_key(model: str, fields: dict[str, Any]) -> None:
    files = [file for place in _places() for name in _SOURCES for file in place.glob(name)]
    known = _fields(*files)
    holders = {"model": known["GPTModelProvider"], "train": known["TrainingConfig"],
               "ddp": known["DistributedDataParallelConfig"],
               "dist": known["DistributedInitConfig"],
               "optimizer": known["OptimizerConfig"], "checkpoint": known["CheckpointConfig"],
               "comm_overlap": known["CommOverlapConfig"],
               "mixed_precision": known["MixedPrecisionConfig"],
               "rerun_state_machine": known["RerunStateMachineConfig"]}
    assert set(holders) <= known["ConfigContainer"]
    for word in written(model, "megatron-bridge", **fields).args:
        section, _, rest = word.partition("=")[0].partition(".")
        assert rest in holders[section], word


def _judged(script: str, given: object) -> Any:
    """Run a judge in a process of its own, with the exports on its standard input."""
    done = subprocess.run([sys.executable, "-c", script], input=json.dumps(given),
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.oracle
@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="needs torchtitan")
def test_torchtitan_parses_them(tmp_path: Path) -> None:
    # The package's own __init__ imports Triton, which its configuration does not need.
    script = (
        "import importlib.util, json, sys, types\n"
        "place = importlib.util.find_spec('torchtitan').submodule_search_locations\n"
        "whole = types.ModuleType('torchtitan'); whole.__path__ = list(place)\n"
        "sys.modules['torchtitan'] = whole\n"
        "from torchtitan.config import ConfigManager\n"
        "from torchtitan.distributed.parallel_dims import ParallelDims\n"
        "found = []\n"
        "for file, world in json.load(sys.stdin):\n"
        "    try: config = ConfigManager().parse_args(['--job.config_file', file])\n"
        "    except (Exception, SystemExit) as error:\n"
        "        found.append(repr(error)); continue\n"
        "    p = config.parallelism\n"
        "    dims = ParallelDims(dp_replicate=p.data_parallel_replicate_degree,\n"
        "        dp_shard=p.data_parallel_shard_degree, cp=p.context_parallel_degree,\n"
        "        tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,\n"
        "        ep=p.expert_parallel_degree, etp=p.expert_tensor_parallel_degree,\n"
        "        world_size=world)\n"
        "    parts = p.module_fqns_per_model_part\n"
        "    found.append([config.training.global_batch_size, dims.dp_replicate * dims.dp_shard,\n"
        "                  len(parts) if parts else 1])\n"
        "print(json.dumps(found))\n")
    given, want = [], []
    for i, (model, fields) in enumerate(TITAN):
        out = written(model, "torchtitan", **fields)
        file = tmp_path / f"{i}.toml"
        file.write_text(out.files["torchtitan.toml"])
        given.append([str(file), fields["gpus"]])
        ranks = fields["gpus"] // (fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1))
        want.append([fields.get("gbs", 1024), ranks, fields.get("pp", 1) * fields.get("vpp", 1)])
    (tmp_path / "wrong.toml").write_text("[parallelism]\ntensor_parallel_degrees = 2\n")
    given.append([str(tmp_path / "wrong.toml"), 2])
    *accepted, refused = _judged(script, given)
    assert accepted == want
    assert isinstance(refused, str)


@pytest.mark.oracle
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed")
def test_deepspeed_takes_them() -> None:
    script = (
        "import json, os, sys; os.environ['DS_ACCELERATOR'] = 'cpu'\n"
        "from deepspeed.runtime.config import DeepSpeedConfig\n"
        "class Ranks:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def get_data_parallel_world_size(self): return self.n\n"
        "from deepspeed import comm; comm.get_rank = lambda: 0\n"
        "import deepspeed.runtime.config as module; module.dist.get_rank = lambda: 0\n"
        "found = []\n"
        "for data, ranks in json.load(sys.stdin):\n"
        "    try: c = DeepSpeedConfig(data, mpu=Ranks(ranks))\n"
        "    except Exception as error: found.append(repr(error)); continue\n"
        "    found.append([c.train_batch_size, c.gradient_accumulation_steps,\n"
        "                  int(c.zero_config.stage), c.zero_config.overlap_comm,\n"
        "                  c.zero_config.offload_optimizer is not None])\n"
        "print(json.dumps(found))\n")
    given, want = [], []
    for fields in DEEPSPEED:
        out = written("llama3-8b", "deepspeed", **fields)
        ranks = fields["gpus"] // fields.get("pp", 1)
        given.append([json.loads(out.files["ds_config.json"]), ranks])
        want.append([1024, 1024 // ranks // fields.get("mbs", 1), fields.get("zero", 3), True,
                     fields.get("optimizer_offload", 0) > 0])
    given.append([{**given[0][0], "train_batch_size": 1000}, 64])
    *accepted, refused = _judged(script, given)
    assert accepted == want
    assert isinstance(refused, str)


@pytest.mark.oracle
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_pytorch_shards_as_written() -> None:
    script = (
        "import json, sys, torch, torch.distributed as dist\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=64)\n"
        "found = []\n"
        "for data in json.load(sys.stdin):\n"
        "    mesh = init_device_mesh('cpu', **data['init_device_mesh'])\n"
        "    policy = MixedPrecisionPolicy(**{k: getattr(torch, v)\n"
        "                                     for k, v in data['mp_policy'].items()})\n"
        "    block = torch.nn.Linear(64, 64)\n"
        "    fully_shard(block, mesh=mesh, mp_policy=policy, **data['fully_shard'])\n"
        "    found.append(block.weight.to_local().numel())\n"
        "print(json.dumps(found))\n")
    given = [json.loads(written("llama3-8b", "fsdp", gpus=64, **more).files["fsdp.json"])
             for more in ({}, {"zero": 2}, {"dp_replicate": 4})]
    assert _judged(script, given) == [64, 64, 256]
