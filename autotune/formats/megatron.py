"""Megatron-LM's launch scripts, argument lists and YAML as a model and a strategy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from autotune.formats.imported import Arguments, Data, Ignored, Imported
from autotune.formats.megatron_flags import (
    CHOICES,
    FLAG_OF_DEST,
    OLDER_OPTIONS,
    OTHER_OPTIONS,
    QUIET,
    RULED,
    STRATEGY_FLAGS,
)
from autotune.formats.megatron_model import _REFUSED as REFUSED
from autotune.formats.megatron_model import model_of
from autotune.formats.megatron_strategy import strategy_of
from autotune.formats.shell import Script
from autotune.formats.shell_values import MARK, Values
from simcore.errors import InputError, Issue

_CHOSEN = frozenset(d for v in CHOICES.values() for c in v.values() for d in c)
MATTERS = frozenset(FLAG_OF_DEST) | RULED | _CHOSEN | frozenset(REFUSED)
_SWITCHES: Mapping[str, tuple[str, bool]] = {
    **{f.option: (f.dest, f.action == "true") for f in FLAG_OF_DEST.values()
       if f.action != "store"},
    "--disable-bias-linear": ("add_bias_linear", False),
    "--no-position-embedding": ("add_position_embedding", False),
    "--no-bias-gelu-fusion": ("bias_gelu_fusion", False),
}
_DEST = {**{f.option: f.dest for f in FLAG_OF_DEST.values()},
         **{option: dest for dest, option in OTHER_OPTIONS.items()}}
_DROPOUT = ("hidden_dropout", "attention_dropout")
_LAUNCHER = re.compile(r"--?(nnodes|nproc[_-]per[_-]node|nodes|N|ntasks|n|ntasks-per-node"
                       r"|gpus-per-node|num_gpus|num_nodes|np)\Z")
_SBATCH = re.compile(r"^#SBATCH\s+(--?[\w-]+)(?:[ =]+(\S+))?", re.M)


def is_argument_text(text: str) -> bool:
    """Tell whether a text names arguments of Megatron's training script."""
    return re.search(r"--(micro-batch-size|num-layers|hidden-size|tensor-model-parallel-size)\b",
                     text) is not None


def from_script(text: str, *, name: str, where: str, vocab_size: int | None = None) -> Imported:
    """Read a launch script or a plain list of arguments.

    Parameters
    ----------
    text : str
        What the file holds; nothing in it is ever run.
    name : str
        Name of the model.
    where : str
        The file, for messages.
    vocab_size : int or None
        Where the script leaves it to the tokenizer.

    Raises
    ------
    InputError
        No command with Megatron's arguments, or arguments that are wrong, not modelled or only
        known where the script runs; all at once.
    """
    if "\0" in text or any(c in text for c in "\ue000\ue001"):
        raise InputError(Issue(where, "is not a text file"))
    is_list = text.lstrip().startswith("-")
    script = Script(_joined(text) if is_list else text, where)
    words, values = _launch(script)
    launcher, words = _split(words)
    values_of, ignored = parse(words, values)
    given = Arguments(values_of, where, spelled={d: _spelled(d) for d in values_of})
    imported = from_arguments(given, name=name, framework="megatron", vocab_size=vocab_size)
    gpus = _gpus(launcher, values, text)
    if gpus:
        imported.strategy = {"gpus": gpus, **imported.strategy}
    imported.ignored[:0] = ignored
    imported.ignored += [Ignored("script", "", note) for note in script.notes]
    return imported


def _joined(text: str) -> str:
    """Put a list of arguments on one line; comments and continuations go."""
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip().removesuffix("\\") for line in
             text.splitlines()]
    return " ".join(lines)


def _launch(script: Script, depth: int = 0) -> tuple[list[str], Values]:
    """Words of the command with most of Megatron's arguments."""
    best: list[str] = []
    for command in script.commands:
        words = list(command.words)
        inner = [w for w in words if is_argument_text(w) and " " in w.strip()]
        if inner and command.words[0] not in ("echo", "printf"):
            # A command in one string, as ``srun bash -c "..."`` has it.
            try:
                nested = Script(inner[-1], script.where, script.values, depth + 1)
                words = [w for w in words if w not in inner] + _launch(nested, depth + 1)[0]
            except InputError:
                words = inner[-1].split()
        if _score(words) > _score(best) and words[0] not in ("echo", "printf"):
            best = words
    if not best:
        # A file to be sourced holds them in an array and starts nothing.
        arrays = [v for v in script.values.variables.values() if isinstance(v, list)]
        best = sorted(arrays, key=_score)[-1] if arrays else []
    if not _score(best):
        raise InputError(Issue(script.where, "starts nothing with Megatron-LM's arguments",
                               "give the script that calls pretrain_gpt.py, or its arguments"))
    return best, script.values


