"""Options of the commands; those of strategy fields are made from the table of fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter
from typing import Annotated

import typer

from simcore.inputs.fields import FIELDS, Field, Kind

FORMATS = ("table", "json", "csv", "yaml")
EXPLAINED = ("memory", "time")
"""What ``predict --explain`` knows."""
MODEL = "Model"
OUTPUT = "Output"
PANELS = {
    "workload": "Workload",
    "parallelism": "Parallelism",
    "pipeline": "Pipeline",
    "recomputation": "Recomputation and offload",
    "precision": "Precision",
    "optimizer": "Optimizer",
    "overlap": "Overlap of communication and compute",
    "experts": "Experts",
    "kernels": "Kernels",
    "software": "Software",
}
_METAVAR = {Kind.INT: "N", Kind.FLOAT: "X", Kind.BOOL: "true|false", Kind.TEXT: "TEXT",
            Kind.MODULES: "NAMES", Kind.ENUM: "NAME"}


def _starting(values: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """Complete a word from a list that is made when the shell asks."""
    def complete(incomplete: str) -> list[str]:
        return [value for value in values() if value.startswith(incomplete)]

    return complete


def _model_names() -> list[str]:
    from simcore.inputs.load import model_names
    return list(model_names())


def _system_names() -> list[str]:
    from simcore.inputs.load import system_names
    return list(system_names())


def _text(name: str, flag: str, help_text: str, panel: str, metavar: str,
          default: str | None = None, *,
          words: Callable[[], Sequence[str]] | None = None) -> Parameter:
    option = typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar,
                          show_default=False,
                          autocompletion=_starting(words) if words is not None else None)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default,
                     annotation=Annotated[str | None, option])


def _flag(name: str, flag: str, help_text: str, panel: str) -> Parameter:
    option = typer.Option(flag, help=help_text, rich_help_panel=panel, show_default=False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=False,
                     annotation=Annotated[bool, option])


def _argument(name: str, help_text: str, kind: object,
              words: Callable[[], Sequence[str]] | None = None) -> Parameter:
    argument = typer.Argument(help=help_text, show_default=False, metavar=name.upper(),
                              autocompletion=_starting(words) if words is not None else None)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None,
                     annotation=Annotated[kind, argument])


SEARCHED = ("tp", "cp", "pp", "vpp", "ep", "etp", "first_stage_layers", "last_stage_layers",
            "mbs", "sp", "zero", "recompute", "recompute_layers", "overlap_grad_reduce",
            "overlap_param_gather", "tp_comm_overlap", "overlap_p2p", "ep_comm_overlap",
            "shared_expert_overlap", "delay_wgrad_compute")
"""Axes of the default spaces, named here so that help texts need no files."""


def field_help(field: Field, *, searched: bool = False) -> str:
    """Say what a field is, what it may be and what it becomes where it is left out."""
    modelled = [c for c in field.choices if c not in field.not_modelled]
    match field.kind:
        case Kind.ENUM:
            values = f" One of {', '.join(modelled)}."
        case Kind.MODULES:
            values = f" Names: {', '.join(modelled)}."
        case _:
            values = ""
    default = "Required" if field.default == "required" else f"Default: {field.default}"
    if searched:
        default = "Default: searched"
    return f"{field.help}{values} {default}."


def field_parameters(*, lists: bool) -> list[Parameter]:
    """Make one option for every strategy field.

    Parameters
    ----------
    lists : bool
        Whether a list or ``auto`` is taken beside a value (search).
    """
    tail = "|LIST|auto" if lists else ""
    return [_text(f.name, f.option, field_help(f, searched=lists and f.name in SEARCHED),
                  PANELS[f.group], _METAVAR[f.kind] + tail,
                  words=partial(_values, f)) for f in FIELDS]


def _values(field: Field) -> list[str]:
    """Values of a field that a shell can offer."""
    if field.kind is Kind.BOOL:
        return ["true", "false"]
    modelled = [c for c in field.choices if c not in field.not_modelled]
    return ["none", *modelled] if field.kind is Kind.MODULES else modelled


def _output(*, default: str = "table") -> list[Parameter]:
    return [
        _text("format", "--format", "table for people; json, yaml or csv for programs.",
              OUTPUT, "|".join(FORMATS), default, words=lambda: FORMATS),
        _flag("debug", "--debug", "Show the traceback of a bug.", OUTPUT),
    ]


def _subject() -> list[Parameter]:
    return [
        _text("model", "--model", "Built-in name or alias (see 'autotune models'), a Hugging "
              "Face config.json or its folder, a model YAML, or a file that 'import' "
              "reads.", MODEL, "NAME|FILE", words=_model_names),
        _text("system", "--system", "Built-in name (see 'autotune systems') or a system YAML. "
              "Default: h100-sxm.", MODEL, "NAME|FILE", words=_system_names),
    ]


def import_parameters() -> list[Parameter]:
    """Options of ``import``."""
    kinds = ("huggingface", "megatron-lm", "megatron-bridge", "torchtitan", "deepspeed",
             "simumax")
    panel = "Import"
    return [
        _argument("file", "Launch script, argument list, config or recipe; - for standard "
                  "input.", str | None),
        _text("from_kind", "--from", "Kind of the file. Default: found out.", panel, "KIND",
              words=lambda: kinds),
        _text("recipe", "--recipe", "Recipe function of a Megatron-Bridge file with several.",
              panel, "NAME"),
        _text("model", "--model", "Built-in model, where the file leaves it to another.", panel,
              "NAME", words=_model_names),
        _text("vocab_size", "--vocab-size", "Where the file leaves it to the tokenizer.", panel,
              "N"),
        _text("gpus", "--gpus", "Number of GPUs, where the file does not say.", panel, "N"),
        _text("out", "--out", "Folder for model.yaml, strategy.yaml and system.yaml.", OUTPUT,
              "DIR"),
        *_output(),
    ]


def check_parameters() -> list[Parameter]:
    """Options of ``check``."""
    strategy = _text("strategy", "--strategy", "Strategy file (YAML) that names its model, "
                     "system and GPUs, as 'search --out' writes it; options override it.",
                     MODEL, "FILE")
    return [*_subject(), strategy, *_output(), *field_parameters(lists=False)]


def predict_parameters() -> list[Parameter]:
    """Options of ``predict``: those of ``check``, and what more is shown."""
    own = [
        _text("explain", "--explain", "memory: list every tensor that is alive at the peak, "
              "largest first, with the source of its formula. time: where every millisecond of "
              "a stage goes, and what the step would gain from endlessly fast resources.",
              OUTPUT, "memory|time",
              words=lambda: EXPLAINED),
        _text("stage", "--stage", "Pipeline rank to explain. Default: the fullest; "
              "for time all in json, yaml and csv, the busiest in the table.", OUTPUT,
              "N"),
        _pictures(),
    ]
    known = check_parameters()
    return [*known[:3], *own, *known[3:]]


def efficiency_parameters() -> list[Parameter]:
    """Options of ``efficiency``: those of ``check``, lists of values for a grid of shapes."""
    return [*check_parameters()[:3], *_output(), *field_parameters(lists=True)]


def _pictures() -> Parameter:
    return _flag("pictures", "--pictures", "Draw below the tables, in characters: memory of each "
                 "stage, the pipeline's timeline, or a search's map of tp and pp.", OUTPUT)


def search_parameters() -> list[Parameter]:
    """Options of ``search``."""
    panel = "Search"
    own = [
        _text("space", "--space", "Search space (YAML): every axis a value, a list or auto; "
              "options override it. Default: the shipped space for the kind of model.",
              panel, "FILE"),
        _text("start_from", "--start-from", "Strategy that runs today (YAML, or another program's "
              "file): rank what differs from it in one or two axes.", panel, "FILE"),
        _text("objective", "--objective", "tokens_per_s, time_to_train, cost, memory_headroom, "
              "or several joined by commas (a Pareto set). Default: tokens_per_s.",
              panel, "NAMES"),
        _text("sampler", "--sampler", "exact: nothing better is left out; or an Optuna sampler "
              "(tpe, nsga2, random, ...) for spaces past enumeration. Default: exact while the "
              "space allows it.", panel, "NAME"),
        _text("trials", "--trials", "Trials of a sampler. Default: 200.", panel, "N"),
        _text("seed", "--seed", "Same seed, same answer. Default: 0.", panel, "N"),
        _text("jobs", "--jobs", "Processes that evaluate. Default: 1.", panel, "N"),
        _text("storage", "--storage", "Where the Optuna study is kept, for optuna-dashboard: "
              "a file (Optuna journal), sqlite:///FILE or another database's URL. Default: in "
              "memory.", panel, "FILE|URL"),
        _text("top", "--top", "How many strategies to rank. Default: 10.", panel, "K"),
        _flag("no_marginal", "--no-marginal", "Drop strategies whose fit is uncertain instead "
              "of ranking and marking them.", panel),
        _text("memory_limit_gib", "--memory-limit-gib", "Memory of a GPU that counts, where it is "
              "less than its driver reports.", panel, "GIB"),
        _text("memory_utilisation", "--memory-utilisation", "Share of the memory that may be "
              "used, 0 to 1. Default: 1.", panel, "SHARE"),
        _text("memory_reserve_gib", "--memory-reserve-gib", "Memory to keep free on every GPU. "
              "Default: 0.", panel, "GIB"),
        _text("tokens", "--tokens", "Tokens to train on, needed for time_to_train; cost is a "
              "billion tokens' where it is left out.", panel, "N"),
        _text("price_per_gpu_hour", "--price-per-gpu-hour", "In USD, for cost. Default: the "
              "system file's.", panel, "USD"),
        _text("out", "--out", "Folder for summary.json, ranked.csv, pareto.csv, rejected.csv, "
              "the study, the inputs and top/RANK/strategy.yaml.", OUTPUT, "DIR"),
        _pictures(),
    ]
    return [*_subject(), *own, *_output(), *field_parameters(lists=True)]


def _strategy_file() -> Parameter:
    return _argument("file", "Strategy file (YAML) that names its model, system and GPUs; options "
                     "override it.", str | None)


def trace_parameters() -> list[Parameter]:
    """Options of ``trace``."""
    panel = "Trace"
    own = [
        _text("out", "--out", "File to write; compressed where its name ends in .gz.", panel,
              "FILE.json[.gz]"),
        _text("ranks", "--ranks", "stages: one rank of each pipeline stage; all; or a list of "
              "global ranks, such as 0,8-15. Default: stages.", panel, "stages|all|LIST",
              words=lambda: ("stages", "all")),
        _text("max_events", "--max-events", "Bound on the size. Default: 600000.", panel, "N"),
        _text("memory_snapshot", "--memory-snapshot", "Also write the fullest rank's memory as a "
              "snapshot for pytorch.org/memory_viz.", panel, "FILE.pickle"),
    ]
    return [_strategy_file(), *_subject(), *own, *_output(), *field_parameters(lists=False)]


def export_parameters() -> list[Parameter]:
    """Options of ``export``."""
    own = [
        _text("to", "--to", "megatron-lm, megatron-bridge, torchtitan, deepspeed, fsdp, or "
              "json: every field, resolved.", OUTPUT, "TARGET",
              words=lambda: ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed",
                             "fsdp", "json")),
        _text("launcher", "--launcher", "Also write what would launch it: torchrun (a script), "
              "slurm (an sbatch file) or kubernetes (a PyTorchJob). Nothing is launched.",
              OUTPUT, "KIND", words=lambda: ("torchrun", "slurm", "kubernetes")),
        _flag("with_model", "--with-model", "Also write the model's arguments.", OUTPUT),
        _text("out", "--out", "Folder for the files.", OUTPUT, "DIR"),
    ]
    return [_strategy_file(), *_subject(), *own, *_output(), *field_parameters(lists=False)]


def report_parameters() -> list[Parameter]:
    """Options of ``report``."""
    return [
        _argument("source", "Folder of 'search --out', or a strategy file.", str | None),
        _text("out", "--out", "Page to write. Default: report.html.", OUTPUT, "FILE.html"),
        _text("figures", "--figures", "Also write each figure into this folder.", OUTPUT, "DIR"),
        _text("figure_format", "--figure-format", "svg, png or both, joined by a comma. Default: "
              "svg.", OUTPUT, "svg|png", words=lambda: ("svg", "png", "svg,png")),
        *_output(),
    ]


def whatif_parameters() -> list[Parameter]:
    """Options of ``whatif``."""
    panel = "What if"
    vary = typer.Option("--vary", help="Figure of the system file and its values: "
                        "nic_gb_per_s=25,50,100, or x0.5..x4:10 for ten values from half to four "
                        "times the system's own. Can be given several times.",
                        rich_help_panel=panel, metavar="FIGURE=VALUES", show_default=False)
    own = [
        Parameter("vary", Parameter.KEYWORD_ONLY, default=None,
                  annotation=Annotated[list[str] | None, vary]),
        _flag("together", "--together", "Every combination of the values, instead of one figure "
              "at a time.", panel),
        _text("page", "--page", "Also write curves as one HTML page.", OUTPUT, "FILE.html"),
        _text("space", "--space", "Search space (YAML). Default: the shipped one.", panel, "FILE"),
        _flag("no_marginal", "--no-marginal", "Drop strategies whose fit is uncertain.", panel),
    ]
    return [*_subject(), *own, *_output(), *field_parameters(lists=True)]


def codesign_parameters() -> list[Parameter]:
    """Options of ``codesign``."""
    panel = "Codesign"
    return [
        _argument("design", "Design file (YAML): figures and their ranges, formulas for cost, "
                  "area and power, constraints, workloads.", str | None),
        _text("trials", "--trials", "Designs that are looked at. Default: 100.", panel, "N"),
        _text("seed", "--seed", "Same seed, same answer. Default: 0.", panel, "N"),
        _text("sampler", "--sampler", "tpe, nsga2 or random. Default: the design file's, tpe.",
              panel, "NAME", words=lambda: ("tpe", "nsga2", "random")),
        _text("storage", "--storage", "Where the Optuna study is kept; an earlier one of the same "
              "name goes on. Default: in memory.", panel, "FILE|URL"),
        *_output(),
    ]


def serve_parameters() -> list[Parameter]:
    """Options of ``serve``."""
    panel = "Serve"
    return [
        _text("port", "--port", "Default: 8080.", panel, "N"),
        _text("host", "--host", "Address to listen on. Default: 127.0.0.1, this machine alone.",
              panel, "ADDRESS"),
        _flag("allow_remote", "--allow-remote", "Let other machines reach the page; it has no "
              "login.", panel),
        _flag("debug", "--debug", "Show the traceback of a bug.", OUTPUT),
    ]


def plan_parameters() -> list[Parameter]:
    """Options of ``plan``."""
    panel = "Plan"
    return [
        _argument("plan", "Plan (YAML): models, clusters, workloads, failures, splits.",
                  str | None),
        _text("out", "--out", "Folder for plan.json, plan.csv, plan.md and plan.html; results "
              "are kept in its folder 'kept'.", OUTPUT, "DIR"),
        _text("against", "--against", "Earlier plan.json, or its folder, to compare with. "
              "Default: the last one in --out.", panel, "FILE|DIR"),
        _text("kept", "--kept", "Folder of kept results, to share between plans. Default: 'kept' "
              "in --out.", panel, "DIR"),
        _text("jobs", "--jobs", "Processes. Default: one a core.", panel, "N"),
        _text("backend", "--backend", "processes, or dask. Default: processes.", panel,
              "processes|dask", words=lambda: ("processes", "dask")),
        _text("scheduler", "--scheduler", "Address of the Dask scheduler.", panel, "TCP"),
        *_output(),
    ]


def compare_parameters() -> list[Parameter]:
    """Options of ``compare``."""
    return [
        _argument("sources", "Strategy files, the JSON of 'predict' or 'search', or folders of "
                  "'search --out' (FOLDER#2: its second). All are compared with the first.",
                  list[str] | None),
        *_output(),
    ]


def recommend_parameters() -> list[Parameter]:
    """Options of ``recommend``."""
    sure = _flag("no_marginal", "--no-marginal", "Count only strategies that fit beyond doubt.",
                 "Search")
    return [*_subject(), sure, *_output(), *field_parameters(lists=True)]


def validate_parameters() -> list[Parameter]:
    """Options of ``validate``."""
    return [
        _argument("runs", "Tables of measured runs (CSV), or folders that hold some. Default: "
                  "the published runs that ship with the program.", list[str] | None),
        _text("models", "--models", "Folder of model files that the tables name. Default: the "
              "folder 'models' beside or above each table, then the built-in names.",
              MODEL, "DIR"),
        *_output(),
    ]


def _catalogue(words: Callable[[], Sequence[str]]) -> list[Parameter]:
    return [_argument("name", "Show this one with all its figures; a file is taken too.",
                      str | None, words), *_output()]


def models_parameters() -> list[Parameter]:
    """Options of ``models``."""
    return _catalogue(_model_names)


def systems_parameters() -> list[Parameter]:
    """Options of ``systems``."""
    return _catalogue(_system_names)
