"""Every shipped table is read without a bad row, and every row is complete or says why not."""

import csv
import functools
from pathlib import Path

import pytest

from jaxscale.catalogue import model_fields
from jaxscale.runs import COLUMNS, Incomplete, RowDescription, describe, read_runs, read_table
from jaxscale.runs.defaults import load_defaults
from jaxscale.workload import Transformer, model_flops

RUNS = Path(__file__).parents[2] / "data" / "runs"
TABLES = sorted(RUNS.glob("*.csv"))


@functools.cache
def read_shipped(path: Path):
    """Read with every chip known, so that the table is judged and not the hardware catalogue."""
    with path.open(encoding="utf-8", newline="") as handle:
        gpus = {row["gpu"]: row["gpu"] for row in csv.DictReader(handle)}
    return read_table(path, known_gpus=gpus, lookup=lambda name: None)


def test_tables_are_there():
    assert len(TABLES) == 10


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_rows_are_described_or_say_why_not(path):
    runs = read_shipped(path)
    assert runs.columns == tuple(column.name for column in COLUMNS)
    for row in runs:
        description = describe(row, lambda name: None)
        if isinstance(description, Incomplete):
            assert description.reason.startswith("missing ")
            continue
        plan = description.plan
        assert plan["dp"] * plan["tp"] * plan["pp"] * plan["cp"] == description.n_gpus
        batch = plan["micro_batch_size"] * plan["n_microbatches"] * plan["dp"]
        assert batch == pytest.approx(row["global_batch_size_seqs"])
        assert plan["n_microbatches"] >= 1 and plan["micro_batch_size"] >= 1


@pytest.mark.parametrize(
    ("name", "count"),
    [("ultrascale_playbook_h100", 3196), ("vtrain_a100_ground_truth", 1179), ("mosaic_llm_foundry", 239)],
)
def test_sources_that_state_everything_are_complete(name, count):
    rows = read_shipped(RUNS / f"{name}.csv")
    complete = [row for row in rows if isinstance(describe(row, lambda name: None), RowDescription)]
    assert len(complete) == count


def test_default_tables_name_their_source():
    tables = load_defaults()
    for name, table in {**tables["frameworks"], **tables["sources"]}.items():
        assert name == "default" or {"source", "date"} <= set(table), name


PREDICTING = [
    ("nvidia_nemo_perf_summary", "DeepSeekV3", 32),
    ("nvidia_nemo_perf_summary", "Nemotron_3_Super", 25),
    ("nvidia_dgxc_benchmarking", "deepseek-v3-671b", 4),
]


@pytest.mark.parametrize(("table", "name", "count"), PREDICTING)
def test_tables_state_the_flops_of_the_layers_that_predict_further_tokens(table: str, name: str, count: int):
    """Flops per token by the rate or the utilisation and the tokens per second that a row states."""
    runs, peaks = read_runs(RUNS / f"{table}.csv"), {"gb200": 2450.0, "h100-80gb": 989.0}
    stated, counted = [], []
    for row in runs:
        if not row["model"].startswith(name) or (row["tflops_per_gpu"] is None and row["mfu"] is None):
            continue
        description = describe(row, lambda model: model_fields().get(model.lower()))
        rate = row["tflops_per_gpu"] or row["mfu"] * peaks[row["gpu"]]
        stated.append(rate * 1e12 / row["tokens_per_s_per_gpu"])
        counted.append(float(model_flops(Transformer(**description.shape), causal=True)))
    assert len(stated) >= count
    assert counted == pytest.approx(stated, rel=0.01)
