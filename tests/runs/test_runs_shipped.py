"""Every shipped table is read without a bad row, and every row is complete or says why not."""

import csv
import functools
from pathlib import Path

import pytest
from run_tables import described_row

from jaxscale.base.documents import data_path, read_toml, run_tables
from jaxscale.runs import COLUMNS, describe_rows, read_table
from jaxscale.runs.defaults import framework_defaults, meets, table_facts

DATA = Path(__file__).parents[2] / "data"
TABLES = run_tables()
WITH_FACTS = {**TABLES, "public_reports": DATA / "restricted" / "public_reports.csv"}
SECTIONS = {"source", "date", "defaults", "facts", "larger_than", "scaling", "parts", "patterns"}
FURTHER = {"apart", "apart_spread", "mean_seq_len", "trainable_share", "pace_alone", "flops"}
"""What facts may say beyond columns and defaults of frameworks."""


@functools.cache
def read_shipped(path: Path):
    """Read with every chip known, so that the table is judged and not the hardware catalogue."""
    with path.open(encoding="utf-8", newline="") as handle:
        gpus = {row["gpu"]: row["gpu"] for row in csv.DictReader(handle)}
    return read_table(path, known_gpus=gpus, lookup=lambda name: None)


def test_tables_are_there():
    assert len(TABLES) == 14 and list(TABLES) == sorted(TABLES)
    shipped = {name for name, path in TABLES.items() if path.parent == DATA / "runs"}
    assert set(TABLES) - shipped == {"nvidia_dgxc_benchmarking", "paper_tables_misc"}


@pytest.mark.parametrize("path", TABLES.values(), ids=TABLES)
def test_rows_are_described_or_say_why_not(path):
    runs = read_shipped(path)
    ordered = [column.name for column in COLUMNS if column.name in runs.columns]
    assert list(runs.columns) == ordered and {column.name for column in COLUMNS if column.required} <= set(ordered)
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
    table = describe_rows(read_shipped(TABLES[name]), lambda name: None)
    assert len(table.index) == count


def test_default_tables_name_their_source():
    frameworks = read_toml(data_path("frameworks.toml"))["frameworks"]
    frameworks = {name: table for name, table in frameworks.items() if "same_as" not in table}
    stated = {name: facts for name, facts in table_facts().items() if {"defaults", "facts"} & set(facts)}
    for name, table in {**frameworks, **stated}.items():
        assert {"source", "date"} <= set(table), name


def test_facts_stand_beside_tables_and_speak_of_their_columns():
    """Negative control: a name that is no column and no further key is found."""
    allowed = {column.name for column in COLUMNS} | set(framework_defaults()["default"]) | FURTHER
    assert set(table_facts()) == set(WITH_FACTS)
    for table, facts in table_facts().items():
        assert set(facts) <= {"source", "date", "defaults", "facts", "larger_than", "scaling", "parts", "patterns"}, (
            table
        )
        assert set(facts.get("defaults", {})) <= allowed, table
        for fact in facts.get("facts", []):
            assert set(fact) == {"when", "set"} and set(fact["set"]) <= allowed, table
            assert set(fact["when"]) <= set(read_shipped(WITH_FACTS[table]).columns), table
    assert not {"n_layer"} <= allowed


def test_every_fact_holds_for_some_row():
    for table, facts in table_facts().items():
        runs = read_shipped(WITH_FACTS[table])
        columns = {name: runs.column(name) for name in runs.columns}
        for fact in facts.get("facts", []):
            cells = zip(*(columns[name] for name in fact["when"]), strict=True)
            rows = [all(map(meets, row, fact["when"].values())) for row in cells]
            assert any(rows), (table, fact)
