"""Reader of runs tables, with checks against the catalogues of chips and models, and against named model files."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from jaxscale.base.errors import InputError
from jaxscale.hardware.catalogue import Hardware
from jaxscale.models.model_catalogue import model_file_fields
from jaxscale.runs.checks import row_checks
from jaxscale.runs.row_kinds import kinds_in, of_a_kind
from jaxscale.runs.schema import BATCH, BY_NAME, MODEL_FIELDS, REQUIRED, Runs, batches_in_sequences, run_headings
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.cells import SHAPE, ModelLookup, Names
from jaxscale.tables.reader import AnyTable, read
from jaxscale.tables.schema import (
    AbstractSchema,
    CellProblems,
    Check,
    Header,
    Headings,
    in_units_of_columns,
)
from jaxscale.tables.table import AbstractTable

MODEL_FILE = "model_file"


def with_model_files(runs: Runs) -> tuple[Runs, dict[str, dict[int, str]]]:
    """Table with empty shape cells filled from model files, and errors of files.

    Args:
        runs: the table; paths are relative to the table's folder, or to the current folder.

    Returns:
        The table; problems by column and by code of the file's name in the column.
    """
    named = runs.categories(MODEL_FILE)
    if not named.matches(bool).any():
        return runs, {}
    problems: dict[int, str] = {}
    fields = [_fields(name, runs.path.parent, code, problems) if name else {} for code, name in enumerate(named.values)]
    of_file = Categorical(named.codes, tuple(range(len(fields))))
    columns = {
        name: together(runs.categories(name), of_file).map(
            lambda pair, name=name: fields[pair[1]].get(name) if pair[0] is None else pair[0]
        )
        for name in MODEL_FIELDS
        if any(name in one for one in fields)
    }
    return replace(runs, values={**runs.values, **columns}), {MODEL_FILE: problems}


def _fields(name: str, folder: Path, code: int, problems: dict[int, str]) -> dict[str, float]:
    """Shape columns of a file, none for a file with errors."""
    # Paths beside the table first, then in the current folder.
    path = next((path for path in (folder / name, Path(name)) if path.is_file()), folder / name)
    try:
        fields = model_file_fields(path)
    except InputError as error:
        problems[code] = str(error)
        return {}
    return {key: float(value) for key, value in fields.items() if key in MODEL_FIELDS}


OF_A_WORKLOAD = ("gpu", "n_gpus")
"""Columns that a table of traced workloads needs beside `workload`."""

COMPLETED = ("tp", "pp", "micro_batch_size", BATCH)
"""Columns that a run needs and a table may lack: `predict` completes rows whose cells are empty."""

NEEDED = tuple(name for name in REQUIRED if name not in COMPLETED)
"""Columns that a table of models needs."""

# What fills a required column that is absent.
_FILLED_BY: dict[str, set[str]] = dict.fromkeys(SHAPE, {"model", "model_file"})


class RunsSchema(AbstractSchema[Runs]):
    """Schema of tables of training runs."""

    columns = BY_NAME
    says_nothing = ("source_row", "notes", "model_file")

    @classmethod
    def further_headings(cls) -> Headings:
        """Alternative names of columns, and units, of common tools and of people."""
        return run_headings()

    def in_units(self, cells: AbstractTable, header: Header) -> AbstractTable:
        """Cells converted to the units of the columns, such as seconds below `step (ms)`."""
        return in_units_of_columns(cells, header)

    def lacks(self, header: Header) -> str:
        """Message about absent required columns that no present column replaces; empty for none."""
        needed = OF_A_WORKLOAD if "workload" in header.columns else NEEDED
        missing = self.missing(header, needed, _FILLED_BY)
        if not missing:
            return ""
        expected = [f"model (or {', '.join(SHAPE)})", *(name for name in NEEDED if name not in SHAPE)]
        serving = "a table of serving is read by `jaxscale serving predict`"
        told = f"{missing}; expected at least {', '.join(expected)}"
        told += self.told_elsewhere(
            header, ("serving_names",), ("input_len", "output_len", "ttft_s", "tpot_s"), serving
        )
        is_no_table = not any(name in BY_NAME for name in header.columns)
        return f"{told}; a launch file or log is read by `jaxscale read`" if is_no_table else told

    def table(self, table: AbstractTable, header: Header, problems: CellProblems) -> Runs:
        """Runs with batches in sequences and shapes from model files."""
        values = dict(table.values)
        if problems.get(BATCH):
            values[BATCH], problems[BATCH] = batches_in_sequences(
                table.cells[BATCH], values[BATCH], values.get("seq_len"), problems[BATCH]
            )
        runs, unreadable = with_model_files(Runs.of(replace(table, values=values)))
        # A file with a mistake is a problem of the cell that names the file.
        problems |= unreadable
        return runs

    def checks(self, table: Runs) -> list[Check]:
        """Checks of degrees against chips, microbatches against the batch, heads and experts."""
        return row_checks(table, self.names.lookup)

    def row_problems(self, table: Runs, bad: Collection[int]) -> Iterator[dict[int, list[str]]]:
        """Problems of valid cells by row: contradictions, invalid rows of further kinds, unknown models."""
        yield from super().row_problems(table, bad)
        for kind, is_kind in kinds_in(table):
            yield kind.problems(table, is_kind, self.names.is_model, bad)
        # A row of a workload needs no model.
        judged = ~of_a_kind(table)
        # A row with a problem is not judged twice.
        judged[list(bad)] = False
        yield self.unknown_models(table, judged, self.hint(SHAPE, table.columns))


def read_runs(table: AnyTable, *, skip_bad: bool = False, hardware: Hardware | None = None) -> Runs:
    """Read a runs table and check it against the catalogues, `js.read_runs("runs.csv")`.

    Args:
        table: path of a CSV file, UTF-8, comma-separated, with a header; or a DataFrame of pandas or polars, a table of
            pyarrow, a mapping of columns, or a sequence of mappings, one per row, with equal columns. `Runs`
            are returned as they are.
        skip_bad: drop bad rows instead of refusing the file.
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        The table.

    Raises:
        InputError: the file cannot be read as a runs table, or has bad rows; with `skip_bad`, if all are bad.
    """
    if isinstance(table, Runs):
        return table
    return read(table, RunsSchema(Names.of(hardware)), skip_bad=skip_bad)


def read_table(
    table: AnyTable,
    *,
    known_gpus: Mapping[str, str],
    lookup: ModelLookup,
    known_models: Collection[str] = (),
    skip_bad: bool = False,
) -> Runs:
    """Read a runs table and check it against given names of chips and models.

    A row with contradictory or invalid cells is bad. A row with empty required cells is
    incomplete and kept: `describe_rows` names the missing columns.

    Args:
        table: a path, or a table in memory, as for `read_runs`.
        known_gpus: catalogue ids of chips by name, aliases included.
        lookup: fields of a catalogue model by name, None for an unknown name.
        known_models: names suggested in the message about an unknown model.
        skip_bad: drop bad rows instead of refusing the file.

    Returns:
        The table.

    Raises:
        InputError: the file cannot be read as a runs table, or has bad rows; with `skip_bad`, if all are bad.
    """
    return read(table, RunsSchema(Names(known_gpus, lookup, known_models)), skip_bad=skip_bad)
