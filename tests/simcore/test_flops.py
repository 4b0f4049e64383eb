"""Model FLOP a token, against figures that are computed by Megatron's formula."""

from __future__ import annotations

import pytest

from simcore.flops import model_flops_per_token
from simcore.inputs.load import load_model

TERA_PER_TOKEN = [
    ("llama3-8b", 8192, 0, 0.0515), ("llama3-70b", 8192, 0, 0.4492),
    ("llama3.1-405b", 8192, 0, 2.524), ("deepseek-v3", 4096, 0, 0.2498),
    ("deepseek-v3", 4096, 1, 0.2600), ("qwen3-30b-a3b", 4096, 0, 0.0230),
    ("qwen3-235b-a22b", 4096, 0, 0.1480),
]


@pytest.mark.parametrize(("name", "seq_len", "mtp", "tera"), TERA_PER_TOKEN)
def test_flops_of_a_token(name: str, seq_len: int, mtp: int, tera: float) -> None:
    found = float(model_flops_per_token(load_model(name), seq_len, mtp=mtp))
    assert found / 1e12 == pytest.approx(tera, rel=3e-3)
