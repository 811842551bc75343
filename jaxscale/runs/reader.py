"""Read a runs table and refuse what is malformed, with file, line, column, value and what would be valid."""

import csv
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxscale.base.errors import InputError, one_like
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.models import catalogue_model, model_fields
from jaxscale.runs.categorical import Categorical, TextColumn
from jaxscale.runs.cells import first_of, parse_cells, show
from jaxscale.runs.checks import row_checks
from jaxscale.runs.header import canonical, check_header, hint_of_misspelt
from jaxscale.runs.row_kinds import kinds_in, of_a_kind
from jaxscale.runs.schema import BY_NAME, MAX_ROWS, SHAPE
from jaxscale.runs.shapes import ModelLookup, catalogue_entries
from jaxscale.runs.table import Runs
from jaxscale.runs.tables_in_memory import HANDED_IN, AnyTable, Records, table_in_memory
from jaxscale.runs.words.batch_cells import batches_in_sequences
from jaxscale.runs.words.model_files import with_model_files

BATCH = "global_batch_size_seqs"


# Rows that are turned into columns at a time.
_BLOCK = 256
# Lines of problems in a message; `InputError.problems` has them all.
_MAX_LISTED = 20


def read_runs(table: AnyTable, *, skip_bad: bool = False, hardware: Hardware | None = None) -> Runs:
    """Read and check a runs table against the catalogues, `js.read_runs("runs.csv")`.

    Args:
        table: path of a CSV file, UTF-8, comma-separated, with a header; or a DataFrame of pandas or polars, a table of
            pyarrow, a mapping of columns, or a sequence of mappings, one for each row, with the same columns. `Runs`
            are returned as they are.
        skip_bad: drop bad rows instead of refusing the file.
        hardware: chips that the table may name; the shipped catalogue where None.

    Returns:
        The table.

    Raises:
        InputError: the file cannot be read as a runs table, or has bad rows; with `skip_bad`, if all are bad.
    """
    if isinstance(table, Runs):
        return table
    names = (hardware or load_hardware()).names
    return read_table(
        table,
        known_gpus=names.ids,
        lookup=catalogue_model,
        known_models=model_fields(),
        skip_bad=skip_bad,
    )


def read_table(
    table: AnyTable,
    *,
    known_gpus: Mapping[str, str],
    lookup: ModelLookup,
    known_models: Collection[str] = (),
    skip_bad: bool = False,
) -> Runs:
    """Read and check a runs table against names handed in.

    A row whose cells contradict each other, or hold what their column cannot, is bad. A row whose required cells are
    empty is incomplete and kept: `describe` says what it lacks.

    Args:
        table: a path, or what else `read_runs` takes.
        known_gpus: catalogue ids of chips by name, aliases included.
        lookup: fields of a catalogue model by name, None for an unknown name.
        known_models: names for the message about an unknown one.
        skip_bad: drop bad rows instead of refusing the file.

    Returns:
        The table.

    Raises:
        InputError: the file cannot be read as a runs table, or has bad rows; with `skip_bad`, if all are bad.
    """
    path = Path(table) if isinstance(table, str | Path) else HANDED_IN
    header, records = csv_table(path) if isinstance(table, str | Path) else table_in_memory(table)
    read, n_cells = _read_columns(path, header, records, known_gpus)
    if not len(read.runs):
        raise InputError(f"{path}: no data rows; expected one row per run below the header")
    problems = {
        row: f"{count} cells; expected {len(read.runs.columns)}, as in the header" for row, count in n_cells.items()
    }
    problems |= _told(_cell_problems(read))
    problems |= _told(_contradictions(read.runs, lookup, set(problems)))
    for kind, is_kind in kinds_in(read.runs):
        found = kind.problems(read.runs, is_kind, lambda name: lookup(name) is not None, set(problems))
        problems |= _told(found)
    problems |= _model_problems(read.runs, lookup, known_models, set(problems))
    return without_bad_rows(read.runs, problems, skip_bad)


def without_bad_rows(runs: Runs, problems: Mapping[int, str], skip_bad: bool) -> Runs:
    """A table of any kind without its bad rows, if they are to be dropped.

    Args:
        runs: the table, bad rows included.
        problems: what is wrong with each bad row, by its position.
        skip_bad: drop bad rows instead of refusing the file.

    Raises:
        InputError: there are bad rows; with `skip_bad`, if all are bad.
    """
    lines = [f"{runs.path}:{runs.lines[row]}: {problem}" for row, problem in sorted(problems.items())]
    if lines and (not skip_bad or len(lines) == len(runs)):
        by_line = {int(runs.lines[row]): problem for row, problem in problems.items()}
        raise _refusal(runs.path, by_line, lines, len(runs))
    if not lines:
        return runs
    kept = runs.take(np.setdiff1d(np.arange(len(runs)), list(problems)))
    return replace(kept, problems=tuple(lines))


def _refusal(path: Path, problems: Mapping[int, str], lines: list[str], n_rows: int) -> InputError:
    """One problem is its own message, in however many rows; several are listed below a summary."""
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
    """The other lines that have the same problem."""
    return f" (and the same in {len(lines)} more: lines {first_of(lines, _MAX_LISTED)})" if lines else ""


class _Table(NamedTuple):
    """A table as it was read, bad rows included.

    Attributes:
        runs: its columns.
        problems: what is wrong with bad cells, by their code in their column [column].
    """

    runs: Runs
    problems: dict[str, dict[int, str]]


