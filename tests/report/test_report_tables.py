"""Tables for the terminal."""

import io

import pytest
from rich.console import Console

from jaxscale.hardware.catalogue import load_hardware
from jaxscale.report.terminal_tables import chip_numbers, make_table, plan_ranking, rounded_text


def text(table) -> str:
    """A table as a terminal of 120 columns shows it."""
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(table)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (float("nan"), "-"), (1.23456, "1.23"), (1234.5, "1234"), (0.00012, "0.00012"), (5e7, "5e+07")],
)
def test_number(value, shown):
    assert rounded_text(value) == shown


def test_brackets_are_not_markup():
    assert "[bold] [s]" in text(make_table("t", ("a",), [("[bold] [s]",)], text=("a",)))


def test_chip_numbers_say_what_stands_in():
    entry = load_hardware()["a100-80gb"]
    shown = text(chip_numbers(entry))
    assert all(key in shown for key in entry.numbers)
    assert "not stated: no spine" in shown
    assert entry.sources["memory_gb"] in shown


def test_a_ranking_tells_all_that_a_launch_needs():
    """ZeRO stage 1 and shard groups smaller than dp; nothing of what is as usual."""
    words = {"schedule": "1f1b", "recompute": "none", "sequence_parallel": True, "step_time_s": 1.0, "mfu": 0.5}
    usual = {**words, "dp": 8, "tp": 2, "zero_stage": 0, "shard_group": 8, "memory_gb": 40.0}
    choice = {"top": [usual], "searched": 2, "exhaustive_optimum": True}
    assert not any(name in text(plan_ranking(choice)) for name in ("zero_stage", "shard_group"))
    for change in ({"zero_stage": 1}, {"zero_stage": 3, "shard_group": 4}):
        shown = text(plan_ranking({**choice, "top": [usual, {**usual, **change}]}))
        assert all(name in shown for name in change)
