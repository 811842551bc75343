"""`jaxscale predict`: columns, JSON, and that nothing measured steers a prediction."""

import csv

import pytest
from cli_tables import read_rows, write_rows

from jaxscale.base.documents import data_path
from jaxscale.costs.step import StepTime

MEASURED = (
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "peak_mem_gb",
    "status",
    "step_time_derived",
)
FIGURES = (
    *("step_time_s", "step_time_lo_s", "step_time_hi_s", "memory_gb", "memory_lo_gb", "memory_hi_gb"),
    *("fits", "oom_probability", "tokens_per_s", "mfu", "plan", "assumed", "note"),
)
ADDED = (*(f"predicted_{name}" for name in FIGURES), *(f"term_{name}_s" for name in StepTime.__dataclass_fields__))


@pytest.fixture(scope="module")
def shipped():
    """Sixty rows of a shipped table, some of them incomplete."""
    with data_path("runs/bigscience_bloom_a100.csv").open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))[:60]


def predicted(run, path, out, *more):
    outcome = run("predict", path, "--fit", "prior", "--out", out, *more)
    assert outcome.code == 0, outcome.err
    return read_rows(out)


def test_measured_rows_that_cannot_be_are_told(run, shipped, tmp_path):
    """One measured time in milliseconds: the errors would be read as the model's."""
    rows = [
        {**row, "step_time_s": str(float(row["step_time_s"] or 10.0) / (1000.0 if i == 3 else 1.0))}
        for i, row in enumerate(shipped[:8])
    ]
    outcome = run("predict", write_rows(tmp_path / "runs.csv", rows), "--fit", "prior")
    assert outcome.code == 0 and "check that step_time_s is in seconds" in outcome.err
    planned = [{**row, **dict.fromkeys(MEASURED, "")} for row in rows]
    assert "step_time_s" not in run("predict", write_rows(tmp_path / "planned.csv", planned), "--fit", "prior").err


def test_output_keeps_every_column_and_adds_the_predictions(run, shipped, tmp_path):
    path = write_rows(tmp_path / "runs.csv", [{**row, "my_own_column": str(i)} for i, row in enumerate(shipped)])
    rows = predicted(run, path, tmp_path / "out.csv")
    assert list(rows[0]) == [*shipped[0], "my_own_column", *ADDED]
    assert [row["my_own_column"] for row in rows] == [str(i) for i in range(60)]
    assert all(row[name] == before[name] for row, before in zip(rows, shipped, strict=True) for name in before)


def test_predictions_hang_together(run, shipped, tmp_path):
    rows = predicted(run, write_rows(tmp_path / "runs.csv", shipped), tmp_path / "out.csv")
    answered = [row for row in rows if row["predicted_step_time_s"]]
    assert 10 < len(answered) < 60
    for row in answered:
        time = float(row["predicted_step_time_s"])
        assert float(row["predicted_step_time_lo_s"]) < time < float(row["predicted_step_time_hi_s"])
        assert sum(float(row[name]) for name in ADDED if name.startswith("term_")) == pytest.approx(time, rel=1e-5)
        assert row["predicted_fits"] in ("true", "false")
        assert 0.0 <= float(row["predicted_oom_probability"]) <= 1.0
        assert float(row["predicted_memory_gb"]) > 1.0
    for row in rows:
        if row not in answered:
            assert row["predicted_note"].startswith("missing ")
            assert row["predicted_fits"] == ""


def test_no_measured_column_is_read(run, shipped, tmp_path):
    """Blank measurements give the same predictions; another tensor-parallel degree does not."""
    blank = [{name: "" if name in MEASURED else cell for name, cell in row.items()} for row in shipped]
    before = predicted(run, write_rows(tmp_path / "runs.csv", shipped), tmp_path / "out.csv")
    after = predicted(run, write_rows(tmp_path / "blank.csv", blank), tmp_path / "blank_out.csv")
    assert [[row[name] for name in ADDED] for row in before] == [[row[name] for name in ADDED] for row in after]
    moved = [{**row, "tp": "4", "dp": "", "n_microbatches": ""} if row["tp"] == "8.0" else row for row in blank]
    changed = predicted(run, write_rows(tmp_path / "moved.csv", moved), tmp_path / "moved_out.csv")
    both = [
        (row["predicted_step_time_s"], other["predicted_step_time_s"])
        for row, other, plan in zip(before, changed, moved, strict=True)
        if plan["tp"] == "4" and row["predicted_step_time_s"]
    ]
    assert both
    assert all(first != second for first, second in both)


