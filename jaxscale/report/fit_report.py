"""Report of a fit: errors of held-out runs, intervals of coefficients, warnings."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.calibration.levels import Levels
from jaxscale.fitting.result import FitResult
from jaxscale.fitting.summary import error_table, headlines, parameter_table, remarks
from jaxscale.report.document import Report
from jaxscale.report.figures import (
    coefficient_intervals,
    correlation_matrix,
    predicted_against_measured,
    profile_curves,
    residuals_by_column,
)
from jaxscale.runs.arrays import RunBatch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAN_COLUMNS = ("dp", "tp", "pp", "cp", "ep", "micro_batch_size", "n_microbatches")
SHAPE_COLUMNS = ("d_model", "n_layers", "seq_len")
LEVEL_COLUMNS = ("source", "gpu", "precision", "release")


def fit_report(result: FitResult, title: str) -> Report:
    """Report of a fit with text, tables and figures.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    report.sentences(headlines(result))
    add_errors(report, result)
    add_coefficients(report, result)
    report.heading("What to doubt")
    report.sentences(remarks(result))
    return report


def fit_figure(result: FitResult) -> "Figure":
    """Figure of predicted against measured step times of held-out runs, else of fitted runs."""
    measured = np.exp(np.asarray(result.problem.log_time)[: result.n])
    sources = result.levels.column("source").tolist()
    # `tested`: log of predicted over measured time.
    return predicted_against_measured(measured, measured * np.exp(result.tested), sources)


def add_errors(report: Report, result: FitResult) -> None:
    """Add predicted against measured times, and errors by column and level."""
    if np.isfinite(result.held_out).any():
        heading, note = "Predictions of runs that the fit has not seen", "Each run's group was left out of its fit."
    else:
        heading, note = "Predictions of the fitted runs", "In sample."
    report.heading(heading)
    caption = f"Predicted against measured step time. {note}"
    report.figure("predicted_against_measured", fit_figure(result), caption)
    columns = varied_columns(result.batch, result.levels)
    if columns:
        figure = residuals_by_column(result.tested, columns)
        report.figure("residuals_by_column", figure, "Errors by column: a slope or a step is a cause that is missed.")
    if (errors := error_table(result)).rows:
        report.text(
            "Influence is Cook's distance: how far the coefficients would move without these runs, in posterior "
            "standard deviations squared."
        )
        report.add(errors)


def varied_columns(batch: RunBatch, levels: Levels) -> dict[str, list[Any]]:
    """Columns of shape, plan, cluster and levels with more than one value [row]."""
    columns = {name: getattr(batch.model, name) for name in SHAPE_COLUMNS}
    columns |= {"chips": batch.cluster.n_chips, **{name: getattr(batch.plan, name) for name in PLAN_COLUMNS}}
    numbers = {name: np.asarray(values, dtype=float).tolist() for name, values in columns.items()}
    words = {kind: levels.column(kind).tolist() for kind in LEVEL_COLUMNS}
    # A constant column shows neither slope nor step.
    return {name: values for name, values in {**numbers, **words}.items() if len(set(values)) > 1}


def add_coefficients(report: Report, result: FitResult) -> None:
    """Add the coefficients with intervals, profiles and correlations."""
    report.heading("What the runs say about the coefficients")
    report.figure("coefficients", coefficient_intervals(result), "90 % intervals beside those of the priors.")
    caption = (
        "Profile likelihoods; a 90 % interval ends where the deviance has risen by 2.71. Where a curve falls again, "
        "another valley begins: the runs can be explained in a second way."
    )
    report.figure("profiles", profile_curves(result), caption)
    report.figure("correlation", correlation_matrix(result), "Coefficients that these runs cannot tell apart.")
    report.add(parameter_table(result))
