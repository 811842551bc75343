"""Figures and report of predictions: comparison with measured times if any, and terms of each row."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.report.document import Report
from jaxscale.report.figures.accuracy import intervals, predicted_against_measured, residuals_by_column
from jaxscale.report.figures.panels import step_breakdown
from jaxscale.report.terminal_tables import error_summary, prediction_rows
from jaxscale.runs import Runs
from jaxscale.runs.predict import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 12
"""Largest number of rows in a figure of terms [1]."""

NUMBERS = ("n_gpus", "tp", "pp", "dp", "micro_batch_size", "seq_len", "d_model", "n_layers")
"""Numeric columns by which errors are shown; text columns are the groupings of `errors`."""


def prediction_figure(runs: Runs, prediction: Prediction, title: str) -> "Figure":
    """Figure of predicted against measured step times, or of terms with intervals without measurements."""
    rows = compared(prediction)
    if len(rows):
        groups = _words(prediction, "source", rows)
        return predicted_against_measured(prediction.measured[rows], prediction.step_time[rows], groups, title)
    return terms_figure(runs, prediction, title)


def terms_figure(runs: Runs, prediction: Prediction, title: str) -> "Figure":
    """Stacked bars of the terms of the first predicted rows, with 90 % intervals.

    Raises:
        InputError: no row has a prediction.
    """
    rows = np.flatnonzero(np.isfinite(prediction.step_time))[:MOST]
    if not len(rows):
        raise InputError("no row has a prediction to draw; expected one at least")
    labels = [_label(runs, int(row), len(runs) > 1) for row in rows]
    terms = {
        label: {name: float(values[row]) for name, values in prediction.terms.items()}
        for label, row in zip(labels, rows, strict=True)
    }
    ends = {
        label: (float(prediction.lo[row]), float(prediction.hi[row])) for label, row in zip(labels, rows, strict=True)
    }
    return step_breakdown(terms, title, intervals=ends)


def compared(prediction: Prediction) -> np.ndarray:
    """Indices of rows with a measurement and a prediction [row]."""
    # nan > 0 is false: rows without a prediction drop out.
    return np.flatnonzero(np.isfinite(prediction.measured) & (prediction.step_time > 0.0))


def _label(runs: Runs, row: int, has_lines: bool) -> str:
    """Short label of a row."""
    cells: Any = runs.rows[row]
    name, chips = cells["model"] or cells["workload"] or "run", cells["n_gpus"]
    line = f"line {cells.line}: " if has_lines else ""
    return f"{line}{name}, {'' if chips is None else f'{chips:g} '}{cells['gpu']}"


def _words(prediction: Prediction, column: str, rows: np.ndarray) -> list[str]:
    """Cells of a text column [row]."""
    levels = prediction.levels[column]
    return [str(levels.values[code] or "not named") for code in np.asarray(levels.codes)[rows]]


def prediction_report(runs: Runs, prediction: Prediction, title: str) -> Report:
    """Report of predictions: table, errors where measured, and the terms of the first rows.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    report.add(prediction_rows(runs, prediction))
    rows = compared(prediction)
    if len(rows):
        add_measured(report, runs, prediction, rows)
    if np.isfinite(prediction.step_time).any():
        report.heading("Where the time goes")
        caption = "Terms of a step, and the 90 % interval of its time."
        report.figure("terms", terms_figure(runs, prediction, title), caption)
    return report


def add_measured(report: Report, runs: Runs, prediction: Prediction, rows: np.ndarray) -> None:
    """Add errors of measured rows: against measurements, with intervals, by column."""
    report.heading("Predicted against measured")
    report.add(error_summary(prediction.errors()))
    measured, told = prediction.measured[rows], prediction.step_time[rows]
    figure = predicted_against_measured(measured, told, _words(prediction, "source", rows))
    report.figure("predicted_against_measured", figure, "No measured column is read to make a prediction.")
    figure = intervals(measured, prediction.lo[rows], prediction.hi[rows])
    report.figure("intervals", figure, "90 % intervals over the measured times.")
    columns: dict[str, Any] = {}
    for name in NUMBERS:
        values = runs.numbers(name)[rows]
        # A constant column shows no slope.
        if np.isfinite(values).all() and np.ptp(values) > 0.0:
            columns[name] = values.tolist()
    for name in prediction.levels:
        words = _words(prediction, name, rows)
        # A single level shows no step.
        if len(set(words)) > 1:
            columns[name] = words
    if columns:
        caption = "Errors by column: a slope or a step is a cause that is missed."
        report.figure("residuals_by_column", residuals_by_column(np.log(told / measured), columns), caption)
