"""Runs tables as the commands read and write them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.cli.console import say
from jaxscale.hardware.catalogue import Hardware
from jaxscale.predict import Prediction
from jaxscale.runs import Runs, read_runs, write_table
from jaxscale.runs.header import misspelt
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
    "predicted_note",
)
"""Columns that `predict --out` adds, before the terms of the step."""


def runs_from_file(path: Path, skip_bad: bool, hardware: Hardware) -> Runs:
    """Read a runs table, and say how many bad rows were dropped, and which columns may be misspelt."""
    runs = read_runs(path, skip_bad=skip_bad, hardware=hardware)
    for name, meant in misspelt(runs.columns).items():
        say(f"{path}: column {name!r} is not read (is {meant!r} meant?)")
    if runs.n_skipped:
        say(f"{path}: {runs.n_skipped} bad rows dropped, {len(runs)} kept; first: {runs.problems[0]}")
    return runs


def write_predictions(path: Path, runs: Runs, prediction: Prediction) -> None:
    """Write a table with its predictions, whole or not at all; columns of an earlier prediction are replaced."""
    added = [*FIXED_COLUMNS, *(f"term_{name}_s" for name in prediction.terms)]
    kept = [index for index, name in enumerate(runs.columns) if name not in added]
    columns = [*(runs.columns[index] for index in kept), *added]
    rows = (
        [*(row.cells[index] for index in kept), *map(_cell, values)]
        for row, values in zip(runs, _values(prediction), strict=True)
    )
    write_table(path, columns, rows)


def predictions_as_json(prediction: Prediction) -> list[dict[str, Any]]:
    """What `predict --out` adds to each row, by column; None where a row gets no prediction."""
    columns = (*FIXED_COLUMNS, *(f"term_{name}_s" for name in prediction.terms))
    return [
        {name: None if _cell(value) == "" else value for name, value in zip(columns, values, strict=True)}
        for values in _values(prediction)
    ]


def _values(prediction: Prediction) -> Iterator[list[Any]]:
    answered = np.isfinite(prediction.step_time)
    peaks = (values / GB for values in (prediction.memory, prediction.memory_lo, prediction.memory_hi))
    numbers = (prediction.step_time, prediction.lo, prediction.hi, *peaks)
    for index in range(len(prediction.step_time)):
        yield [
            *(float(values[index]) for values in numbers),
            bool(prediction.fits[index]) if answered[index] else "",
            float(prediction.oom_probability[index]),
            prediction.notes[index],
            *(float(term[index]) for term in prediction.terms.values()),
        ]


def _cell(value: float | bool | str) -> str:
    """A cell of a table; numbers with seven digits, more than any measurement has."""
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    return f"{value:.7g}" if np.isfinite(value) else ""
