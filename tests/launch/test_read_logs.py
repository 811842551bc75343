"""Logs and launch files as rows: cells that a person reads in them, and files that are none."""

import resource
from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.launch.readers.launch_rules import precision_cell
from jaxscale.launch.readers.read_run import RunRow, run_of, run_of_history, table_columns
from jaxscale.launch.readers.settings_text import command_line_settings
from jaxscale.launch.readers.step_series import StepSeries
from jaxscale.tables.table import write_table

FOLDER = Path(__file__).parent / "files"
MEGATRON = (FOLDER / "megatron.log").read_text(encoding="utf-8")


def written(path: Path, text: str) -> Path:
    """A file with some text."""
    path.write_text(text, encoding="utf-8", newline="")
    return path


def table(path: Path, *rows: RunRow) -> js.Runs:
    """Rows written as a table and read again."""
    header = table_columns(rows)
    write_table(path, header, [[row.cells.get(name) for name in header] for row in rows])
    return js.read_runs(path)


def test_a_row_that_was_read_is_answered(tmp_path):
    rows = [
        run_of(written(tmp_path / "a.log", MEGATRON), stated={"gpu": "H100 SXM"}),
        run_of(FOLDER / "torchtitan.log"),
    ]
    prediction = js.predict(table(tmp_path / "runs.csv", *rows), fit="prior")
    assert (prediction.step_time > 0.0).all()
    np.testing.assert_allclose(prediction.measured, [5.445, 1.622178218], rtol=1e-6)
    np.testing.assert_allclose(prediction.measured_memory, [62.91456e9, 71.84406544e9], rtol=1e-6)


def test_a_launch_file_tells_what_the_log_does_not(tmp_path):
    log, settings = FOLDER / "nanotron.log", FOLDER / "kempnerforge.toml"
    config = written(tmp_path / "a.yaml", settings.read_text(encoding="utf-8").replace("[", "#["))
    with pytest.raises(InputError, match="holds no settings"):
        run_of(log, [config])
    cells = run_of(log, [settings]).cells
    assert (cells["d_model"], cells["step_time_s"], cells["n_gpus"]) == ("8192", "11.5", "32")


def test_warm_up_and_checkpoints_are_cut():
    series, times = StepSeries(), [21000.0, 9000.0, 5600.0, 5444.9, 5450.0, 16000.0, 5440.0, 5445.1, 5444.0]
    for step, milliseconds in enumerate(times):
        series.add(step, seconds=milliseconds)
    assert series.is_steady().tolist() == [False, False, True, True, True, False, True, True, True]
    assert series.medians()["seconds"] == np.median(np.asarray(times)[series.is_steady()])
    assert series.medians()["seconds"] < np.mean(times)


def test_precision_by_the_narrowest_key():
    assert precision_cell({"precision": "bf16-mixed", "fp8": True}) == "fp8"
    assert precision_cell({"precision": "bf16-mixed", "fp8": None}) == "bf16"
    assert precision_cell({"fp16": True}) == "fp16"
    assert precision_cell({}) is None


def test_options_and_assignments():
    text = "run.py --micro-batch-size 2 --seq-length=4096 --swiglu # note\nper_device_batch_size=0.125 x='a b'\n --bf16"
    expected = {
        "micro_batch_size": 2, "seq_length": 4096, "swiglu": True, "per_device_batch_size": 0.125, "x": "a b",
        "bf16": True,
    }  # fmt: skip
    assert command_line_settings(text) == expected


def test_a_history_by_its_columns(tmp_path):
    path = written(tmp_path / "wandb.csv", "Step,perf/step,mem\n1,9,70\n2,2.0,71\n3,2.2,72\n4,2.1,\n")
    row = run_of_history(path, {"step_time_s": "perf/step", "peak_mem_gb": "mem"}, {"model": "llama3-8b"})
    assert (row.cells["step_time_s"], row.cells["peak_mem_gb"], row.cells["model"]) == ("2.1", "72", "llama3-8b")
    with pytest.raises(InputError, match="no column 'perf/stop'; expected one like"):
        run_of_history(path, {"step_time_s": "perf/stop"}, {})
    with pytest.raises(InputError, match="'loss' is not measured at each step"):
        run_of_history(path, {"loss": "Step"}, {})


BAD = {
    "another program": "epoch 1 acc 0.5\nepoch 2 acc 0.6\n" * 50,
    "truncated": MEGATRON.split(" [2024")[0],
    "binary": "\0\1\2" * 100,
    "empty": "",
    "half a document": '{"log_history": [{"loss"',
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_no_logs_get_one_line(tmp_path, name: str):
    path = written(tmp_path / "run.log", BAD[name])
    with pytest.raises(InputError) as caught:
        run_of(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert "expected" in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="absent.log: cannot be read"):
        run_of(tmp_path / "absent.log")


@pytest.mark.parametrize("is_log", [True, False])
def test_a_long_log_takes_little_memory(tmp_path, is_log: bool):
    path = tmp_path / "long.log"
    line = MEGATRON.splitlines()[-1] if is_log else "nothing of interest " * 12
    block = (line + "\n").encode() * 4000
    with path.open("wb") as file:
        for _ in range(10):
            file.write(block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if is_log:
        assert run_of(path).cells["step_time_s"] == "5.444"
    else:
        with pytest.raises(InputError, match="no line of a training log"):
            run_of(path)
    assert path.stat().st_size > 7e6
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 1e8


CARDS = (
    ("NVIDIA H100", "95.00", "h100-96gb"),
    ("NVIDIA H100", "93.10", "h100-nvl-94gb"),
    ("NVIDIA H100", "79.10", "h100-80gb"),
    ("NVIDIA A100", "39.39", "a100-40gb"),
    ("NVIDIA H100 PCIe", "79.10", "NVIDIA H100 PCIe"),
    ("NVIDIA GH200", "94.50", "gh200-96gb"),
    ("NVIDIA H100", "60.00", "NVIDIA H100"),
    ("NVIDIA H100 80GB HBM3", "79.10", "NVIDIA H100 80GB HBM3"),
)


@pytest.mark.parametrize(("card", "memory", "chip"), CARDS)
def test_memory_tells_chips_of_a_name_apart(tmp_path, card: str, memory: str, chip: str):
    """Negative controls: a memory of no chip of the name, and a name of a single chip."""
    text = (Path(__file__).parent / "files/torchtitan.log").read_text(encoding="utf-8")
    named = text.replace("NVIDIA H100 80GB HBM3 with 79.10GiB", f"{card} with {memory}GiB")
    assert run_of(written(tmp_path / "run.log", named)).cells["gpu"] == chip
