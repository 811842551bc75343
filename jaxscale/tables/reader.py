"""Reader of tables: malformed input is refused with file, line, column, value and valid values.

DataFrames, mappings of columns and lists of rows are read as records of a file.
"""

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.base.errors import InputError, one_like, reason_of
from jaxscale.tables.categorical import Categorical, TextColumn
from jaxscale.tables.cells import first_of, show
from jaxscale.tables.schema import AbstractSchema, CellProblems, Header, Kind, check_names
from jaxscale.tables.table import AbstractTable

AnyTable = Any
"""A table: a path, a DataFrame of pandas or polars, a table of pyarrow, a mapping of columns, or a sequence of rows as
mappings."""

Records = Iterator[tuple[int, list[str]]]
"""Rows of cells with their first lines."""

HANDED_IN = Path("table")
"""Name, in messages, of a table without a file."""


def table_in_memory(table: Any) -> tuple[list[str], Records]:
    """Header and records of a table in memory, in the form of a CSV file; rows count from 1.

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


# A row of distinct cells takes about 1 kB of memory.
MAX_ROWS = 4_000_000
# Rows that are turned into columns at a time.
_BLOCK = 256
# Lines of problems in a message; `InputError.problems` has them all.
_MAX_LISTED = 20


@dataclass(frozen=True, repr=False)
class _TextTable(AbstractTable):
    """Cells as read, before the schema applies."""


def read(
    source: AnyTable, schema: AbstractSchema[Kind], *, skip_bad: bool = False, where: Mapping[str, str] | None = None
) -> Kind:
    """Read a table and check it by a schema.

    Args:
        source: path of a CSV file, UTF-8, comma-separated, with a header; or a table in memory, see `AnyTable`.
        schema: rules and class of the table.
        skip_bad: drop bad rows instead of refusing the file.
        where: wanted cells by column; rows with different cells are left out unread.

    Returns:
        The table.

    Raises:
        InputError: an unreadable file, a header that the schema refuses, or bad rows; with `skip_bad`, no good row.
    """
    path = Path(source) if isinstance(source, str | Path) else HANDED_IN
    written, records = csv_table(path) if isinstance(source, str | Path) else table_in_memory(source)
    header = Header(tuple(written), tuple(schema.headings(written)))
    check_names(path, header)
    if lacks := schema.lacks(header):
        raise InputError(f"{path}:1: {lacks}")
    cells, n_cells = _coded_columns(path, header.columns, records)
    cells = schema.in_units(cells, header)
    if not len(cells):
        raise InputError(f"{path}: no data rows; expected one row per {schema.row} below the header")
    if where:
        kept = _rows_where(cells, where)
        # A row of another length is refused wherever it is.
        kept[list(n_cells)] = True
        places = np.cumsum(kept) - 1
        cells, n_cells = cells.take(np.flatnonzero(kept)), {int(places[row]): n for row, n in n_cells.items()}
    # Work on cells is done for each distinct text, not for each row.
    values, bad = _valued(cells, header, schema)
    table = schema.table(replace(cells, values=values), header, bad)
    expected = f"expected {len(written)}, as in the header"
    problems = {row: f"{count} cells; {expected}" for row, count in n_cells.items()}
    problems |= _told(_cell_problems(table, header, bad))
    for found in schema.row_problems(table, problems.keys()):
        problems |= _told(found)
    # Columns by which rows are selected are read.
    others = [name for name in header.columns if name not in (where or {})]
    return replace(_without_bad_rows(table, problems, skip_bad), doubts=schema.doubts(others))


def _rows_where(cells: AbstractTable, where: Mapping[str, str]) -> np.ndarray:
    """Whether each row has the wanted cells [row]."""
    kept = np.ones(len(cells), dtype=bool)
    for name, wanted in where.items():
        if name not in cells.cells:
            raise InputError(f"{cells.path}: column {name!r} is not there; {one_like(name, cells.columns)}")
        kept &= cells.cells[name].matches(lambda cell, wanted=wanted: cell.strip() == wanted)
    if not kept.any():
        told = ", ".join(f"{name} = {wanted}" for name, wanted in where.items())
        raise InputError(f"{cells.path}: no row has {told}; expected values of these columns")
    return kept


def _valued(
    cells: AbstractTable, header: Header, schema: AbstractSchema[Kind]
) -> tuple[dict[str, Categorical], CellProblems]:
    """Values of the known columns, and problems of cells."""
    values: dict[str, Categorical] = {}
    problems: CellProblems = {}
    for heading in header.meant:
        if (name := heading.column) in schema.columns:
            column = cells.cells[name]
            parsed = schema.values(heading, list(map(str.strip, column.values)))
            values[name], problems[name] = Categorical(column.codes, tuple(parsed.values)), parsed.problems
    return values, problems


def _cell_problems(table: AbstractTable, header: Header, bad: CellProblems) -> dict[int, list[str]]:
    """Problems of single cells by row, in the order of the columns."""
    problems: dict[int, list[str]] = {}
    unit_of = {heading.column: f" ({heading.unit})" for heading in header.meant if heading.unit}
    for name, by_code in bad.items():
        cells = table.cells[name]
        for row in np.flatnonzero(np.isin(cells.codes, list(by_code))).tolist():
            named = f"column {name!r}{unit_of.get(name, '')} = {show(cells[row].strip())}"
            problems.setdefault(row, []).append(f"{named}: {by_code[cells.codes[row]]}")
    return problems


def _without_bad_rows(table: Kind, problems: Mapping[int, str], skip_bad: bool) -> Kind:
    """The table without bad rows; a refusal unless bad rows are to be dropped and a good row is left."""
    lines = [f"{table.path}:{table.lines[row]}: {problem}" for row, problem in sorted(problems.items())]
    if lines and (not skip_bad or len(lines) == len(table)):
        by_line = {int(table.lines[row]): problem for row, problem in problems.items()}
        raise _refusal(table.path, by_line, lines, len(table))
    if not lines:
        return table
    kept = table.take(np.setdiff1d(np.arange(len(table)), list(problems)))
    return replace(kept, problems=tuple(lines))


def _refusal(path: Path, problems: Mapping[int, str], lines: list[str], n_rows: int) -> InputError:
    """A single problem, in any number of rows, is the message; several problems are listed below a summary."""
    grouped: dict[str, list[int]] = {}
    for line, problem in sorted(problems.items()):
        grouped.setdefault(problem, []).append(line)
    told = [f"{path}:{where[0]}: {problem}{_more(where[1:])}" for problem, where in grouped.items()]
    if len(told) == 1:
        return InputError(told[0], lines)
    listed = [f"{path}: {len(lines)} of {n_rows} rows are bad", *told[:_MAX_LISTED]]
    if len(told) > _MAX_LISTED:
        listed.append(f"... and {len(told) - _MAX_LISTED} more")
    return InputError("\n".join(listed), lines)


def _more(lines: list[int]) -> str:
    """Further lines with an equal problem."""
    return f" (and the same in {len(lines)} more: lines {first_of(lines, _MAX_LISTED)})" if lines else ""


def csv_table(path: Path) -> tuple[list[str], Records]:
    """Header of a CSV table, and the records below the header with their first lines.

    Raises:
        InputError: an unreadable or empty file.
    """
    records = _csv_records(path)
    first = next(records, None)
    if first is None:
        raise InputError(f"{path}: empty file; expected a CSV table with a header")
    return first[1], records


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records of a CSV file with their first lines, blank lines left out."""
    start = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            for record in reader:
                if record and (record[0].strip() or any(map(str.strip, record))):
                    yield start, record
                start = reader.line_num + 1
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected a CSV file saved as UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}:{start}: not valid CSV ({error}); expected closed quotes and short cells") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason_of(error)}); expected a CSV file") from None


