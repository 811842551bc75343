"""Twelve kinds of malformed table: one clear line, exit 2, no output, no traceback."""

import subprocess
import sys

import pytest
from cli_tables import GOOD

CELLS = {
    "text in number": ({"tp": "two"}, "column 'tp' = 'two': not a number"),
    "negative": ({"step_time_s": "-1"}, "column 'step_time_s' = '-1': negative"),
    "zero": ({"n_layers": "0"}, "column 'n_layers' = '0': zero"),
    "nan": ({"d_model": "nan"}, "column 'd_model' = 'nan': not a number (NaN)"),
    "infinite": ({"n_heads": "inf"}, "column 'n_heads' = 'inf': infinite"),
    "inconsistent degrees": ({"dp": "8"}, "column 'n_gpus' = '16': contradicts"),
    "unknown gpu": ({"gpu": "potato"}, "column 'gpu' = 'potato': not in the hardware catalogue"),
    "unknown model": ({"model": "gpt-9", "n_layers": "", "d_model": "", "n_heads": ""}, "unknown model and no shape"),
    "a billion chips": ({"n_gpus": "1e9", "dp": "250000000"}, "column 'n_gpus' = '1e9': too large"),
}
FILES = {
    "missing column": ("\n".join(",".join(cells[:5]) for cells in (list(GOOD), list(GOOD.values()))), "missing column"),
    "empty file": ("", "empty file"),
    "wrong delimiter": ("\n".join(";".join(cells) for cells in (list(GOOD), list(GOOD.values()))), "semicolons"),
}


@pytest.fixture(params=[*CELLS, *FILES])
def malformed(request, table, tmp_path):
    """A malformed table, and what its refusal must say."""
    if request.param in CELLS:
        change, expected = CELLS[request.param]
        return table(change), expected
    content, expected = FILES[request.param]
    path = tmp_path / "runs.csv"
    path.write_text(content)
    return path, expected


@pytest.mark.parametrize("command", ["predict", "fit"])
def test_refused(run, malformed, tmp_path, command):
    path, expected = malformed
    out = tmp_path / ("out.csv" if command == "predict" else "out.toml")
    fit = "--fit" if command == "predict" else "--start"
    outcome = run(command, path, "--out", out, fit, "prior", "--json")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith(f"jaxscale: {path}:")
    assert expected in outcome.err
    assert sorted(tmp_path.iterdir()) == [path]


def test_as_a_process_there_is_no_traceback(table):
    command = [sys.executable, "-m", "jaxscale", "predict", str(table({"gpu": "potato"}))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_all_bad_rows_are_listed(run, table):
    outcome = run("predict", table({}, {"tp": "x"}, {"gpu": "none"}), "--fit", "prior")
    assert outcome.code == 2
    assert "2 of 3 rows are bad" in outcome.err


def test_an_output_that_cannot_be_written_is_refused_before_any_work(run, table, tmp_path):
    out = tmp_path / "nowhere" / "out.csv"
    outcome = run("predict", table({}), "--fit", "prior", "--out", out)
    assert outcome.code == 2
    assert "does not exist" in outcome.err
    assert run("predict", table({}), "--fit", "prior", "--out", tmp_path).code == 2
