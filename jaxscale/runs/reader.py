"""Read a runs table and refuse what is malformed, with file, line, column, value and what would be valid."""

import csv
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxscale.errors import InputError
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.models import model_fields
from jaxscale.runs.cells import first_of, parse_cell, parse_gpu, show, suggest
from jaxscale.runs.checks import row_problems
from jaxscale.runs.header import canonical, check_header, hint_of_misspelt
from jaxscale.runs.rows import catalogue_shape
from jaxscale.runs.schema import BY_NAME, MAX_ROWS, SHAPE, Value
from jaxscale.runs.table import Row, Runs

ModelLookup = Callable[[str], Mapping[str, Any] | None]

# Lines of problems in a message; `InputError.problems` has them all.
_MAX_LISTED = 20


def read_runs(path: str | Path, *, skip_bad: bool = False, hardware: Hardware | None = None) -> Runs:
    """Read and check a runs table against the catalogues, `js.read_runs("runs.csv")`.

    Args:
        path: a CSV file, UTF-8, comma-separated, with a header.
        skip_bad: drop bad rows instead of refusing the file.
        hardware: chips that the table may name; the shipped catalogue where None.

    Returns:
        The table.

    Raises:
        InputError: the file cannot be read as a runs table, or has bad rows; with `skip_bad`, if all are bad.
    """
    chips, models = (hardware or load_hardware()).chips, model_fields()
    return read_table(
        path,
        known_gpus={name: entry.id for name, entry in chips.items()},
        lookup=lambda name: models.get(name.lower()),
        known_models=models,
        skip_bad=skip_bad,
    )


def read_table(
    path: str | Path,
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
        path: a CSV file, UTF-8, comma-separated, with a header.
        known_gpus: catalogue ids of chips by name, aliases included.
        lookup: fields of a catalogue model by name, None for an unknown name.
        known_models: names for the message about an unknown one.
        skip_bad: drop bad rows instead of refusing the file.

    Returns:
        The table.

    Raises:
        InputError: the file cannot be read as a runs table, or has bad rows; with `skip_bad`, if all are bad.
    """
    path = Path(path)
    columns, records = _open_table(path)
    check = _RowCheck(columns, known_gpus, lookup, known_models)
    rows: list[Row] = []
    problems: dict[int, str] = {}
    for line, cells in records:
        values, problem = check(line, cells)
        if problem:
            problems[line] = problem
        rows.append(Row(line, tuple(cells), values))
        if len(rows) > MAX_ROWS:
            raise InputError(f"{path}: too many rows; expected at most {MAX_ROWS}: split the file")
    if not rows:
        raise InputError(f"{path}: no data rows; expected one row per run below the header")
    problems |= check.shapeless()
    lines = [f"{path}:{line}: {problem}" for line, problem in sorted(problems.items())]
    if lines and (not skip_bad or len(lines) == len(rows)):
        raise _refusal(path, problems, lines, len(rows))
    kept = tuple(row for row in rows if row.line not in problems)
    return Runs(path, columns, kept, tuple(lines))


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


def _open_table(path: Path) -> tuple[tuple[str, ...], Iterator[tuple[int, list[str]]]]:
    """Header, checked, and the numbered records below it."""
    records = _records(path)
    first = next(records, None)
    if first is None:
        raise InputError(f"{path}: empty file; expected a CSV table with a header")
    columns = tuple(canonical(name) for name in first[1])
    check_header(path, columns)
    return columns, records


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records of a CSV file with the line on which each starts; blank lines are left out."""
    start = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            for record in reader:
                if any(cell.strip() for cell in record):
                    yield start, record
                start = reader.line_num + 1
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected a CSV file saved as UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}:{start}: not valid CSV ({error}); expected closed quotes and short cells") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path}: cannot be read ({reason}); expected a CSV file") from None


@dataclass
class _RowCheck:
    """Checks rows one by one, and remembers those whose model is unknown until the whole table has been seen."""

    columns: tuple[str, ...]
    known_gpus: Mapping[str, str]
    lookup: ModelLookup
    known_models: Collection[str]
    any_shape: bool = False
    unknown_models: dict[int, str] = field(default_factory=dict)

    def __call__(self, line: int, cells: list[str]) -> tuple[dict[str, Value], str]:
        """Values of a record, and its problems in one line (empty if it has none)."""
        if len(cells) != len(self.columns):
            return {}, f"{len(cells)} cells; expected {len(self.columns)}, as in the header"
        values, problems = self._parse(cells)
        whole = {**catalogue_shape(values, self.lookup), **values}
        problems = problems or row_problems(whole) or self._model_problems(line, values)
        more = f" (and {len(problems) - 1} more in this row)" if len(problems) > 1 else ""
        return values, problems[0] + more if problems else ""

    def _parse(self, cells: list[str]) -> tuple[dict[str, Value], list[str]]:
        values: dict[str, Value] = {}
        problems = []
        for name, cell in zip(self.columns, cells, strict=True):
            text = cell.strip()
            if not text or name not in BY_NAME:
                continue
            is_gpu = name == "gpu"
            value, problem = parse_gpu(text, self.known_gpus) if is_gpu else parse_cell(BY_NAME[name], text)
            if problem:
                problems.append(f"column {name!r} = {show(text)}: {problem}")
            elif value is not None:
                values[name] = value
        return values, problems

    def _model_problems(self, line: int, values: dict[str, Value]) -> list[str]:
        """Without shape columns the model is all there is, so it must be known."""
        model = str(values.get("model", ""))
        known = bool(model) and self.lookup(model) is not None
        given = [name for name in SHAPE if name in values]
        self.any_shape = self.any_shape or known or len(given) == len(SHAPE)
        if known or given and all(name in self.columns for name in SHAPE):
            return []
        problem = self._unknown_model(model)
        if any(name not in self.columns for name in SHAPE):
            return [problem]
        if model:
            self.unknown_models[line] = problem
        return []

    def _unknown_model(self, model: str) -> str:
        known = suggest(model, self.known_models) if self.known_models else "expected a catalogue model"
        hint = hint_of_misspelt(SHAPE, self.columns)
        return f"column 'model' = {show(model)}: unknown model and no shape{hint}; {known}, or {', '.join(SHAPE)}"

    def shapeless(self) -> dict[int, str]:
        """Rows of unknown models, by line, if no row of the table has a shape: then there is nothing to read."""
        return {} if self.any_shape else self.unknown_models
