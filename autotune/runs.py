"""Tables of measured runs: one row a run, in the columns that the README of `validate` names.

A row holds the strategy's fields under their own names, the model and system by name, what was
measured, and `extras` (``key=value;...``): keys that are strategy fields are those fields, the
rest describes the run. An empty cell is the framework's default.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simcore.errors import InputError, Issue
from simcore.inputs.fields import FIELD
from simcore.inputs.yaml_io import read_text

REQUIRED = ("id", "model", "system", "gpus")
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu",
            "peak_memory_gib")
NOT_RUNS = {
    "folds.csv": "assigns rows to folds, holds no runs",
    "doubtful.csv": "names doubtful rows, holds no runs",
}
DOUBTFUL = "doubtful.csv"
RENAMED = {"release": "framework_version"}
RECOMPUTE_OF_MODE = {"selective_op": "selective_op", "every_2nd_layer": "full"}
COMPOSER_VERSION = "2023"
"""Version of the `fsdp` framework whose profile describes llm-foundry's runs."""
ALEPH_EAGER_VERSION = "2022"
"""Version of `aleph-alpha-scaling` whose unfused attention is eager."""
REDUCTION_OF_MODE = {"PURE": "bf16", "DEFAULT": "fp32"}
"""Composer's FSDP modes: PURE reduces gradients in bf16, DEFAULT in fp32
(`composer.trainer.mosaic_fsdp_utils.get_mixed_precision`)."""
_SOFTWARE = re.compile(r"Software: Megatron-LM (?:core_r|v)(\d+\.\d+)")
NOT_MODELLED = {
    "microbatch_level_recompute": "some micro-batches keep their activations, others recompute "
                                  "them: not modelled",
}


@dataclass(frozen=True)
class Run:
    """One measured run.

    Parameters
    ----------
    file, id : str
        Where it stands.
    model, system : str
        Names; a model is looked up beside the table first.
    num_layers : int or None
        Where it differs from the model's.
    fields : mapping
        Strategy fields as written.
    conditions : mapping
        What else describes the run.
    measured : mapping of str to float
        Of `MEASURED`, what the source gives.
    oom : bool or None
        Whether it failed for lack of memory; None where the source does not say.
    problem : str
        Why the row cannot be used; empty where it can.
    doubtful : str
        Why its figures look inconsistent; empty where they do not.
    path : Path or None
        The table, None for the runs kept in the package.
    """

    file: str
    id: str
    model: str
    system: str
    num_layers: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    oom: bool | None = None
    problem: str = ""
    doubtful: str = ""
    path: Path | None = None

    @property
    def ran(self) -> bool:
        """Whether the run went through: the table says so, or has its speed."""
        if self.oom is None:
            return any(name in self.measured for name in MEASURED[:4])
        return not self.oom


