"""Columns as codes and values: whatever the work is, it gives each row what work on that row alone would give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_tables import GOOD, read, write_rows

from jaxscale.runs.arrays import classes
from jaxscale.tables.categorical import TRIED, Categorical, TextColumn, joined, together

words = st.lists(st.sampled_from(["", "a", "b", "c d"]), min_size=1, max_size=40)
numbers = st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e9, -3.0]), min_size=1, max_size=40)


@given(words)
def test_a_column_comes_back_as_it_was(values: list[str]):
    column = Categorical.of(values)
    assert column.array().tolist() == values == [column[row] for row in range(len(values))]
    assert len(set(column.values)) == len(column.values)


@given(words)
def test_functions_are_asked_once_for_each_value(values: list[str]):
    asked: list[str] = []
    column = Categorical.of(values).map(lambda value: asked.append(value) or len(value))
    assert column.array().tolist() == [len(value) for value in values]
    assert sorted(asked) == sorted(set(values))


@given(words, numbers)
def test_together_has_the_pairs_of_the_rows_and_no_others(texts: list[str], floats: list[float]):
    n = min(len(texts), len(floats))
    pairs = list(zip(texts[:n], floats[:n], strict=True))
    column = together(Categorical.of(texts[:n]), Categorical.of_numbers(np.asarray(floats[:n])))
    assert column.array().tolist() == pairs
    assert set(column.values) == set(pairs)


@given(words, st.data())
def test_rows_that_are_taken_keep_no_value_of_others(values: list[str], data: st.DataObject):
    rows = np.asarray(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=10)), dtype=int)
    column = Categorical.of(values).take(rows)
    assert column.array().tolist() == [values[row] for row in rows]
    assert set(column.values) == {values[row] for row in rows}
    spread = column.spread(rows, len(values), None)
    assert [spread[row] for row in range(len(values))] == [
        values[row] if row in rows else None for row in range(len(values))
    ]


@given(words, words)
def test_texts_are_joined_where_there_are_any(first: list[str], second: list[str]):
    n = min(len(first), len(second))
    column = joined([Categorical.of(first[:n]), Categorical.of(second[:n])])
    expected = ["; ".join(text for text in pair if text) for pair in zip(first, second, strict=False)]
    assert column.array().tolist() == expected


@pytest.mark.parametrize("n_values", [3, 1000, 200_000])
def test_numbers_are_told_apart_however_many_there_are(n_values: int):
    """The hash table of few numbers has collisions where there are many: then numbers are sorted."""
    generator = np.random.default_rng(0)
    numbers = generator.choice(generator.normal(size=n_values), 300_000)
    column = Categorical.of_numbers(numbers)
    np.testing.assert_array_equal(np.asarray(column.values)[column.codes], numbers)
    assert len(column.values) == len(np.unique(numbers))


@pytest.mark.parametrize("cells", [lambda row: "same", lambda row: f"{row % 7}", lambda row: f"{row}.5"])
def test_text_comes_back_whether_or_not_it_repeats(cells):
    """A block of one text, too, in a column whose cells do not repeat."""
    column, block = TextColumn(), 10
    expected: list[str] = []
    for start in range(0, 3 * TRIED * block, block):
        texts = ["one"] * block if start == 2 * TRIED * block else [cells(row) for row in range(start, start + block)]
        expected += texts
        column.add(texts)
    assert column.categorical().array().tolist() == expected


def test_a_long_table_comes_back_cell_by_cell(tmp_path):
    rows = [{**GOOD, "step_time_s": f"{1 + row / 7:.6f}", "notes": f"run {row}"} for row in range(5000)]
    rows[4321]["tp"] = "x"
    runs = read(write_rows(tmp_path / "runs.csv", rows), skip_bad=True)
    kept = rows[:4321] + rows[4322:]
    assert runs.column("notes") == [row["notes"] for row in kept]
    np.testing.assert_array_equal(runs.numbers("step_time_s"), [float(row["step_time_s"]) for row in kept])
    assert [runs.rows[-1].line, runs.row(4320).line, runs.row(4321).line] == [5001, 4322, 4324]
    assert runs.problems[0].startswith(f"{tmp_path / 'runs.csv'}:4323: column 'tp' = 'x'")


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-1.0, 0.5]), st.sampled_from("ba")), min_size=1))
def test_classes_are_numbered_in_the_order_of_sorted_rows(rows: list[tuple[int, float, str]]):
    first, second, words = zip(*rows, strict=True)
    places = sorted(set(rows))
    numbered = classes((np.asarray(first, float), np.asarray(second)), [words])
    assert numbered.tolist() == [places.index(row) for row in rows]
