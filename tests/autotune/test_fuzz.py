"""Whatever is typed: an answer or one clear message, and never a traceback.

A few hundred generated inputs run each time. ``AUTOTUNE_FUZZ=10000`` runs as many, and a
fiftieth of them as processes of their own.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_cases import Case, arguments, make_case

from autotune.__main__ import main
from simcore.inputs.fields import FIELD

COUNT = int(os.environ.get("AUTOTUNE_FUZZ", "600"))
PARTS = 10
PROCESSES = max(20, COUNT // 50)
DONE, BUG, BAD_INPUT, NOTHING_FITS = 0, 1, 2, 3
_WORD = r"[A-Za-z0-9_.+:|*()-]+"


def _run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(argv)
    out, err = capsys.readouterr()
    return status, out, err


def _judge(case: Case, status: int, out: str, err: str) -> None:
    assert "Traceback" not in out + err
    assert "this is a bug" not in err
    allowed = {None: (DONE, BAD_INPUT, NOTHING_FITS), True: (DONE, NOTHING_FITS),
               False: (BAD_INPUT,)}[case.legal]
    assert status in allowed, (status, err)
    if status == BAD_INPUT and "Usage:" not in out:
        lines = err.splitlines()
        assert lines
        assert all(line.startswith(("error: ", "warning: ")) for line in lines), lines
        assert not out
        assert all(len(line) <= 1100 and line.isprintable() for line in lines)
        if case.names:
            named = [n for n in case.names if n]
            assert any(n.replace("{dir}", "") in err for n in named), (named[:5], err)


def _suggestions(where: str, text: str) -> list[dict[str, str]]:
    """Read from a message the changes that it says are legal."""
    found: list[dict[str, str]] = []
    for part in re.split(r"; or |\. (?=Use |Did )", text):
        low = re.sub(r"^[Uu]se ", "", part)
        if part == low and not part.lower().startswith("did you mean"):
            continue
        if part.lower().startswith("did you mean"):
            found += [{where: v} for v in re.findall(r"'([^']+)'", part)]
        elif " and " in low and low.split()[0] in FIELD:
            for pair in re.split(r", | or ", low):
                words = pair.replace(" and ", " ").split()
                found.append(dict(zip(words[::2], words[1::2], strict=True)))
        elif low.startswith(("a number from", "a whole number from")):
            found.append({where: low.split("from ")[1].split()[0]})
        else:
            head = low.split()[0] if low.split() else ""
            name = head if head in FIELD and head != low else where
            values = re.split(r",? or |, ", low.removeprefix(f"{name} "))
            found += [{name: v} for v in values if re.fullmatch(_WORD, v)]
    return found


def _try_fixes(case: Case, err: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At least one of the changes that the messages name passes ``check``."""
    tried: list[dict[str, str]] = []
    for line in err.splitlines():
        where, _, text = line.removeprefix("error: ").partition(": ")
        for change in _suggestions(where, text):
            if case.good and change.keys() == {where} and "from" in text:
                # A range is named: the value that was legal before lies inside.
                change[where] = case.good
            status, _, _ = _run(arguments("check", {**case.options, **change}), capsys)
            if status in (DONE, NOTHING_FITS):
                return
            tried.append(change)
    assert not tried, (err, tried)


def _shown(case: Case) -> str:
    return " ".join(f"'{a}'" if " " in a else a for a in case.argv)[:400]


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_inputs(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    failures: list[str] = []
    for number in range(part, COUNT, PARTS):
        case = make_case(number)
        folder = tmp_path / f"f{number}"
        folder.mkdir()
        try:
            status, out, err = _run(case.written(folder), capsys)
            _judge(case, status, out, err)
            if case.fixable and status == BAD_INPUT:
                _try_fixes(case, err, capsys)
        except AssertionError as error:
            failures.append(f"case {number}: {_shown(case)}\n  {str(error)[:700]}")
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:20])


