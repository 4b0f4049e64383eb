"""What must hold for every legal strategy, on random ones over many kinds of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcore.activations import layer_saved
from simcore.batch import Batch
from simcore.breakdown import TIME_TERMS
from simcore.flops import layer_forward_flops_per_token
from simcore.frame import Frame
from simcore.inputs.fields import CUDA_GRAPH_BIT, FIELD, RECOMPUTE_BIT, UNSET, Kind, code
from simcore.inputs.load import load_model, load_system
from simcore.inputs.model import AttentionKind, ModelSpec
from simcore.inputs.system import SystemSpec
from simcore.local import LOCAL_FIELDS, Local
from simcore.operators.base import Phase
from simcore.parameters import padded_vocab, total_parameters
from simcore.prediction import Predictions, bound, evaluate
from simcore.profiles import profile_codes
from simcore.resolve import resolve
from simcore.rules import check

MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b",
          "qwen3-next-80b-a3b", "gpt2-xl", "gemma2-27b")
SYSTEMS = ("h100-sxm", "b200-sxm", "a100-sxm-80g", "gb200-nvl72")
POOL, KEPT = 1000, 16
HOLDS = settings(max_examples=8, deadline=None, derandomize=True,
                 suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
SEEDS = st.integers(0, 2**32 - 1)
CHOICES: dict[str, tuple[float, ...]] = {
    "gpus": (8, 16, 64, 256), "tp": (1, 1, 2, 4, 8), "cp": (1, 1, 2, 4), "pp": (1, 1, 2, 4, 8),
    "vpp": (1, 1, 2, 4), "ep": (1, 2, 4, 8, 16), "etp": (1, 1, 2), "mbs": (1, 2, 4),
    "seq_len": (1024, 4096, 8192), "gbs": (UNSET, 64, 256), "zero": (UNSET, 0, 1, 2, 3),
    "sp": (UNSET, 0, 1), "cp_comm": (UNSET, 0, 1, 2), "rank_order": (0, 1),
    "schedule": (UNSET, UNSET, *(code("schedule", kind) for kind in (
        "gpipe", "zero-bubble", "dualpipe", "dualpipev"))), "recompute_unit_layers": (UNSET, 2),
    "recompute_layers": (UNSET, UNSET, 4), "mtp": (0, UNSET),
    "recompute": (0, 0, *(RECOMPUTE_BIT[m] for m in RECOMPUTE_BIT if m != "selective_op"),
                  RECOMPUTE_BIT["layernorm"] | RECOMPUTE_BIT["moe_act"]),
    "precision": (0, 0, 1, 3, 4, 5, 6, 7), "grad_dtype": (0, 1), "fp8_param_gather": (UNSET, 1),
    "activation_offload_layers": (UNSET, UNSET, 4), "exp_avg_dtype": (UNSET, 1),
    "optimizer": (0, 0, 1, 2), "optimizer_offload": (UNSET, 0.5), "dp_replicate": (UNSET, 2),
    "overlap_grad_reduce": (UNSET, 0), "overlap_param_gather": (UNSET, 0),
    "tp_comm_overlap": (UNSET, 1), "overlap_p2p": (UNSET, 0, 1), "ep_comm_overlap": (UNSET, 1),
    "shared_expert_overlap": (UNSET, 1), "delay_wgrad_compute": (UNSET, 1),
    "dispatcher": (UNSET, 1, 2), "capacity_factor": (UNSET, UNSET, 1.0, 2.0),
    "pad_to_capacity": (UNSET, 1), "expert_imbalance": (UNSET, 1.2), "grouped_gemm": (UNSET, 0),
    "permute_fusion": (UNSET, 0), "attention": (0, 0, 1), "cross_entropy": (UNSET, 0),
    "fused_swiglu": (UNSET, 0), "fused_rope": (UNSET, 0), "fused_norm": (UNSET, 0),
    "grad_accumulation_fusion": (UNSET, 0),
    "cuda_graph": (UNSET, UNSET, CUDA_GRAPH_BIT["attn"], CUDA_GRAPH_BIT["full_iteration"]),
    "framework": (UNSET, UNSET, 1, code("framework", "torchtitan")),
}
"""Codes to draw from; an unset field takes its default."""
KEEP_DEFAULT = 0.75
"""Share of a row's fields beyond the degrees that keep their default, so that rows are legal."""
DEGREES = ("gpus", "tp", "cp", "pp", "vpp", "ep", "mbs", "seq_len")


