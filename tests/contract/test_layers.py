"""Who may import whom, how large a file may be, and what starting up must not cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from simcore.inputs.fields import FIELD_NAMES
from simcore.inputs.strategy import Strategy

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "simcore").rglob("*.py"), *(ROOT / "autotune").rglob("*.py")])
MOST_LINES, MOST_FUNCTION_LINES = 400, 60
IDS = [str(path.relative_to(ROOT)) for path in SOURCES]


def imported(path: Path) -> set[str]:
    """Names of the modules that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(("." * node.level) + (node.module or ""))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_file_keeps_the_limits(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # Documentation is not counted.
            first = node.body[min(ast.get_docstring(node) is not None, len(node.body) - 1)]
            assert node.end_lineno - first.lineno + 1 <= MOST_FUNCTION_LINES, node.name


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_file_imports_what_it_may(path: Path) -> None:
    names = imported(path)
    assert not any(name.startswith(".") for name in names)
    if path.is_relative_to(ROOT / "simcore"):
        tops = {name.split(".")[0] for name in names}
        assert not tops & {"autotune", "optuna", "pandas", "typer", "rich", "joblib", "scipy"}
        if path.is_relative_to(ROOT / "simcore" / "formulas"):
            # Formulas know arrays, not models or strategies.
            assert not any(name.startswith(("simcore.inputs.model", "simcore.inputs.strategy",
                                            "simcore.batch", "simcore.frame")) for name in names)


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_no_asserts_and_no_prints_in_the_core(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    if path.is_relative_to(ROOT / "simcore"):
        calls = [node.func.id for node in ast.walk(tree)
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        assert "print" not in calls


def test_a_strategy_has_the_fields_of_the_table() -> None:
    assert sorted(f.name for f in fields(Strategy)) == sorted(FIELD_NAMES)


@pytest.mark.parametrize("code", [
    "import simcore",
    "import sys; sys.argv = ['autotune', '--help']\n"
    "from autotune.__main__ import main\n"
    "try:\n    main()\nexcept SystemExit:\n    pass",
], ids=["simcore", "help"])
def test_start_does_not_import_what_it_does_not_use(code: str) -> None:
    check = "\nimport sys; print([m for m in ('optuna', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True,
                          check=True)
    assert done.stdout.strip().endswith("[]")
