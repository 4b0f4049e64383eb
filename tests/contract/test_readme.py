"""The README says what the program does: tables are fresh, commands are understood."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import typer

from autotune.__main__ import main
from autotune.cli import build
from autotune.hardware.codesign import read_design
from autotune.planning.spec import read_plan
from autotune.space import load_space

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FENCES = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [shlex.split(line.removeprefix("$ "), comments=True)
            for kind, text in FENCES if kind in ("bash", "text")
            for line in re.split(r"\n| && ", text)
            if line.removeprefix("$ ").startswith("autotune ")]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "readme", ROOT / "benchmarks" / "derive" / "readme.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cheap_blocks_are_fresh() -> None:
    made = generator()
    found = made.blocks(README)
    assert set(found) == set(made.BLOCKS)
    for name in made.CHEAP:
        assert found[name] == made.BLOCKS[name](), f"run python benchmarks/derive/readme.py {name}"


def test_dear_blocks_are_filled() -> None:
    found = generator().blocks(README)
    assert "exact      yes" in found["session"]
    assert all(len(text) > 200 for text in found.values())


def test_there_are_two_commands_to_set_up() -> None:
    bash = [text.strip() for kind, text in FENCES if kind == "bash"]
    assert bash[0] == "pip install . && autotune search --model llama70b --gpus 1024"
    assert bash[1].startswith("pip install '.[test]' && pytest")
    assert "<!-- ci: test -->\n```bash\n" + bash[1] in README


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_commands_are_understood(argv: list[str]) -> None:
    command = typer.main.get_command(build()).commands[argv[1]]  # type: ignore[attr-defined]
    command.make_context(argv[1], list(argv[2:]))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where a search has left its result in 'found', as in the README."""
    folder = tmp_path_factory.mktemp("session")
    assert main(["search", "--model", "llama3-8b", "--gpus", "16", "--out",
                 str(folder / "found"), "--format", "json"]) == 0
    return folder


@pytest.mark.parametrize("argv", [c for c in COMMANDS if c[1] not in ("validate", "search")],
                         ids=" ".join)
def test_quick_commands_run(argv: list[str], searched: Path, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(searched)
    text = " ".join(argv)
    wanted = 0
    if argv[1] == "check":
        wanted = 2 if "--tp 7" in text else 3
    assert main(argv[1:]) == wanted
    capsys.readouterr()


def test_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, = (text for kind, text in FENCES if kind == "python")
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("fits ")


def test_yaml_examples_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy, space = (text for kind, text in FENCES if kind == "yaml"
                       and "clusters:" not in text and "formulas:" not in text)
    (tmp_path / "strategy.yaml").write_text(strategy)
    (tmp_path / "space.yaml").write_text(space)
    assert main(["check", "--strategy", str(tmp_path / "strategy.yaml")]) == 0
    capsys.readouterr()
    assert load_space(tmp_path / "space.yaml").axes["tp"] == (4, 8)


def test_plan_example_is_a_plan(tmp_path: Path) -> None:
    text, = (text for kind, text in FENCES if kind == "yaml" and "clusters:" in text)
    (tmp_path / "plan.yaml").write_text(text)
    assert read_plan(tmp_path / "plan.yaml").clusters[0].counts == (64, 128, 256, 512, 1024)


def test_design_example_is_a_design(tmp_path: Path) -> None:
    text, = (text for kind, text in FENCES if kind == "yaml" and "formulas:" in text)
    (tmp_path / "design.yaml").write_text(text)
    assert len(read_design(tmp_path / "design.yaml").workloads) == 2
