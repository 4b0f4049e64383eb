"""`autotune trace`: the format, what it holds, and PyTorch's memory snapshot."""

from __future__ import annotations

import gzip
import json
import pickle

import pytest

from autotune.__main__ import main
from autotune.trace.chrome import StepTrace, stage_ranks
from autotune.trace.snapshot import fullest_rank, snapshot
from simcore.events import simulate_step
from simcore.inputs.load import load_model, load_system
from simcore.inputs.strategy import Strategy
from simcore.prediction import predict

DENSE = {"gpus": 64, "tp": 8, "pp": 4, "gbs": 32}
MOE = {"gpus": 64, "pp": 4, "ep": 8, "vpp": 2, "gbs": 128, "recompute": "moe_act",
       "mtp": 1}


def step_of(model="llama3-70b", system="h100-sxm", **fields):
    return simulate_step(predict(load_model(model), load_system(system), Strategy(**fields)))


def run(capsys, *arguments):
    status = main(["trace", *arguments])
    return status, capsys.readouterr()


@pytest.mark.parametrize(("model", "fields"), [("llama3-70b", DENSE), ("deepseek-v3", MOE)])
def test_events_follow_the_format(model, fields):
    """Google's "Trace Event Format": what each phase needs, times that are not negative, slices
    of a track that nest, flows whose two ends meet."""
    step = step_of(model, "b200-sxm", **fields)
    events = [json.loads(line) for line in StepTrace(step, range(64), max_events=60_000).lines()]
    needs = {"X": {"name", "cat", "pid", "tid", "ts", "dur"}, "M": {"name", "pid", "args"},
             "C": {"name", "pid", "ts", "args"}, "s": {"id", "pid", "tid", "ts", "name"},
             "f": {"id", "pid", "tid", "ts", "name", "bp"}}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert needs[event["ph"]] <= set(event), event
        assert min(event.get("ts", 0), event.get("dur", 0)) >= 0
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort(key=lambda s: (s[0], -s[1]))
        for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
            assert start >= end - 1e-3
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts
    assert starts.keys() == ends.keys()
    assert all(starts[i]["ts"] <= ends[i]["ts"] for i in starts)
    assert {e["pid"] for e in events} == set(range(64))
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert last == pytest.approx(step.end_s * 1e6)


def test_arrows_join_neighbouring_stages_of_one_group():
    step = step_of(**DENSE)
    trace = StepTrace(step, range(64), max_events=60_000)
    lines = [json.loads(line) for line in trace.lines()]
    by_id = {}
    for event in lines:
        if event["ph"] in "sf":
            by_id.setdefault(event["id"], {})[event["ph"]] = event["pid"]
    # tp-cp-dp-pp order: the stages of one pipeline are tp*dp = 16 ranks apart.
    assert {abs(pair["s"] - pair["f"]) for pair in by_id.values()} == {16}
    assert stage_ranks(step) == (0, 16, 32, 48)


def test_the_memory_counter_reaches_the_predicted_peak():
    step = step_of(**DENSE)
    events = [json.loads(line) for line in StepTrace(step, stage_ranks(step)).lines()]
    most = max(e["args"]["allocated"] for e in events
               if e["ph"] == "C" and e["name"] == "memory GiB")
    assert most == pytest.approx(step.prediction["peak_memory_bytes"] / 2**30, abs=1e-4)


def test_detail_is_given_up_before_the_bound_is_broken():
    step = step_of(**DENSE)
    small = StepTrace(step, stage_ranks(step), max_events=1500)
    large = StepTrace(step, stage_ranks(step))
    assert small.plan.opened < large.plan.opened == 16
    assert sum(1 for _ in small.lines()) <= 1500
    with pytest.raises(ValueError, match="over the limit of 1000"):
        StepTrace(step, range(64), max_events=1000)


@pytest.mark.parametrize(("model", "fields"), [("llama3-70b", DENSE), ("deepseek-v3", MOE)])
def test_a_snapshot_allocates_up_to_the_predicted_peak(model, fields):
    step = step_of(model, "b200-sxm", **fields)
    events = snapshot(step, fullest_rank(step))["device_traces"][0]
    held = most = 0
    alive = {}
    for event in events:
        if event["action"] == "alloc":
            alive[event["addr"]] = event["size"]
            held += event["size"]
        elif event["action"] == "free_completed":
            held -= alive.pop(event["addr"])
        most = max(most, held)
    # Each tensor is rounded to whole bytes.
    assert most == pytest.approx(step.prediction["peak_memory_bytes"], abs=1e4)


@pytest.mark.oracle
def test_pytorch_reads_the_snapshot(tmp_path):
    pytest.importorskip("torch", reason="needs torch")
    from torch.cuda import _memory_viz

    step = step_of(**DENSE)
    data = pickle.loads(pickle.dumps(snapshot(step, fullest_rank(step))))
    assert "<html" in _memory_viz.trace_plot(data).lower()
    assert f"{len(data['device_traces'][0])} entries" in _memory_viz.trace(data)


def test_the_command_writes_and_tells(tmp_path, capsys):
    out = tmp_path / "t.json.gz"
    picked = tmp_path / "m.pickle"
    status, said = run(capsys, "--model", "llama70b", "--gpus", "64", "--tp", "8", "--pp", "4",
                       "--gbs", "32", "--out", str(out), "--memory-snapshot", str(picked),
                       "--format", "json")
    assert status == 0
    told = json.loads(said.out)
    with gzip.open(out, "rt") as stream:
        written = json.load(stream)
    assert told["events"] == len(written["traceEvents"])
    assert written["otherData"]["strategy"]["tp"] == 8
    assert pickle.loads(picked.read_bytes())["segments"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.pickle", "t.json.gz"]


@pytest.mark.parametrize(("options", "words"), [
    (["--ranks", "0-99"], "not within 0 to 63"), (["--ranks", "x"], "stages, all or a list"),
    (["--ranks", "-1"], "must be stages"), (["--max-events", "5"], "--max-events"),
    (["--max-events", "200"], "Draw fewer ranks"), (["--out", "/nowhere/t.json"], "--out"),
    (["--tp", "7"], "tp"), (["--memory-snapshot", "/nowhere/m"], "--memory-snapshot")])
def test_bad_input_is_told(options, words, tmp_path, capsys):
    arguments = ["--model", "llama70b", "--gpus", "64", "--tp", "8", "--pp", "4", "--gbs", "32"]
    if "--out" not in options:
        arguments += ["--out", str(tmp_path / "t.json")]
    status, said = run(capsys, *arguments, *options)
    assert status == 2
    assert words in said.err


def test_too_many_ranks_fall_back_to_one_a_stage(tmp_path, capsys):
    out = tmp_path / "t.json"
    status, said = run(capsys, "--model", "llama70b", "--gpus", "8192", "--tp", "8", "--pp", "4",
                       "--ranks", "all", "--out", str(out), "--format", "json")
    assert status == 0
    assert "one rank of each pipeline stage" in said.err
    assert json.loads(said.out)["ranks"] == 4
