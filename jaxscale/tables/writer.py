"""Writer of tables: CSV files replaced whole, columns of predictions added."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.base.files import whole_file
from jaxscale.tables.categorical import Categorical


def write_extended(path: str | Path, cells: Mapping[str, Sequence[Any]], added: Mapping[str, np.ndarray]) -> None:
    """Write a table with added columns; an added column replaces a column of equal name.

    Args:
        path: file to write; an existing file is replaced.
        cells: cells of the table [column, row].
        added: values of the added columns [column, row].

    Raises:
        InputError: the folder is missing or closed to writing.
    """
    kept = {name: column for name, column in cells.items() if name not in added}
    texts = map(_texts, added.values())
    write_table(path, [*kept, *added], zip(*kept.values(), *texts, strict=True))


def _texts(values: np.ndarray) -> list[str]:
    """Cells of a column, each distinct number formatted once."""
    if values.dtype.kind != "f":
        return [cell_of(value) for value in values.tolist()]
    numbers = Categorical.of_numbers(values)
    texts = [cell_of(value) for value in numbers.values]
    return [texts[code] for code in numbers.codes.tolist()]


def cell_of(value: float | bool | str | None) -> str:
    """A value as the cell of a table; numbers have seven digits, more than measurements."""
    if isinstance(value, float):
        return f"{value:.7g}" if math.isfinite(value) else ""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table; readers see the old file or the complete new file.

    Args:
        path: file to write; an existing file is replaced.
        columns: header.
        rows: cells of each row, in the order of `columns`; None is an empty cell.

    Raises:
        InputError: the folder is missing or closed to writing.
    """
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        _write(stream, columns, rows)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as the text of a CSV file."""
    text = io.StringIO()
    _write(text, columns, rows)
    return text.getvalue()


def _write(stream: io.TextIOBase, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
