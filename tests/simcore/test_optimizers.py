"""Muon, the optimizer on the CPU, replicas of a sharded group, and NVFP4's copies."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.data_parallel import volumes
from simcore.formulas.muon import newton_schulz_flops
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import Prediction, predict
from simcore.units import GIB

VOCABULARY = 128256 * 4096
HIDDEN = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
"""Values of llama3-8b's layers in matrices, from its published shape."""
VECTORS = 65 * 4096
TOTAL = 8_030_261_248


def run(system: str = "h100-sxm", model: str = "llama3-8b", **given: Any) -> Prediction:
    given = {"gpus": 8, "seq_len": 4096, "gbs": 64, **given}
    return predict(load_model(model), load_system(system), Strategy.from_mapping(given))


def stage(prediction: Prediction, at: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = prediction.to_dict()["memory"]["stages"][at]
    return found


def test_hidden_values_are_what_is_left_of_the_total() -> None:
    assert 2 * VOCABULARY + HIDDEN + VECTORS == TOTAL


def test_muon_has_one_moment_for_matrices_of_the_layers() -> None:
    muon = stage(run(optimizer="muon", zero=0))
    wanted = 8 * HIDDEN + 12 * (2 * VOCABULARY + VECTORS)
    assert muon["optimizer_gib"] * GIB == pytest.approx(wanted, rel=1e-4)


def test_muon_shards_whole_matrices() -> None:
    few = stage(run(optimizer="muon"))["optimizer_gib"] * GIB
    rest = 12 * (2 * VOCABULARY + VECTORS)
    assert few == pytest.approx((8 * HIDDEN + rest) / 8, rel=1e-4)
    # On 1024 ranks the even share is less than the largest matrix, gate and up together.
    many = stage(run(optimizer="muon", gpus=1024, gbs=1024))["optimizer_gib"] * GIB
    assert many == pytest.approx(8 * 2 * 4096 * 14336 + rest / 1024, rel=1e-4)


def test_newton_schulz_of_a_square_and_of_a_wide_matrix() -> None:
    assert newton_schulz_flops(10.0, 10.0, steps=5) == 5 * 6 * 1000
    assert newton_schulz_flops(10.0, 1000.0, steps=1) == 4 * 100 * 1000 + 2 * 1000
    assert newton_schulz_flops(1000.0, 10.0, steps=1) == 4 * 100 * 1000 + 2 * 1000


def test_muon_takes_its_arithmetic() -> None:
    one = run(optimizer="muon", zero=0)
    adam = run(zero=0)
    shapes = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (28672, 4096),
              (4096, 14336)]
    flops = 32 * sum(5 * (4 * min(s)**2 * max(s) + 2 * min(s)**3) for s in shapes)
    chip = load_system("h100-sxm")
    seconds = flops / (989e12 * chip.efficiency.sustained_frac * chip.efficiency.gemm_bf16_frac)
    # Muon saves the second moment's traffic: two passes of 4 B.
    saved = 8 * HIDDEN / (3.35e12 * chip.efficiency.memory_frac)
    assert one["optimizer_s"] - adam["optimizer_s"] == pytest.approx(seconds - saved, rel=0.01)
    # A sharded optimizer divides the matrices.
    sharded = run(optimizer="muon")["optimizer_s"] - run()["optimizer_s"]
    assert sharded == pytest.approx((seconds - saved) / 8, rel=0.05)


def test_replicas_hold_what_a_smaller_sharded_group_does() -> None:
    small = stage(run(framework="fsdp", gbs=64))
    whole, hybrid = (stage(run(framework="fsdp", gpus=64, dp_replicate=n, gbs=512))
                     for n in (1, 8))
    for part in ("weights_gib", "gradients_gib", "optimizer_gib"):
        assert hybrid[part] == pytest.approx(small[part])
        assert whole[part] == pytest.approx(small[part] / 8)


def test_replicas_gather_inside_and_reduce_across() -> None:
    case = {"framework": "fsdp", "seq_len": 1024}
    small = volumes(run(**case, gpus=8, gbs=8).predictions.frame)[0]
    hybrid = volumes(run(**case, gpus=128, gbs=128, dp_replicate=16).predictions.frame)[0]
    assert hybrid.gather_s == pytest.approx(small.gather_s)
    # Each of 8 ranks of a node all-reduces its eighth of fp32 gradients with 15 others.
    network = load_system("h100-sxm").network
    wire = 2 * 15 / 16 * 4 * TOTAL / 8 / (network.nic_gb_per_s * 1e9 * network.scale_out_frac)
    assert hybrid.reduce_s - small.reduce_s == pytest.approx(wire, rel=0.05)


def test_instances_of_the_distributed_optimizer() -> None:
    one, two = (stage(run(gpus=16, dp_replicate=n)) for n in (1, 2))
    assert two["optimizer_gib"] == pytest.approx(2 * one["optimizer_gib"])
    assert two["gradients_gib"] == one["gradients_gib"]


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_offloaded_optimizer(share: float) -> None:
    here, away = stage(run()), stage(run(optimizer_offload=share))
    assert away["optimizer_gib"] == pytest.approx((1 - share) * here["optimizer_gib"])
    # fp32 weights, two moments and a pinned gradient.
    assert away["host_memory_gib"] * GIB == pytest.approx(share * 16 * TOTAL / 8, rel=1e-3)
    assert here["host_memory_gib"] == 0.0


def test_offload_takes_pcie_and_the_hosts_memory() -> None:
    found = run(optimizer_offload=1.0)["optimizer_s"]
    own, network = TOTAL / 8, load_system("h100-sxm").network
    wanted = own * (6 / (network.pcie_gb_per_s * 1e9) + 28 / (network.host_memory_gb_per_s * 1e9))
    assert found == pytest.approx(wanted, rel=0.1)


def test_copies_of_nvfp4() -> None:
    # Rows and columns at 4 bits with a scale of 8 bits to 16 values: 9/8 B a weight in all.
    bf16, beside, kept = (stage(run("b200-sxm", precision=p, fp4_param_gather=gather))
                          for p, gather in (("bf16", False), ("nvfp4", False), ("nvfp4", True)))
    copies = (beside["weights_gib"] - bf16["weights_gib"]) * GIB
    assert copies == pytest.approx(9 / 8 * HIDDEN)
    assert (beside["weights_gib"] - kept["weights_gib"]) * GIB == pytest.approx(2 * HIDDEN)


def test_inputs_saved_in_nvfp4() -> None:
    bf16, fp4 = (stage(run("b200-sxm", precision=p)) for p in ("bf16", "nvfp4"))
    # Inputs of four products; the projection's stands beside attention's output in bf16.
    tokens, saved = 4096, 2 - 9 / 16
    wanted = 32 * tokens * (saved * (2 * 4096 + 14336) - 9 / 16 * 4096)
    assert (bf16["activations_gib"] - fp4["activations_gib"]) * GIB == pytest.approx(wanted)
