"""Tables of measured runs: reading, errors, verdicts and ranking by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.__main__ import main
from autotune.accuracy import ranks, report, spearman, summarise
from autotune.compare import Library, Outcome, compare, run_model
from autotune.kept import kept_models, kept_runs, kept_sources
from autotune.report.published import PUBLISHED
from autotune.report.validation import short_names
from autotune.runs import Run, pairs, read_table, translate
from simcore.errors import InputError
from simcore.inputs.load import load_model

HEADER = ("id,model,num_layers,system,gpus,framework,precision,seq_len,gbs,mbs,tp,cp,pp,vpp,ep,"
          "etp,sp,zero,recompute,extras,step_time_s,tokens_per_s_per_gpu,model_tflops_per_gpu,"
          "peak_memory_gib,oom")
ROW = ("{id},llama3-8b,,h100-sxm,8,megatron,bf16,8192,32,1,2,1,{pp},1,1,1,1,1,none,{extras},"
       "{step},{tokens},{tflops},{memory},{oom}")


def row(**values: object) -> str:
    return ROW.format(**{"id": "a", "pp": 1, "extras": "", "step": "", "tokens": "",
                         "tflops": "", "memory": "", "oom": "0", **values})


def table(folder: Path, *rows: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("# source: by hand\n" + "\n".join([HEADER, *rows]) + "\n")
    return path


def outcome(identity: str, *, measured: float | None, predicted: float, verdict: str = "fits",
            oom: bool | None = False, kernel: str = "a") -> Outcome:
    run = Run(file="f", id=identity, model="m", system="s", fields={"gpus": "8"},
              conditions={"kernel": kernel}, oom=oom,
              measured={} if measured is None else {"step_time_s": measured})
    return Outcome(run, step_time_s=measured, predicted={
        "step_time_s": predicted, "peak_memory_gib": 10.0, "device_memory_gib": 12.0,
        "verdict": verdict})


def test_errors_by_hand() -> None:
    found = summarise([outcome("a", measured=2.0, predicted=2.2),
                       outcome("b", measured=4.0, predicted=3.0),
                       outcome("c", measured=1.0, predicted=1.0)])["step_time"]
    assert found["n"] == 3
    assert found["mean_abs_pct"] == pytest.approx((10 + 25 + 0) / 3)
    assert found["median_abs_pct"] == pytest.approx(10)
    assert found["p90_abs_pct"] == pytest.approx(10 + 0.8 * 15)
    assert found["max_abs_pct"] == pytest.approx(25)
    assert found["bias_pct"] == pytest.approx((10 - 25) / 3)


def test_verdicts_by_hand() -> None:
    found = summarise([
        outcome("a", measured=1, predicted=1),
        outcome("b", measured=1, predicted=1, verdict="marginal"),
        outcome("c", measured=1, predicted=1, verdict="does_not_fit"),
        outcome("d", measured=None, predicted=1, oom=True, verdict="does_not_fit"),
        outcome("e", measured=None, predicted=1, oom=True, verdict="marginal"),
        outcome("f", measured=None, predicted=1, oom=None),
    ])["oom"]
    assert found == {"n": 5, "ran": 3, "failed": 2, "accuracy": pytest.approx(3 / 5),
                     "false_fit": 1, "false_oom": 1, "marginal": 2}


def test_ranking_by_hand() -> None:
    measured = [1.0, 2.0, 3.0, 4.0, 5.0]
    swapped = [2.0, 1.0, 3.0, 4.0, 5.0]
    group = [outcome(str(i), measured=m, predicted=p)
             for i, (m, p) in enumerate(zip(measured, swapped, strict=True))]
    found = summarise(group)["ranking"]
    assert found["groups"] == 1
    # Two of five swapped: 1 - 6 * 2 / (5 * 24).
    assert found["spearman_median"] == pytest.approx(0.9)
    assert found["regret_max_pct"] == pytest.approx(100.0)
    assert found["failed_picks"] == 0
    # A failed run that is put first is a failed pick, unless the prediction says it fails.
    failed = outcome("x", measured=None, predicted=0.1, oom=True)
    assert summarise([*group, failed])["ranking"]["failed_picks"] == 1
    said = outcome("x", measured=None, predicted=0.1, oom=True, verdict="does_not_fit")
    assert summarise([*group, said])["ranking"]["failed_picks"] == 0
    # Four that ran are no group, nor are five with different kernels.
    assert summarise(group[:4])["ranking"]["groups"] == 0
    mixed = [outcome(str(i), measured=1, predicted=1, kernel=str(i)) for i in range(5)]
    assert summarise(mixed)["ranking"]["groups"] == 0


def test_ranks_with_ties() -> None:
    assert ranks([10, 20, 20, 5]).tolist() == [2.0, 3.5, 3.5, 1.0]
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_measured_step_follows_in_the_stated_order(tmp_path: Path) -> None:
    tokens = 32 * 8192 / 8
    path = table(tmp_path, row(id="a", step="2.0", tokens=1), row(id="b", tokens=tokens / 4),
                 row(id="c", tflops=515.0), row(id="d"))
    found = compare(read_table(path), Library())
    assert found[0].step_time_s == 2.0
    assert found[1].step_time_s == pytest.approx(4.0)
    # 0.0515 TFLOP a token at 8192: 32 x 8192 tokens on 8 GPUs at 515 TFLOP/s.
    assert found[2].step_time_s == pytest.approx(32 * 8192 * 0.0515 / (8 * 515.0), rel=2e-3)
    assert found[3].step_time_s is None
    assert all(o.skipped is None for o in found)


def test_every_row_is_predicted_or_skipped_with_a_reason(tmp_path: Path) -> None:
    path = table(
        tmp_path, row(id="ok", step=1), row(id="field", extras="precision=bf16;tp=x", step=1),
        row(id="number", step="fast"), row(id="negative", step="-1"), row(id="oom", oom="2"),
        row(id="illegal", pp=3, step=1), row(id="fp4", step=1).replace("bf16", "nvfp4"),
        row(id="model", step=1).replace("llama3-8b", "../../etc/passwd"),
        row(id="system", step=1).replace("h100-sxm", "nonesuch"), row(id="short")[:30])
    found = {o.run.id: o.skipped for o in compare(read_table(path), Library())}
    assert found.pop("ok") is None
    assert found.pop("field") is None, "the column stands above extras"
    assert len(found) == 8
    assert all(found.values())
    assert "Blackwell" in str(found["fp4"])
    data = report(compare(read_table(path), Library()))
    assert {r["id"] for r in data["rows"] if r["skipped"]} == set(found)


def test_extras_that_are_fields() -> None:
    fields, rest = translate(
        {"framework": "aleph-alpha-scaling", "sp": "", "gpus": "8"},
        pairs("release=25.11;grad_dtype=bf16;sp_inferred=0;kernel=flash_attention2+rms;note"))
    assert fields == {"framework": "aleph-alpha-scaling", "gpus": "8", "grad_dtype": "bf16",
                      "framework_version": "25.11", "sp": "0", "fused_norm": "true"}
    assert rest["kernel"] == "flash_attention2+rms"
    assert rest["note"] == "1"
    fields, _ = translate({"recompute": ""}, pairs("ac_mode=selective_op"))
    assert fields == {"recompute": "selective_op"}


def test_the_model_as_it_was_trained() -> None:
    model = load_model("deepseek-v3")
    run = Run("f", "a", "deepseek-v3", "s", num_layers=4,
              conditions={"dense_layers": "1", "padded_vocab": "102528"})
    changed = run_model(model, run)
    assert changed.num_layers == 4
    assert [changed.kinds[i].mlp.value for i in changed.layers] == ["dense", "moe", "moe", "moe"]
    assert changed.vocab_size == 102528


def test_a_smaller_last_micro_batch_is_scaled(tmp_path: Path) -> None:
    path = table(tmp_path, row(step=1).replace(",32,1,2,", ",30,1,2,"))
    [found] = compare(read_table(path), Library())
    assert found.skipped is None
    assert "smaller" in found.notes[0]
    [whole] = compare(read_table(table(tmp_path, row(step=1))), Library())
    ratio = float(found.predicted["step_time_s"]) / float(whole.predicted["step_time_s"])
    assert ratio == pytest.approx(30 / 32)


def test_models_beside_the_table_come_first(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama3-8b.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
        "intermediate_size": 2048, "vocab_size": 32000, "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "hidden_act": "silu"}))
    [own] = compare(read_table(table(tmp_path, row(step=1))), Library())
    [builtin] = compare(read_table(table(tmp_path, row(step=1))), Library(tmp_path))
    assert float(own.predicted["step_time_s"]) < 0.2 * float(builtin.predicted["step_time_s"])


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '# c\nid,model,system,gpus\n"x', "\x00"])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"t\.csv"):
        read_table(path)


def test_command_json_and_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, row(id="a", step=1.0, memory=30), row(id="b", step=2.0))
    (tmp_path / "doubtful.csv").write_text("file,id,reason\nt.csv,b,looks odd\n")
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    assert main(["validate", str(tmp_path), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert set(data) >= {"rows", "summary", "by_file"}
    assert data["summary"].keys() >= {"step_time", "peak_memory", "oom", "ranking"}
    assert data["summary"]["step_time"]["n"] == 2
    assert data["without_doubtful"]["step_time"]["n"] == 1
    assert set(data["rows"][0]) >= {"file", "id", "measured", "predicted", "error_pct",
                                    "skipped"}
    assert len(data["left_out"]) == 2
    assert "other.csv: left out" in err
    for style in ("table", "csv", "yaml"):
        assert main(["validate", str(tmp_path), "--format", style]) == 0
        assert capsys.readouterr().out


def test_kept_runs_have_sources_and_models() -> None:
    tables = kept_runs()
    assert len(tables.runs) > 1500
    sources = kept_sources()
    models = kept_models()
    for run in tables.runs:
        assert sources[run.file]["url"]
        assert run.model in models
    for name in PUBLISHED:
        assert name in sources


def test_names_in_tables() -> None:
    assert short_names(["x/y/a.csv", "x/y/b/c.csv"]) == {"x/y/a.csv": "a.csv",
                                                         "x/y/b/c.csv": "b/c.csv"}
