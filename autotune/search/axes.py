"""From a search space to axes: which values a field can take, given the fields before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.search import auto
from autotune.search.engine import Engine
from autotune.search.problem import Problem
from simcore.batch import Batch
from simcore.inputs.codec import encode
from simcore.inputs.fields import FIELD, FIELD_NAMES, UNSET

Codes = tuple[float, ...]
Options = Callable[[Mapping[str, float]], tuple[Codes, ...]]

_FIRST = ("gpus", "framework", "framework_version", "seq_len", "gbs", "tp", "cp", "ep", "etp",
          "mbs", "sp", "recompute")
_LAST = ("pp", "vpp", "first_stage_layers", "last_stage_layers", "pp_layout", "mtp", "schedule",
         "microbatch_group_size", "recompute_layers", "recompute_method",
         "recompute_unit_layers", "activation_offload_layers", "optimizer_offload",
         "dp_replicate", "zero", "rank_order", "overlap_grad_reduce", "overlap_param_gather",
         "tp_comm_overlap", "overlap_p2p", "ep_comm_overlap", "shared_expert_overlap",
         "delay_wgrad_compute")
# What decides the cost of a layer comes first and so changes least often from row to row.
ORDER = _FIRST + tuple(n for n in FIELD_NAMES if n not in _FIRST + _LAST) + _LAST

STRUCTURE = ("gpus", "seq_len", "gbs", "framework", "framework_version", "tp", "cp", "ep", "etp",
             "pp", "vpp", "first_stage_layers", "last_stage_layers", "pp_layout", "schedule",
             "microbatch_group_size", "dp_replicate", "rank_order", "precision", "grad_dtype",
             "dispatcher", "capacity_factor", "cp_comm")
"""Fields that a sampler's trial fixes; the others are exhausted for each trial."""


@dataclass(frozen=True)
class Axis:
    """Fields that are enumerated together.

    Parameters
    ----------
    fields : tuple of str
    parents : tuple of str
        Fields that the options depend on; those that are axes come earlier.
    options : callable
        From the parents' codes to rows of codes, one a field.
    """

    fields: tuple[str, ...]
    parents: tuple[str, ...]
    options: Options


@dataclass(frozen=True)
class Grid:
    """Axes in their order, and the codes of everything that is fixed.

    Parameters
    ----------
    axes : tuple of Axis
    fixed : mapping of str to float
        Codes of fields with one value.
    base : mapping of str to float
        Codes of fields that no axis changes, defaults resolved.
    texts : tuple of str
        What codes of text fields point into.
    """

    axes: tuple[Axis, ...]
    fixed: Mapping[str, float]
    base: Mapping[str, float]
    texts: tuple[str, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that vary, in the order of the axes."""
        return tuple(f for axis in self.axes for f in axis.fields)

    def narrowed(self, chosen: Mapping[str, float]) -> Grid:
        """Return the grid in which some fields have one value."""
        axes = tuple(a for a in self.axes if not set(a.fields) <= set(chosen))
        return Grid(axes, {**self.fixed, **chosen}, {**self.base, **chosen}, self.texts)


def build_grid(problem: Problem, engine: Engine) -> Grid:
    """Turn a problem's space into axes.

    Raises
    ------
    InputError
        A field has no `auto`.
    """
    space = problem.space
    texts: list[str] = []
    fixed: dict[str, float] = {}
    lists: dict[str, tuple[float, ...]] = {}
    for name, values in space.axes.items():
        codes = tuple(encode(FIELD[name], v, texts) for v in values or ())
        if len(codes) == 1:
            fixed[name] = codes[0]
        elif codes:
            lists[name] = codes
    first = {name: codes[0] for name, codes in lists.items()}
    resolved = engine.resolve(problem.model, problem.system, Batch.from_columns(
        {**fixed, **first}, texts=texts, size=1))
    varying = [n for n in ORDER if n in space.axes and n not in fixed]
    base = {name: float(resolved.columns[name][0]) for name in FIELD_NAMES
            if name not in varying and name not in auto.DERIVED_FROM}
    base = {**dict.fromkeys(FIELD_NAMES, UNSET), **base, **fixed}
    facts = auto.Facts(problem.model, problem.system, engine.split_choices)
    axes: list[Axis] = []
    for name in varying:
        if name in lists:
            axes.append(Axis((name,), (), _listed(lists[name])))
        elif name == "first_stage_layers" and _is_auto(problem, "last_stage_layers"):
            axes.append(Axis(("first_stage_layers", "last_stage_layers"), ("pp", "vpp"),
                             facts.splits))
        elif name == "last_stage_layers" and _is_auto(problem, "first_stage_layers"):
            continue
        else:
            parents, options = facts.automatic(name)
            axes.append(Axis((name,), parents, options))
    return Grid(tuple(axes), fixed, base, tuple(texts))


def _is_auto(problem: Problem, name: str) -> bool:
    return name in problem.space.axes and problem.space.axes[name] is None


def _listed(codes: tuple[float, ...]) -> Options:
    rows = tuple((c,) for c in codes)
    return lambda _: rows
