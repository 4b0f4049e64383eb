"""`autotune compare`, and pictures in the terminal."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from autotune.__main__ import main
from autotune.report.pictures import bar, heat_map, memory_bar, signed_bar, timeline
from simcore.events import simulate_step
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict

BASE = ["--model", "llama70b", "--gpus", "64", "--pp", "4", "--gbs", "64"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    (folder / "a.yaml").write_text("model: llama70b\ngpus: 64\ntp: 8\npp: 4\ngbs: 64\n")
    found = predict(load_model("llama70b"), load_system("h100-sxm"),
                    Strategy(gpus=64, tp=4, pp=4, gbs=64, recompute="full")).to_dict()
    (folder / "b.json").write_text(json.dumps(found))
    assert main(["search", "--model", "llama70b", "--gpus", "64", "--tp", "4,8", "--out",
                 str(folder / "s"), "--format", "json"]) == 0
    return folder


def compared(capsys, *sources):
    assert main(["compare", *map(str, sources), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_differences_are_those_of_the_predictions(files, capsys):
    found = compared(capsys, files / "a.yaml", files / "b.json")
    assert found["fields"]["tp"] == [8, 4]
    assert found["fields"]["recompute"] == ["none", "full"]
    assert "gbs" not in found["fields"]
    a, b = found["sides"]
    assert b["step_time_pct"] == pytest.approx(100 * (b["step_time_s"] / a["step_time_s"] - 1))
    for i, side in enumerate(found["sides"]):
        spent = sum(values[i] for values in found["time"].values())
        assert spent == pytest.approx(side["step_time_s"])
        assert found["memory"]["peak_memory_gib"][i] == pytest.approx(side["peak_memory_gib"])


def test_results_of_a_search_and_their_ranks(files, capsys):
    ranked = json.loads((files / "s" / "summary.json").read_text())["ranked"]
    found = compared(capsys, files / "s", f"{files / 's'}#3",
                     files / "s" / "top" / "3" / "strategy.yaml")
    times = [s["step_time_s"] for s in found["sides"]]
    assert times == pytest.approx([ranked[0]["step_time_s"], *[ranked[2]["step_time_s"]] * 2],
                                  rel=1e-12)


def test_the_table_names_each_side(files, capsys):
    assert main(["compare", str(files / "a.yaml"), str(files / "b.json")]) == 0
    out = capsys.readouterr().out
    assert "What differs" in out
    assert "a.yaml" in out
    assert "recompute" in out


@pytest.mark.parametrize(("sources", "words"), [
    (["a.yaml"], "two to 20"), (["a.yaml", "none.yaml"], "does not exist"),
    (["a.yaml", "s#99"], "ranks 1 to"), (["a.yaml", "s#x"], "no rank"),
    (["a.yaml", "bad.json"], "is no prediction"), (["a.yaml", "."], "summary.json")])
def test_bad_sources_are_told(files, sources, words, capsys, monkeypatch):
    monkeypatch.chdir(files)
    (files / "bad.json").write_text('{"step_time_s": 1}')
    assert main(["compare", *sources]) == 2
    assert words in capsys.readouterr().err


def test_bars_are_as_long_as_their_value():
    assert bar(0.5, 1.0, 10).plain == "█████"
    assert bar(1 / 80, 1.0, 10).plain == "▏"
    assert bar(5.0, 1.0, 4).plain == "████"
    assert signed_bar(-1.0, 2.0, 4).plain == "  ██│"
    assert signed_bar(2.0, 2.0, 4).plain == "    │████"


def test_a_memory_bar_shows_each_part_in_proportion():
    stage = {"weights_gib": 10, "gradients_gib": 20, "optimizer_gib": 0, "activations_gib": 30,
             "temporaries_gib": 0}
    assert memory_bar(stage, 80, 8).plain == "█▓▓░░░··"


def test_the_timeline_shows_when_each_rank_starts():
    """1F1B: rank r starts r forwards later, and the last alternates from its first backward."""
    step = simulate_step(predict(load_model("llama70b"), load_system("h100-sxm"),
                                 Strategy(gpus=64, tp=8, pp=4, gbs=8)))
    lines = [line.plain for line in timeline(step, 400)]
    starts = [line.index("F") for line in lines]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert starts[3] > 2 * starts[1] > 0
    first = lines[3].strip("·")
    assert first.startswith("F")
    assert first.rstrip("B").count("FB") == 3


def test_the_map_keeps_the_best_of_a_cell():
    cells = [{"tp": 1, "pp": 2, "v": 5.0}, {"tp": 1, "pp": 2, "v": 10.0},
             {"tp": 2, "pp": 4, "v": 9.0}]
    heads, rows = heat_map(cells, rows="tp", columns="pp", value="v")
    assert heads == ["pp2", "pp4"]
    assert rows == [["tp2", "", "90% ▒▒"], ["tp1", "100% ██", ""]]


def test_pictures_honour_no_colour_and_width(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["predict", *BASE, "--tp", "8", "--pictures"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[" not in out
    drawn = out[out.index("Memory of each stage"):]
    assert max(map(len, drawn.splitlines())) <= 80
    assert drawn.count("░") > 4
    assert Console(width=80).width == 80


def test_json_stays_alone_with_pictures(capsys):
    assert main(["predict", *BASE, "--tp", "8", "--pictures", "--format", "json"]) == 0
    json.loads(capsys.readouterr().out)
