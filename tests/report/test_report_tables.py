"""Tables for the terminal."""

import pytest

from jaxscale._table import TableColumn, make_table
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.report.terminal_tables import chip_numbers, plan_phrases, plan_ranking, rounded_text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (float("nan"), "-"), (1.23456, "1.23"), (1234.5, "1234"), (0.00012, "0.00012"), (5e7, "5e+07")],
)
def test_number(value, shown):
    assert rounded_text(value) == shown


def test_brackets_are_not_markup():
    table = make_table("[t]", (TableColumn("a", unit="[s]", is_text=True),), [("[bold] [s]",)])
    assert all(part in table.text() for part in ("[t]", "a [[s]]", "[bold] [s]"))


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
    interleaved = {**USUAL, "vpp": 2, "zero_stage": 1, "schedule": "interleaved", "recompute": "full"}
    told = ["dp 8", "tp 2", "pp 4 x 2", "mb 1 x 16", "ZeRO-1", "SP", "recompute full", "interleaved"]
    assert plan_phrases(interleaved) == told
    assert not {"SP", "ZeRO-0"} & set(plan_phrases({**USUAL, "sequence_parallel": False}))
