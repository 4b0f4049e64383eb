"""Tables of kernel efficiencies against the measurements they come from, and their bounds."""

from __future__ import annotations

import csv
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from simcore.efficiency import (
    GEMM_K,
    GEMM_M,
    GEMM_N,
    LENGTHS,
    UNITS,
    Layout,
    Source,
    Table,
    table_of,
)
from simcore.inputs.load import load_system, system_names

OPERATORS = Path(__file__).parents[3] / "shared" / "validation" / "operators"
TABLES = ("a100", "h100", "h200", "b200", "b300", "gb200", "gb300")


def one(table: Table, m: float, n: float, k: float, layout: Layout = Layout.FORWARD,
        dtype: str = "bf16") -> tuple[float, Source]:
    found = table.gemm(dtype, np.array([m]), np.array([n]), np.array([k]), layout,
                       num_multiprocessors=132)
    return float(found.share[0]), Source(int(found.source[0]))


@pytest.mark.parametrize("name", TABLES)
def test_no_rate_exceeds_the_peak(name: str) -> None:
    with (files("simcore") / "data" / "efficiency" / f"{name}.npz").open("rb") as stream:
        arrays = dict(np.load(stream).items())
    assert arrays
    for key, values in arrays.items():
        assert np.isfinite(values).all(), key
        assert values.min() > 0, key
        assert values.max() <= (1.05 if key == "layout" else 1.0), key


def test_all_tables_are_small() -> None:
    folder = Path(str(files("simcore") / "data" / "efficiency"))
    assert sum(path.stat().st_size for path in folder.glob("*.npz")) < 200_000


@pytest.mark.parametrize("name", TABLES)
def test_larger_products_are_not_slower_by_much(name: str) -> None:
    """Rates rise with the tokens, but for the clock of long kernels (under a fifth)."""
    table = Table(name, is_transferred=False)
    for n, k in ((8192, 8192), (4096, 1024), (1536, 7168)):
        rates = [one(table, m, n, k)[0] for m in GEMM_M]
        assert rates[0] < rates[5]
        assert min(rates[5:]) > 0.8 * max(rates)


def test_tags_tell_where_a_figure_comes_from() -> None:
    own, other = Table("h100", is_transferred=False), Table("h100", is_transferred=True)
    assert one(own, 4096, 8192, 8192)[1] is Source.MEASURED
    assert one(own, 4100, 8192, 8192)[1] is Source.INTERPOLATED
    assert one(own, 4096, 8192, 300000)[1] is Source.FORMULA
    assert one(own, 4096, 8192, 8192, Layout.WEIGHT_GRADIENT)[1] is Source.TRANSFERRED
    assert one(Table("b200", is_transferred=False), 4096, 8192, 8192,
               Layout.WEIGHT_GRADIENT)[1] is Source.INTERPOLATED
    assert one(other, 4096, 8192, 8192)[1] is Source.TRANSFERRED
    few = own.attention(head_dim=128.0, units=np.array([2.0, 8.0]), length=np.full(2, 4096.0),
                        window=0.0, backward=False)
    assert list(few.source) == [Source.FORMULA, Source.MEASURED]


@pytest.mark.parametrize("name", TABLES)
def test_interpolation_stays_between_the_neighbours(name: str) -> None:
    table = Table(name, is_transferred=False)
    for i in range(3, len(GEMM_M) - 1):
        between = one(table, (GEMM_M[i] * GEMM_M[i + 1]) ** 0.5, 4096, 4096)[0]
        ends = one(table, GEMM_M[i], 4096, 4096)[0], one(table, GEMM_M[i + 1], 4096, 4096)[0]
        assert min(ends) * (1 - 1e-9) <= between <= max(ends) * (1 + 1e-9)


def test_long_products_of_an_h200() -> None:
    """A large bf16 product of random data on an H200 was measured at 770 to 800 TFLOPS."""
    share, _ = one(Table("h200", is_transferred=False), 8192, 8192, 8192)
    assert 770 * 0.93 <= share * 989 <= 800 * 1.07


@pytest.mark.shared
@pytest.mark.parametrize(("name", "file", "burst"), [
    ("b200", "ops_b200.csv", 0.72), ("a100", "ops_a100_pcie.csv", 0.92)])
def test_operators_measured_by_simumax(name: str, file: str, burst: float) -> None:
    """Products of over 0.2 ms: their median against the table is the long-run share (power)."""
    path = OPERATORS / file
    if not path.exists():
        pytest.skip(f"{path} is not there (tables of measured runs)")
    table, ratio = Table(name, is_transferred=False), []
    layouts = {"TN": Layout.FORWARD, "NN": Layout.DATA_GRADIENT, "NT": Layout.WEIGHT_GRADIENT}
    with path.open(encoding="utf-8") as stream:
        for row in csv.DictReader(line for line in stream if not line.startswith("#")):
            if row["op"] != "gemm":
                continue
            m, n, k = (float(row[x]) for x in "mnk")
            peak, share = float(row["peak_tflops"]) * 1e12, float(row["efficiency"])
            if 2 * m * n * k / (share * peak) > 2e-4:
                ratio.append(share / one(table, m, n, k, layouts[row["layout"]])[0])
    assert len(ratio) > 100
    assert float(np.median(ratio)) == pytest.approx(burst, abs=0.03)
    assert float(np.std(np.log(ratio))) < 0.1


def test_attention_of_few_heads_is_slower() -> None:
    table = Table("b200", is_transferred=False)
    for backward in (False, True):
        rates = table.attention(head_dim=128.0, units=np.array(UNITS, np.float64),
                                length=np.full(len(UNITS), 4096.0), window=0.0,
                                backward=backward).share
        assert rates[0] < rates[1] < rates[3]
        long = table.attention(head_dim=128.0, units=np.full(len(LENGTHS), 32.0),
                               length=np.array(LENGTHS, np.float64), window=0.0,
                               backward=backward).share
        assert long[0] < long[3] < long[-1]


@pytest.mark.parametrize("name", system_names())
def test_constants_stay_in_their_physical_range(name: str) -> None:
    """A share lies in 0..1 and never beats the peak after all factors; no latency is negative."""
    system = load_system(name)
    share = system.efficiency
    for field in type(share).model_fields:
        if field.endswith("_frac"):
            assert 0 < getattr(share, field) <= 1, field
    assert share.launch_s_per_kernel_us >= 0
    assert 1 <= system.network.in_step_slowdown <= 1.5
    assert min(system.network.scale_up_latency_us, system.network.scale_out_latency_us,
               system.network.collective_base_us) >= 0
    table = table_of(system)
    if table is not None:
        for n in GEMM_N:
            for k in GEMM_K:
                assert one(table, 8192, n, k)[0] * share.sustained_frac < 1