def random_rows(model: ModelSpec, system: SystemSpec, seed: int, **fixed: float) -> Batch:
    """Draw resolved, legal strategies."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for name, values in CHOICES.items():
        dtype = np.float64 if FIELD[name].kind is Kind.FLOAT else np.int64
        drawn = rng.choice(np.array(values, dtype), POOL)
        default = rng.random(POOL) < (0.0 if name in DEGREES else KEEP_DEFAULT)
        columns[name] = np.where(default, np.array(UNSET, dtype), drawn)
    if not model.is_moe:
        columns["ep"], columns["dispatcher"] = 1, UNSET
    # Most experts of a small tp are whole.
    columns["etp"] = np.where(rng.random(POOL) < 0.7, 1, columns["etp"])
    batch = resolve(model, system, Batch.from_columns(columns | fixed, size=POOL))
    legal = np.flatnonzero(check(model, system, batch).ok)
    return batch.take(legal[:KEPT])


def some(name: str, system: str, seed: int, **fixed: float) -> tuple[ModelSpec, SystemSpec, Batch]:
    """Load a model and a system and draw strategies for them."""
    model, chips = load_model(name), load_system(system)
    batch = random_rows(model, chips, seed, **fixed)
    assert len(batch) >= 8
    return model, chips, batch


def evaluated(name: str, system: str, seed: int, **fixed: float) -> Predictions:
    """Predict what `some` draws."""
    return evaluate(*some(name, system, seed, **fixed))


def equal(left: np.ndarray, right: np.ndarray) -> bool:
    """Tell whether columns are equal to 1e-12."""
    return bool(np.all(np.abs(left - right) <= 1e-12 * np.maximum(np.abs(left), np.abs(right))))


anything = given(name=st.sampled_from(MODELS), system=st.sampled_from(SYSTEMS), seed=SEEDS)


@HOLDS
@anything
def test_a_row_of_a_batch_is_the_single_prediction(name: str, system: str, seed: int) -> None:
    model, chips, batch = some(name, system, seed)
    together = evaluate(model, chips, batch)
    for i in range(len(batch)):
        alone = evaluate(model, chips, batch.take(np.array([i])))
        for column, values in together.columns.items():
            # The bubble is a small difference of large numbers.
            within = 1e-12 * together.columns["step_time_s"][i] if column in TIME_TERMS else 0.0
            assert abs(values[i] - alone.columns[column][0]) <= max(
                within, 1e-12 * abs(values[i])), column


@HOLDS
@anything
def test_order_and_chunks_do_not_matter(name: str, system: str, seed: int) -> None:
    model, chips, batch = some(name, system, seed)
    together = evaluate(model, chips, batch).columns
    order = np.random.default_rng(seed).permutation(len(batch))
    shuffled = evaluate(model, chips, batch.take(order)).columns
    pieces = [evaluate(model, chips, piece) for piece in batch.chunks(5)]
    for column in ("step_time_s", "peak_memory_bytes", "device_memory_bytes", "mfu", "verdict"):
        assert equal(together[column][order], shuffled[column])
        assert equal(together[column], np.concatenate([p.columns[column] for p in pieces]))


@HOLDS
@anything
def test_terms_add_up(name: str, system: str, seed: int) -> None:
    columns = evaluated(name, system, seed).columns
    terms = np.stack([columns[term] for term in TIME_TERMS])
    assert np.all(terms >= 0)
    # The bubble is what remains of the step: busy terms above it would show here.
    np.testing.assert_allclose(terms.sum(axis=0), columns["step_time_s"], rtol=1e-9)
    assert np.all(columns["mfu"] > 0)
    assert np.all(columns["mfu"] <= 1)
    assert np.all(columns["hfu"] >= columns["mfu"])
    assert np.all(columns["device_memory_bytes"] >= columns["peak_memory_bytes"])
    assert np.all(columns["device_memory_high_bytes"] >= columns["device_memory_bytes"])


@HOLDS
@anything
def test_one_stage_has_no_bubble(name: str, system: str, seed: int) -> None:
    columns = evaluated(name, system, seed, pp=1, vpp=1).columns
    assert np.all(columns["bubble_s"] <= 1e-9 * columns["step_time_s"])
    assert np.all(columns["pp_comm_s"] == 0)


@HOLDS
@anything
def test_bounds_hold(name: str, system: str, seed: int) -> None:
    model, chips, batch = some(name, system, seed)
    below, exact = bound(model, chips, batch), evaluate(model, chips, batch).columns
    assert np.all(below.step_time_lower_s <= exact["step_time_s"])
    for column in ("peak_memory_bytes", "device_memory_bytes", "device_memory_high_bytes",
                   "verdict"):
        assert np.array_equal(getattr(below, column), exact[column])


FASTER: dict[str, Callable[[SystemSpec], SystemSpec]] = {
    "flops": lambda s: s.model_copy(update={"accelerator": s.accelerator.model_copy(update={
        "peak_bf16_tflops": 2 * s.accelerator.peak_bf16_tflops,
        "peak_fp8_tflops": 2 * s.accelerator.peak_fp8_tflops})}),
    "memory": lambda s: s.model_copy(update={"accelerator": s.accelerator.model_copy(update={
        "memory_bandwidth_gb_per_s": 2 * s.accelerator.memory_bandwidth_gb_per_s})}),
}


@pytest.mark.parametrize("what", FASTER)
@HOLDS
@anything
def test_faster_chips_are_never_slower(what: str, name: str, system: str, seed: int) -> None:
    model, chips, batch = some(name, system, seed)
    before = evaluate(model, chips, batch).columns["step_time_s"]
    after = evaluate(model, FASTER[what](chips), batch).columns["step_time_s"]
    assert np.all(after <= before * (1 + 1e-9))


@HOLDS
@anything
def test_faster_links_are_never_slower(name: str, system: str, seed: int) -> None:
    model, chips, batch = some(name, system, seed)
    before = evaluate(model, chips, batch).columns["step_time_s"]
    network = chips.network
    for link in ("nic_gb_per_s", "scale_up_gb_per_s"):
        faster = chips.model_copy(update={"network": network.model_copy(update={
            link: 2 * getattr(network, link)})})
        after = evaluate(model, faster, batch).columns["step_time_s"]
        assert np.all(after <= before * (1 + 1e-9)), link


@HOLDS
@given(name=st.sampled_from(MODELS), seed=SEEDS)
def test_parameters_of_all_ranks_are_the_models(name: str, seed: int) -> None:
    model, chips, batch = some(name, "h100-sxm", seed, tp=1, etp=1, mtp=0)
    frame = Frame.build(model, chips, batch)
    total = np.zeros(len(batch))
    for c in range(frame.tables.num_classes):
        own = frame.parameters(c)
        ranks = frame.stage(frame.tables.num_ranks, c)
        total += ranks * (own.dense + own.expert * batch["ep"])
    vocabulary = float(padded_vocab(model, 1)) * model.hidden_size
    ends = 1 if model.tied_embeddings else 2
    padding = ends * (vocabulary - model.vocab_size * model.hidden_size)
    # A rank that holds both ends has a tied embedding once; DualPipe holds everything twice.
    dual = batch["schedule"] >= code("schedule", "dualpipe")
    copies = np.where(model.tied_embeddings & (batch["pp"] > 1) & ~dual, vocabulary, 0.0)
    twice = np.where(batch["schedule"] == code("schedule", "dualpipe"), 2.0, 1.0)
    np.testing.assert_array_equal(total, twice * (total_parameters(model) + padding + copies))


@HOLDS
@given(name=st.sampled_from([m for m in MODELS if m != "qwen3-next-80b-a3b"]), seed=SEEDS)
def test_flops_of_all_ranks_are_the_models(name: str, seed: int) -> None:
    model, chips, batch = some(name, "h100-sxm", seed, expert_imbalance=1.0, capacity_factor=0.0,
                               attention=0)
    frame = Frame.build(model, chips, batch)
    local = frame.local
    # Without sequence parallelism tensor ranks do the same work twice.
    shared = local.on("sp") | (local.tp == 1)
    for kind, cost in zip(model.kinds, frame.layer_costs, strict=True):
        assert kind.attention is not AttentionKind.LINEAR
        rank = sum(op.flops for op in cost.times.ops
                   if op.phase is Phase.FORWARD and op.module != "router")
        whole = layer_forward_flops_per_token(model, kind, local.real("seq_len")) * local.tokens
        np.testing.assert_allclose((rank * local.tp)[shared], whole[shared], rtol=1e-9)


def states_bytes(model: ModelSpec, chips: SystemSpec, batch: Batch) -> np.ndarray:
    """Weights, gradients and optimizer states of the fullest stage [B]."""
    stages = evaluate(model, chips, batch).stages
    return np.max([s.weights + s.gradients + s.optimizer for s in stages], axis=0)


@HOLDS
@anything
@pytest.mark.parametrize("what", ["tp", "pp"])
def test_states_fall_with_degrees(what: str, name: str, system: str, seed: int) -> None:
    model, chips, batch = some(name, system, seed, zero=0, vpp=1, recompute=0, mtp=0,
                               activation_offload_layers=0)
    more = {what: 2 * batch[what], "gpus": 2 * batch["gpus"]}
    # The split of the layers follows the new pipeline.
    free = {n: np.full(len(batch), UNSET) for n in (
        "first_stage_layers", "last_stage_layers", "pp_layout", "microbatch_group_size",
        "recompute_layers", "sp", "schedule", "overlap_p2p", "framework_version")}
    wider = resolve(model, chips, batch.with_columns(free | more))
    legal = check(model, chips, wider).ok
    if np.any(legal):
        before = states_bytes(model, chips, batch.take(legal))
        assert np.all(states_bytes(model, chips, wider.take(legal)) <= before * (1 + 1e-12))


@HOLDS
@anything
def test_states_fall_with_sharding(name: str, system: str, seed: int) -> None:
    model, chips, batch = some(name, system, seed, pp=1, vpp=1, zero=0,
                               framework=code("framework", "megatron"))
    before = states_bytes(model, chips, batch)
    for zero in (1, 2, 3):
        sharded = batch.with_columns({"zero": np.full(len(batch), zero)})
        legal = check(model, chips, sharded).ok
        after = states_bytes(model, chips, sharded.take(legal))
        assert np.all(after <= before[legal] * (1 + 1e-12))
        before = before.copy()
        before[legal] = after


def kept_bytes(model: ModelSpec, chips: SystemSpec, rows: list[dict[str, float]]) -> np.ndarray:
    """Saved bytes of a layer of each kind, shape (kinds, rows)."""
    columns = {name: np.array([row.get(name, UNSET) for row in rows]) for name in LOCAL_FIELDS}
    batch = resolve(model, chips, Batch.from_columns({**columns, "gpus": 4096}, size=len(rows)))
    profiles, index = profile_codes(batch)
    local = Local(model, chips, batch, profiles, index)
    return np.stack([layer_saved(local, kind).kept for kind in model.kinds])


SMALL = given(
    name=st.sampled_from(MODELS), tp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2, 4]),
    mbs=st.integers(1, 4), seq=st.sampled_from([1024, 2048, 4096]),
    precision=st.sampled_from(["bf16", "fp8-ds", "fp8-block", "fp32"]),
    cp_comm=st.sampled_from([0, 1, 2]), attention=st.sampled_from([0, 1]))


@settings(HOLDS, max_examples=60)
@SMALL
def test_saved_activations(name: str, tp: int, cp: int, mbs: int, seq: int, precision: str,
                           cp_comm: int, attention: int) -> None:
    model, chips = load_model(name), load_system("h100-sxm")
    base = {"tp": tp, "cp": cp, "mbs": mbs, "seq_len": seq, "sp": int(tp > 1), "etp": 1, "ep": 1,
            "precision": code("precision", precision), "attention": attention,
            "cp_comm": cp_comm if cp > 1 else 0}
    less = [{**base, "tp": 2 * tp, "sp": 1}, {**base, "cp": 2 * cp}]
    modules = ["core_attn", "mlp", "layernorm", "moe_act", "moe", "shared_experts"]
    less += [{**base, "recompute": RECOMPUTE_BIT[module]} for module in modules]
    deeper = RECOMPUTE_BIT["core_attn"] | RECOMPUTE_BIT["mlp"]
    more = [{**base, "mbs": mbs + 1}, {**base, "seq_len": 2 * seq}]
    kept = kept_bytes(model, chips, [base, *less, {**base, "recompute": deeper}, *more])
    slack = 1 + 1e-12
    assert np.all(kept > 0)
    assert np.all(kept[:, 1:1 + len(less)] <= kept[:, :1] * slack)
    assert np.all(kept[:, 1 + len(less)] <= np.minimum(kept[:, 3], kept[:, 4]) * slack)
    assert np.all(kept[:, -2:] > kept[:, :1])
    if not attention:
        np.testing.assert_allclose(kept[:, -1], 2 * kept[:, 0], rtol=0.02)


def test_every_choice_is_a_code_of_its_field() -> None:
    for name, values in CHOICES.items():
        choices = FIELD[name].choices
        if choices and FIELD[name].kind.value == "enum":
            assert all(UNSET <= value < len(choices) for value in values)
