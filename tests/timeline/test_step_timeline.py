"""Timelines of predicted steps: they end when the step ends, and viewers can draw them."""

import json

import numpy as np
import pytest

import jaxscale as js
from jaxscale.cli.main import main

PLANS = {
    "one stage": {"dp": 8},
    "1f1b": {"dp": 2, "tp": 2, "pp": 4, "n_microbatches": 8},
    "gpipe": {"pp": 4, "n_microbatches": 8, "schedule": "gpipe"},
    "interleaved": {"dp": 2, "tp": 4, "pp": 4, "vpp": 4, "n_microbatches": 8},
    "zero-bubble": {"tp": 2, "pp": 8, "n_microbatches": 16, "schedule": "zero-bubble"},
}


@pytest.mark.parametrize("name", PLANS)
def test_the_last_event_ends_with_the_step(name: str):
    plan = js.Plan(**PLANS[name])
    timeline = js.timeline.step_timeline("llama3-8b", plan, "h100-80gb")
    assert timeline.makespan == pytest.approx(float(js.step_time("llama3-8b", plan, "h100-80gb").total), rel=1e-6)
    # A last stage that is heavier leaves ZB-H1 a little less to fill than the closed form says.
    assert timeline.stretch == pytest.approx(1.0, rel=0.01 if name == "zero-bubble" else 1e-6)
    slower = js.timeline.step_timeline("llama3-8b", js.Plan(**{**PLANS[name], "recompute": "full"}), "h100-80gb")
    assert slower.makespan > timeline.makespan


def test_dual_pipe_ends_with_the_step():
    plan = js.Plan(dp=8, pp=4, ep=8, n_microbatches=16, schedule="dualpipe")
    timeline = js.timeline.step_timeline("deepseek-v3", plan, "h800-80gb")
    assert timeline.makespan == pytest.approx(float(js.step_time("deepseek-v3", plan, "h800-80gb").total), rel=1e-6)
    assert timeline.stretch == pytest.approx(1.0, rel=0.03)


def test_a_file_is_what_viewers_draw(tmp_path, capsys):
    """Complete events with times in microseconds; those of one row stand one after the other."""
    path = tmp_path / "step.json"
    words = "predict --model llama3-8b --gpu h100-80gb --n-gpus 16 --global-batch 64 --set pp=4 --set tp=2 --json"
    assert main([*words.split(), "--timeline", str(path)]) == 0
    predicted = json.loads(capsys.readouterr().out)["predictions"][0]
    document = json.loads(path.read_text())
    drawn = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert {event["ph"] for event in document["traceEvents"]} == {"X", "M"}
    assert max(event["ts"] + event["dur"] for event in drawn) == pytest.approx(
        1e6 * predicted["predicted_step_time_s"], rel=1e-5
    )
    rows = {(event["pid"], event["tid"]) for event in drawn}
    named = {(event["pid"], event["tid"]) for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert rows <= named and {pid for pid, _ in rows} == {0, 1, 2, 3}
    for row in rows:
        own = sorted((event["ts"], event["dur"]) for event in drawn if (event["pid"], event["tid"]) == row)
        starts, lengths = np.asarray(own).T
        assert (lengths > 0).all() and starts[0] >= 0
        assert (starts[1:] >= starts[:-1] + lengths[:-1] - 1e-3).all()
    # Collectives of tensor parallelism run beside passes, and none does without it.
    assert {event["name"] for event in drawn if event["tid"] == 1} >= {"tensor_parallel"}
    # What is exposed adds up to the term, on the first rank or, where that has less to do, on the mean rank.
    exposed = np.zeros(4)
    for event in drawn:
        if event["name"] == "tensor_parallel":
            exposed[event["pid"]] += event["args"]["exposed_s"]
    assert max(exposed[0], exposed.mean()) == pytest.approx(predicted["term_tensor_parallel_s"], rel=1e-5)


def test_a_table_of_several_runs_and_a_traced_workload_are_refused(tmp_path, capsys):
    table = tmp_path / "runs.csv"
    table.write_text("model,gpu,n_gpus,global_batch_size_seqs,seq_len\n" + "llama3-8b,h100-80gb,8,64,8192\n" * 2)
    assert main(["predict", str(table), "--timeline", str(tmp_path / "step.json")]) == 2
    assert "--timeline shows one run; found 2 rows" in capsys.readouterr().err
    with pytest.raises(js.InputError, match="expected at most 200,000"):
        js.timeline.step_timeline("llama3-8b", js.Plan(pp=8, n_microbatches=10**6), "h100-80gb")
