"""Defaults: by framework, by mechanism, and the same whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simcore.batch import Batch, is_constant
from simcore.inputs.fields import FIELD_NAMES, FRAMEWORKS
from simcore.inputs.load import load_framework, load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.profiles import select_profile
from simcore.resolve import resolve
from simcore.rules import check

SYSTEM = load_system("h100-sxm")
DENSE, MOE = load_model("llama3-70b"), load_model("deepseek-v3")


def one(model=DENSE, **fields: object) -> Strategy:  # type: ignore[no-untyped-def]
    batch = Batch.from_strategies([replace(Strategy(gpus=1024), **fields)])
    return resolve(model, SYSTEM, batch).row(0)


def test_nothing_is_left_out() -> None:
    for model in (DENSE, MOE):
        assert all(value is not None for _, value in one(model).items())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", [DENSE, MOE], ids=lambda m: m.name)
def test_defaults_of_every_framework_are_legal(framework: str, model) -> None:  # type: ignore[no-untyped-def]
    for profile in load_framework(framework).profiles:
        batch = resolve(model, SYSTEM, Batch.from_strategies(
            [Strategy(gpus=64, framework=framework, framework_version=profile.version)]))
        report = check(model, SYSTEM, batch)
        assert report.ok[0], [str(issue) for issue in report.issues(0)]
        assert batch.row(0).framework_version == profile.version


def test_resolving_again_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    rows = [Strategy(gpus=256, tp=int(rng.choice([1, 2, 8])), pp=int(rng.choice([1, 4, 16])),
                     vpp=int(rng.choice([1, 2, 5])), recompute=str(rng.choice(["none", "full"])),
                     pp_layout=str(rng.choice(["none", "auto", "20|20|20|20"])),
                     precision=str(rng.choice(["bf16", "fp8-cs"])))
            for _ in range(100)]
    for model in (DENSE, MOE):
        once = resolve(model, SYSTEM, Batch.from_strategies(rows))
        twice = resolve(model, SYSTEM, once)
        assert twice.texts == once.texts
        for name in FIELD_NAMES:
            assert np.array_equal(once.columns[name], twice.columns[name]), name
        for i in (0, 17, 99):
            alone = resolve(model, SYSTEM, Batch.from_strategies([rows[i]]))
            assert alone.row(0) == once.row(i)


def test_constant_columns_stay_constant() -> None:
    n = 1000
    tp = np.random.default_rng(0).choice([1, 2, 4, 8], n).astype(np.int64)
    batch = resolve(DENSE, SYSTEM, Batch.from_columns({"gpus": 1024, "tp": tp}, size=n))
    varying = {name for name, column in batch.columns.items() if not is_constant(column)}
    assert varying == {"tp", "sp"}


@pytest.mark.parametrize(("fields", "name", "value"), [
    ({}, "gbs", 1024),
    ({"gpus": 960, "tp": 2}, "gbs", 1440),
    ({"gpus": 4096, "mbs": 2}, "gbs", 8192),
    ({"tp": 8}, "sp", True),
    ({"tp": 1}, "sp", False),
    ({"pp": 4, "vpp": 5}, "schedule", "interleaved"),
    ({"pp": 4, "vpp": 5}, "overlap_p2p", True),
    ({"pp": 4}, "overlap_p2p", False),
    ({"pp": 4}, "microbatch_group_size", 4),
    ({"pp": 4, "recompute": "full"}, "recompute_layers", 20),
    ({"pp": 4, "recompute": "full", "recompute_layers": 5}, "recompute_method", "block"),
    ({"pp": 4, "recompute": "full"}, "recompute_method", "uniform"),
    ({"recompute": "mlp"}, "recompute_layers", 0),
    ({"pp": 4}, "first_stage_layers", 20),
    ({"pp": 1}, "last_stage_layers", 80),
    ({"zero": 0}, "overlap_param_gather", False),
    ({"tp": 8, "pp": 16, "gpus": 128}, "overlap_grad_reduce", False),
    ({"exp_avg_dtype": "bf16"}, "precision_aware_optimizer", True),
    ({"exp_avg_dtype": "bf16", "grad_dtype": "bf16"}, "main_grads_dtype", "bf16"),
    ({"grad_dtype": "bf16"}, "main_grads_dtype", "fp32"),
    ({"framework": "fsdp"}, "zero", 3),
    ({"framework": "torchtitan"}, "recompute", "selective_op"),
    ({"tp": 8}, "etp", 1),
    ({}, "grouped_gemm", False),
    ({"pp_layout": "auto", "pp": 4}, "pp_layout", "none"),
])
def test_default(fields: dict[str, object], name: str, value: object) -> None:
    assert getattr(one(**fields), name) == value


def test_defaults_of_a_model_with_experts() -> None:
    resolved = one(MOE, tp=2, ep=8)
    assert (resolved.etp, resolved.mtp, resolved.grouped_gemm) == (2, 1, True)


def test_mxfp8_under_bridge_reuses_the_gradient_buffer() -> None:
    resolved = one(framework="megatron-bridge", precision="mxfp8")
    assert resolved.fp8_param_gather is True
    assert resolved.reuse_grad_buf is True
    assert one(framework="megatron-bridge", precision="bf16").fp8_param_gather is False


def test_version_takes_the_nearest_earlier_profile() -> None:
    framework = load_framework("megatron-bridge")
    assert select_profile(framework, None).version == framework.newest
    assert select_profile(framework, "25.11").version == "25.11"
    assert select_profile(framework, "25.12").version == "25.11"
    assert select_profile(framework, "1.0").version == framework.profiles[0].version
    assert select_profile(framework, "unreadable").version == framework.profiles[0].version
    assert select_profile(framework, "99").version == framework.profiles[-1].version


def test_empty_batch() -> None:
    assert len(resolve(DENSE, SYSTEM, Batch.from_strategies([]))) == 0
