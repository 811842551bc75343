"""Every shipped table is read without a bad row, and every row is complete or says why not."""

import csv
import functools
from pathlib import Path

import pytest
from run_tables import described_row

from jaxscale.runs import COLUMNS, describe_rows, read_table
from jaxscale.runs.defaults import load_defaults

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
    table = describe_rows(runs, lambda name: None)
    for position, row in enumerate(runs):
        if position not in table.index:
            assert table.notes[position].startswith("missing ")
            continue
        description = described_row(table, position)
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
    table = describe_rows(read_shipped(RUNS / f"{name}.csv"), lambda name: None)
    assert len(table.index) == count


def test_default_tables_name_their_source():
    tables = load_defaults()
    for name, table in {**tables["frameworks"], **tables["sources"]}.items():
        assert name == "default" or {"source", "date"} <= set(table), name