def _score(words: Sequence[str]) -> int:
    return sum(1 for w in words if w.startswith("--") and _dest(w.partition("=")[0]) in MATTERS)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Launcher's words and the training script's."""
    for i, word in enumerate(words):
        if word.endswith(".py"):
            return words[:i], words[i + 1:]
    return [], words


def _dest(option: str) -> str:
    return (_DEST.get(option) or (_SWITCHES[option][0] if option in _SWITCHES else "")
            or option.lstrip("-").replace("-", "_"))


def _spelled(dest: str) -> str:
    flag = FLAG_OF_DEST.get(dest)
    return flag.option if flag else OTHER_OPTIONS.get(dest, "--" + dest.replace("_", "-"))


def parse(words: Iterable[str], values: Values) -> tuple[dict[str, object], list[Ignored]]:
    """Sort options with their values by Megatron's attribute names.

    Raises
    ------
    InputError
        An option that matters has a value that only a running shell knows.
    """
    found: dict[str, object] = {}
    ignored: list[Ignored] = []
    issues: list[Issue] = []
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or (not groups and MARK.search(word)):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
    for group in groups:
        option, equals, value = group[0].partition("=")
        rest = [value, *group[1:]] if equals else group[1:]
        dest = _dest(option)
        if option in OLDER_OPTIONS:
            found.update(OLDER_OPTIONS[option])
        elif option in _SWITCHES and (not rest or MARK.search(rest[0])):
            found[dest] = _SWITCHES[option][1]
        elif any(MARK.search(w) for w in rest[:1]) and dest in MATTERS:
            issues.append(Issue(f"{values.where}: {option}", f"is {values.named(rest[0])[:80]}, "
                                "which only running the script would tell, and it is never run",
                                "write the value, or set the variable in the file"))
        elif MARK.search(option):
            ignored.append(Ignored(values.named(option), "", "only known where the script runs"))
        else:
            found[dest] = True if not rest else rest[0] if len(rest) == 1 else rest
        for word in rest:
            if MARK.search(word) and (word != rest[0] or option in _SWITCHES):
                ignored.append(Ignored(values.named(word), "",
                                       "only known where the script runs"))
    if issues:
        raise InputError(issues)
    return found, ignored


def from_arguments(a: Arguments, *, name: str, framework: str, vocab_size: int | None = None,
                   model: Data | None = None, model_name: str = "",
                   num_layers: int | None = None, is_moe: bool | None = None) -> Imported:
    """Turn arguments by Megatron's attribute names into a model and a strategy.

    Parameters
    ----------
    model : dict or None
        A model that is known otherwise; its arguments are then not read.
    """
    result = Imported(framework, model_name=model_name)
    if model is None and not model_name:
        result.model = model_of(a, name=name, vocab_size=vocab_size)
        num_layers = int(str(result.model["num_layers"]))
        is_moe = "moe" in result.model
    else:
        result.model = model or {}
    strategy = strategy_of(a, framework=framework, num_layers=num_layers, is_moe=bool(is_moe))
    if strategy.pop("_per_chunk", None) and strategy.get("recompute_layers"):
        # Megatron counts layers of a chunk, the field those of a rank.
        strategy["recompute_layers"] = int(str(strategy["recompute_layers"])) * int(
            str(strategy.get("vpp", 1)))
    result.strategy = strategy
    a.settle()
    result.ignored += leftovers(a, reads_model=model is None and not model_name)
    return result


def leftovers(a: Arguments, *, reads_model: bool) -> list[Ignored]:
    """List what was given, was not read and may matter."""
    found = []
    fields = {f.dest for f in STRATEGY_FLAGS}
    for dest, value in a.values.items():
        bare = re.sub(r"^(no|disable)_", "", dest)
        if dest in a.read or dest in fields or value is None:
            continue
        if dest in _DROPOUT:
            if str(value) not in ("0", "0.0"):
                found.append(Ignored(_spelled(dest), str(value), "is not taken over: give the "
                                     "field dropout, whose masks take memory"))
            continue
        if QUIET.fullmatch(dest) or QUIET.fullmatch(bare) or dest in ("bias_gelu_fusion",):
            continue
        if dest in FLAG_OF_DEST and not reads_model:
            continue
        found.append(Ignored(a.spelled.get(dest, dest), str(value)[:80],
                             "may change memory or time, and is not understood"))
    if reads_model:
        found += [Ignored(_spelled(d), "0.1", "Megatron's default, not taken over: give the "
                          "field dropout, whose masks take memory")
                  for d in _DROPOUT if d not in a.values]
    return found


def _gpus(launcher: Sequence[str], values: Values, text: str) -> int:
    """World size that the launcher's options or the script's variables say; 0: unknown."""
    given: dict[str, str] = {m[1].lstrip("-"): m[2] or "" for m in _SBATCH.finditer(text)}
    for i, word in enumerate(launcher):
        option, equals, value = word.partition("=")
        if _LAUNCHER.match(option):
            given[option.lstrip("-").replace("_", "-")] = value if equals else (
                launcher[i + 1] if i + 1 < len(launcher) else "")

    def number(*names: str) -> int:
        for name in names:
            found = re.search(r"\d+\Z", str(given.get(name, "")))
            if found:
                return min(int(found[0]), 2**20)
        return 0

    # One task a node may start a torchrun of its own: then the GPUs count, not the tasks.
    per_node = number("nproc-per-node", "num-gpus") or max(
        number("ntasks-per-node"), number("gpus-per-node"))
    nodes = number("nnodes", "nodes", "N", "num-nodes")
    if per_node and (nodes or launcher):
        return per_node * max(1, nodes)
    for name in ("WORLD_SIZE", "NUM_GPUS"):
        held = values.variables.get(name)
        if isinstance(held, str) and held.isdigit() and int(held) <= 2**20:
            return int(held)
    return number("ntasks", "n", "np")
