"""Open rows are completed by the fastest plan that fits, and their interval covers the others."""

from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import run_tables
from jaxscale.calibration.memory_limit import best_and_near
from jaxscale.plans.plan_questions import every_plan
from jaxscale.runs.completion import open_rows
from jaxscale.tables.categorical import Categorical

FULL = {
    "model": "llama3-8b",
    "gpu": "h100-80gb",
    "n_gpus": "16",
    "seq_len": "4096",
    "tp": "2",
    "pp": "1",
    "dp": "8",
    "zero_stage": "1",
    "micro_batch_size": "1",
    "global_batch_size_seqs": "64",
    "activation_recompute": "full",
}


def table(*changes: dict[str, str]) -> js.Runs:
    """Rows that are the full one with changes."""
    return js.read_runs([{**FULL, **change} for change in changes])


OPEN = {"tp": "", "pp": "", "dp": "", "micro_batch_size": ""}


@pytest.fixture(scope="module")
def prediction() -> js.Prediction:
    """A full row, open ones, and ones that no plan completes."""
    runs = table(
        {},
        {"micro_batch_size": ""},
        OPEN,
        {**OPEN, "global_batch_size_seqs": ""},
        {"tp": "8", "dp": "", "pp": "", "micro_batch_size": "2"},
        {**OPEN, "gpu": ""},
        {**OPEN, "seq_len": ""},
    )
    return js.predict(runs, fit="prior")


def test_all_rows_with_a_model_a_chip_a_count_and_a_length_are_answered(prediction: js.Prediction):
    assert (prediction.step_time[:5] > 0.0).all()
    assert np.isnan(prediction.step_time[5:]).all()
    assert "missing gpu" in prediction.notes[5] and "missing" in prediction.notes[6]


def test_completed_values_are_told(prediction: js.Prediction):
    assert prediction.assumed[0] == ""
    assert "micro_batch_size = " in prediction.assumed[1] and "tp = " not in prediction.assumed[1]
    assert all(f"{name} = " in prediction.assumed[2] for name in ("tp", "pp", "dp", "micro_batch_size"))
    assert "global_batch_size_seqs = " in prediction.assumed[3]
    assert prediction.assumed[4] == "" and "pp is empty: taken as 1" in prediction.notes[4]


def test_more_freedom_is_no_slower_and_less_certain(prediction: js.Prediction):
    """Every plan of the full row is among those of the open ones, of which the fastest that fits is taken."""
    stated, less, least = prediction.step_time[:3]
    assert (prediction.oom_probability[:3] <= 0.1).all()
    assert least <= less * (1 + 1e-6) <= stated * (1 + 2e-6)
    width = prediction.hi / prediction.lo
    assert width[2] > width[0]


def test_what_was_completed_predicts_the_same(prediction: js.Prediction):
    cells = dict(part.split(" = ") for part in prediction.assumed[2].split(", "))
    again = js.predict(table(cells), fit="prior")
    np.testing.assert_allclose(again.step_time[0], prediction.step_time[2], rtol=1e-6)


def test_intervals_reach_to_the_faster_plans_where_none_is_safe():
    tight = {"model": "llama2-13b", "n_gpus": "4", "seq_len": "2048", "zero_stage": "", "activation_recompute": ""}
    found = js.predict(table({**OPEN, **tight}), fit="prior")
    cells = dict(part.split(" = ") for part in found.assumed[0].split(", "))
    stated = js.predict(table({**tight, **cells}), fit="prior")
    assert found.oom_probability[0] > 0.1 and found.step_time[0] == pytest.approx(stated.step_time[0], rel=1e-6)
    assert found.lo[0] < 0.95 * stated.lo[0] and found.hi[0] > 1.05 * stated.hi[0]


def test_what_breaks_a_rule_in_every_completion_is_answered_with_a_note():
    """As a row that states the same in full would be."""
    stated = {"tp": "2", "pp": "2", "dp": "4", "zero_stage": "3", "micro_batch_size": "", "activation_recompute": ""}
    found = js.predict(table(stated), fit="prior")
    assert found.step_time[0] > 0.0 and "micro_batch_size = " in found.assumed[0]
    assert "it needs pp = 1" in found.notes[0]


@pytest.mark.parametrize(
    "stated", [{"ep": "6"}, {"ep": "16"}, {"ep": "8", "n_gpus": "60", "global_batch_size_seqs": ""}]
)
def test_expert_ranks_that_divide_no_experts_are_answered_with_a_note(stated: dict[str, str]):
    found = js.predict(table({**OPEN, "model": "mixtral-8x7b", "n_gpus": "64", **stated}), fit="prior")
    cells = dict(part.split(" = ") for part in found.assumed[0].split(", "))
    chips = np.prod([float(cells.get(name, "1")) for name in ("dp", "tp", "pp", "cp")])
    assert found.step_time[0] > 0.0 and chips == float(stated.get("n_gpus", "64"))
    assert f"predicted although ep = {stated['ep']} must divide" in found.notes[0]