def test_generated_inputs_as_processes(tmp_path: Path) -> None:
    failures: list[str] = []
    for k in range(PROCESSES):
        number = k * 37
        case = make_case(number)
        folder = tmp_path / f"f{number}"
        folder.mkdir()
        argv = case.written(folder)
        if any("\x00" in a or "\ud800" in a for a in argv):
            continue
        run = subprocess.run([sys.executable, "-m", "autotune", *argv], capture_output=True,
                             text=True, timeout=120, check=False, cwd=folder,
                             stdin=subprocess.DEVNULL, errors="replace")
        try:
            _judge(case, run.returncode, run.stdout, run.stderr)
        except AssertionError as error:
            failures.append(f"case {number}: {_shown(case)}\n  {str(error)[:700]}")
    assert not failures, "\n".join(failures)


def test_a_fifth_is_legal() -> None:
    legal = [make_case(n).legal is True for n in range(150)]
    assert sum(legal) * 5 == len(legal)


PREDICT = ("predict", "--model", "mixtral-8x7b", "--gpus", "16", "--tp", "2", "--pp", "2",
           "--ep", "2", "--gbs", "32")
SEARCH = ("search", "--model", "gpt2", "--gpus", "4", "--gbs", "8", "--recompute", "none")
FAULTS = (
    *((PREDICT, place) for place in (
        "simcore.prediction:predict", "simcore.resolve:resolve", "simcore.layout:layouts",
        "simcore.rules:check", "simcore.parameters:padded_vocab",
        "simcore.parameters:layer_parameters", "simcore.placement:place",
        "simcore.placement:groups", "simcore.formulas.collectives:collective_s",
        "simcore.degrees:data_parallel", "simcore.flops:*", "simcore.kernels:*",
        "simcore.roofs:*", "simcore.memory:*", "simcore.stages:*", "simcore.states:*",
        "simcore.timing:*", "simcore.activations:*", "simcore.layer_costs:*",
        "simcore.breakdown:*", "simcore.data_parallel:*", "simcore.frame:*", "simcore.local:*",
        "simcore.inputs.load:load_system", "simcore.inputs.codec:parse",
        "simcore.operators.attention:*", "simcore.operators.mlp:*",
        "simcore.operators.communication:*", "simcore.operators.ends:*",
        "simcore.schedule.base:makespan", "autotune.commands.predict:run",
        "autotune.report.prediction:*", "autotune.commands.inputs:read_case")),
    *((SEARCH, place) for place in (
        "autotune.search.run:search", "autotune.search.exact:search_exact",
        "autotune.search.axes:build_grid", "autotune.search.pool:select",
        "autotune.search.enumerate:groups", "autotune.pareto:pareto_mask",
        "autotune.objectives:parse_objectives", "autotune.result:build_result",
        "autotune.space:default_space", "autotune.report.ranking:*", "simcore.prediction:bound")),
    *((("validate",), place) for place in (
        "autotune.accuracy:report", "autotune.compare:compare", "autotune.kept:kept_runs",
        "autotune.report.validation:*")),
    *((("models",), place) for place in ("autotune.report.catalogue:*",
                                         "simcore.inputs.load:model_names")),
)


def _plant(place: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a function, or all of a module's own, wherever it was imported by name."""
    module_name, _, name = place.partition(":")
    module = importlib.import_module(module_name)

    def broken(*_: object, **__: object) -> None:
        raise error("planted")

    found = [n for n, v in vars(module).items() if callable(v) and not isinstance(v, type)
             and getattr(v, "__module__", "").startswith(module_name)
             and (name in ("*", n))]
    assert found, place
    for target in found:
        original = getattr(module, target)
        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").startswith(("simcore", "autotune")):
                for key, value in list(vars(other).items()):
                    if value is original:
                        monkeypatch.setattr(other, key, broken)


@pytest.mark.parametrize(("argv", "place"), FAULTS, ids=[p for _, p in FAULTS])
def test_a_planted_fault_is_called_a_bug(argv: tuple[str, ...], place: str,
                                         monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    for error in (ZeroDivisionError, KeyError, IndexError):
        # Everything that the command uses has to be there before a name can be replaced.
        assert main([*argv]) == DONE
        with monkeypatch.context() as patch:
            _plant(place, error, patch)
            status, out, err = _run([*argv], capsys)
        assert status == BUG, (place, error, status, err)
        assert "this is a bug" in err
        assert error.__name__ in err
        assert "Traceback" not in out + err
