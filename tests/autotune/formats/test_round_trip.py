"""A strategy that is exported and read back is the same strategy, on the same model."""

from __future__ import annotations

import io
import json
import shlex
import sys

import pytest

from autotune.__main__ import main
from autotune.commands.export import export
from autotune.commands.import_ import checked
from autotune.commands.inputs import Case
from autotune.formats.megatron import from_script
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.parameters import total_parameters
from simcore.prediction import predict

CASES = [
    ("llama3-8b", {"gpus": 16, "tp": 2, "cp": 2, "gbs": 64, "sp": True,
                   "overlap_grad_reduce": True, "overlap_param_gather": True,
                   "cross_entropy": "fused", "grad_dtype": "bf16"}),
    ("llama3-70b", {"gpus": 64, "tp": 4, "pp": 8, "vpp": 5, "gbs": 128, "recompute": "full",
                    "recompute_layers": 5, "sp": True, "seq_len": 4096}),
    ("llama3-70b", {"gpus": 64, "tp": 8, "pp": 4, "gbs": 128, "recompute": "full",
                    "recompute_method": "uniform", "recompute_unit_layers": 2}),
    ("mixtral-8x7b", {"gpus": 32, "tp": 2, "pp": 2, "ep": 8, "etp": 1, "gbs": 128, "sp": True,
                      "dispatcher": "deepep", "mbs": 2}),
    ("mixtral-8x7b", {"gpus": 32, "pp": 4, "ep": 8, "gbs": 64, "capacity_factor": 1.5,
                      "pad_to_capacity": True, "dispatcher": "alltoall", "zero": 0}),
    ("deepseek-v3", {"gpus": 256, "pp": 16, "ep": 16, "gbs": 512, "precision": "fp8-block",
                     "pp_layout": "Et*3|(tt|)*29m|L", "vpp": 2, "dispatcher": "deepep",
                     "recompute": "layernorm+moe_act+mla_up_proj", "mtp": 1,
                     "precision_aware_optimizer": True, "exp_avg_dtype": "bf16",
                     "exp_avg_sq_dtype": "bf16"}),
    ("qwen3-30b-a3b", {"gpus": 16, "ep": 8, "gbs": 64, "first_stage_layers": 22, "pp": 2,
                       "recompute": "core_attn", "zero": 1}),
]


@pytest.mark.parametrize(("name", "fields"), CASES,
                         ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)))
@pytest.mark.parametrize("launcher", ["torchrun", "slurm", None])
def test_export_then_import_is_the_same(name: str, fields: dict, launcher: str | None) -> None:
    model, system = load_model(name), load_system("h100-sxm")
    strategy = Strategy.from_mapping(fields)
    before = predict(model, system, strategy).to_dict()["strategy"]
    out = export(Case(model, system, strategy), "megatron-lm", launcher=launcher, with_model=True)
    script = {"torchrun": "launch.sh", "slurm": "job.sbatch"}.get(str(launcher))
    text = out.files[script] if script else shlex.join(out.args)
    data = checked(from_script(text, name=name, where="f"), where="f")
    again = ModelSpec.model_validate(data["model"])
    given = data["strategy"] if script else {**data["strategy"], "gpus": fields["gpus"]}
    after = predict(again, system, Strategy.from_mapping(given)).to_dict()["strategy"]
    assert after == before
    assert total_parameters(again) == total_parameters(model)
    assert data["ignored"] == []


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch):  # noqa: ANN201
    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return put


CONFIG = json.dumps({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
                     "num_hidden_layers": 16, "num_attention_heads": 32, "vocab_size": 128256,
                     "num_key_value_heads": 8, "tie_word_embeddings": True, "head_dim": 64})


@pytest.mark.parametrize("argv", [["import", "-"], ["predict", "--model", "-", "--gpus", "8"]],
                         ids=" ".join)
def test_a_config_on_standard_input(argv: list[str], piped,  # noqa: ANN001
                                    capsys: pytest.CaptureFixture[str]) -> None:
    from autotune.commands.foreign import foreign
    foreign.cache_clear()
    piped(CONFIG)
    assert main([*argv, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    if argv[0] == "import":
        assert total_parameters(ModelSpec.model_validate(data["model"])) == 1_235_814_400
    else:  # Llama 3.2 1B, as transformers counts it
        assert data["model"]["parameters"] == 1_235_814_400
    foreign.cache_clear()


def test_what_is_no_json_on_standard_input(piped,  # noqa: ANN001
                                           capsys: pytest.CaptureFixture[str]) -> None:
    piped("{not json")
    assert main(["import", "-"]) == 2
    assert "is not JSON" in capsys.readouterr().err
