"""What is installed is whole, and no command imports what it does not use."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
HEAVY = ("optuna", "joblib", "pandas", "scipy", "plotly", "sqlalchemy")


def imported_by(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nsys.stderr.write(' '.join(sys.modules))"],
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return {name.partition(".")[0] for name in run.stderr.split()}


def command(*argv: str) -> str:
    return f"from autotune.__main__ import main\nmain({list(argv)!r})"


@pytest.mark.parametrize(("code", "unused"), [
    ("import simcore", ("numpy", "pydantic", "typer", "rich", *HEAVY)),
    ("import simcore\nsimcore.load_model('gpt2'), simcore.predict",
     ("typer", "rich", *HEAVY)),
    (command("--help"), ("numpy", "pydantic", *HEAVY)),
    (command("predict", "--model", "gpt2", "--gpus", "1", "--format", "json"), HEAVY),
    (command("check", "--model", "gpt2", "--gpus", "1"), HEAVY),
    (command("search", "--model", "gpt2", "--gpus", "2", "--format", "json"), HEAVY),
    (command("models"), HEAVY),
    (command("systems"), HEAVY),
], ids=["simcore", "predict", "help", "cli-predict", "check", "search", "models", "systems"])
def test_nothing_unused_is_imported(code: str, unused: tuple[str, ...]) -> None:
    assert not imported_by(code) & set(unused)


@pytest.mark.parametrize("package", ["simcore", "autotune"])
def test_packages_are_typed(package: str) -> None:
    assert (files(package) / "py.typed").is_file()


def test_every_data_file_is_packed() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]
    for package in ("simcore", "autotune", "search_spaces"):
        folder = ROOT / package
        if not folder.is_dir():
            pytest.skip("not run from a checkout")
        packed = {path for pattern in patterns[package] for path in folder.glob(pattern)}
        there = {path for path in folder.rglob("*") if path.is_file()
                 and path.suffix not in (".py", ".pyc", ".pyi")}
        assert there <= packed, there - packed


def test_metadata() -> None:
    project = PYPROJECT["project"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text("utf-8").lstrip().startswith("Apache License")
    assert not any(name in " ".join(project["dependencies"]) for name in ("torch", "pandas"))
    run = subprocess.run([sys.executable, "-m", "autotune", "--version"], capture_output=True,
                         text=True, check=True)
    assert run.stdout.startswith("autotune ")
