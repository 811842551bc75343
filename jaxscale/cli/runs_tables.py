"""Reading of runs tables and writing of predictions for the commands."""

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.cli.console import say
from jaxscale.errors import InputError
from jaxscale.files import whole_file
from jaxscale.hardware.catalogue import Hardware
from jaxscale.predict import Prediction
from jaxscale.runs import Runs, read_runs
from jaxscale.runs.header import misspelt
from jaxscale.runs.table import write_extended
from jaxscale.units import GB

FIXED_COLUMNS = (
    "predicted_step_time_s",
    "predicted_step_time_lo_s",
    "predicted_step_time_hi_s",
    "predicted_memory_gb",
    "predicted_memory_lo_gb",
    "predicted_memory_hi_gb",
    "predicted_fits",
    "predicted_oom_probability",
    "predicted_assumed",
    "predicted_note",
)
"""Columns that `predict --out` adds, before the terms of the step."""


def runs_from_file(path: Path, skip_bad: bool, hardware: Hardware) -> Runs:
    """Read a runs table, and say how many bad rows were dropped, and which columns may be misspelt."""
    runs = read_runs(path, skip_bad=skip_bad, hardware=hardware)
    for name, meant in misspelt(runs.columns).items():
        say(f"{path}: column {name!r} is not read (is {meant!r} meant?)")
    say_dropped(runs)
    return runs


def say_dropped(runs: Runs) -> None:
    """Say how many bad rows of a table were dropped, if any."""
    if runs.n_skipped:
        say(f"{runs.path}: {runs.n_skipped} bad rows dropped, {len(runs)} kept; first: {runs.problems[0]}")


def say_unanswered(n_rows: int, n_answered: int) -> None:
    """Say how many rows of a table get no prediction, if any."""
    if n_answered < n_rows:
        say(f"{n_rows - n_answered} of {n_rows} rows are incomplete and get no prediction: see predicted_note")


def write_predictions(path: Path, runs: Runs, prediction: Prediction) -> None:
    """Write a table with its predictions, whole or not at all; columns of an earlier prediction are replaced."""
    if path.suffix.lower() == ".parquet":
        _write_parquet(path, runs, prediction)
        return
    added = {name: map(_cell, values) for name, values in _columns(prediction).items()}
    write_extended(path, runs.texts(), added)


def _write_parquet(path: Path, runs: Runs, prediction: Prediction) -> None:
    """Write a table with its predictions as a Parquet file; cells that are empty are null.

    Raises:
        InputError: pandas or pyarrow is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise InputError(f"{path}: {error.name} is not installed; expected `pip install jaxscale[tables]`") from None
    added = {
        name: [None if _cell(value) == "" else value for value in values]
        for name, values in _columns(prediction).items()
    }
    frame = runs.to_pandas()
    frame = frame[[name for name in frame.columns if name not in added]].reset_index(drop=True)
    with whole_file(path) as temporary:
        pandas.concat([frame, pandas.DataFrame(added)], axis=1).to_parquet(temporary)


def predictions_as_json(prediction: Prediction) -> list[dict[str, Any]]:
    """Columns that `predict --out` adds to each row; None where a row gets no prediction."""
    columns = _columns(prediction)
    return [
        {name: None if _cell(value) == "" else value for name, value in zip(columns, values, strict=True)}
        for values in zip(*columns.values(), strict=True)
    ]


def _columns(prediction: Prediction) -> dict[str, list[Any]]:
    """Values of `FIXED_COLUMNS` and of each cost term, by column [row]."""
    peaks = (values / GB for values in (prediction.memory, prediction.memory_lo, prediction.memory_hi))
    answered = np.isfinite(prediction.step_time)
    fixed = (
        *(values.tolist() for values in (prediction.step_time, prediction.lo, prediction.hi, *peaks)),
        np.where(answered, prediction.fits.astype(object), "").tolist(),
        prediction.oom_probability.tolist(),
        prediction.assumed.tolist(),
        prediction.notes.tolist(),
    )
    terms = {f"term_{name}_s": values.tolist() for name, values in prediction.terms.items()}
    return dict(zip(FIXED_COLUMNS, fixed, strict=True)) | terms


def _cell(value: float | bool | str) -> str:
    """A cell of a table; numbers with seven digits, more than any measurement has."""
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    return f"{value:.7g}" if math.isfinite(value) else ""
