"""Runs tables of the commands: read from a file or from options, and written with the predictions."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.arrays import as_whole
from jaxscale.base.errors import InputError
from jaxscale.base.files import whole_file
from jaxscale.cli.arguments import OWN
from jaxscale.cli.console import remark, say
from jaxscale.hardware.catalogue import Hardware
from jaxscale.models import catalogue_model, described_model
from jaxscale.runs import Runs, read_runs
from jaxscale.runs.predict import Prediction
from jaxscale.runs.schema import BY_NAME, sequences_in, stated_values
from jaxscale.tables.table import AbstractTable, cell_of, write_extended


def runs_from_file(path: Path, skip_bad: bool, hardware: Hardware) -> Runs:
    """Read a runs table, with messages on dropped bad rows and on columns that may be misspelt."""
    runs = read_runs(path, skip_bad=skip_bad, hardware=hardware)
    say_doubts(runs)
    return runs


def say_doubts(table: AbstractTable) -> None:
    """Say which columns of a table are not read, and how many bad rows were dropped."""
    for doubt in table.doubts:
        say(f"{table.path}: {doubt}")
    if table.n_skipped:
        say(f"{table.path}: {table.n_skipped} bad rows dropped, {len(table)} kept; first: {table.problems[0]}")


def say_unanswered(n_rows: int, n_answered: int) -> None:
    """Print a message with the number of rows without prediction, if any."""
    if n_answered < n_rows:
        say(f"{n_rows - n_answered} of {n_rows} rows are incomplete and get no prediction: see predicted_note")


def write_predictions(path: Path, runs: Runs, prediction: Prediction) -> None:
    """Write a table and the predictions atomically as CSV or Parquet; columns of an earlier prediction are replaced."""
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, prediction)
        return
    write_extended(path, runs.texts(), prediction.columns())


def _write_parquet(path: Path, prediction: Prediction) -> None:
    """Write a table with predictions as a Parquet file; empty cells are null.

    Raises:
        InputError: pandas or pyarrow is not installed.
    """
    try:
        is_numeric_dtype = importlib.import_module("pandas.api.types").is_numeric_dtype
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise InputError(f"{path}: {error.name} is not installed; expected `pip install jaxscale[tables]`") from None
    frame = prediction.to_pandas().reset_index(drop=True)
    # Null only in columns of text: numbers have nan.
    texts = [name for name in frame.columns if not is_numeric_dtype(frame[name])]
    frame[texts] = frame[texts].replace({"": None})
    with whole_file(path) as temporary:
        frame.to_parquet(temporary)


IDENTITY = ("source", "model", "workload", "framework", "gpu", "n_gpus", "global_batch_size_seqs", "seq_len")
"""Columns by which a row of a document is told from others, beside its line in the table."""


def predictions_as_json(prediction: Prediction) -> list[dict[str, Any]]:
    """Rows of the JSON document of `jaxscale predict`: identity of the run, plan, and the columns of `--out`.

    Values without prediction are None.
    """
    runs, columns = prediction.runs, prediction.columns()
    identity = {name: runs.column(name) for name in IDENTITY if name in runs.values}
    rows = []
    for row in range(len(runs)):
        told = {name: as_whole(column[row]) for name, column in identity.items()}
        added = {name: None if cell_of(column[row]) == "" else column[row] for name, column in columns.items()}
        rows.append({"line": int(runs.lines[row]), **told, "plan": prediction.plan(row), **added})
    return rows


def one_run(options: Mapping[str, Any], stated: Mapping[str, str], hardware: Hardware) -> Runs:
    """Runs table with a single row, from options of a command.

    Args:
        options: values by column, None for absent options; `model` may be a file.
        stated: further values by column, from `--set`.
        hardware: catalogue of chips.

    Raises:
        InputError: an unknown model, chip or column, or an invalid cell; names the option.
    """
    cells = {name: value for name, value in options.items() if value is not None}
    description = described_model(cells["model"])
    if catalogue_model(cells["model"]) is None:
        # The table knows no names of files: the fields stand for the model.
        shape = {name: value for name, value in description.fields.items() if name in BY_NAME and name != "seq_len"}
        cells = {**shape, **cells, "model": Path(cells["model"]).stem}
    for name, value in stated_values("--set", stated).items():
        if options.get(name) not in (None, value):
            raise InputError(f"--set {name} has an option of its own beside it; expected one of them")
        cells[name] = value
    if "seq_len" not in cells:
        cells["seq_len"] = description.transformer(str(options["model"])).seq_len
        remark(f"{description.length_remark(cells['seq_len'])}; state --seq-len")
    cells["global_batch_size_seqs"] = _batch(cells)
    try:
        return read_runs(cells, hardware=hardware)
    except InputError as error:
        # A user of options knows no table, line or column.
        told = re.sub(r"column '(\w+)'", lambda column: _option_of(column[1]), str(error).replace("table:1: ", ""))
        raise InputError(told) from None


def _option_of(column: str) -> str:
    """Option that states a column of one run."""
    return OWN.get(column) or ("--" if column in ("framework", "precision") else "--set ") + column


def _batch(cells: Mapping[str, Any]) -> Any:
    """Batch in sequences from a number of sequences or tokens; None where absent."""
    text = cells.get("global_batch_size_seqs")
    if text is None:
        return None
    sequences = sequences_in(str(text), float(cells["seq_len"]))
    return text if sequences is None else sequences
