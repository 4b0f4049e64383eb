"""A small simulator behind the protocol of the search, with rules and bounds of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from simcore.batch import Batch
from simcore.errors import Issue
from simcore.inputs.fields import RECOMPUTE_BIT, UNSET
from simcore.inputs.model import ModelSpec, Moe
from simcore.inputs.system import Accelerator, Efficiency, Network, SystemSpec
from simcore.units import GIB

FULL = RECOMPUTE_BIT["full"]


def make_model(*, layers: int = 12, experts: int = 0) -> ModelSpec:
    return ModelSpec(
        name="toy", source="test", num_layers=layers, hidden_size=1024, num_attention_heads=12,
        num_query_groups=4, head_dim=64, ffn_hidden_size=4096, vocab_size=32000, seq_len=4096,
        max_position_embeddings=8192,
        moe=Moe(num_experts=experts, topk=2, ffn_hidden_size=512) if experts else None)


def make_system(*, memory_gib: float = 40.0) -> SystemSpec:
    figures = {"provenance": "user", "source": "test"}
    return SystemSpec(
        name="toy-node",
        accelerator=Accelerator(
            **figures, vendor="x", architecture="hopper", peak_bf16_tflops=1000,
            memory_gib=memory_gib, memory_bandwidth_gb_per_s=3000, num_multiprocessors=132,
            price_per_hour_usd=2.0),
        efficiency=Efficiency(**figures, gemm_bf16_frac=0.7, attention_forward_frac=0.5,
                              attention_backward_frac=0.4, memory_frac=0.8),
        network=Network(**figures, gpus_per_node=8, domain_size=8, scale_up_gb_per_s=450,
                        nic_gb_per_s=50))


def _dp(b: Batch) -> np.ndarray:
    return b["gpus"] // (b["tp"] * b["cp"] * b["pp"])


@dataclass(frozen=True)
class FakeRule:
    name: str
    fields: tuple[str, ...]
    violated: Callable[[Any], Any]

    @property
    def issue(self) -> Callable[[Any, int], Issue]:
        def make(context: Any, i: int) -> Issue:
            given = {f: float(context.batch.columns[f][i]) for f in self.fields}
            return Issue(self.name, f"broken by {given}")
        return make


def _split_bad(c: Any) -> Any:
    b, layers = c.batch, c.model.num_layers
    first, last = b["first_stage_layers"], b["last_stage_layers"]
    pp, vpp = b["pp"], b["vpp"]
    rest = layers - first - last
    middle = np.where(pp > 2, rest % np.maximum((pp - 2) * vpp, 1) != 0, rest != 0)
    uneven = (first < 1) | (last < 1) | (rest < 0) | middle
    return np.where(pp == 1, False, uneven | (first % vpp != 0) | (last % vpp != 0))


RULES = (
    FakeRule("heads", ("tp",), lambda c: c.model.num_attention_heads % c.batch["tp"] != 0),
    FakeRule("sp_needs_tp", ("sp", "tp"), lambda c: (c.batch["sp"] == 1) & (c.batch["tp"] == 1)),
    FakeRule("degrees", ("gpus", "tp", "cp", "pp"), lambda c: c.batch["gpus"] % (
        c.batch["tp"] * c.batch["cp"] * c.batch["pp"]) != 0),
    FakeRule("experts", ("gpus", "ep", "etp", "pp"), lambda c: c.batch["gpus"] % (
        c.batch["ep"] * c.batch["etp"] * c.batch["pp"]) != 0),
    FakeRule("vpp", ("pp", "vpp"), lambda c: (c.batch["vpp"] > 1) & (c.batch["pp"] == 1)),
    FakeRule("split", ("pp", "vpp", "first_stage_layers", "last_stage_layers"), _split_bad),
    FakeRule("gbs", ("gpus", "tp", "cp", "pp", "gbs", "mbs"), lambda c: c.batch["gbs"] % (
        np.maximum(_dp(c.batch), 1) * c.batch["mbs"]) != 0),
    FakeRule("interleaved", ("vpp", "pp", "gbs", "mbs", "gpus", "tp", "cp"), lambda c: (
        c.batch["vpp"] > 1) & (c.batch["gbs"] // np.maximum(
            _dp(c.batch) * c.batch["mbs"], 1) < c.batch["pp"])),
    FakeRule("param_gather", ("zero", "overlap_param_gather"), lambda c: (
        c.batch["overlap_param_gather"] == 1) & (c.batch["zero"] == 0)),
)


class FakeEngine:
    """Counts what it was asked for; `tightness` says how good its bounds are."""

    rules = RULES

    def __init__(self, tightness: float = 0.9) -> None:
        self.tightness = tightness

    def context(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> Any:
        return SimpleNamespace(model=model, system=system, batch=batch)

    def resolve(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> Batch:
        new: dict[str, Any] = {}

        def fill(name: str, value: Any) -> None:
            column = batch.columns[name]
            new[name] = np.where(column == UNSET, value, column)

        for name, value in (("tp", 1), ("cp", 1), ("pp", 1), ("vpp", 1), ("ep", 1), ("mbs", 1),
                            ("zero", 1), ("recompute", 0), ("seq_len", model.seq_len),
                            ("gbs", 1024), ("framework", 0), ("overlap_grad_reduce", 0),
                            ("overlap_param_gather", 0), ("overlap_p2p", 0),
                            ("tp_comm_overlap", 0), ("precision", 0)):
            fill(name, value)
        fill("etp", new["tp"] if model.is_moe else 1)
        fill("sp", new["tp"] > 1)
        share = model.num_layers // new["pp"]
        even = model.num_layers % (new["pp"] * new["vpp"]) == 0
        fill("first_stage_layers", np.where(even, share, -2))
        fill("last_stage_layers", np.where(even, share, -2))
        fill("recompute_layers", np.where(new["recompute"] == FULL, share, 0))
        return batch.with_columns({k: v.astype(batch.columns[k].dtype) for k, v in new.items()})

    def split_choices(self, num_layers: int, pp: int, vpp: int,
                      window: int) -> list[tuple[int, int]]:
        share = num_layers / pp
        found = []
        for a, b in itertools.product(range(1, num_layers), repeat=2):
            rest = num_layers - a - b
            mid = rest / max(pp - 2, 1)
            good = rest >= 0 and (rest == 0 if pp == 2 else mid == int(mid) > 0
                                  and mid % vpp == 0)
            if (good and a % vpp == b % vpp == 0 and max(abs(a - share), abs(b - share))
                    <= window and not (a == b == share)):
                found.append((a, b))
        return found

    def _exact(self, model: ModelSpec, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        b = {n: batch.real(n) for n in batch.columns}
        dp = b["gpus"] / (b["tp"] * b["cp"] * b["pp"])
        micro = b["gbs"] / (dp * b["mbs"])
        key = np.zeros(len(batch))
        for i, n in enumerate(("tp", "cp", "pp", "vpp", "ep", "mbs", "recompute", "zero", "sp",
                               "first_stage_layers", "last_stage_layers", "recompute_layers")):
            key = np.mod(key * 31.7 + (i + 1) * 7.13 * b[n], 1009.0)
        wobble = key / 1009.0
        layers = np.maximum(b["first_stage_layers"], b["last_stage_layers"])
        layer = b["mbs"] * b["seq_len"] / (b["tp"] * b["cp"]) * 1e-7
        layer = layer * (1 + 0.3 * (b["recompute"] > 0) + 0.05 * np.log2(b["tp"]))
        lower = (micro + (b["pp"] - 1) / b["vpp"]) * layers * layer
        lower = lower * (1 - 0.05 * b["overlap_grad_reduce"])
        exact = lower * (1 + (1 - self.tightness) * wobble)
        states = 16.0 * model.num_layers * 12 * model.hidden_size**2 / (b["tp"] * b["pp"])
        states = states * np.where(b["zero"] > 0, 0.3, 1.0) * 8
        kept = np.where(b["recompute"] == FULL, 0.3, np.where(b["recompute"] > 0, 0.7, 1.0))
        acts = 34.0 * b["mbs"] * b["seq_len"] * model.hidden_size * layers * kept * 2
        memory = states + acts / np.where(b["sp"] > 0, b["tp"], 1.0) + 2 * GIB
        return lower, exact, memory

    def bound(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> Any:
        lower, _, memory = self._exact(model, batch)
        return SimpleNamespace(step_time_lower_s=lower, device_memory_bytes=memory,
                               device_memory_high_bytes=memory * 1.1)

    def evaluate(self, model: ModelSpec, system: SystemSpec, batch: Batch) -> Any:
        batch = self.resolve(model, system, batch)
        _, exact, memory = self._exact(model, batch)
        tokens = batch.real("gbs") * batch.real("seq_len")
        columns = {"step_time_s": exact, "device_memory_bytes": memory,
                   "device_memory_high_bytes": memory * 1.1, "peak_memory_bytes": memory,
                   "tokens_per_s": tokens / exact, "bubble_s": 0.1 * exact,
                   "told_apart_pct": np.full(len(exact), 1.0)}
        return FakePredictions(columns, batch)


@dataclass
class FakePredictions:
    columns: dict[str, np.ndarray]
    batch: Batch

    def row(self, i: int) -> Any:
        strategy = self.batch.row(i).given()
        data = {"strategy": strategy, "verdict": "fits",
                **{k: float(v[i]) for k, v in self.columns.items()},
                "time": {"bubble_s": float(self.columns["bubble_s"][i])}, "memory": {"stages": []}}
        return SimpleNamespace(to_dict=lambda: data)
