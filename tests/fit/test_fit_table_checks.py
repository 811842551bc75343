"""What a reader is told of a table before it is fitted."""

import dataclasses

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import run_tables
from jaxscale.runs.measured import describe_runs, measured_of, measured_runs
from jaxscale.runs.table_checks import share_of_peak, stated_twice, tell, why_left_out

COLUMNS = (
    "n_layers,d_model,n_heads,seq_len,gpu,n_gpus,tp,pp,micro_batch_size,global_batch_size_seqs,step_time_s,"
    "tokens_per_s_per_gpu,peak_mem_gb"
)
RUN = "32,4096,32,4096,h100-80gb,64,4,1,1,256,{time},{throughput},{memory}"
"""32 layers of 12 d^2 weights: a quarter of the peak takes 4 s."""


def said_of(path, *rows: tuple[float | str, ...]) -> list[str]:
    """What is said of a table of runs with these times, throughputs and peaks."""
    filled = [(*row, "", "")[:3] for row in rows]
    lines = [RUN.format(time=time, throughput=throughput, memory=memory) for time, throughput, memory in filled]
    path.write_text("\n".join([COLUMNS, *lines]) + "\n", encoding="utf-8")
    runs, said = js.read_runs(path), []
    described = describe_runs(runs)
    tell(runs, described, *measured_of(runs, described), said.append)
    return said


def test_a_plausible_table_goes_without_a_word(tmp_path):
    throughput = 256 * 4096 / (4.0 * 64)
    assert said_of(tmp_path / "runs.csv", (4.0, throughput), (4.1, throughput / 1.01), (3.9, "")) == []


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (((4.0, ""), (0.004, ""), (4.0, "")), ("1 of 3 runs take less time than their chips need", "(lines 3)")),
        (((4000.0, ""), (4000.0, ""), (4.0, "")), ("half of the runs reach less than", "is in seconds")),
        (((4.0, ""), (4.0, 2048.0), (4.0, 4096.0)), ("1 of 3 runs state a throughput that contradicts", "(lines 3)")),
        (((4.0,), (4100.0,), (4.2,)), ("1 of 3 runs reach less than 1% of what half of", "(lines 3)")),
        (((4.0, "", 40.0), (4.1, "", 41000.0)), ("1 of 2 runs hold more than their chips can", "(lines 3)")),
        (((4.0,), (4.1,), (4.0,)), ("1 of 3 runs are copies of an earlier row", "(lines 4)")),
    ],
    ids=["faster than the peak", "milliseconds", "two speeds", "one in milliseconds", "megabytes", "a copy"],
)
def test_what_cannot_be_is_told_with_its_lines(tmp_path, rows, parts: tuple[str, ...]):
    (sentence,) = [line for line in said_of(tmp_path / "runs.csv", *rows) if parts[0] in line]
    assert parts[1] in sentence


def test_rows_that_cannot_be_fitted_are_counted(tmp_path):
    (said,) = said_of(tmp_path / "runs.csv", (4.0, ""), (4.1, ""), ("", ""))
    assert "1 of 3 rows have no step time to count: no step time: 1 (lines 4)" in said


def test_reasons_are_counted_with_their_lines(tmp_path):
    """A failure, a setting that is missing, and a time that is: each by itself."""
    path, row = tmp_path / "runs.csv", RUN.format(time=4.0, throughput="", memory="")
    lines = [
        f"{row},ok",
        f"{row.replace('4.0', '')},",
        f"{row},oom",
        f"{row.replace('32,4096,', '32,,', 1)},",
        f"{row},oom",
    ]
    path.write_text("\n".join([f"{COLUMNS},status", *lines]) + "\n", encoding="utf-8")
    runs = js.read_runs(path)
    described = describe_runs(runs)
    reasons = why_left_out(runs, described, measured_of(runs, described)[1])
    assert list(reasons.values()) == [[3], [4, 6], [5]]
    assert list(reasons)[:2] == ["no step time", "status oom"] and "d_model" in list(reasons)[2]


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("Success", "ok"),
        ("completed", "ok"),
        ("CUDA OOM", "oom"),
        ("Out of memory", "oom"),
        ("hung", "hung"),
        ("", None),
    ],
)
def test_words_for_how_a_run_ended(tmp_path, word: str, status: str | None):
    """A run counts where it ended well, by whatever name, and an unknown word is told, not taken for a failure."""
    path, row = tmp_path / "runs.csv", RUN.format(time=4.0, throughput="", memory="")
    path.write_text(f"{COLUMNS},status\n{row},ok\n{row.replace('4.0', '4.1')},{word}\n", encoding="utf-8")
    runs, said = js.read_runs(path), []
    described = describe_runs(runs)
    measured, index = measured_of(runs, described)
    assert runs.rows[1]["status"] == status
    assert len(index) == (2 if status in ("ok", None) else 1)
    tell(runs, described, measured, index, said.append)
    assert any("status hung: 1 (lines 3)" in line for line in said) == (status == "hung")


@pytest.mark.parametrize("table", run_tables())
def test_shipped_runs_stay_below_the_peak(table: str):
    measured, _ = measured_runs(js.read_runs(run_tables()[table]))
    found = share_of_peak(measured)
    assert 0.0 < found.min() and found.max() < 0.75
    faster = dataclasses.replace(measured, step_time=0.1 * np.asarray(measured.step_time))
    np.testing.assert_allclose(share_of_peak(faster), 10.0 * found, rtol=1e-9)


def test_a_row_of_one_statement_contradicts_nothing(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(f"{COLUMNS}\n{RUN.format(time=4.0, throughput='', memory='')}\n", encoding="utf-8")
    assert stated_twice(js.read_runs(path))[0] == 1.0
