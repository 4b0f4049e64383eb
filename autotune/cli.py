"""The command line's commands and their options; what they do stands in `autotune.commands`.

Nothing heavy is imported here: a command imports what it needs when it runs, so that
``autotune --help`` and shell completion answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, Signature

import typer

from autotune.commands import options

Handler = Callable[[Mapping[str, object]], int]

EPILOG = (
    "Exit status: 0 done, 2 bad input (each problem in one line on stderr), 3 nothing fits, "
    "1 anything else. Every command takes --format table, json, csv or yaml; JSON stands alone "
    "on stdout, warnings and progress go to stderr."
)

COMMANDS: tuple[tuple[str, str, Callable[[], list[Parameter]], str], ...] = (
    ("search", "autotune.commands.search", options.search_parameters, """\
Find the best strategies for a model on a number of GPUs.

Lists every legal way to train the model, leaves out what does not fit, and ranks the rest.
Each field below takes a value (held fixed), a list such as 1,2,4 or 'auto' (all sensible
values). What is left out is searched where it changes only speed and memory, and keeps its
default where it changes the result of training (precision, gbs, seq_len, optimizer).

Example: autotune search --model llama70b --gpus 1024 --tp 4,8 --recompute auto

Exit status 3 where nothing fits: the nearest miss is shown, and what would make it fit."""),
    ("predict", "autotune.commands.predict", options.predict_parameters, """\
Predict memory and speed of one strategy.

Give the strategy as options, or as a file that names its model, system and GPUs; options
override the file. A strategy that does not fit is still predicted (exit status 0, verdict
does_not_fit): 'check' is the command that answers with its exit status.

With --explain memory it lists every tensor that is alive at the peak; with --explain time where
every millisecond goes, and what the step would gain if each resource were infinitely fast.

Example: autotune predict --model llama70b --gpus 1024 --tp 8 --pp 4 --gbs 1024"""),
    ("check", "autotune.commands.check", options.check_parameters, """\
Tell whether one strategy is legal and fits.

Exit status 0 where it fits or is marginal, 2 where it is illegal (each broken rule in one line,
with the nearest legal values), 3 where it does not fit (with the part of memory that binds and
changes that would make it fit). Takes what 'predict' takes."""),
    ("import", "autotune.commands.import_", options.import_parameters, """\
Read another program's file: model, strategy, and what was not taken over.

Takes a Hugging Face config.json, a launch script, argument list or YAML of Megatron-LM, a recipe
or overrides of Megatron-Bridge (NeMo), torchtitan's TOML, DeepSpeed's JSON, and SimuMax's model,
strategy and system. Nothing in a file is ever run. 'predict', 'check' and 'search' take the same
files where they take a model, a strategy or a system.

Example: autotune import train.sh --out mine && autotune predict --strategy mine/strategy.yaml"""),
    ("efficiency", "autotune.commands.efficiency", options.efficiency_parameters, """\
Show how well every operator of a strategy uses the device.

Time, FLOP, bytes, intensity, what bounds it, efficiency, share of the step and source of the
figures, by tensor shape and memory layout. Fields take lists too, such as --mbs 1,2,4: every
legal combination is shown.

Example: autotune efficiency --model llama3-8b --gpus 64 --tp 1,2,4 --mbs 1,2 --format csv"""),
    ("trace", "autotune.commands.trace", options.trace_parameters, """\
Write one step as a trace for Perfetto or chrome://tracing.

One process a rank with a track a stream: micro-batches, operators, communication, idle time,
arrows for sends, counters for memory and bandwidth. One rank of each pipeline stage is drawn
unless --ranks asks for others: ranks of a stage do the same at the same time. The first
micro-batches are drawn with every operator, later ones as one slice each, so that the file stays
within --max-events.

Example: autotune trace strategy.yaml --out trace.json.gz"""),
    ("report", "autotune.commands.report", options.report_parameters, """\
Write one HTML page about a search or a strategy, to look at and to mail.

Takes a folder that 'search --out' wrote, or a strategy file. The page needs no network and no
other file: ranked table with sort and filter, memory against throughput, memory by stage and over
time, pipeline timeline, waterfall of the step, roofline of the operators, sensitivity, what was
rejected and why, inputs and sources.

Example: autotune search --model llama70b --gpus 1024 --out found && autotune report found --out
found.html"""),
    ("compare", "autotune.commands.compare", options.compare_parameters, """\
Lay predictions side by side: what differs, what it costs, where time and memory went.

