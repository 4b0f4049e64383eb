"""Commands, options, exit statuses and what stands on stdout and stderr."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from autotune.__main__ import main
from autotune.cli import build
from simcore.inputs.fields import FIELDS

BASE = ("--model", "llama3-8b", "--gpus", "8", "--tp", "2", "--gbs", "32")
SEARCH_ONLY = {
    "--space", "--objective", "--sampler", "--trials", "--seed", "--jobs", "--storage", "--top",
    "--no-marginal", "--memory-limit-gib", "--memory-utilisation", "--memory-reserve-gib",
    "--tokens", "--price-per-gpu-hour", "--out", "--pictures",
    "--start-from"}
COMMON = {"--format", "--debug"}
SUBJECT = {"--model", "--system"}
OWN_OPTIONS = {
    "search": COMMON | SUBJECT | SEARCH_ONLY,
    "predict": COMMON | SUBJECT | {"--strategy", "--explain", "--stage", "--pictures"},
    "check": COMMON | SUBJECT | {"--strategy"},
    "recommend": COMMON | SUBJECT | {"--no-marginal"},
    "validate": COMMON | {"--models"},
    "efficiency": COMMON | SUBJECT | {"--strategy"},
    "trace": COMMON | SUBJECT | {"--out", "--ranks", "--max-events", "--memory-snapshot"},
    "report": COMMON | {"--out", "--figures", "--figure-format"},
    "compare": COMMON,
    "serve": {"--port", "--host", "--allow-remote", "--debug"},
    "whatif": COMMON | SUBJECT | {"--vary", "--together", "--page", "--space", "--no-marginal"},
    "codesign": COMMON | {"--trials", "--seed", "--sampler", "--storage"},
    "import": COMMON | {"--from", "--recipe", "--model", "--vocab-size", "--gpus", "--out"},
    "plan": COMMON | {"--out", "--against", "--kept", "--jobs", "--backend", "--scheduler"},
    "models": COMMON,
    "systems": COMMON,
}
PREDICT_KEYS = {"model", "system", "strategy", "verdict", "peak_memory_gib", "device_memory_gib",
                "device_memory_high_gib", "memory", "step_time_s", "tokens_per_s",
                "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "time"}
STAGE_KEYS = {"stage", "weights_gib", "gradients_gib", "optimizer_gib", "activations_gib",
              "temporaries_gib", "peak_memory_gib", "device_memory_gib", "peak_phase"}
TIME_KEYS = {"compute_s", "recompute_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s",
             "dp_comm_s", "bubble_s", "optimizer_s", "other_s"}


def options_of(name: str) -> set[str]:
    command = typer.main.get_command(build()).commands[name]  # type: ignore[attr-defined]
    return {o for p in command.params for o in p.opts if o.startswith("--")} - {"--help"}


@pytest.mark.parametrize("name", OWN_OPTIONS)
def test_options_are_frozen(name: str) -> None:
    takes_fields = name in ("search", "predict", "check", "trace", "recommend", "whatif",
                            "efficiency")
    fields = {f.option for f in FIELDS} if takes_fields else set()
    assert options_of(name) == OWN_OPTIONS[name] | fields


def test_every_field_has_help_and_a_default() -> None:
    command = typer.main.get_command(build()).commands["predict"]  # type: ignore[attr-defined]
    texts = {o: p.help for p in command.params for o in p.opts}
    for field in FIELDS:
        assert "Default:" in texts[field.option] or "Required" in texts[field.option]
        for value in field.not_modelled:
            assert f" {value}," not in texts[field.option]


def test_predict_json_has_the_keys_that_others_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *BASE, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert set(data) >= PREDICT_KEYS
    assert set(data["time"]) >= TIME_KEYS
    assert all(set(stage) >= STAGE_KEYS for stage in data["memory"]["stages"])
    assert {f.name for f in FIELDS} | {"dp", "num_microbatches"} <= set(data["strategy"])
    assert data["strategy"]["dp"] == 4
    assert sum(data["time"].values()) == pytest.approx(data["step_time_s"], rel=1e-9)
    assert err == ""


def test_formats_agree(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for style in ("json", "yaml", "csv", "table"):
        assert main(["predict", *BASE, "--format", style]) == 0
        found[style] = capsys.readouterr().out
    data = json.loads(found["json"])
    assert yaml.safe_load(found["yaml"])["step_time_s"] == data["step_time_s"]
    [row] = csv.DictReader(io.StringIO(found["csv"]))
    assert float(row["step_time_s"]) == data["step_time_s"]
    assert row["tp"] == "2"
    assert "llama3-8b" in found["table"]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_keep_to_the_terminal(width: int, capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in (["predict", *BASE, "--pp", "2"], ["check", *BASE], ["models"], ["systems"],
                      ["systems", "h100-sxm"], ["models", "deepseek-v3"]):
        assert main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width


def test_verdict_decides_the_status_of_check_only(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "llama3-70b", "--gpus", "8", "--gbs", "32"]
    assert main(["predict", *arguments, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "does_not_fit"
    assert main(["check", *arguments, "--format", "json"]) == 3
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["verdict"] == "does_not_fit"
    assert data["binding"]["part"] in ("weights", "gradients", "optimizer", "activations",
                                       "temporaries")
    assert err.startswith("error: does not fit")
    assert main(["check", *BASE]) == 0


def test_what_check_offers_fits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "llama3-8b", "--gpus", "8", "--gbs", "32"]
    assert main(["check", *arguments, "--format", "json"]) == 3
    changes = json.loads(capsys.readouterr().out)["would_fit"]
    assert changes
    for change in changes:
        assert main(["check", *arguments, *change["change"].split()]) == 0
        capsys.readouterr()


def test_strategy_file_and_options_over_it(tmp_path: Path,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "strategy.yaml"
    path.write_text("model: llama3-8b\nsystem: h100-sxm\ngpus: 8\ntp: 2\ngbs: 32\n")
    assert main(["predict", "--strategy", str(path), "--format", "json"]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert main(["predict", *BASE, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == from_file
    assert main(["predict", "--strategy", str(path), "--tp", "4", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"]["tp"] == 4


def test_catalogue_names_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["systems", "h100-sxm", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["accelerator"]["source"]
    assert data["network"]["provenance"]
    assert main(["models", "llama70b", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["parameters"] == 70_553_706_496
    assert data["source"]
    assert main(["models", "--format", "json"]) == 0
    names = [m["name"] for m in json.loads(capsys.readouterr().out)["models"]]
    assert len(names) >= 30


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["search", "--help"], ["predict", "-h"], ["--version"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out


def loaded(*arguments: str) -> set[str]:
    code = ("import sys; from autotune.__main__ import main; main(sys.argv[1:]);"
            "sys.stderr.write(' '.join(sys.modules))")
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True,
                            text=True, check=True)
    return set(result.stderr.split())


def test_commands_import_only_what_they_use() -> None:
    heavy = {"numpy", "optuna", "pandas", "pydantic", "yaml", "joblib", "plotly"}
    assert not loaded("--help") & heavy
    assert not loaded("predict", *BASE, "--format", "json") & {"optuna", "pandas", "joblib",
                                                               "rich", "sqlalchemy"}
    assert not loaded("models", "--format", "json") & {"optuna", "pandas", "rich"}


def test_a_closed_pipe_is_quiet() -> None:
    code = "import sys; from autotune.__main__ import main; sys.exit(main(['models']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 0


def test_check_says_in_json_why_a_strategy_is_illegal(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["check", "--model", "llama3-8b", "--gpus", "8", "--tp", "3"]
    assert main([*options, "--format", "json"]) == 2
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["legal"] is False
    assert data["issues"][0]["where"] == "tp"
    assert all(f"{i['where']}: {i['message']}" in err for i in data["issues"])


def test_predict_points_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "llama70b", "--gpus", "8"]) == 0
    assert "autotune check" in capsys.readouterr().err


def test_remedies_do_not_repeat_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["check", "--model", "llama70b", "--gpus", "64", "--mbs", "2", "--tp", "4",
               "--format", "json"]
    assert main(options) == 3
    changes = [c["change"] for c in json.loads(capsys.readouterr().out)["would_fit"]]
    assert changes
    assert len(set(changes)) == len(changes)
    fields = [tuple(c.split()[::2]) for c in changes if "--gpus" not in c]
    assert len(set(fields)) == len(fields)


@pytest.mark.parametrize("command", ["predict", "check", "search"])
def test_a_version_without_a_profile_is_warned_of(
        command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for version, words in (("0.18", "megatron 0.18 has no profile; that of 0.16"), ("0.19", "")):
        status = main([command, "--model", "gpt2", "--gpus", "8", "--tp", "2", "--pp", "1",
                       "--mbs", "1", "--recompute", "full", "--framework-version", version])
        said = capsys.readouterr().err
        assert status == 0, said
        assert ("warning: framework_version" in said) is bool(words)
        assert words in said
