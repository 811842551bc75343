"""Tables in memory: columns as written and as values; CSV files written atomically."""

import abc
import csv
import importlib
import io
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex, TypeVar, overload

import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.errors import InputError, one_like
from jaxscale.base.files import whole_file
from jaxscale.base.show import MOST_LINES, Printout, printed
from jaxscale.tables.categorical import Categorical, chained
from jaxscale.tables.cells import Value

Own = TypeVar("Own", bound="AbstractTable")


@dataclass(frozen=True)
class Row:
    """Row of a table, with cells as written and values by column.

    Attributes:
        line: line of the file on which the row starts [1].
        cells: cells as written, in the order of the header.
        values: values of the known columns with a filled cell; numbers are floats.
    """

    line: int
    cells: tuple[str, ...]
    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> Any:
        """Value of a known column, None for an empty cell or an absent column."""
        return self.values.get(name)


@printed(lambda table: _shown(table))
@dataclass(frozen=True, repr=False)
class AbstractTable(abc.ABC):
    """Table by columns, with cells as written and as values.

    Attributes:
        path: source file.
        columns: header, in the order of the file, unknown columns included.
        lines: first line of each kept row in the file [1], [row].
        cells: cells of each column as written [column, row].
        values: values of the known columns, None for an empty cell; numbers are floats [column, row].
        problems: a line of text for each dropped bad row.
        doubts: lines of text about columns that are not read.
    """

    path: Path
    columns: tuple[str, ...]
    lines: Int[np.ndarray, " row"]
    cells: Mapping[str, Categorical]
    values: Mapping[str, Categorical]
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    shown: ClassVar[tuple[str, ...]] = ()
    """Columns shown in a printed table."""

    @classmethod
    def of(cls: type[Own], table: "AbstractTable", **more: Any) -> Own:
        """Table of this class with the columns of a given table, and the further fields of the class."""
        return cls(
            table.path, table.columns, table.lines, table.cells, table.values, table.problems, table.doubts, **more
        )

    def with_values(self: Own, columns: Mapping[str, Categorical]) -> Own:
        """Table with the values of some columns replaced, the cells as written kept."""
        return replace(self, values={**self.values, **columns})

    def texts(self) -> dict[str, list[str]]:
        """Cells as written, in the order of the header [column, row]."""
        return {name: self.cells[name].array().tolist() for name in self.columns}

    @property
    def n_skipped(self) -> int:
        """Number of dropped bad rows [1]."""
        return len(self.problems)

    def __len__(self) -> int:
        """Number of kept rows [1]."""
        return len(self.lines)

    def __iter__(self) -> Iterator[Row]:
        """Kept rows in the order of the file."""
        return (self.row(index) for index in range(len(self)))

    @property
    def rows(self) -> "Rows":
        """Kept rows as a sequence, each row made on access."""
        return Rows(self)

    def row(self, index: int) -> Row:
        """Kept row by position."""
        cells = tuple(self.cells[name][index] for name in self.columns)
        values = ((name, column[index]) for name, column in self.values.items())
        return Row(int(self.lines[index]), cells, {name: value for name, value in values if value is not None})

    def __getitem__(self: Own, rows: "np.ndarray | slice | Sequence[int]") -> Own:
        """Table of the given rows: by a mask, by positions, or by a slice."""
        return self.take(np.arange(len(self))[rows])

    def where(self: Own, **wanted: Any) -> Own:
        """Table of the rows with the wanted values: `table.where(gpu="h100-80gb", n_gpus=lambda count: count >= 64)`.

        Args:
            wanted: by column a value, several values, or a condition on a value, None for an empty cell.

        Raises:
            InputError: no such column.
        """
        mask = np.ones(len(self), dtype=bool)
        for name, value in wanted.items():
            if name not in (*self.columns, *self.values):
                raise InputError(f"{name!r} is no column of {self.path}; {one_like(name, self.columns)}")
            mask &= self.categories(name).matches(_condition(value))
        return self.take(mask)

    def __add__(self: Own, other: Own) -> Own:
        """Rows of two tables in sequence; cells of columns absent from a table are empty."""
        columns = tuple(dict.fromkeys((*self.columns, *other.columns)))
        cells = {name: _chained(self, other, lambda table, name=name: table.cells.get(name), "") for name in columns}
        known = dict.fromkeys((*self.values, *other.values))
        values = {name: _chained(self, other, lambda table, name=name: table.values.get(name), None) for name in known}
        lines = np.concatenate([self.lines, other.lines])
        told = {name: (*getattr(self, name), *getattr(other, name)) for name in ("problems", "doubts")}
        return replace(self, columns=columns, lines=lines, cells=cells, values=values, **told)

    def take(self: Own, rows: np.ndarray) -> Own:
        """Table of the given rows, by index or mask."""
        cells, values = (
            {name: column.take(rows) for name, column in columns.items()} for columns in (self.cells, self.values)
        )
        return replace(self, lines=self.lines[rows], cells=cells, values=values)

    def categories(self, name: str) -> Categorical:
        """Values of a column as codes, texts of an unknown column; None for an empty cell or an absent column."""
        return self.values.get(name) or self.cells.get(name) or Categorical.constant(None, len(self))

    def numbers(self, name: str) -> Float[np.ndarray, " row"]:
        """Values of a known column of numbers or flags, nan for an empty cell or an absent column [row]."""
        return self.categories(name).numbers()

    def text(self, name: str) -> np.ndarray:
        """Texts of a column, empty for an empty cell or an absent column [row]."""
        return self.categories(name).map(lambda word: word or "").array()

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame of cells; known columns hold values, None for an empty cell.

        Raises:
            ImportError: pandas is not installed (`pip install jaxscale[tables]`).
        """
        pandas = importlib.import_module("pandas")  # an extra, which type checkers need not have
        columns = {name: self.values.get(name, self.cells[name]).array() for name in self.columns}
        return pandas.DataFrame(columns, index=pandas.Index(self.lines, name="line")).infer_objects()

    def column(self, name: str) -> list[Any]:
        """Values of a column as a list over rows, None for an empty cell; texts for an unknown column."""
        return self.categories(name).array().tolist()


def _shown(table: AbstractTable) -> Printout:
    """The first rows of some columns."""
    names = [name for name in table.shown if name in table.values]
    rows = [[str(row.line), *(_cell_text(row[name]) for name in names)] for row in table.rows[:MOST_LINES]]
    dropped = f", {table.n_skipped} bad ones dropped" if table.n_skipped else ""
    title = f"{type(table).__name__}: {len(table)} rows of {len(table.columns)} columns from {table.path}{dropped}"
    return Printout(title, ("line", *names), rows, table.doubts)


def _cell_text(value: Any) -> str:
    """A value in print."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _condition(value: Any) -> Callable[[Any], bool]:
    """Condition of a wanted value: the value if callable, membership of several values, or equality."""
    if callable(value):
        return lambda cell: bool(value(cell))
    several = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    return lambda cell: cell in several


def _chained(
    first: AbstractTable,
    second: AbstractTable,
    column_of: Callable[[AbstractTable], Categorical | None],
    empty: Any,
) -> Categorical:
    """A column of two tables in sequence, empty for a table without the column."""
    return chained([column_of(table) or Categorical.constant(empty, len(table)) for table in (first, second)])


class Rows(Sequence[Row]):
    """Rows of a table as a sequence, each row made on access.

    Args:
        table: the table.
    """

    def __init__(self, table: AbstractTable):
        """Look at the rows of a table."""
        self._table = table

    def __len__(self) -> int:
        """Rows of the table [1]."""
        return len(self._table)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Row | list[Row]:
        """A row, or the rows of a slice."""
        if isinstance(index, slice):
            return [self._table.row(place) for place in range(*index.indices(len(self)))]
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"row {place} of a table of {len(self)}")
        return self._table.row(place)


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


def cell_of(value: float | int | bool | str | None) -> str:
    """Text of a value in the cell of a table; numbers have seven digits, more than the precision of measurements."""
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
