"""Write tables whole or not at all."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxscale.files import whole_file


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
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
