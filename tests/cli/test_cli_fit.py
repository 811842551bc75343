"""`jaxscale fit`: a calibration from a few runs, its JSON, and the way back through a file."""

import pytest
from cli_tables import read_rows

SIZES = ((4, 1, 16), (2, 2, 16), (1, 2, 32), (8, 1, 16), (2, 1, 64), (4, 2, 64), (2, 4, 32), (1, 1, 64))


@pytest.fixture
def measured(table, run, tmp_path):
    """A table whose measured times are those that the priors predict, a fifth longer."""
    plans = [
        {"tp": str(tp), "pp": str(pp), "dp": str(16 // (tp * pp)), "global_batch_size_seqs": str(batch)}
        for tp, pp, batch in SIZES
    ]
    guess = tmp_path / "guess.csv"
    assert run("predict", table(*plans), "--fit", "prior", "--out", guess).code == 0
    times = [1.2 * float(row["predicted_step_time_s"]) for row in read_rows(guess)]
    return table(*({**plan, "step_time_s": f"{time:.6g}"} for plan, time in zip(plans, times, strict=True)))


def test_fit_and_use_it(run, measured, tmp_path):
    out = tmp_path / "fit.toml"
    outcome = run("fit", measured, "--out", out, "--start", "prior", "--json")
    assert outcome.code == 0, outcome.err
    document = outcome.json
    assert {"mape_train", "mape_cv", "n", "parameters"} <= set(document)
    assert document["n"] == len(SIZES)
    assert document["mape_train"] < 8.0
    for entry in document["parameters"].values():
        assert {"value", "lo", "hi", "unit", "identified"} <= set(entry)
        assert entry["lo"] <= entry["value"] <= entry["hi"]
    assert "cross-validation" in outcome.err
    before = run("predict", measured, "--fit", "prior", "--json").json["mape"]
    after = run("predict", measured, "--fit", out, "--json").json["mape"]
    assert after < 0.5 * before


def test_rows_of_a_traced_workload_are_fitted_and_predicted(run, tmp_path):
    step = ("trace", "jaxscale.examples:decoder", "--set", "n_layers=2", "d_model=512", "n_heads=4", "n_kv_heads=4")
    assert run(*step, "--out", tmp_path / "work.json").code == 0
    header = "workload,gpu,n_gpus,global_batch_size_seqs,step_time_s\n"
    rows, out = tmp_path / "runs.csv", tmp_path / "fit.toml"
    rows.write_text(header + "work.json,h100-80gb,1,8,0.05\nwork.json,h100-80gb,1,16,0.1\n")
    outcome = run("fit", rows, "--out", out, "--json")
    assert outcome.code == 0 and outcome.json["n"] == 2, outcome.err
    before, after = (run("predict", rows, "--fit", fit, "--json").json["mape"] for fit in ("default", out))
    assert after < 0.5 * before
    refused = run("fit", rows, "--out", out, "--report", tmp_path / "report")
    assert refused.code == 2 and "a figure needs rows of models" in refused.err


def test_the_report_is_written_beside_the_fit(run, measured, tmp_path):
    folder = tmp_path / "report"
    outcome = run(
        "fit", measured, "--out", tmp_path / "fit.toml", "--report", folder, "--plot", tmp_path / "fit.png", "--json"
    )
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "fit.png").read_bytes() == (folder / "predicted_against_measured.png").read_bytes()
    assert (folder / "report.html").is_file() and (folder / "profiles.png").is_file()
    lines = [entry["line"] for entry in outcome.json["influential_runs"]]
    assert all(2 <= line <= len(SIZES) + 1 for line in lines), "line 1 is the header"


def test_a_report_that_cannot_be_written_is_refused_before_any_work(run, measured, tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    outcome = run("fit", measured, "--out", tmp_path / "fit.toml", "--report", occupied)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "fit.toml").exists()


def test_the_number_of_starts_is_told_and_checked(run, measured, tmp_path):
    arguments = ("fit", measured, "--out", tmp_path / "fit.toml", "--n-starts")
    assert "2 starts" in run(*arguments, 2).err
    outcome = run(*arguments, 0)
    assert outcome.code == 2
    assert "--n-starts = 0 is out of range" in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_a_table_is_never_overwritten_by_what_is_made_of_it(run, table, command):
    measured = table({})
    before = measured.read_bytes()
    same_file = measured.parent / ".." / measured.parent.name / measured.name
    outcome = run(command, measured, "--out", same_file)
    assert outcome.code == 2
    assert "would be overwritten" in outcome.err and outcome.err.count("\n") == 1
    assert measured.read_bytes() == before


def test_nothing_that_is_read_is_overwritten(run, table, measured, tmp_path):
    """Not the fit that predicts, nor the hardware; and a fit gets a name by which it can be read."""
    fit, chips = tmp_path / "fit.toml", tmp_path / "chips.toml"
    fit.write_text("[coefficients]\n")
    chips.write_text('[chips."c"]\nmemory_gb = 64\nmemory_gb_per_s = 2000\npeak_tflops_bf16 = 300\n')
    for arguments in (
        ("predict", measured, "--fit", fit, "--out", fit),
        ("predict", measured, "--hardware", chips, "--out", chips),
        ("fit", measured, "--start", fit, "--out", fit),
    ):
        outcome = run(*arguments)
        assert outcome.code == 2 and "would be overwritten" in outcome.err
    assert "expected one that ends in .toml" in run("fit", measured, "--out", tmp_path / "mine").err


def test_rows_that_cannot_be_fitted_are_counted(run, table, tmp_path):
    rows = [{"step_time_s": 10.0 + index} for index in range(4)] + [{"step_time_s": ""}] * 2
    outcome = run("fit", table(*rows), "--out", tmp_path / "fit.toml")
    assert outcome.code == 0, outcome.err
    assert "2 of 6 rows have no step time to count" in outcome.err


def test_a_table_without_measurements_is_refused(run, table, tmp_path):
    out = tmp_path / "fit.toml"
    outcome = run("fit", table({}, without=["step_time_s"]), "--out", out, "--start", "prior")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert not out.exists()