def test_the_fastest_with_the_accepted_risk_is_taken_and_some_more_risk_where_none_has_it():
    """Of t / (1 - p): 10 / 0.7 before 12 / 0.6, where no plan is safe; plans that do not fit come last."""
    assert best_and_near(np.array([10.0, 12.0]), np.array([0.1, 0.0])).best == 0
    assert best_and_near(np.array([10.0, 12.0]), np.array([0.2, 0.0])).best == 1
    assert best_and_near(np.array([10.0, 12.0]), np.array([0.3, 0.4])).best == 0
    assert best_and_near(np.array([1.0, 12.0]), np.array([0.6, 0.4])).best == 1
    assert best_and_near(np.array([1.0, 12.0]), np.array([0.9, 0.6])).best == 1
    near = best_and_near(np.array([10.0, 9.0, 14.0, 16.0, 2.0]), np.array([0.0, 0.3, 0.0, 0.0, 0.9]))
    assert (near.best, near.fastest, near.slowest) == (0, 1.0, 1.4)


def asked(*changes: dict[str, str]):
    """Open rows of a table."""
    return open_rows(table(*changes), np.ones(len(changes), dtype=bool))


def test_rows_that_ask_the_same_share_their_question():
    once, twice = asked(OPEN), asked(OPEN, OPEN)
    assert once is not None and twice is not None
    assert len(once.questions) == len(twice.questions) == 1 and len(twice.rows) == 2
    assert open_rows(table({}), np.zeros(1, dtype=bool)) is None


def test_every_candidate_agrees_with_its_row():
    found = asked({**OPEN, "tp": "4"})
    assert found is not None
    (plans,) = every_plan([found.questions[0].task(js.load_fit("prior"))])
    c = plans.table.columns
    assert set(c["tp"]) == {4} and set(c["zero_stage"]) == {1} and set(c["recompute_full"]) == {1.0}
    np.testing.assert_array_equal(c["dp"] * c["tp"] * c["pp"] * c["cp"], 16)
    np.testing.assert_array_equal(c["dp"] * c["micro_batch_size"] * c["n_microbatches"], 64)
    assert len(set(c["micro_batch_size"])) > 1 and len(set(c["vpp"])) > 1


def test_a_column_that_is_not_there_is_a_column_of_empty_cells(tmp_path: Path):
    path = tmp_path / "short.csv"
    path.write_text("model,gpu,n_gpus,global_batch_size_seqs,seq_len\nllama3-8b,h100-80gb,64,512,8192\n")
    found = js.predict(path)
    best = js.best_plan("llama3-8b", "h100-80gb", 512, n_chips=64).best
    np.testing.assert_allclose(found.step_time, best.step_time, rtol=1e-6)
    np.testing.assert_allclose(found.memory, best.memory, rtol=1e-6)
    np.testing.assert_allclose(found.oom_probability, best.oom_probability, rtol=1e-4)


TABLES = ("mlperf_llm_training", "mosaic_llm_foundry", "nvidia_dgxc_benchmarking", "nvidia_nemo_perf_summary")


def test_degrees_that_are_hidden_are_found_again():
    """Where somebody chose the degrees, the completed plan takes as long within 10 % in at least 70 % of the rows."""
    near, held = [], []
    for name in TABLES:
        runs = js.read_runs(run_tables()[name])
        stated = js.predict(runs)
        is_whole = np.isfinite(stated.step_time) & np.isfinite(stated.measured) & (stated.assumed == "")
        rows = np.flatnonzero(is_whole & np.isfinite(runs.numbers("tp")) & (runs.numbers("n_gpus") > 1))
        rows = rows[np.linspace(0, len(rows) - 1, 30).astype(int)]
        empty = Categorical.constant(None, len(rows))
        found = js.predict(runs.take(rows).with_values(dict.fromkeys(("tp", "pp", "cp", "ep", "dp"), empty)))
        assert np.isfinite(found.step_time).all()
        ratio = found.step_time / stated.step_time[rows]
        near += list(np.abs(np.log(ratio)) <= np.log(1.1))
        held += list((found.lo <= stated.measured[rows]) & (stated.measured[rows] <= found.hi))
    assert np.mean(near) >= 0.7 and np.mean(held) >= 0.8