def test_a_second_prediction_replaces_the_first(run, table, tmp_path):
    predicted(run, table({}), tmp_path / "once.csv")
    once, twice = (tmp_path / name for name in ("once.csv", "twice.csv"))
    predicted(run, once, twice)
    assert once.read_text() == twice.read_text()


def test_json_where_runs_were_measured(run, table):
    outcome = run("predict", table({}, {"tp": "4", "dp": "2"}, {"seq_len": ""}), "--fit", "prior", "--json")
    assert outcome.code == 0
    document = outcome.json
    assert {"n", "mape", "median_ape", "p90_ape", "coverage_90", "oom_accuracy", "by"} <= set(document)
    assert document["n"] == 2
    assert (document["n_rows"], document["n_predicted"], document["n_skipped"]) == (3, 2, 0)
    assert document["mape"] > 0.0
    assert document["oom_accuracy"] is None
    assert document["by"]["gpu"]["a100-80gb"]["n"] == 2
    assert "1 of 3 rows are incomplete" in outcome.err
    first, second, third = (row["predicted_step_time_s"] for row in document["predictions"])
    assert first > 0.0 and second > 0.0 and third is None
    terms = {name: value for name, value in document["predictions"][0].items() if name.startswith("term_")}
    assert sum(terms.values()) == pytest.approx(first, rel=1e-6)


def test_json_where_nothing_was_measured(run, table):
    document = run("predict", table({}, without=["step_time_s"]), "--fit", "prior", "--json").json
    assert (document["n"], document["mape"], document["coverage_90"]) == (0, None, None)


def test_without_out_and_json_a_table_is_printed(run, table):
    outcome = run("predict", table(*[{}] * 25), "--fit", "prior")
    assert "first 20 of 25 rows" in outcome.out
    assert "Error of step time where it was measured" in outcome.out
    planned = run("predict", table({}, without=["step_time_s"]), "--fit", "prior")
    assert "Error of step time" not in planned.out


def test_a_column_that_may_be_misspelt_is_told(run, table):
    outcome = run("predict", table({"zero_stag": "3"}), "--fit", "prior")
    assert "column 'zero_stag' is not read (is 'zero_stage' meant?)" in outcome.err
    assert "is not read" not in run("predict", table({}), "--fit", "prior").err


def test_skip_bad_drops_rows_and_says_how_many(run, table):
    path = table({}, {"tp": "x"})
    assert run("predict", path, "--fit", "prior").code == 2
    outcome = run("predict", path, "--fit", "prior", "--skip-bad", "--json")
    assert outcome.json["n_skipped"] == 1
    assert "1 bad rows dropped, 1 kept" in outcome.err


def test_a_table_of_incomplete_rows_alone_is_answered_with_reasons(run, table, tmp_path):
    rows = predicted(run, table({"seq_len": ""}), tmp_path / "out.csv")
    assert rows[0]["predicted_note"] == "missing seq_len"


def test_unknown_fit(run, table):
    outcome = run("predict", table({}), "--fit", "nope")
    assert outcome.code == 2
    assert "fit 'nope' is not shipped" in outcome.err


def test_a_launch_file_in_place_of_a_table_is_told_apart(run, tmp_path):
    recipe = tmp_path / "recipe.sh"
    recipe.write_text("torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1\n")
    outcome = run("predict", recipe)
    assert outcome.code == 2 and "a launch file or log is read by `jaxscale read`" in outcome.err
    table = tmp_path / "runs.csv"
    table.write_text("model,gpu\nllama3-8b,h100-80gb\n")
    assert "jaxscale read" not in run("predict", table).err
