"""Single changes of a strategy: what each would do to memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcore.batch import Batch
from simcore.inputs.codec import Value
from simcore.inputs.fields import FIELD, RECOMPUTE_BIT
from simcore.inputs.model import ModelSpec
from simcore.inputs.strategy import Strategy
from simcore.inputs.system import SystemSpec
from simcore.prediction import evaluate
from simcore.resolve import resolve
from simcore.rules import check
from simcore.units import GIB

Change = dict[str, Value]
GROWTH = tuple(2**i for i in range(1, 13))
"""Factors by which a cluster may grow."""
MAX_DEEPER = 64
"""Factor by which the pipeline may grow with it."""
VERDICTS = ("fits", "marginal", "does_not_fit")
ALTERS = ("grad_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "precision")
"""Fields whose change alters the numerics of training."""


@dataclass(frozen=True)
class Changed:
    """A changed strategy's figures.

    Parameters
    ----------
    change : dict
    device_memory_gib, device_memory_high_gib, step_time_s : float
    verdict : str
    """

    change: Change
    device_memory_gib: float
    device_memory_high_gib: float
    step_time_s: float
    verdict: str

    @property
    def options(self) -> str:
        """The change as options of the command line."""
        return " ".join(f"--{k.replace('_', '-')} {str(v).lower() if isinstance(v, bool) else v}"
                        for k, v in self.change.items())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"change": self.options, "device_memory_gib": self.device_memory_gib,
                "device_memory_high_gib": self.device_memory_high_gib,
                "step_time_s": self.step_time_s, "verdict": self.verdict,
                "alters_training": any(name in ALTERS for name in self.change)}


def parallel_changes(now: Strategy, model: ModelSpec) -> list[Change]:
    """List other micro-batches, shardings and degrees."""
    mbs, zero = int(now.mbs or 1), int(now.zero or 0)
    found: list[Change] = [{"mbs": m} for m in dict.fromkeys((mbs // 2, 1)) if 0 < m < mbs]
    found += [{"zero": z} for z in range(zero + 1, 4)]
    for name in ("tp", "pp", "cp", *(("ep",) if model.is_moe else ())):
        degree = int(getattr(now, name) or 1)
        found += [{name: degree * k} for k in (2, 4, 8, 16)]
    return found


def recompute_changes(now: Strategy, model: ModelSpec) -> list[Change]:
    """List recomputation of one module more, and of whole layers."""
    asked = [] if now.recompute in (None, "none") else str(now.recompute).split("+")
    if asked == ["full"]:
        return []
    modules = [m for m in RECOMPUTE_BIT if m not in ("full", "selective_op", *asked)]
    found: list[Change] = [{"recompute": "+".join([*asked, module])} for module in modules]
    if model.is_moe:
        found.append({"recompute": "layernorm+moe_act"})
    layers = model.num_layers // max(int(now.pp or 1), 1)
    partial: list[Change] = [{"recompute": "full", "recompute_layers": layers * k // 4}
                             for k in (1, 2, 3) if layers * k // 4 > 0]
    return [*found, *partial, {"recompute": "full"}]


def other_changes(now: Strategy) -> list[Change]:
    """List kernels, number formats and what can go to the host."""
    found: list[Change] = []
    if now.cross_entropy == "unfused":
        found.append({"cross_entropy": "fused"})
    if now.optimizer_offload == 0:
        found += [{"optimizer_offload": share} for share in (0.5, 1.0)]
    if now.grad_dtype == "fp32":
        found.append({"grad_dtype": "bf16"})
    if now.exp_avg_dtype == "fp32":
        found.append({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"})
    return found


def try_changes(model: ModelSpec, system: SystemSpec, strategy: Strategy,
                changes: Sequence[Change], *, limit_bytes: float | None = None) -> list[Changed]:
    """Predict a strategy under each change, all at once; those that are illegal are left out.

    Parameters
    ----------
    strategy : Strategy
        As the user gave it: defaults follow a change.
    limit_bytes : float, optional
        Memory that may be used [B].
    """
    if not changes:
        return []
    rows = [replace(strategy, **change) for change in changes]  # type: ignore[arg-type]
    batch = resolve(model, system, Batch.from_strategies(rows))
    legal = check(model, system, batch).ok.nonzero()[0]
    if not len(legal):
        return []
    columns = evaluate(model, system, batch.take(legal), limit_bytes=limit_bytes).columns
    return [Changed(changes[row], float(columns["device_memory_bytes"][i]) / GIB,
                    float(columns["device_memory_high_bytes"][i]) / GIB,
                    float(columns["step_time_s"][i]), VERDICTS[int(columns["verdict"][i])])
            for i, row in enumerate(legal.tolist())]


def resolved(model: ModelSpec, system: SystemSpec, strategy: Strategy) -> Strategy:
    """Return a strategy with its defaults filled in."""
    return resolve(model, system, Batch.from_strategies([strategy])).row(0)


def larger_clusters(now: Strategy) -> list[Change]:
    """List larger clusters, with more data parallelism or a deeper pipeline."""
    gpus, pp = int(now.gpus or 1), int(now.pp or 1)
    grow = [k for k in GROWTH if gpus * k <= FIELD["gpus"].maximum]
    more: list[Change] = [{"gpus": gpus * k} for k in grow]
    return more + [{"gpus": gpus * k, "pp": pp * a} for k in grow for a in GROWTH
                   if a <= min(k, MAX_DEEPER)]


def fewest(found: list[Changed]) -> list[Changed]:
    """Drop changes that go further than another one of the same fields, or of fewer.

    ``--tp 8`` is left out beside ``--tp 4``, and ``--tp 4 --recompute full`` beside ``--tp 4``.
    """
    distinct = list({tuple(sorted(c.change.items())): c for c in found}.values())
    return [a for a in distinct
            if not any(b is not a and _asks_less(b.change, a.change) for b in distinct)]


def _asks_less(b: Change, a: Change) -> bool:
    """Tell whether change b alters no field that a leaves, and none of them further."""
    if not set(b) <= set(a):
        return False
    pairs = [(name, value, a[name]) for name, value in b.items() if value != a[name]]
    # A smaller micro-batch goes further, as a larger degree does.
    return all(isinstance(own, int) and isinstance(other, int)
               and (own > other if name == "mbs" else own < other)
               for name, own, other in pairs)


def remedies(model: ModelSpec, system: SystemSpec, strategy: Strategy, *,
             verdicts: Sequence[str] = VERDICTS[:2], count: int = 5,
             limit_bytes: float | None = None) -> tuple[Changed, ...]:
    """Find changes after which a strategy has one of some verdicts, the fastest first.

    What alters training, and more GPUs, come last: they are not what was asked for.
    """
    now = resolved(model, system, strategy)
    parallel = parallel_changes(now, model) + larger_clusters(now)
    single = recompute_changes(now, model) + parallel + other_changes(now)
    both: list[Change] = [] if now.recompute == "full" else [
        {**change, "recompute": "full"} for change in parallel]
    found = [c for c in try_changes(model, system, strategy, single + both,
                                    limit_bytes=limit_bytes) if c.verdict in verdicts]
    found = fewest(found)
    found.sort(key=lambda c: (int(c.change.get("gpus") or 0),
                              any(n in ALTERS for n in c.change), c.step_time_s))
    own = [c for c in found if "gpus" not in c.change][:count]
    grown = [c for c in found if "gpus" in c.change][:max(1, count - len(own))]
    return tuple((own[:count - len(grown)] if len(own) == count else own) + grown)