def _told(problems: Mapping[int, list[str]]) -> dict[int, str]:
    """First problem of each row, and the number of further problems."""
    return {
        row: several[0] + (f" (and {len(several) - 1} more in this row)" if len(several) > 1 else "")
        for row, several in problems.items()
    }


def _coded_columns(path: Path, names: tuple[str, ...], records: Records) -> tuple[AbstractTable, dict[int, int]]:
    """Records as a table of cells, and the number of cells of rows longer or shorter than the header, by row."""
    columns = [TextColumn() for _ in names]
    lines: list[int] = []
    n_cells: dict[int, int] = {}
    # A block whose cells stay in the cache of the processor is turned into columns three times as fast as a long one.
    while block := list(itertools.islice(records, _BLOCK)):
        for place, (_, record) in enumerate(block):
            if len(record) != len(names):
                n_cells[len(lines) + place] = len(record)
        lines += [line for line, _ in block]
        if len(lines) > MAX_ROWS:
            raise InputError(f"{path}: too many rows; expected at most {MAX_ROWS}: split the file")
        rows = [record if len(record) == len(names) else [""] * len(names) for _, record in block]
        for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
            column.add(cells)
    coded = {name: column.categorical() for name, column in zip(names, columns, strict=True)}
    return _TextTable(path, names, np.asarray(lines, dtype=int), coded, {}), n_cells
