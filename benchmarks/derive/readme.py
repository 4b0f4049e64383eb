"""Rewrite the generated blocks of README.md: ``python benchmarks/derive/readme.py [NAME...]``.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``. Without names all
are made again; `CHEAP` names those that a test compares with the README.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from autotune.__main__ import main as autotune
from autotune.accuracy import memory_by_kind, summarise
from autotune.compare import Library, compare
from autotune.kept import kept_models, kept_runs
from autotune.report.published import published_error
from simcore.inputs.fields import FIELDS, Field, Kind
from simcore.inputs.load import load_model, load_system, model_names, system_names
from simcore.parameters import active_parameters, total_parameters

README = Path(__file__).resolve().parents[2] / "README.md"
MAIN_JOB = ("search", "--model", "llama70b", "--gpus", "1024")
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end: \2 -->)", re.DOTALL)


def _run(*argv: str) -> str:
    """Return what a command writes to stdout."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        status = autotune(argv)
    if status:
        raise SystemExit(f"autotune {' '.join(argv)} ended in {status}")
    return out.getvalue()


def _json(*argv: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_run(*argv, "--format", "json"))
    return data


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    cells = [[c.replace("|", "\\|") for c in row] for row in rows]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)]) + "\n"


def _values(field: Field) -> str:
    match field.kind:
        case Kind.INT | Kind.FLOAT:
            kind = "whole number" if field.kind is Kind.INT else "number"
            return f"{kind}, {field.minimum:.10g} to {field.maximum:.10g}"
        case Kind.BOOL:
            return "true, false"
        case Kind.TEXT:
            return "text"
        case _:
            legal = ", ".join(c for c in field.choices if c not in field.not_modelled)
            return f"none, or of {legal}" if field.kind is Kind.MODULES else legal


def knobs() -> str:
    """Table of the strategy fields."""
    parts: list[str] = []
    for group in dict.fromkeys(f.group for f in FIELDS):
        rows = []
        for f in (f for f in FIELDS if f.group == group):
            refused = ", ".join(f.not_modelled)
            meaning = f.help + (f" Refused until modelled: {refused}." if refused else "")
            rows.append((f"`{f.name}`", _values(f), f.default, meaning))
        parts.append(f"**{group.capitalize()}**\n\n"
                     + _table(("field", "values", "default", "meaning"), rows))
    return "\n".join(parts)


def models() -> str:
    """Table of the built-in models."""
    rows = []
    for name in model_names():
        model = load_model(name)
        total, active = total_parameters(model), active_parameters(model)
        rows.append((f"`{name}`", "MoE" if model.is_moe else "dense", f"{total / 1e9:.2f}",
                     f"{active / 1e9:.2f}" if model.is_moe else "",
                     ", ".join(f"`{a}`" for a in model.aliases[:2])))
    return _table(("name", "kind", "parameters, 10^9", "active", "also called"), rows)


def systems() -> str:
    """Table of the built-in systems, with where their figures come from."""
    rows = []
    for name in system_names():
        system = load_system(name)
        chip, net = system.accelerator, system.network
        rows.append((f"`{name}`", f"{chip.memory_gib:g}", f"{chip.peak_bf16_tflops:g}",
                     f"{chip.peak_fp8_tflops:g}" if chip.peak_fp8_tflops else "",
                     f"{net.gpus_per_node}", f"{net.domain_size}", chip.provenance.value,
                     system.efficiency.provenance.value, net.provenance.value))
    return _table(("name", "GiB", "bf16 TFLOPS", "fp8 TFLOPS", "GPUs a node", "NVLink domain",
                   "chip", "efficiencies", "network"), rows)


def _error_row(name: str, summary: Mapping[str, Any], others: str) -> tuple[str, ...]:
    time, memory, oom = summary["step_time"], summary["peak_memory"], summary["oom"]

    def one(part: Mapping[str, Any], *keys: str) -> list[str]:
        return [f"{part[k]:.1f}" if part["n"] else "" for k in keys]

    right = oom["accuracy"]
    return (name, str(time["n"] or ""),
            *one(time, "mean_abs_pct", "median_abs_pct", "p90_abs_pct", "bias_pct"),
            str(memory["n"] or ""), *one(memory, "mean_abs_pct", "max_abs_pct"),
            f"{100 * right:.1f}" if right is not None and oom["failed"] else "", others)


def accuracy() -> str:
    """Errors over the runs that ship with the program, by table and by GPU."""
    data = _json("validate")
    head = ("runs", "step times", "mean", "median", "p90", "bias", "memory figures", "mean",
            "worst", "fit verdicts right", "published by others, on these runs")
    rows = [_error_row(f"`{name.removesuffix('.csv')}`", s, published_error(name))
            for name, s in data["by_file"].items()]
    rows.append(_error_row("**all**", data["summary"], ""))
    by_system = [_error_row(f"`{n}`", s, "")[:-1] for n, s in data["by_system"].items()]
    ranking, oom = data["summary"]["ranking"], data["summary"]["oom"]
    return (_table(head, rows) + "\nBy GPU:\n\n" + _table(("system", *head[1:-1]), by_system)
            + f"\nOf {oom['n']} runs, {oom['false_fit']} were wrongly said to fit and "
            f"{oom['false_oom']} wrongly refused. In {ranking['groups']} groups of runs that "
            f"differ only in layout, the rank correlation is {ranking['spearman_median']:.2f} "
            f"(median), and the layout that the prediction puts first is "
            f"{ranking['regret_mean_pct']:.1f} % slower than the best measured one on average "
            f"({ranking['failed_picks']} picks had run out of memory).\n")


