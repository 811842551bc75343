"""Numbers of cells: what every column takes, and what it refuses."""

import pytest

from jaxscale.laws.loss_reader import LOSS_COLUMNS
from jaxscale.runs.schema import COLUMNS
from jaxscale.serving.serving_table import SERVING_COLUMNS
from jaxscale.tables.cells import Column, Names, parse_cells

NUMERIC = {
    f"{table}.{column.name}": column
    for table, columns in {"runs": COLUMNS, "serving": SERVING_COLUMNS, "losses": LOSS_COLUMNS}.items()
    for column in columns
    if column.kind in ("integer", "number", "amount", "share")
}
LEAST = {"integer": 1.0, "share": 0.0, "amount": 0.0}
"""Least number of a kind of column; other numbers are above zero."""


@pytest.mark.parametrize("column", NUMERIC.values(), ids=NUMERIC)
def test_a_column_takes_the_numbers_that_it_states_and_no_others(column: Column):
    """A share ends at 1, other numbers at what their column states; whole numbers have no fraction."""
    least = LEAST.get(column.kind) if column.minimum is None else float(column.minimum)
    most = 1.0 if column.kind == "share" else column.maximum
    taken = [most, *([1e-30] if least is None else [least])]
    refused = [1.04 * most + (column.kind == "integer"), -1.0, *([0.0] if least is None else [least - 0.5])]
    if column.kind == "integer":
        refused.append(least + 0.5 if least is not None else 0.5)
    numbers = [f"{number:.17g}" for number in (*taken, *refused)]
    parsed = parse_cells(column, numbers, Names())
    assert parsed.values == [*taken, *([None] * len(refused))]
    assert sorted(parsed.problems) == list(range(len(taken), len(numbers)))
    assert all(text and "\n" not in text for text in parsed.problems.values())