def _read_columns(
    path: Path, header: list[str], records: Records, known_gpus: Mapping[str, str]
) -> tuple[_Table, dict[int, int]]:
    """The table, and the number of cells of rows that have not as many as the header, by row."""
    columns = tuple(map(canonical, header))
    check_header(path, columns)
    lines, cells, n_cells = coded_columns(path, records, len(columns))
    values, problems = {}, {}
    for name, column in zip(columns, cells, strict=True):
        if name in BY_NAME:
            parsed = parse_cells(BY_NAME[name], list(map(str.strip, column.values)), known_gpus)
            values[name], problems[name] = Categorical(column.codes, tuple(parsed.values)), parsed.problems
    texts = dict(zip(columns, cells, strict=True))
    if problems.get(BATCH):
        values[BATCH], problems[BATCH] = batches_in_sequences(
            texts[BATCH], values[BATCH], values.get("seq_len"), problems[BATCH]
        )
    runs, unreadable = with_model_files(Runs(path, columns, lines, texts, values))
    return _Table(runs, problems | unreadable), n_cells


def csv_table(path: Path) -> tuple[list[str], Records]:
    """Header of a CSV table, and the records below it with the line on which each starts.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    records = csv_records(path)
    first = next(records, None)
    if first is None:
        raise InputError(f"{path}: empty file; expected a CSV table with a header")
    return first[1], records


def coded_columns(
    path: Path, records: Iterator[tuple[int, list[str]]], n_columns: int
) -> tuple[np.ndarray, list[Categorical], dict[int, int]]:
    """Lines and columns of the records, and the number of cells of those that have not one for each column."""
    columns = [TextColumn() for _ in range(n_columns)]
    lines: list[int] = []
    n_cells: dict[int, int] = {}
    # A block whose cells stay in the cache of the processor is turned into columns three times as fast as a long one.
    while block := list(itertools.islice(records, _BLOCK)):
        for place, (_, record) in enumerate(block):
            if len(record) != n_columns:
                n_cells[len(lines) + place] = len(record)
        lines += [line for line, _ in block]
        if len(lines) > MAX_ROWS:
            raise InputError(f"{path}: too many rows; expected at most {MAX_ROWS}: split the file")
        rows = [record if len(record) == n_columns else [""] * n_columns for _, record in block]
        for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
            column.add(cells)
    return np.asarray(lines, dtype=int), [column.categorical() for column in columns], n_cells


def csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records of a CSV file with the line on which each starts; blank lines are left out."""
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
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path}: cannot be read ({reason}); expected a CSV file") from None


def _told(problems: Mapping[int, list[str]]) -> dict[int, str]:
    """The first problem of each row, and how many more there are."""
    return {
        row: several[0] + (f" (and {len(several) - 1} more in this row)" if len(several) > 1 else "")
        for row, several in problems.items()
    }


def _cell_problems(table: _Table) -> dict[int, list[str]]:
    """What is wrong with single cells, by row."""
    problems: dict[int, list[str]] = {}
    for name, by_code in table.problems.items():
        cells = table.runs.cells[name]
        for row in np.flatnonzero(np.isin(cells.codes, list(by_code))).tolist():
            text = show(cells[row].strip())
            problems.setdefault(row, []).append(f"column {name!r} = {text}: {by_code[cells.codes[row]]}")
    return problems


def _contradictions(runs: Runs, lookup: ModelLookup, bad: Collection[int]) -> dict[int, list[str]]:
    """What contradicts itself in rows whose cells are each valid, by row."""
    problems: dict[int, list[str]] = {}
    for check in row_checks(runs, catalogue_entries(runs, lookup)):
        for row in np.flatnonzero(check.is_broken).tolist():
            if row not in bad:
                problems.setdefault(row, []).append(check.problem(row))
    return problems


def _model_problems(
    runs: Runs, lookup: ModelLookup, known_models: Collection[str], bad: Collection[int]
) -> dict[int, str]:
    """Rows without a shape whose model is unknown, so that there is nothing to read.

    Where the table has shape columns, an unknown model is a problem only if no row of the table has a shape.
    """
    models = runs.categories("model")
    is_judged = np.ones(len(runs), dtype=bool)
    is_judged[list(bad)] = False
    is_judged &= ~of_a_kind(runs)
    is_known = models.matches(lambda name: bool(name) and lookup(name) is not None)
    n_given = np.sum([~np.isnan(runs.numbers(name)) for name in SHAPE], axis=0)
    is_known |= n_given == len(SHAPE)
    has_columns = all(name in runs.columns for name in SHAPE)
    if has_columns and np.any(is_judged & is_known):
        return {}
    is_named = models.matches(bool)
    is_problem = is_judged & ~is_known & (((n_given == 0) & is_named) if has_columns else True)
    hint = hint_of_misspelt(SHAPE, runs.columns)
    told: dict[str, str] = {}
    for name in {models[row] or "" for row in np.flatnonzero(is_problem).tolist()}:
        known = one_like(name, known_models) if known_models else "expected a catalogue model"
        told[name] = f"column 'model' = {show(name)}: unknown model and no shape{hint}; {known}, or {', '.join(SHAPE)}"
    return {row: told[models[row] or ""] for row in np.flatnonzero(is_problem).tolist()}
