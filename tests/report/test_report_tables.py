"""Tables for the terminal."""

import re

import pytest

from jaxscale.base.table import TableColumn, html_of, make_table, text_column, text_of
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.plans.plan import Plan, in_short
from jaxscale.report.terminal_tables import chip_numbers, error_summary, plan_ranking, rounded_text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (float("nan"), "-"), (1.23456, "1.23"), (1234.5, "1234"), (0.00012, "0.00012"), (5e7, "5e+07")],
)
def test_number(value, shown):
    assert rounded_text(value) == shown


def test_brackets_are_not_markup():
    table = make_table("[t]", (TableColumn("a", unit="[s]", is_text=True),), [("[bold] [s]",)])
    assert all(part in table.text() for part in ("[t]", "a [[s]]", "[bold] [s]"))


SPEEDS = make_table(
    "Speeds",
    (
        text_column("chip"),
        TableColumn("network", "net GB/s", "GB/s"),
        TableColumn("memory", "GB", "GB"),
        TableColumn("sharding", "ZeRO", says="ZeRO-{}"),
        TableColumn("sequence parallel", "SP", is_text=True, says="SP"),
        TableColumn("note", is_text=True),
    ),
    [("first chip", 12.5, 85.1, 1, "yes", ""), ("second", 1234.5, 85.1, "-", "no", "")],
)
"""A table with a column that is equal in all rows, and one that is empty."""


def test_a_table_takes_the_room_that_there_is():
    """Long heads, then short ones, then phrases; what all rows share is said once."""
    wide, short, narrow = (SPEEDS.text(width).splitlines() for width in (80, 42, 30))
    assert wide[:2] == short[:2] == narrow[:2] == ["Speeds", "all: 85.1 GB"]
    heads = re.split(r"\s{2,}", wide[2])
    assert heads == ["chip", "network [GB/s]", "sharding", "sequence parallel"]
    assert short[2].split() == ["chip", "net", "GB/s", "ZeRO", "SP"]
    assert short[3].split() == ["first", "chip", "12.5", "1", "yes"]
    assert narrow[2:] == ["first chip  network 12.5 GB/s", "  ZeRO-1  SP", "second  network 1234.5 GB/s"]
    assert all(len(line) <= 30 for line in narrow)


def test_rows_of_equal_cells_stay():
    assert make_table("", ("a", "b"), [(1, 2), (1, 2)]).text().split() == ["a", "b", "1", "2", "1", "2"]
    assert make_table("", ("a", "b"), [(1, 2)]).text().split() == ["a", "b", "1", "2"]


def test_phrases_of_a_plan_stay_whole():
    """A line of a narrow column ends between two phrases, not inside one; text wraps at words."""
    plan = "dp 2  tp 2  pp 8 x 10  cp 4  mb 1 x 16  ZeRO-2"
    table = make_table("", (text_column("plan"), text_column("note")), [(plan, "a few words " * 8)])
    for width in (60, 70, 80, 100):
        lines = [line[: table.text(width).splitlines()[0].index("note")] for line in table.text(width).splitlines()[1:]]
        phrases = [phrase for line in lines for phrase in line.strip().split("  ") if phrase]
        assert len([line for line in lines if line.strip()]) > 1 and phrases == plan.split("  ")


def test_a_table_in_html_and_markdown():
    """All columns, and the title."""
    assert "<caption>Speeds</caption>" in SPEEDS.html() and SPEEDS.html().count("<td>") == 12
    lines = SPEEDS.markdown().splitlines()
    assert lines[0] == "Speeds" and lines[2].count("|") == 7
    assert lines[3] == "| --- | ---: | ---: | ---: | --- | --- |"


def test_texts_and_tables_in_one_text():
    text = text_of(["before", make_table("t", ("a",), [(1,)]), "after", "last"])
    assert text.split("\n\n") == ["before", "t\na\n1", "after\nlast"]
    assert html_of(["1 < 2"]) == "<div>1 &lt; 2</div>"


def test_chip_numbers_say_what_stands_in():
    entry = load_hardware()["a100-80gb"]
    shown = chip_numbers(entry).text()
    assert all(key in shown for key in entry.numbers)
    assert "not stated: no spine" in shown
    assert entry.sources["memory_gb"] in shown


USUAL = {
    **{"schedule": "1f1b", "recompute": "none", "sequence_parallel": True, "step_time_s": 1.0, "mfu": 0.5},
    **{"dp": 8, "tp": 2, "pp": 4, "vpp": 1, "micro_batch_size": 1, "n_microbatches": 16},
    **{"zero_stage": 0, "shard_group": 8, "memory_gb": 40.0},
}
"""A plan of which nothing is remarkable."""


def test_a_ranking_tells_all_that_a_launch_needs():
    """ZeRO stage 1 and shard groups smaller than dp; nothing of what is as usual."""
    choice = {"top": [USUAL], "searched": 2, "exhaustive_optimum": True}
    heads = {"zero_stage": "ZeRO stage", "shard_group": "shard group"}
    assert not any(head in plan_ranking(choice).text() for head in heads.values())
    for change in ({"zero_stage": 1}, {"zero_stage": 3, "shard_group": 4}):
        shown = plan_ranking({**choice, "top": [USUAL, {**USUAL, **change}]}).text()
        assert all(heads[name] in shown for name in change)


def test_a_plan_in_words():
    degrees = {"dp": 8, "tp": 2, "pp": 4, "n_microbatches": 16, "sequence_parallel": True}
    interleaved = Plan(**degrees, vpp=2, zero_stage=1, schedule="interleaved", recompute="full").words()
    assert in_short(interleaved) == "dp 8  tp 2  pp 4 x 2  mb 1 x 16  ZeRO-1  SP  recompute full"
    plain = in_short(Plan(**{**degrees, "sequence_parallel": False}).words())
    assert "SP" not in plain and "ZeRO" not in plain


def test_errors_of_rows_without_a_source_count():
    """One named source among unnamed rows is not the whole; a source of all rows is."""
    figures = {"mape": 3.0, "median_ape": 3.0, "p90_ape": 3.0, "coverage_90": 1.0, "n_memory": 0, "memory_mape": None}
    named = {"mine": {"n": 1, **figures}}
    several = {"n": 4, **figures, "mape": 30.0, "coverage_90": 0.5}
    shown = error_summary({**several, "by": {"source": named}}).text(120)
    assert re.search(r"^all +4 +30 ", shown, re.MULTILINE) and re.search(r"^mine +1 +3 ", shown, re.MULTILINE)
    assert "all" not in error_summary({"n": 1, **figures, "by": {"source": named}}).text(120)


def test_one_of_a_thing_is_singular_and_units_stay():
    phrases = {says: TableColumn("x", says=says).phrase("1") for says in ("{} chips", "TTFT {} s", "{} token/s")}
    assert phrases == {"{} chips": "1 chip", "TTFT {} s": "TTFT 1 s", "{} token/s": "1 token/s"}
    assert TableColumn("x", says="{} chips").phrase("2") == "2 chips"
