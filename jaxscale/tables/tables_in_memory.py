"""Tables without a file, as records of a CSV file: DataFrames, mappings of columns, lists of rows."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.errors import InputError

AnyTable = Any
"""A table: a path, a DataFrame of pandas or polars, a table of pyarrow, a mapping of columns, or a sequence of rows as
mappings."""

Records = Iterator[tuple[int, list[str]]]
"""Rows of cells with their first lines."""

HANDED_IN = Path("table")
"""Name, in messages, of a table without a file."""


def table_in_memory(table: Any) -> tuple[list[str], Records]:
    """Header and records of a table in memory, as of a CSV file; rows count from 1.

    Raises:
        InputError: not a table, or columns of unequal length.
    """
    columns = {str(name): list(values) for name, values in _columns_of(table).items()}
    lengths = [len(values) for values in columns.values()]
    if lengths and min(lengths) < max(lengths):
        raise InputError(f"{HANDED_IN}: columns of {min(lengths)} and {max(lengths)} rows; expected equally many")
    texts = [list(map(_text, values)) for values in columns.values()]
    return list(columns), ((row, list(cells)) for row, cells in enumerate(zip(*texts, strict=True), start=1))


def _columns_of(table: Any) -> Mapping[Any, Any]:
    """Values of each column by name."""
    if isinstance(table, Mapping):
        return _mapping_columns(table)
    if hasattr(table, "to_pydict"):
        return table.to_pydict()
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        return {name: table[name].to_list() for name in table.columns}
    rows: list[Any] = list(table) if isinstance(table, Iterable) and not isinstance(table, str | bytes) else [table]
    if not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            f"{type(table).__name__} is no table of runs; expected a path, a DataFrame, a mapping of columns or a list "
            "of mappings"
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _mapping_columns(table: Mapping[Any, Any]) -> dict[Any, list[Any]]:
    """Columns of a mapping; a single value stands for all rows."""
    is_single = {name: isinstance(value, str) or not isinstance(value, Iterable) for name, value in table.items()}
    several = {name: list(value) for name, value in table.items() if not is_single[name]}
    length = max((len(values) for values in several.values()), default=1)
    return {name: [value] * length if is_single[name] else several[name] for name, value in table.items()}


def _text(value: Any) -> str:
    """A value as the cell of a CSV file."""
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value)
