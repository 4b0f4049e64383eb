"""What is measured, each with its bar. A case returns lines of a table: figure, measured, bar."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np

from autotune.search import sampled, structures
from autotune.search.axes import build_grid
from autotune.search.engine import SimcoreEngine
from autotune.search.enumerate import Enumerator
from autotune.search.problem import Problem
from autotune.search.run import search
from autotune.space import default_space, load_space
from benchmarks.machine import copy_gb_per_s, process, seconds
from simcore.batch import Batch
from simcore.errors import SimcoreError
from simcore.inputs.fields import FIELD_NAMES
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import bound, evaluate, predict

ENGINE = SimcoreEngine()
Line = tuple[str, str, str]
MAIN_JOB = ("search", "--model", "llama70b", "--gpus", "1024")
DENSE, MOE = ("llama3-70b", "h100-sxm", 1024), ("deepseek-v3", "b200-sxm", 1024)
MILLION = {"mbs": "1,2,4,8", "cp": "1,2,4,8", "grad_dtype": "fp32,bf16",
           "cp_comm": "p2p,all_gather"}
BYTES_A_ROW = 8.0 * 60
"""Least that a row of bounds moves: some 60 columns of float64 read or written."""


def make(model: str, system: str, gpus: int, *, space: str = "", seed: int = 0,
         **axes: object) -> Problem:
    """Build a problem."""
    spec = load_model(model)
    chosen = load_space(space) if space else default_space(spec)
    return Problem(spec, load_system(system), chosen.override({"gpus": gpus, **axes}),
                   seed=seed).checked()


def batches(problem: Problem) -> Iterator[Batch]:
    """Yield the legal rows of a problem."""
    for _, batch in Enumerator(problem, ENGINE, build_grid(problem, ENGINE)).chunks():
        yield batch


def _first(problem: Problem, count: int) -> list[Batch]:
    """Keep legal batches of `count` rows together, from the start of a space."""
    found: list[Batch] = []
    for batch in batches(problem):
        found.append(batch)
        if sum(map(len, found)) >= count:
            break
    return found


def main_job() -> list[Line]:
    wall_s, peak_mib, out = process(*MAIN_JOB, "--format", "json", rounds=7)
    data = json.loads(out)
    return [("main job, whole process, median of 7", f"{wall_s:.2f} s", "2.0 s"),
            ("peak memory", f"{peak_mib:.0f} MiB", "500 MB"),
            ("legal candidates", f"{data['candidates']:,}", "100,000"),
            ("exact", str(data["exact"]).lower(), "true")]


def _rounded(column: np.ndarray, digits: int) -> list[float]:
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(column)))
    rounded: list[float] = (np.round(column * scale) / scale).tolist()
    return rounded


def space() -> list[Line]:
    problem = make(*DENSE, seq_len=8192)
    pairs: dict[int, set[tuple[float, float]]] = {5: set(), 12: set()}
    rows = 0
    for batch in batches(problem):
        columns = evaluate(problem.model, problem.system, batch).columns
        rows += len(batch)
        for digits, found in pairs.items():
            both = (_rounded(columns[n], digits) for n in ("peak_memory_bytes", "step_time_s"))
            found.update(zip(*both, strict=True))
    return [("default space, legal", f"{rows:,}", "100,000"),
            *((f"distinct (peak memory, step time) in {digits} digits",
               f"{100 * len(found) / rows:.1f} %", "60 %") for digits, found in pairs.items())]


def batch() -> list[Line]:
    roof = copy_gb_per_s() * 1e9 / BYTES_A_ROW
    lines = []
    for name, case, bar in (("dense", DENSE, 500_000), ("MoE", MOE, 250_000)):
        problem = make(*case)
        rows = _first(problem, 200_000)
        count = sum(map(len, rows))

        def run(problem: Problem = problem, rows: list[Batch] = rows) -> None:
            for part in rows:
                _ = bound(problem.model, problem.system, part).verdict

        rate = count / seconds(run, 5)
        lines.append((f"bounds, memory, verdict, {name}, {count:,} rows, one core",
                      f"{rate:,.0f}/s, {100 * rate / roof:.0f} % of {roof:,.0f}/s at which "
                      "60 columns stream from memory", f"{bar:,}/s"))
    return lines


def million() -> list[Line]:
    result = search(make(*DENSE, seq_len=8192, **MILLION))
    return [(f"exact search of {result.candidates:,} candidates, in process",
             f"{result.wall_s:.2f} s, {result.simulated:,} simulated", "5 s for 10^6")]


def _bound_us(problem: Problem) -> tuple[int, float]:
    rows = 0

    def run() -> None:
        nonlocal rows
        rows = 0
        for part in batches(problem):
            bound(problem.model, problem.system, part)
            rows += len(part)

    taken = seconds(run, 3)
    return rows, 1e6 * taken / rows


def growth() -> list[Line]:
    """Enumeration and bounds a candidate, over clusters and over sizes of the space."""
    lines = []
    base = 0.0
    for gpus in (8, 64, 1024, 8192, 65536):
        rows, each = _bound_us(make("llama3-70b", "h100-sxm", gpus, seq_len=8192,
                                    gbs=max(1024, gpus)))
        base = base or each
        lines.append((f"{gpus:,} GPUs, {rows:,} candidates",
                      f"{each:.2f} us each, {each / base:.2f}x", "1.3x"))
    base = 0.0
    sizes = ({"tp": "8", "cp": "1", "mbs": "1,2"}, {"mbs": "1,2"}, MILLION)
    for axes in sizes:
        rows, each = _bound_us(make(*DENSE, seq_len=8192, **axes))
        base = base or each
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        lines.append((f"{rows:,} candidates", f"{each:.2f} us each, {each / base:.2f}x, "
                      f"{peak:.0f} MiB so far", "1.3x, flat"))
    return lines


def single() -> list[Line]:
    model, system = load_model("llama3-70b"), load_system("h100-sxm")
    strategy = Strategy(gpus=1024, tp=8, pp=4, vpp=5, gbs=1024)
    in_process = seconds(lambda: predict(model, system, strategy), 51)
    predicted = process("predict", "--model", "llama70b", "--gpus", "1024", "--tp", "8")
    helped = process("--help")
    return [("one prediction in process", f"{1e3 * in_process:.2f} ms", "3 ms"),
            ("autotune predict, process", f"{predicted[0]:.2f} s", "0.6 s"),
            ("autotune --help, process", f"{helped[0]:.2f} s", "0.3 s")]


def validate() -> list[Line]:
    wall_s, peak_mib, out = process("validate", "--format", "json", rounds=3)
    data = json.loads(out)
    return [(f"autotune validate, {len(data['rows']):,} rows, process",
             f"{wall_s:.1f} s, {peak_mib:.0f} MiB", "10 s")]


def exact() -> list[Line]:
    """Exact search against the recurrence on every candidate, on small spaces."""
    equal, total, rows = 0, 0, 0
    models = ("llama3-8b", "gpt2-xl", "mixtral-8x7b", "deepseek-v2-lite", "qwen3-4b", "mpt-7b")
    for model in models:
        for gpus in (8, 12, 16, 64):
            for system in ("h100-sxm", "a100-sxm-80g", "b200-sxm"):
                problem = make(model, system, gpus, gbs=96, seq_len=4096, mbs="1,2", cp="1",
                               overlap_grad_reduce="true", overlap_param_gather="true",
                               tp_comm_overlap="false", zero="1")
                best = np.inf
                for part in batches(problem):
                    columns = evaluate(problem.model, problem.system, part).columns
                    fits = columns["verdict"] < 2
                    rows += len(part)
                    best = min(best, columns["step_time_s"][fits].min(initial=np.inf))
                if not np.isfinite(best):
                    continue
                found = search(problem, method="exact")
                step = found.ranked[0].to_dict()["step_time_s"]
                total += 1
                equal += bool(abs(step - best) <= 1e-12 * best)
    return [(f"exact equal to full recurrence, {rows:,} candidates", f"{equal} of {total} spaces",
             "all of at least 50")]


SPACES: dict[str, tuple[tuple[str, str, int], ...]] = {
    "dense": tuple((m, "h100-sxm", 1024) for m in (
        "llama3-70b", "llama3.1-405b", "gpt3-175b", "qwen2.5-72b", "nemotron4-340b", "llama3-8b",
        "mistral-large-123b", "qwen3-32b")),
    "moe": tuple((m, "h100-sxm", 512) for m in (
        "mixtral-8x22b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v2",
        "deepseek-v3", "gpt-oss-120b", "kimi-k2")),
    "long_context": tuple((m, "h100-sxm", 512) for m in (
        "llama3-8b", "llama3-70b", "llama3.1-405b", "qwen2.5-72b", "qwen3-32b", "qwen3-8b",
        "mistral-nemo-12b", "mistral-large-123b")),
}


def samplers(seeds: int = 10, problems: int = 8, trials: int = 30) -> list[Line]:
    """Samplers against the exact optimum, on the first `problems` of each wide space.

    Random search gets three times the trials, so that what it needs can be told.
    """
    lines: list[Line] = []
    for model, kind, system, gpus in ((m, k, s, g) for i in range(problems)
                                      for k, (m, s, g) in ((k, c[i]) for k, c in SPACES.items())):
        lines += _samplers_on(model, system, gpus, kind, seeds, trials)
    return lines


def _samplers_on(model: str, system: str, gpus: int, kind: str, seeds: int,
                 trials: int) -> list[Line]:
    axes = {"seq_len": 131072, "gbs": 512} if kind == "long_context" else {}
    space = f"{kind}_wide"
    best = search(make(model, system, gpus, space=space, **axes), method="exact")
    target = 0.99 * best.entries[0].values[0]
    lines: list[Line] = []
    for name, factor in (("tpe", 1), ("random", 3), ("tpe, no inner exhaustion", 3)):
        fields = FIELD_NAMES if "," in name else structures.STRUCTURE
        near, needed, share = 0, [], []
        for seed in range(seeds):
            problem = make(model, system, gpus, space=space, seed=seed, **axes)
            with patch.object(structures, "STRUCTURE", fields), patch.object(
                    sampled, "_estimate", lambda *_: best.candidates):
                try:
                    result = search(problem, method=name.partition(",")[0],
                                    budget=sampled.Budget(trials=trials * factor))
                except SimcoreError as error:  # a sampler that found nothing is a result
                    print(f"{kind} {model} {name} seed {seed}: {str(error)[:200]}")
                    needed.append(np.inf)
                    continue
            values = [t.value or 0.0 for t in
                      result.recorded.get_trials(deepcopy=False)]  # type: ignore[attr-defined]
            good = [i for i, v in enumerate(values) if v >= target]
            near += bool(good)
            needed.append(good[0] + 1 if good else np.inf)
            share.append(result.evaluated / best.candidates)
        mean = f"{np.median(needed):.0f}" if np.isfinite(np.median(needed)) else "more than all"
        lines.append((
            f"{space}, {model}, {gpus:,} GPUs, {best.candidates:,} candidates, {name}, "
            f"{trials * factor} legal trials",
            f"{near} of {seeds} within 1 %, median {mean} trials, "
            f"{100 * np.mean(share or [0]):.2f} % evaluated", "90 %, under 1 %"))
        print(*lines[-1], sep=" | ", flush=True)
    return lines


CASES: dict[str, Callable[..., list[Line]]] = {
    "main_job": main_job, "space": space, "batch": batch, "million": million, "growth": growth,
    "single": single, "validate": validate, "exact": exact, "samplers": samplers}