Example: autotune compare found found#2 mine.yaml"""),
    ("plan", "autotune.commands.plan", options.plan_parameters, """\
Plan capacity: the best strategy of many models on many clusters, night after night.

For each model, cluster, GPU count and workload: the best strategy, days, cost and energy with
failures and checkpoints counted, GPUs for a deadline, scaling with its knee, and how to share a
cluster among jobs. Results are kept by what they depend on, so unchanged questions cost nothing,
and a plan that was stopped goes on where it was. Compared with the last answer.

Exit status 4 where a deadline, a budget or a fit is newly broken.

Example: autotune plan plan.yaml --out nightly"""),
    ("recommend", "autotune.commands.recommend", options.recommend_parameters, """\
Say how few GPUs hold a model, and what a number of them holds.

The fewest GPUs on which any strategy of the default space fits; for --gpus N (or these fewest)
the largest micro-batch and the longest sequence; and which single change of the fastest strategy
frees most memory for least time. Fields that are given are held fixed.

Example: autotune recommend --model llama70b --gpus 64

Exit status 3 where nothing fits on N GPUs: the nearest miss is shown."""),
    ("export", "autotune.commands.export", options.export_parameters, """\
Write a strategy as the arguments of the framework that trains it, each with its reason.

What the framework cannot express is refused by name (exit status 2) or said in a note. Nothing
is launched.

Example: autotune export strategy.yaml --to megatron-lm --launcher slurm --with-model --out
job"""),
    ("whatif", "autotune.commands.whatif", options.whatif_parameters, """\
Ask what a figure of the hardware is worth.

Varies figures of a system (peak rates, memory size and bandwidth, link bandwidths and latencies,
efficiencies, NVLink domain, ...) and searches the best strategy anew at every value: curves,
elasticities, and break-even points, from which on another strategy is the best.

Example: autotune whatif --model deepseek-v3 --system b200-sxm --gpus 256 --vary
nic_gb_per_s=x0.25..x4:10"""),
    ("codesign", "autotune.commands.codesign", options.codesign_parameters, """\
Design the next chip: the figures that give most throughput for what they cost.

Searches figures of a system with Optuna under formulas for cost, area and power that you give,
for a set of workloads; every design runs the best strategy it allows. Answers with the designs
that no other beats, and what each would run.

Example: autotune codesign design.yaml --trials 200"""),
    ("serve", "autotune.commands.serve", options.serve_parameters, """\
Serve a page on this machine: choose model, system and strategy, and see the answer at once.

The prediction follows what is typed, with its pictures; a button searches the best strategies with
what is filled in held fixed. Nothing leaves the machine, and other machines are refused unless
--allow-remote is given.

Example: autotune serve --port 8080"""),
    ("validate", "autotune.commands.validate", options.validate_parameters, """\
Compare predictions with measured runs.

Every row of each table is predicted, or skipped with a reason. Reports the error of step time
and peak memory, out-of-memory verdicts, and how well the ranking picks the fastest run. Without
a table it uses the published runs that ship with the program."""),
    ("models", "autotune.commands.models", options.models_parameters, """\
List the built-in models, or show one with its figures and their source."""),
    ("systems", "autotune.commands.systems", options.systems_parameters, """\
List the built-in systems, or show one with its figures and their sources."""),
)


def _version(value: bool) -> None:  # noqa: FBT001 - typer's callback passes it so
    if value:
        from autotune import version
        number = version()
        typer.echo(f"autotune {number}")
        raise typer.Exit(0)


def _root(
    version: bool = typer.Option(  # noqa: FBT001
        False, "--version", callback=_version, is_eager=True,
        help="Show the version and exit."),
    debug: bool = typer.Option(  # noqa: FBT001
        False, "--debug", help="Show the traceback of a bug."),
) -> None:
    """Find out how to train a large language model: which parallel strategy fits and is fastest.

    Memory of every rank, step time and throughput are predicted without a GPU.
    """


def _command(module: str, parameters: list[Parameter], text: str) -> Callable[..., None]:
    """Make the function that typer reads: its options from a list, its work from a module."""

    def command(**values: object) -> None:
        run: Handler = import_module(module).run
        raise typer.Exit(run(values))

    # The terminal breaks the lines, not the source.
    command.__doc__ = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


def named(arguments: Sequence[str]) -> str:
    """Return the command that some arguments call, or nothing."""
    known = {name for name, *_ in COMMANDS}
    return next((word for word in arguments if word in known), "")


def build(only: str | None = None) -> typer.Typer:
    """Build the application.

    Parameters
    ----------
    only : str, optional
        The one command that gets its options, since building those of all costs more than
        everything else that a help text needs; all commands where it is left out.
    """
    app = typer.Typer(name="autotune", no_args_is_help=True, add_completion=True,
                      rich_markup_mode="rich", pretty_exceptions_enable=False,
                      context_settings={"help_option_names": ["-h", "--help"]})
    app.callback(epilog=EPILOG)(_root)
    for name, module, parameters, text in COMMANDS:
        own = parameters() if only in (None, name) else []
        app.command(name)(_command(module, own, text))
    return app