NOT_EXPLAINED = {
    ("papers/github_threads.csv", "MoE"):
        "Moonlight: 1.1 GiB of its activations or states, and the moment that holds every choice "
        "of recomputation at 33.45 GiB (an optimizer step with 4 B more a parameter would)",
    ("papers/megatron_functional_tests.csv", "dense"):
        "GB200: 1 GiB, attention's outputs batch first, which deterministic FlashAttention keeps",
    ("simumax/a100_pcie.csv", "MoE"):
        "ep4 pp2: 1.9 GiB on the last stage; ep8 with 8 micro-batches: 0.8 GiB less than with 4 "
        "or 32, as much as the bf16 logits",
}
"""Tables and kinds of models with rows over 1 %: which bytes are missing."""


def memory() -> str:
    """Errors of peak memory by table, dense and MoE apart, with what is not explained."""
    kept = kept_models()
    outcomes = compare(kept_runs().runs, Library(kept=kept))
    is_moe = {name: model.is_moe for name, model in kept.items()}
    rows = [(f"`{name.removesuffix('.csv')}`", kind, str(found["n"]),
             f"{found['mean_abs_pct']:.2f}", f"{found['max_abs_pct']:.2f}",
             f"{found['bias_pct']:+.2f}", NOT_EXPLAINED.get((name, kind), ""))
            for name, kind, found in memory_by_kind(outcomes, is_moe)]
    return _table(("peak memory", "models", "runs", "mean %", "worst %", "bias %",
                   "bytes not explained"), rows)


def session() -> str:
    """Show the main job as a user sees it."""
    text = "\n".join(line.rstrip() for line in _run(*MAIN_JOB).splitlines())
    return f"```text\n$ autotune {' '.join(MAIN_JOB)}\n{text}\n```\n"


def predicted() -> str:
    """Show one prediction as a user sees it."""
    argv = ("predict", "--model", "llama70b", "--gpus", "64", "--tp", "8", "--pp", "4")
    text = _run(*argv).partition("\nFields given")[0]
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```text\n$ autotune {' '.join(argv)}\n{text}\n```\n"


def space() -> str:
    """Size of the main job's space by axis."""
    data = _json(*MAIN_JOB)
    rows = [(f"`{name}`", str(len(values)), ", ".join(
        "default" if v is None else str(v).lower() if isinstance(v, bool) else str(v)
        for v in values)) for name, values in data["space"].items()]
    rejected = ", ".join(f"{n} {c:,}" for n, c in data["rejected"].items())
    return (_table(("axis", "values", "which"), rows)
            + f"\n{data['candidates']:,} legal candidates, all of them bounded, "
            f"{data['simulated']:,} simulated, {data['feasible']:,} fit. Rejected: {rejected}.\n")


def constants() -> str:
    """Tables of the constants fitted to runs, and of errors on the rows left out."""
    found = json.loads((README.parent / "benchmarks/results/refit.json").read_text("utf-8"))
    rows, errors = [], []
    for own in found.values():
        for row in own["constants"]:
            low, high = min(row["fold_ratios"]), max(row["fold_ratios"])
            rows.append((f"`{row['place']}`", f"{row['shipped'][-1]:g}",
                         f"{low:.2f} to {high:.2f}",
                         " to ".join(f"{x:g}" for x in row["range"]), row["why"]))
        for name, e in own["errors"].items():
            out, sure = e["left_out"], e["left_out_without_doubtful"]
            errors.append((name, str(out["n"]), *(f"{x:.1f} %" for x in (
                out["mean"], out["p90"], sure["mean"], sure["p90"]))))
    return (_table(("constant", "shipped", "folds, of shipped", "range", "meaning"), rows) + "\n"
            + _table(("rows left out", "n", "mean", "p90", "mean without doubtful", "p90"),
                     errors))


def claims() -> str:
    """Errors by GPU, dense and MoE apart, beside the two claims of the system this follows."""
    kept = kept_models()
    outcomes = [o for o in compare(kept_runs().runs, Library(kept=kept)) if not o.run.doubtful]
    keys = dict.fromkeys((o.run.system, kept[o.run.model].is_moe) for o in outcomes)
    rows = []
    for system, experts in sorted(keys):
        own = summarise([o for o in outcomes if o.run.system == system
                         and kept[o.run.model].is_moe is experts])
        row = [f"`{system}`", "MoE" if experts else "dense"]
        for name, bar in (("step_time", 4.0), ("peak_memory", 1.0)):
            part = own[name]
            row += [str(part["n"]), f"{part['mean_abs_pct']:.2f}",
                    f"{part['median_abs_pct']:.2f}", "yes" if part["mean_abs_pct"] < bar else "no"
                    ] if part["n"] else [""] * 4
        rows.append(tuple(row))
    return _table(("system", "models", "step times", "mean %", "median %", "under 4 %",
                   "memory figures", "mean %", "median %", "under 1 %"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "constants": constants,
    "session": session, "predicted": predicted, "space": space, "models": models,
    "systems": systems, "knobs": knobs, "accuracy": accuracy,
    "memory": memory, "claims": claims}
CHEAP = ("models", "systems", "knobs")


def blocks(text: str) -> dict[str, str]:
    """Return the generated blocks of a README by name."""
    return {m[2]: m[3] for m in _BLOCK.finditer(text)}


def rewrite(text: str, names: tuple[str, ...] = tuple(BLOCKS)) -> str:
    """Return a README with the named blocks made again."""
    return _BLOCK.sub(
        lambda m: m[1] + BLOCKS[m[2]]() + m[4] if m[2] in names else m[0], text)


if __name__ == "__main__":
    README.write_text(rewrite(README.read_text("utf-8"), tuple(sys.argv[1:]) or tuple(BLOCKS)),
                      "utf-8")
