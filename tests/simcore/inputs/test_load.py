"""Built-in names and aliases, user files, and every way in which they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.inputs.load import (
    framework_names,
    load_framework,
    load_model,
    load_strategy_file,
    load_system,
    model_aliases,
    model_names,
    system_names,
)
from simcore.inputs.model import ModelSpec
from simcore.inputs.yaml_io import validate
from simcore.parameters import active_parameters, total_parameters

CONFIG = json.loads((Path(__file__).parent / "configs.json").read_text())["llama-defaults"]
MODEL = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 4,
         "head_dim": 16, "ffn_hidden_size": 128, "vocab_size": 100, "seq_len": 32,
         "max_position_embeddings": 32}


def write(folder: Path, name: str, data: object) -> Path:
    path = folder / name
    text = data if isinstance(data, str) else (
        json.dumps(data) if name.endswith(".json") else yaml.safe_dump(data))
    path.write_text(text)
    return path


def problem(load: object, source: object) -> str:
    with pytest.raises(InputError) as caught:
        load(source)
    return "\n".join(str(issue) for issue in caught.value.issues)


def test_there_are_enough_models() -> None:
    assert len(model_names()) >= 34


@pytest.mark.parametrize("name", model_names())
def test_built_in_models(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert len(model.source) > 10
    assert model.seq_len <= model.max_position_embeddings
    for alias in model_aliases(name):
        assert load_model(alias.upper()) is model


def test_no_name_means_two_models() -> None:
    names = [name.lower() for name in model_names()]
    names += [alias.lower() for name in model_names() for alias in model_aliases(name)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("alias", ["llama70b", "LLAMA3-70B", "meta-llama/Llama-3.1-70B",
                                   "meta-llama/Meta-Llama-3-70B", "llama3.1-70b"])
def test_names_of_llama3_70b(alias: str) -> None:
    assert load_model(alias).name == "llama3-70b"
    assert load_model(alias).seq_len == 8192


@pytest.mark.parametrize("name", system_names())
def test_built_in_systems(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert all(load_system(alias) is system for alias in system.aliases)


@pytest.mark.parametrize("name", framework_names())
def test_built_in_frameworks(name: str) -> None:
    framework = load_framework(name)
    assert framework.name == name
    assert framework.newest in {profile.version for profile in framework.profiles}


def test_model_files(tmp_path: Path) -> None:
    by_yaml = load_model(write(tmp_path, "mine.yaml", MODEL))
    assert by_yaml.name == "mine"
    assert load_model(write(tmp_path, "mine.json", MODEL)).model_dump(exclude={"source"}) == (
        by_yaml.model_dump(exclude={"source"}))
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    config = write(folder, "config.json", CONFIG)
    assert load_model(folder) == load_model(str(config))
    assert load_model(folder).name == "tiny-llama"
    assert load_model(write(tmp_path, "hf.yaml", CONFIG)).hidden_size == CONFIG["hidden_size"]


@pytest.mark.parametrize("name", model_names())
def test_dumped_models_load_again(name: str, tmp_path: Path) -> None:
    model = load_model(name)
    path = write(tmp_path, "m.yaml", model.model_dump(mode="json"))
    assert load_model(path) == model


@pytest.mark.parametrize("load", [load_model, load_system, load_framework])
def test_unknown_names(load: object, tmp_path: Path) -> None:
    assert "neither built in nor a file" in problem(load, "no-such-thing")
    assert "neither built in nor a file" in problem(load, "\0")
    assert "neither built in nor a file" in problem(load, "x" * 5000)
    assert "neither built in nor a file" in problem(load, "")
    assert "directory" in problem(load, tmp_path)
    assert ".yaml" in problem(load, write(tmp_path, "a.txt", "a: 1"))
    assert len(problem(load, "x" * 5000)) < 3000


def test_near_miss() -> None:
    assert "did you mean 'llama3-70b'" in problem(load_model, "lama3-70b").lower()
    assert "llama3-8b" in problem(load_model, "zzzz")


@pytest.mark.parametrize(("text", "expected"), [
    ("", "mapping"), ("- 1", "mapping"), ("a: [", "not valid YAML"), ("a: 1\na: 2", "duplicate"),
    ("1: 2", "must be text"), ("a: &x 1\nb: *x", "aliases"), ("a: 1\n---\nb: 2", "YAML"),
    ("{" * 2000, "YAML"), ("a: !!python/object:os.system 1", "YAML"),
])
def test_malformed_yaml(text: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, "bad.yaml", text)
    assert expected in problem(load_model, path)
    assert expected in problem(load_strategy_file, path)


@pytest.mark.parametrize(("text", "expected"), [
    ("", "not valid JSON"), ("[]", "mapping"), ('{"a": 1, "a": 2}', "duplicate"),
    ('{"a": NaN}', "NaN"), ("[" * 100_000, "JSON"),
])
def test_malformed_json(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in problem(load_model, write(tmp_path, "bad.json", text))


def test_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in problem(load_model, path)
    path.write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(MODEL).encode())
    assert load_model(path).num_layers == 2


def test_all_problems_of_a_model_at_once(tmp_path: Path) -> None:
    bad = {**MODEL, "num_layer": 3, "hidden_size": "64", "seq_len": True, "head_dim": 1.5,
           "normalization": "batchnorm", "mla": {"kv_lora_rank": 0}}
    text = problem(load_model, write(tmp_path, "bad.yaml", bad))
    for part in ("num_layer: is not a known key. Did you mean 'num_layers'", "hidden_size: ",
                 "seq_len: ", "head_dim: ", "normalization: ", "mla.kv_lora_rank: ",
                 "mla.v_head_dim: is needed"):
        assert part in text
    assert text.count(str(tmp_path)) == len(text.splitlines())


@pytest.mark.parametrize("changes", [
    {"num_query_groups": 3}, {"moe_layers": [True]}, {"moe_layers": [True, True]},
    {"moe": {"num_experts": 2, "topk": 3, "ffn_hidden_size": 8}},
    {"attention_pattern": ["sliding"]}, {"attention_pattern": ["linear"]},
    {"attention_pattern": []}, {"num_layers": 0}, {"hidden_size": 10**9},
    {"moe": {"num_experts": 2, "topk": 1, "ffn_hidden_size": 8}, "moe_layers": [True, False],
     "first_dense_layers": 1},
])
def test_models_that_make_no_sense(changes: dict, tmp_path: Path) -> None:
    assert problem(load_model, write(tmp_path, "bad.yaml", {**MODEL, **changes}))


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(), st.text(),
                   st.lists(st.sampled_from(["full", "linear", True, 0]), max_size=3),
                   st.dictionaries(st.sampled_from(["topk", "num_experts", "x"]),
                                   st.integers(-1, 9), max_size=3))


@settings(max_examples=200, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(sorted(ModelSpec.model_fields)), VALUES,
                               min_size=1, max_size=3))
def test_mutated_models_raise_only_input_errors(changes: dict) -> None:
    try:
        model = validate(ModelSpec, {"name": "m", "source": "s", **MODEL, **changes}, where="m")
    except InputError as error:
        message = str(error)
    else:
        message = "m: "
        assert total_parameters(model) >= active_parameters(model) > 0
    assert message.startswith("m")


def test_strategy_file(tmp_path: Path) -> None:
    nested = {"model": "llama3-8b", "system": "h100-sxm", "gpus": 64,
              "strategy": {"tp": 8, "recompute": "mlp"}}
    read = load_strategy_file(write(tmp_path, "run.yaml", nested))
    assert (read.model, read.system) == ("llama3-8b", "h100-sxm")
    assert read.strategy.given() == {"gpus": 64, "tp": 8, "recompute": "mlp"}
    flat = load_strategy_file(write(tmp_path, "flat.json", {"gpus": 64, "tp": 8}))
    assert flat.model is None
    assert flat.strategy.given() == {"gpus": 64, "tp": 8}


def test_files_beside_a_strategy_file(tmp_path: Path) -> None:
    write(tmp_path, "mine.yaml", MODEL)
    read = load_strategy_file(write(tmp_path, "run.yaml", {"model": "mine.yaml", "gpus": 1}))
    assert read.model is not None
    assert load_model(read.model).hidden_size == 64


def test_all_problems_of_a_strategy_file_at_once(tmp_path: Path) -> None:
    bad = {"model": 3, "sytem": "h100-sxm", "tp": 8, "strategy": {
        "tp": 4, "dp": 8, "num_microbatch": 1, "pp": "two"}}
    text = problem(load_strategy_file, write(tmp_path, "run.yaml", bad))
    for part in ("model: must be text", "sytem: is not a known key. Did you mean 'system'",
                 "tp: is given twice", "dp: follows from the other fields",
                 "strategy.num_microbatch: ", "strategy.pp: "):
        assert part in text
    assert "mapping" in problem(load_strategy_file, write(tmp_path, "b.yaml", {"strategy": 3}))
    assert "directory" in problem(load_strategy_file, tmp_path)
    assert "does not exist" in problem(load_strategy_file, tmp_path / "none.yaml")
