"""Tables written as CSV: in one piece, so that readers see the old file or the whole new one."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscale.base.files import whole_file


def write_extended(path: str | Path, cells: Mapping[str, Sequence[Any]], added: Mapping[str, Iterable[Any]]) -> None:
    """Write a table with further columns behind its own; a further column replaces one of the same name.

    Args:
        path: file to write; an existing one is replaced.
        cells: of the table [column, row].
        added: cells of the further columns [column, row].

    Raises:
        InputError: the folder is missing or closed to writing.
    """
    kept = {name: column for name, column in cells.items() if name not in added}
    write_table(path, [*kept, *added], zip(*kept.values(), *added.values(), strict=True))


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table in one piece: readers see the old file or the whole new one.

    Args:
        path: file to write; an existing one is replaced.
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
