"""Tables for the terminal."""

import io

import pytest
from rich.console import Console

from jaxscale.catalogue import load_hardware
from jaxscale.report.tables import chip_numbers, make_table, number


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
    assert number(value) == shown


def test_brackets_are_not_markup():
    assert "[bold] [s]" in text(make_table("t", ("a",), [("[bold] [s]",)], text=("a",)))


def test_chip_numbers_say_what_stands_in():
    entry = load_hardware()["a100-80gb"]
    shown = text(chip_numbers(entry))
    assert all(key in shown for key in entry.numbers)
    assert "not stated: no spine" in shown
    assert entry.sources["memory_gb"] in shown