@dataclass(frozen=True)
class Tables:
    """What was read.

    Parameters
    ----------
    runs : tuple of Run
    left_out : mapping
        Files of a folder that hold no runs, with the reason.
    """

    runs: tuple[Run, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def pairs(text: str) -> dict[str, str]:
    """Split ``key=value;key=value``; a key without a value gets ``1``."""
    found: dict[str, str] = {}
    for part in text.split(";"):
        key, sign, value = part.strip().partition("=")
        if key:
            found[key.strip()] = value.strip() if sign else "1"
    return found


def translate(cells: Mapping[str, str], extras: Mapping[str, str]
              ) -> tuple[dict[str, str], dict[str, str]]:
    """Split a row into strategy fields and what else describes the run."""
    fields = {name: cells[name] for name in FIELD if cells.get(name)}
    conditions: dict[str, str] = {}
    for key, value in extras.items():
        name = RENAMED.get(key, key)
        if name in FIELD:
            fields.setdefault(name, value)
        else:
            conditions[key] = value
    if "sp_inferred" in conditions:
        fields.setdefault("sp", conditions["sp_inferred"])
    mode = RECOMPUTE_OF_MODE.get(conditions.get("ac_mode", ""))
    if mode is not None:
        fields.setdefault("recompute", mode)
    if conditions.get("mp_mode") in REDUCTION_OF_MODE:
        fields.setdefault("grad_dtype", REDUCTION_OF_MODE[conditions["mp_mode"]])
        # Composer's modes: llm-foundry on PyTorch's first FSDP, with FlashAttention 1.
        fields.setdefault("framework_version", COMPOSER_VERSION)
    if conditions.get("compile") == "0":
        # torch.compile is what fuses them (PyTorch's RMSNorm is one kernel without it).
        for name in ("fused_rope", "fused_swiglu"):
            fields.setdefault(name, "false")
    if fields.get("framework") == "aleph-alpha-scaling" and "kernel" in conditions:
        if conditions["kernel"] == "torch":
            fields.setdefault("framework_version", ALEPH_EAGER_VERSION)
        # The kernel's suffix says whether FlashAttention's fused RMSNorm was used with it.
        fields.setdefault("fused_norm", str(conditions["kernel"].endswith("+rms")).lower())
    return fields, conditions


def problem_of(conditions: Mapping[str, str]) -> str:
    """Say what a row's conditions hold that is not modelled; empty where nothing is."""
    for key, reason in NOT_MODELLED.items():
        if key in conditions:
            return reason
    if conditions.get("activation_cpu_offload", "").lower() in ("1", "true"):
        return "activations in host memory without a number of layers: not modelled"
    return ""


def _number(cells: Mapping[str, str], name: str, problems: list[str]) -> float | None:
    text = cells.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        problems.append(f"{name}: must be a number above 0, got '{text[:60]}'")
        return None
    return value


def _run(cells: Mapping[str, str], *, file: str, path: Path, line: int) -> Run:
    problems: list[str] = []
    extras = pairs(cells.get("extras", ""))
    fields, conditions = translate(cells, extras)
    measured = {name: value for name in MEASURED
                if (value := _number(cells, name, problems)) is not None}
    layers = _number(cells, "num_layers", problems)
    oom = cells.get("oom", "")
    if oom not in ("", "0", "1"):
        problems.append(f"oom: must be 0, 1 or empty, got '{oom[:60]}'")
    problems += [f"{name}: is needed" for name in REQUIRED if not cells.get(name)]
    if layers is not None and layers != int(layers):
        problems.append("num_layers: must be a whole number")
        layers = None
    reason = problem_of(conditions)
    return Run(file=file, id=cells.get("id") or f"line {line}", model=cells.get("model", ""),
               system=cells.get("system", ""), num_layers=None if layers is None else int(layers),
               fields=fields, conditions=conditions, measured=measured,
               oom={"0": False, "1": True}.get(oom), path=path,
               problem="; ".join([*problems, *([reason] if reason else [])]))


def software_version(path: Path) -> str:
    """Megatron-LM's version that the comments on top of a table name; empty where none."""
    for line in read_text(path).splitlines():
        if line and not line.startswith("#"):
            return ""
        if found := _SOFTWARE.search(line):
            return found[1]
    return ""


def _rows(path: Path) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Read a table's header and its rows, without the comment lines on top."""
    lines = read_text(path).splitlines()
    start = next((i for i, line in enumerate(lines) if line and not line.startswith("#")),
                 len(lines))
    reader = csv.reader(lines[start:], strict=True)
    try:
        header = next(reader, [])
        body = list(reader)
    except csv.Error as error:
        raise InputError(Issue(str(path), f"is not a CSV table: {error}")) from error
    rows = ((start + 2 + i, {name: cell.strip() for name, cell in zip(header, row, strict=False)})
            for i, row in enumerate(body) if any(row))
    return header, rows


def missing_columns(header: Sequence[str]) -> list[str]:
    """Return the needed columns that a header lacks."""
    return [name for name in REQUIRED if name not in header]


def _doubtful(path: Path, root: Path) -> dict[str, str]:
    """Read which rows of a table the list of doubtful rows above it names."""
    for folder in (path.parent, *path.parents[:4]):
        listed = folder / DOUBTFUL
        if listed.is_file():
            own = path.relative_to(folder).as_posix()
            header, rows = _rows(listed)
            if {"file", "id"} <= set(header):
                return {r["id"]: r.get("reason") or "named as doubtful" for _, r in rows
                        if r.get("file") == own}
        if folder == root:
            break
    return {}


def read_table(path: Path, *, name: str | None = None) -> list[Run]:
    """Read one table of runs.

    Raises
    ------
    InputError
        It is no CSV table, or lacks a needed column.
    """
    header, rows = _rows(path)
    lacking = missing_columns(header)
    if lacking:
        raise InputError(Issue(str(path), "must have the columns " + ", ".join(REQUIRED)
                               + f", lacks {', '.join(lacking)}",
                               "give a table in the format that 'autotune validate' reads"))
    resolved = path.resolve()
    doubts = _doubtful(resolved, Path(resolved.anchor))
    runs, version = [], software_version(path)
    for line, cells in rows:
        if version and cells.get("framework") == "megatron":
            # A cell that is left empty is the framework's default at this version.
            cells = {"framework_version": version} | cells  # noqa: PLW2901
        run = _run(cells, file=name or str(path), path=resolved, line=line)
        reason = doubts.get(run.id)
        runs.append(run if reason is None else
                    Run(**{**run.__dict__, "doubtful": reason}))
    return runs


def _expand(path: Path) -> tuple[list[Path], dict[str, str]]:
    """List the tables of a folder, and the files in it that hold no runs."""
    tables: list[Path] = []
    left_out: dict[str, str] = {}
    for file in sorted(path.rglob("*.csv")):
        if file.name in NOT_RUNS:
            left_out[str(file)] = NOT_RUNS[file.name]
            continue
        lacking = missing_columns(_rows(file)[0])
        if lacking:
            left_out[str(file)] = f"has columns of its own (no {', '.join(lacking)})"
        else:
            tables.append(file)
    return tables, left_out


def read_tables(sources: Iterable[str | Path]) -> Tables:
    """Read tables of runs, and those in folders.

    Raises
    ------
    InputError
        With every file that is no table of runs.
    """
    issues: list[Issue] = []
    runs: list[Run] = []
    left_out: dict[str, str] = {}
    for source in sources:
        path = Path(source)
        try:
            files = [path]
            if path.is_dir():
                files, others = _expand(path)
                left_out.update(others)
                if not files:
                    issues.append(Issue(str(path), "holds no table of runs"))
            for file in files:
                runs += read_table(file)
        except InputError as error:
            issues.extend(error.issues)
        except (OSError, ValueError) as error:
            issues.append(Issue(str(source)[:200], f"cannot be read: {error}"))
    if issues:
        raise InputError(issues)
    return Tables(tuple(runs), left_out)
