"""A fault in any module is called a bug: exit 1, and never "infeasible" or a wrong answer.

Functions that the commands really run are found by watching them once; then one function at a
time raises what careless code raises. A few of each module by default; ``AUTOTUNE_FUZZ=10000``
takes all of them.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

import autotune
import simcore
from autotune.__main__ import main

BUG = 1
EACH = 1000 if int(os.environ.get("AUTOTUNE_FUZZ", "0")) >= 10_000 else 2
SMALL = ("--gpus", "4", "--gbs", "8", "--pp", "1,2", "--vpp", "1", "--recompute", "none,full",
         "--mbs", "1,2")
STRATEGY = ("--gpus", "16", "--tp", "2", "--pp", "2", "--vpp", "2", "--ep", "2", "--etp", "1",
            "--gbs", "32", "--recompute", "layernorm", "--mbs", "2")
COMMANDS = (
    ("predict", "--model", "mixtral-8x7b", *STRATEGY),
    ("predict", "--model", "deepseek-v2-lite", "--system", "b200-sxm", "--gpus", "16", "--tp",
     "2", "--pp", "2", "--first-stage-layers", "14", "--last-stage-layers", "13", "--ep", "4",
     "--etp", "1", "--cp", "2", "--precision", "fp8-cs", "--gbs", "32", "--format", "csv"),
    ("check", "--model", "llama3-8b", "--gpus", "8", "--tp", "8", "--zero", "0"),
    ("check", "--model", "llama70b", "--gpus", "8", "--tp", "8"),
    ("check", "--model", "llama3-8b", "--gpus", "8", "--tp", "7"),
    ("predict", "--strategy", "{dir}/out/top/1/strategy.yaml"),
    ("predict", "--model", "{dir}/config.json", "--gpus", "8", "--tp", "2", "--gbs", "16"),
    ("search", "--model", "gpt2", *SMALL, "--out", "{dir}/out"),
    ("search", "--model", "gpt2", *SMALL, "--objective", "tokens_per_s,memory_headroom"),
    ("search", "--model", "gpt2", *SMALL, "--sampler", "tpe", "--trials", "6"),
    ("search", "--model", "llama70b", "--gpus", "8", "--pp", "1", "--recompute", "full",
     "--gbs", "64", "--cp", "1"),
    ("models",), ("models", "mixtral"), ("systems",), ("systems", "h100", "--format", "yaml"),
    ("validate", "{dir}/runs.csv"),
)
SILENT = {
    "autotune.commands.failures": "turns faults into messages: its own are Python's",
    "autotune.__main__": "as above",
    "autotune.cli": "its signatures, which go with a function's code, are the options",
    "autotune.parallel": "runs with large spaces alone",
    "autotune.kept": "read by validate without a table",
}
"""Modules whose functions are not broken here, with the reason."""
MODULES = [m.name for package in (simcore, autotune)
           for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]


def _functions() -> dict[CodeType, FunctionType]:
    """All functions of both packages by their code."""
    found: dict[CodeType, FunctionType] = {}

    def note(value: Any) -> None:
        value = getattr(value, "fget", None) or getattr(value, "__func__", value)
        value = getattr(value, "__wrapped__", value)
        if isinstance(value, FunctionType) and not value.__code__.co_freevars:
            found[value.__code__] = value

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("simcore", "autotune"):
            continue
        for value in list(vars(module).values()):
            note(value)
            if isinstance(value, type) and value.__module__ == name:
                for member in list(vars(value).values()):
                    note(member)
    return found


def _forget() -> None:
    """Empty what was read before: a function that is not called cannot fail."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("simcore", "autotune"):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "config.json").write_text(
            '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,'
            '"num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,'
            '"intermediate_size": 2816, "vocab_size": 32000, "max_position_embeddings": 4096,'
            '"hidden_act": "silu"}')
        (path / "runs.csv").write_text(
            "id,model,system,gpus,framework,precision,seq_len,gbs,mbs,tp,pp,zero,step_time_s\n"
            "a,llama3-8b,h100-sxm,8,megatron,bf16,4096,16,1,2,1,1,9.5\n")
        yield path


def _call(command: tuple[str, ...], folder: Path) -> int:
    _forget()
    return main([part.replace("{dir}", str(folder)) for part in command])


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, list[tuple[FunctionType, tuple[str, ...]]]]:
    """Functions that ran, by module, with the first command that ran them."""
    for command in sorted(COMMANDS, key=lambda c: "--out" not in c):
        _call(command, folder)
    known = _functions()
    ran: dict[CodeType, tuple[str, ...]] = {}
    for command in COMMANDS:
        def watch(frame: Any, event: str, _: object,
                  command: tuple[str, ...] = command) -> None:
            if event == "call" and frame.f_code in known:
                ran.setdefault(frame.f_code, command)
        sys.setprofile(watch)
        try:
            _call(command, folder)
        finally:
            sys.setprofile(None)
    found: dict[str, list[tuple[FunctionType, tuple[str, ...]]]] = defaultdict(list)
    for code, command in ran.items():
        found[known[code].__module__].append((known[code], command))
    return found


def _zero(*_: object, **__: object) -> None:
    raise ZeroDivisionError("planted")


def _key(*_: object, **__: object) -> None:
    raise KeyError("planted")


def _index(*_: object, **__: object) -> None:
    raise IndexError("planted")


@contextmanager
def _planted(function: FunctionType, fault: Callable[..., None]) -> Iterator[None]:
    """Give a function the body of another, wherever it is held."""
    code, defaults, keywords = (function.__code__, function.__defaults__,
                                function.__kwdefaults__)
    function.__code__ = fault.__code__  # type: ignore[attr-defined]
    try:
        yield
    finally:
        function.__code__ = code
        function.__defaults__, function.__kwdefaults__ = defaults, keywords


@pytest.mark.parametrize("module", MODULES)
def test_a_planted_fault_is_called_a_bug(
        module: str, seen: dict[str, list[tuple[FunctionType, tuple[str, ...]]]], folder: Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    if module in SILENT:
        pytest.skip(SILENT[module])
    candidates = seen.get(module, [])
    if not candidates:
        pytest.skip("holds no function that a command runs")
    picked = random.Random(module).sample(candidates, min(EACH, len(candidates)))
    failures: list[str] = []
    for function, command in picked:
        for fault, name in ((_zero, "ZeroDivisionError"), (_key, "KeyError"),
                            (_index, "IndexError")):
            capsys.readouterr()
            with _planted(function, fault):
                status = _call(command, folder)
            err = capsys.readouterr().err
            if status != BUG or "this is a bug" not in err or name not in err \
                    or "Traceback" in err:
                failures.append(f"{function.__qualname__} {name} {' '.join(command)[:120]}: "
                                f"{status} {err[:300]}")
    assert not failures, "\n".join(failures)
