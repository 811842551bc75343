"""History of a run as a CSV table, as Weights & Biases exports it: columns are mapped to quantities of a step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.errors import InputError, one_like
from jaxscale.launch.readers.read_run import MEASURED, RunRow, finished_row
from jaxscale.launch.readers.step_series import StepSeries
from jaxscale.tables.reader import csv_table

FILLED = {**{column: name for name, column in MEASURED.items()}, "peak_mem_gb": "memory_gb", "mfu": "mfu"}
"""Quantities of a step by the column of the runs table that they fill."""


def run_of_history(path: Path, columns: Mapping[str, str], stated: Mapping[str, Any]) -> RunRow:
    """Row of a runs table from a history of steps: medians over the steady steps.

    Args:
        path: a CSV table, one row for each step.
        columns: name of a column of the history by the column of the runs table that it fills.
        stated: other cells of the row.

    Raises:
        InputError: an unreadable file, a missing column, or a column that is empty in every step.
    """
    for name in columns:
        if name not in FILLED:
            raise InputError(f"{name!r} is not measured at each step; expected one of {', '.join(FILLED)}")
    series = StepSeries()
    header, records = csv_table(path)
    for own in columns.values():
        if own not in header:
            raise InputError(f"{path}:1: no column {own!r}; {one_like(own, header)}")
    for place, (_, record) in enumerate(records):
        # A history may end within a row: missing cells count as nan.
        cells = dict(zip(header, record, strict=False))
        series.add(float(place), **{FILLED[name]: _float(cells.get(own)) for name, own in columns.items()})
    medians = series.medians()
    if not medians:
        raise InputError(f"{path}: no number in {', '.join(columns.values())}; expected one row for each step")
    cells = {name: medians[FILLED[name]] for name in columns if FILLED[name] in medians}
    note = f"median of {int(series.is_steady().sum())} steady steps of {len(series)} in a history"
    return finished_row({**stated, **cells, "notes": note}, [], path)


def _float(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")
