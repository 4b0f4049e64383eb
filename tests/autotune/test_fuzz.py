"""Whatever is typed: an answer or one clear message, and never a traceback.

A few hundred generated inputs run each time. ``AUTOTUNE_FUZZ=10000`` runs as many, and a
fiftieth of them as processes of their own.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from fuzz_cases import Case, arguments, make_case

import autotune.cli
from autotune.__main__ import main
from simcore.inputs.fields import FIELD

COUNT = int(os.environ.get("AUTOTUNE_FUZZ", "450"))
PARTS = 10
PROCESSES = max(20, COUNT // 50)
STEPS = 3
"""Messages that have to be followed at most, from a value that is none of the field's."""
DONE, BAD_INPUT, NOTHING_FITS = 0, 2, 3
_WORD = r"[A-Za-z0-9_.+:|*()-]+"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the command line once, not for each of thousands of calls."""
    monkeypatch.setattr(autotune.cli, "build", functools.cache(autotune.cli.build))
    monkeypatch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))


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


def _changes(case: Case, err: str) -> list[dict[str, str]]:
    """List the changes that messages name."""
    found: list[dict[str, str]] = []
    for line in err.splitlines():
        where, _, text = line.removeprefix("error: ").partition(": ")
        for change in _suggestions(where, text):
            if case.good and change.keys() == {where} and "from" in text:
                # A range is named: the value that was legal before lies inside.
                change[where] = case.good
            found.append(change)
    return found


def _try_fixes(case: Case, err: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At least one of the changes that the messages name passes ``check``.

    What a rule names does so at once. A value that is none of the field's is answered with
    those that are, whatever the other fields hold: a rule may have a word to say to them.
    """
    states = [(case.options, err)]
    named = 0
    is_value = case.legal is False or "number from" in err
    for _ in range(STEPS if is_value else 1):
        later: list[tuple[dict[str, str], str]] = []
        for options, message in states:
            for change in _changes(case, message):
                named += 1
                changed = {**options, **change}
                status, _, answer = _run(arguments("check", changed), capsys)
                if status in (DONE, NOTHING_FITS):
                    return
                later.append((changed, answer))
        states = later[:8]
    assert not named, err


def _shown(case: Case) -> str:
    return " ".join(f"'{a}'" if " " in a else a for a in case.argv)[:400]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.usefixtures("quick")
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
