"""Headings of runs tables as people and tools write them; columns that nobody reads are told."""

from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError
from jaxscale.cli.main import main
from jaxscale.runs.reader import RunsSchema
from jaxscale.runs.schema import BY_NAME
from jaxscale.serving.serving_table import SERVING_BY_NAME
from jaxscale.tables.cells import Column, Names

WRITTEN = {
    "Model": "meta-llama/Llama-3.1-8B", "Accelerator": "A100-SXM4-80GB", "# GPUs": "64", "TP": "1",
    "Pipeline Parallel": "1", "data_parallel_size": "64", "Micro Batch": "1", "Global Batch (tokens)": "2,097,152",
    "Sequence Length": "8192", "Precision": "bf16", "ZeRO": "3", "Iteration time [ms]": "18200",
    "Peak Mem (GiB)": "70", "Tokens/sec/GPU": "1,800", "MFU (%)": "55", "Run Name": "r2",
}  # fmt: skip
COLUMNS = {
    "model": "meta-llama/Llama-3.1-8B", "gpu": "a100-80gb", "n_gpus": 64, "tp": 1, "pp": 1, "dp": 64,
    "micro_batch_size": 1, "global_batch_size_seqs": 256, "seq_len": 8192, "precision": "bf16", "zero_stage": 3,
    "step_time_s": 18.2, "peak_mem_gb": 70 * 1.073741824, "tokens_per_s_per_gpu": 1800, "mfu": 0.55,
}  # fmt: skip


def test_headings_of_people_mean_columns_in_units_of_columns():
    runs, plain = js.read_runs([WRITTEN]), js.read_runs([COLUMNS])
    for name in COLUMNS:
        value, expected = runs.column(name)[0], plain.column(name)[0]
        assert value == (pytest.approx(expected, rel=1e-9) if isinstance(expected, float) else expected), name
    written, stated = (js.predict(table, fit="prior") for table in (runs, plain))
    np.testing.assert_array_equal(written.step_time, stated.step_time)
    np.testing.assert_allclose(written.measured, stated.measured, rtol=1e-9)


@pytest.mark.parametrize(
    ("heading", "column"),
    [
        ("tensor_model_parallel_size", "tp"),
        ("context_parallel", "cp"),
        ("gradient_accumulation_steps", "n_microbatches"),
        ("num_hidden_layers", "n_layers"),
        ("step_time_ms", "step_time_s"),
        ("max_memory_allocated (MiB)", "peak_mem_gb"),
        ("global_batch_tokens", "global_batch_size_seqs"),
    ],
)
def test_options_and_logs_name_columns(heading: str, column: str):
    found = RunsSchema(Names.of(None)).headings([heading, "model"])
    assert [one.column for one in found] == [column, "model"]


def _renamed(column: str, heading: str) -> dict[str, object]:
    return {heading if name == column else name: value for name, value in COLUMNS.items()}


def test_a_unit_that_the_column_has_changes_no_cell():
    assert js.read_runs([_renamed("seq_len", "Sequence Length (tokens)")]).column("seq_len") == [8192.0]


def test_a_ratio_may_be_a_percentage():
    assert js.read_runs([{**COLUMNS, "mfu": "55 %"}]).column("mfu") == [0.55]


def test_a_column_under_its_own_name_goes_before_another_name():
    runs = js.read_runs([{**COLUMNS, "iteration_time": 99.0, "GPUs": 8}])
    assert runs.column("step_time_s") == [18.2] and runs.column("n_gpus") == [64.0]
    assert {"iteration_time", "GPUs"} <= set(runs.columns)


def test_a_unit_that_the_column_does_not_have_is_not_read():
    assert "step_time_s" not in js.read_runs([_renamed("step_time_s", "step time (furlongs)")]).values


def test_what_is_written_again_reads_the_same(tmp_path: Path):
    """`--out` has columns and their units, so that its prediction is that of the table."""
    (tmp_path / "runs.csv").write_text(",".join(WRITTEN) + "\n" + ",".join(f'"{cell}"' for cell in WRITTEN.values()))
    assert main(["predict", str(tmp_path / "runs.csv"), "--fit", "prior", "--out", str(tmp_path / "out.csv")]) == 0
    first, again = (js.predict(js.read_runs(tmp_path / name), fit="prior") for name in ("runs.csv", "out.csv"))
    np.testing.assert_array_equal(first.step_time, again.step_time)
    np.testing.assert_allclose(first.measured, again.measured, rtol=1e-9)


def test_unread_columns_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    header = (*COLUMNS, "Run Name", "colour")
    (tmp_path / "runs.csv").write_text(f"{','.join(header)}\n{','.join(map(str, (*COLUMNS.values(), 'r', 'red')))}\n")
    assert main(["predict", str(tmp_path / "runs.csv"), "--fit", "prior"]) == 0
    told = "not read: 'Run Name', 'colour'"
    assert told in capsys.readouterr().err
    # The same in Python.
    assert told in repr(js.read_runs(tmp_path / "runs.csv"))


SERVED = {
    "Model": "llama3-8b", "Backend": "vLLM", "GPU": "h100-80gb", "# GPUs": "2", "Tensor Parallel": "2",
    "Input Length": "1,024", "Output Tokens": "256", "Concurrency": "16", "Mean TTFT (ms)": "120",
    "TPOT [ms]": "12", "P99 TTFT (ms)": "300", "Throughput (tok/s)": "1200", "Memory Share": "0.9",
    "Peak Mem (GiB)": "70", "Note to self": "x",
}  # fmt: skip
SERVED_COLUMNS = {
    "model": "llama3-8b", "framework": "vllm", "gpu": "h100-80gb", "n_gpus": 2, "tp": 2, "input_len": 1024,
    "output_len": 256, "concurrency": 16, "ttft_s": 0.12, "tpot_s": 0.012, "ttft_p99_s": 0.3,
    "output_tokens_per_s_total": 1200, "memory_share": 0.9, "peak_mem_gb": 70 * 1.073741824,
}  # fmt: skip


def test_headings_of_serving_tables_are_read_in_the_same_way():
    written = js.serving.read_serving([SERVED])
    for name, expected in SERVED_COLUMNS.items():
        value = written.column(name)[0]
        assert value == (pytest.approx(expected, rel=1e-9) if isinstance(expected, float) else expected), name
    assert written.doubts == ("not read: 'Note to self'",)


def test_a_misspelt_heading_of_a_serving_table_is_asked_about():
    with pytest.raises(InputError, match=r"missing column 'input_len' \(is 'inputs_len' meant for 'input_len'\?\)"):
        js.serving.read_serving([{"inputs_len" if k == "input_len" else k: v for k, v in SERVED_COLUMNS.items()}])


@pytest.mark.parametrize(("tables", "columns"), [(("names",), BY_NAME), (("names", "serving_names"), SERVING_BY_NAME)])
def test_names_of_headings_are_of_columns_and_say_one_column(tables: tuple[str, ...], columns: dict[str, Column]):
    found = read_toml(data_path("headings.toml"))
    names = [name for table in tables for several in found[table].values() for name in several]
    assert set(found[tables[-1]]) <= set(columns)
    assert len(names) == len(set(names)) and not set(names) & set(columns)
