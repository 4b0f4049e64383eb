"""Make ``autotune/data/measured_*`` from tables of measured runs.

    PYTHONPATH=. python benchmarks/derive/measured_runs.py FOLDER

FOLDER holds the tables and their ``models`` folder. Only figures are taken, with their source:
the strategy's fields, the conditions that a prediction depends on, one figure of speed, the
peak memory, and whether the run failed.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from autotune.compare import Library
from autotune.kept import COLUMNS, CONDITIONS, MODELS, RUNS, SOURCES
from autotune.runs import MEASURED, Run, read_tables

DATA = Path(__file__).resolve().parents[2] / "autotune" / "data"

BRIDGE = {
    "title": "Megatron-Bridge, docs/performance-summary-archive.md",
    "url": "https://github.com/NVIDIA-NeMo/Megatron-Bridge",
    "licence": "Apache-2.0",
}
ALEPH = {
    "title": "Hagemann et al., Efficient Parallelization Layouts for Large-Scale Distributed "
             "Model Training, arXiv 2311.05610, spreadsheets beside the paper",
    "url": "https://github.com/Aleph-Alpha/NeurIPS-WANT-submission-efficient-parallelization-"
           "layouts",
}
SIMUMAX = {"title": "SimuMax, measured Megatron-LM runs of its release notes",
           "url": "https://github.com/MooreThreads/SimuMax"}
VTRAIN = {"title": "Bang et al., vTrain, MICRO 2024, arXiv 2312.12391, data/ground_truth",
          "url": "https://github.com/VIA-Research/vTrain"}
ORIGIN = {
    "aleph_alpha_2023": ALEPH,
    "nvidia_megatron_bridge": BRIDGE,
    "simumax": SIMUMAX,
    "vtrain2024": VTRAIN,
    "papers/dgxc_benchmarking": {
        "title": "NVIDIA DGX Cloud Benchmarking recipes, expected performance",
        "url": "https://github.com/NVIDIA/dgxc-benchmarking"},
    "papers/github_threads": {
        "title": "Megatron-Bridge, activation recomputation notes (pull request 5570)",
        "url": "https://github.com/NVIDIA-NeMo/Megatron-Bridge"},
    "papers/korthikanti2022": {
        "title": "Korthikanti et al., Reducing Activation Recomputation in Large Transformer "
                 "Models, arXiv 2205.05198, tables 3 and 5, appendix C",
        "url": "https://arxiv.org/abs/2205.05198"},
    "papers/megatron_functional_tests": {
        "title": "Megatron-LM functional tests, golden values of gpt3_7b memory and speed cases",
        "url": "https://github.com/NVIDIA/Megatron-LM"},
    "papers/mpt_foundry": {
        "title": "MosaicML llm-foundry, scripts/train/benchmarking/README.md",
        "url": "https://github.com/mosaicml/llm-foundry"},
    "papers/torchtitan": {
        "title": "torchtitan, benchmarks/ and docs/performance.md",
        "url": "https://github.com/pytorch/torchtitan"},
}


def origin(name: str) -> dict[str, str]:
    """Return where a table comes from."""
    return ORIGIN.get(name.removesuffix(".csv")) or ORIGIN[name.partition("/")[0]]


def joined(values: dict[str, str]) -> str:
    """Write a mapping as ``key=value;...``."""
    return ";".join(f"{key}={value}" for key, value in values.items())


def shared_fields(runs: Sequence[Run]) -> dict[str, str]:
    """Return the fields that are the same in all rows of a table."""
    first = dict(runs[0].fields)
    return {k: v for k, v in first.items() if all(r.fields.get(k) == v for r in runs)}


def row(run: Run, common: dict[str, str]) -> dict[str, object]:
    """Return one kept row."""
    figure = next((name for name in MEASURED[:3] if name in run.measured), "")
    return {
        "file": run.file, "id": run.id, "model": run.model, "system": run.system,
        "num_layers": run.num_layers or "",
        "strategy": joined({k: v for k, v in run.fields.items() if k not in common}),
        "conditions": joined({k: run.conditions[k] for k in CONDITIONS if k in run.conditions}),
        "figure": figure, "measured": repr(run.measured[figure]) if figure else "",
        "peak_memory_gib": run.measured.get("peak_memory_gib", ""),
        "oom": "" if run.oom is None else int(run.oom), "doubtful": run.doubtful}


def main(folder: Path) -> None:
    """Convert the tables of a folder."""
    runs = [Run(**{**run.__dict__, "file": Path(run.file).relative_to(folder).as_posix()})
            for run in read_tables([folder]).runs]
    library = Library()
    models = {run.model: library.model(run) for run in runs}
    sources: dict[str, dict[str, str]] = {}
    rows = []
    for name in sorted({run.file for run in runs}):
        own = [run for run in runs if run.file == name]
        common = shared_fields(own)
        sources[name] = {**origin(name), "common": joined(common)}
        rows += [row(run, common) for run in own]
    DATA.mkdir(exist_ok=True)
    with (DATA / RUNS).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (DATA / SOURCES).write_text(yaml.safe_dump(sources, sort_keys=False, width=99), "utf-8")
    specs = {name: json.dumps({**model.model_dump(mode="json", exclude_defaults=True),
                               "name": name, "source": f"architecture of {name} as published"})
             for name, model in sorted(models.items())}
    lines = ",\n".join(f" {json.dumps(name)}: {text}" for name, text in specs.items())
    (DATA / MODELS).write_text("{\n" + lines + "\n}\n", "utf-8")
    print(f"{len(rows)} runs, {len(models)} models, {len(sources)} tables")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
