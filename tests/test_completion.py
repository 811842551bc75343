"""Open rows are completed by the fastest plan that fits, and their interval covers the others."""

import csv
from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale._resources import run_tables
from jaxscale.completion import _filled, best_and_near, open_questions

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


def table(path: Path, *changes: dict[str, str]) -> js.Runs:
    """Rows that are the full one with changes."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(FULL))
        writer.writeheader()
        writer.writerows({**FULL, **change} for change in changes)
    return js.read_runs(path)


OPEN = {"tp": "", "pp": "", "dp": "", "micro_batch_size": ""}


@pytest.fixture(scope="module")
def prediction(tmp_path_factory: pytest.TempPathFactory) -> js.Prediction:
    """A full row, open ones, and ones that no plan completes."""
    runs = table(
        tmp_path_factory.mktemp("open") / "runs.csv",
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
    assert prediction.assumed[1].startswith("micro_batch_size = ")
    assert all(f"{name} = " in prediction.assumed[2] for name in ("tp", "pp", "dp", "micro_batch_size"))
    assert "global_batch_size_seqs = " in prediction.assumed[3]
    assert prediction.assumed[4] == "" and "pp is empty: taken as 1" in prediction.notes[4]


def test_more_freedom_is_no_slower_and_less_certain(prediction: js.Prediction):
    """Every plan of the full row is among those of the open ones: the time over the chance that it fits only falls."""
    stated, less, least = prediction.step_time[:3] / (1.0 - prediction.oom_probability[:3])
    assert least <= less * (1 + 1e-6) <= stated * (1 + 2e-6)
    width = prediction.hi / prediction.lo
    assert width[2] > width[0]


def test_what_was_completed_predicts_the_same(tmp_path: Path, prediction: js.Prediction):
    cells = dict(part.split(" = ") for part in prediction.assumed[2].split(", "))
    again = js.predict(table(tmp_path / "again.csv", cells), fit="prior")
    np.testing.assert_allclose(again.step_time[0], prediction.step_time[2], rtol=1e-6)


def test_what_breaks_a_rule_in_every_completion_is_answered_with_a_note(tmp_path: Path):
    """As a row that states the same in full would be."""
    stated = {"tp": "2", "pp": "2", "dp": "4", "zero_stage": "3", "micro_batch_size": "", "activation_recompute": ""}
    found = js.predict(table(tmp_path / "runs.csv", stated), fit="prior")
    assert found.step_time[0] > 0.0 and "micro_batch_size = " in found.assumed[0]
    assert "they need pp = 1" in found.notes[0]


def test_some_risk_is_taken_for_a_gain():
    """Of t / (1 - p): 10 / 0.8 before 12 / 1 only where the risk is small; plans that do not fit come last."""
    assert best_and_near(np.array([10.0, 12.0]), np.array([0.1, 0.0])).best == 0
    assert best_and_near(np.array([10.0, 12.0]), np.array([0.2, 0.0])).best == 1
    assert best_and_near(np.array([1.0, 12.0]), np.array([0.6, 0.4])).best == 1
    assert best_and_near(np.array([1.0, 12.0]), np.array([0.9, 0.6])).best == 1
    near = best_and_near(np.array([10.0, 9.0, 14.0, 16.0, 2.0]), np.array([0.0, 0.3, 0.0, 0.0, 0.9]))
    assert (near.best, near.fastest, near.slowest) == (0, 0.9, 1.4)


def test_rows_that_ask_the_same_share_their_candidates(tmp_path: Path):
    once = open_questions(table(tmp_path / "a.csv", OPEN), np.ones(1, dtype=bool))
    twice = open_questions(table(tmp_path / "b.csv", OPEN, OPEN), np.ones(2, dtype=bool))
    assert once is not None and twice is not None
    assert len(once.owner) == len(twice.owner) and len(twice.rows) == 2
    assert open_questions(table(tmp_path / "c.csv", {}), np.zeros(1, dtype=bool)) is None


def test_every_candidate_agrees_with_its_row(tmp_path: Path):
    tried = open_questions(table(tmp_path / "runs.csv", {**OPEN, "tp": "4"}), np.ones(1, dtype=bool))
    assert tried is not None
    values = tried.values
    np.testing.assert_array_equal(values["tp"], 4.0)
    np.testing.assert_array_equal(values["dp"] * values["tp"] * values["pp"] * values["cp"], 16.0)
    np.testing.assert_array_equal(values["global_batch_size_seqs"] % (values["dp"] * values["micro_batch_size"]), 0.0)


TABLES = ("mlperf_llm_training", "mosaic_llm_foundry", "nvidia_dgxc_benchmarking", "nvidia_nemo_perf_summary")


def test_degrees_that_are_hidden_are_found_again():
    """Where somebody chose the degrees, the completed plan takes as long within 10 % in at least 70 % of the rows."""
    near, held, near_by_chance = [], [], []
    for name in TABLES:
        runs = js.read_runs(run_tables()[name])
        stated = js.predict(runs)
        is_whole = np.isfinite(stated.step_time) & np.isfinite(stated.measured) & (stated.assumed == "")
        rows = np.flatnonzero(is_whole & np.isfinite(runs.numbers("tp")) & (runs.numbers("n_gpus") > 1))
        rows = rows[np.linspace(0, len(rows) - 1, 30).astype(int)]
        hidden = {column: np.full(len(rows), np.nan) for column in ("tp", "pp", "cp", "ep", "dp")}
        open_rows = _filled(runs.take(rows), hidden)
        found = js.predict(open_rows)
        assert np.isfinite(found.step_time).all()
        near += list(np.abs(np.log(found.step_time / stated.step_time[rows])) <= np.log(1.1))
        held += list((found.lo <= stated.measured[rows]) & (stated.measured[rows] <= found.hi))
        tried = open_questions(open_rows, np.ones(len(rows), dtype=bool))
        assert tried is not None
        times, asked = js.predict(tried.runs).step_time, np.empty(tried.question.max() + 1)
        asked[tried.question] = stated.step_time[rows][tried.rows]
        near_by_chance += list(np.abs(np.log(times / asked[tried.owner])) <= np.log(1.1))
    assert np.mean(near) >= 0.7 and np.mean(held) >= 0.8
    assert np.nanmean(near_by_chance) < 0.4
