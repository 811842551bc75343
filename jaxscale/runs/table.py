"""A runs table in memory: plain Python on the host, cells as they were and their values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxscale.runs.schema import Value


@dataclass(frozen=True)
class Row:
    """One row of a runs table.

    Attributes:
        line: line of the file on which the row starts [1].
        cells: cells as the file has them, in the order of `Runs.columns`.
        values: values of the known columns whose cell is not empty; numbers are floats.
    """

    line: int
    cells: tuple[str, ...]
    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> Any:
        """Value of a known column, None where the cell is empty or the column absent."""
        return self.values.get(name)


@dataclass(frozen=True)
class Runs:
    """A runs table.

    Attributes:
        path: file that it was read from.
        columns: header, in the order of the file, unknown columns included.
        rows: the rows kept.
        problems: one line for each bad row that was dropped.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    problems: tuple[str, ...] = ()

    @property
    def n_skipped(self) -> int:
        """Bad rows that were dropped [1]."""
        return len(self.problems)

    def __len__(self) -> int:
        """Rows kept [1]."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        """The rows kept, in the order of the file."""
        return iter(self.rows)

    def column(self, name: str) -> list[Any]:
        """Values of a known column, one for each row, None where empty."""
        return [row[name] for row in self.rows]
