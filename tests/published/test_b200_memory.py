"""Peaks of Megatron runs on 8 x B200 (SimuMax 1.2, docs/b200), stage by stage."""

from __future__ import annotations

import pytest

from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict

RUNS = [
    ({"pp": 2, "gbs": 16}, (66.5520, 62.9682)),
    ({"tp": 2, "gbs": 16}, (60.6801,)),
    ({"tp": 4, "gbs": 8}, (39.0720,)),
    ({"tp": 8, "gbs": 4}, (28.2865,)),
    ({"tp": 2, "cp": 4, "seq_len": 32768, "gbs": 4, "cp_comm": "a2a"}, (68.4283,)),
    ({"cp": 8, "seq_len": 32768, "gbs": 4, "cp_comm": "a2a"}, (104.5089,)),
    ({"ep": 8, "etp": 1, "gbs": 32}, (45.6348,)),
    ({"pp": 2, "ep": 4, "etp": 1, "gbs": 16}, (31.5854, 44.7029)),
]
"""Layouts (llama3-70b of 12 layers; deepseek-v2 of 4 where experts are named) and peaks [GiB]."""
WORST = 0.004


@pytest.mark.parametrize(("layout", "measured"), RUNS, ids=lambda value: str(value)[:40])
def test_peaks(layout: dict, measured: tuple[float, ...]) -> None:
    experts = "ep" in layout
    model = load_model("deepseek-v2" if experts else "llama3-70b").with_layers(
        4 if experts else 12)
    # The run's tokenizer adds one entry before padding.
    model = model.model_copy(update={"vocab_size": model.vocab_size + 1})
    padded = {"capacity_factor": 1.0, "pad_to_capacity": True} if experts else {}
    found = predict(model, load_system("b200-sxm"), Strategy.from_mapping({
        "gpus": 8, "mbs": 1, "seq_len": 4096, "framework_version": "0.14",
        "cross_entropy": "fused", "overlap_grad_reduce": False, "overlap_param_gather": False,
        **padded, **layout}))
    stages = found.to_dict()["memory"]["stages"]
    assert len(stages) == len(measured)
    for stage, peak in zip(stages, measured, strict=True):
        assert stage["peak_memory_gib"] == pytest.approx(peak, rel=WORST)
