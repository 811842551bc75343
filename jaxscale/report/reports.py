"""Figures and reports of predictions, fits, ranked plans and designs, for the option `--report` of commands."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.base.table import make_table
from jaxscale.calibration.levels import Levels
from jaxscale.designs.whole_run import RunChoice
from jaxscale.fitting.result import FitResult
from jaxscale.fitting.summary import error_table, headlines, parameter_table, remarks
from jaxscale.laws.law_report import law_choice_table
from jaxscale.plans.choice import PlanChoice, ScoredPlan
from jaxscale.report.document import Report
from jaxscale.report.figures import (
    coefficient_intervals,
    correlation_matrix,
    intervals,
    predicted_against_measured,
    profile_curves,
    residuals_by_column,
)
from jaxscale.report.figures.design import sensitivity_bars
from jaxscale.report.figures.panels import Panel, panels, step_breakdown, time_against_memory
from jaxscale.report.style import seconds
from jaxscale.report.terminal_tables import (
    PLAN_COLUMNS,
    error_summary,
    plan_cells,
    plan_ranking,
    prediction_rows,
    price_list,
    run_table,
    shape_choice,
)
from jaxscale.runs import Runs
from jaxscale.runs.arrays import RunBatch
from jaxscale.runs.predict import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_PLANS = 6
"""Largest number of plans in a figure [1]."""


def fastest_plans(choice: PlanChoice) -> dict[str, ScoredPlan]:
    """First plans of the ranking by label: the rank, and the choices that differ among the plans."""
    shown = choice.top[:MOST_PLANS]
    table = make_table(
        "", tuple(PLAN_COLUMNS.values()), [tuple(plan_cells(one.plan.words()).values()) for one in shown]
    )
    # Columns equal in all plans do not tell the plans apart.
    distinct, _ = table.without_equal_columns()
    labels = []
    for rank, cells in enumerate(distinct.rows, start=1):
        phrases = (column.phrase(cell) for column, cell in zip(distinct.columns, cells, strict=True))
        labels.append(f"{rank}: {' '.join(phrase for phrase in phrases if phrase)}")
    return dict(zip(labels, shown, strict=True))


def plan_breakdown(choice: PlanChoice, title: str) -> "Figure":
    """Figure of the step-time terms of the fastest plans as stacked bars."""
    return step_breakdown({label: scored.terms for label, scored in fastest_plans(choice).items()}, title)


def run_figure(run: Mapping[str, Any]) -> "Figure":
    """Figure of duration, energy and price, or chip-hours, of a run by chips and batch, from `RunChoice.to_json`."""
    every = run["candidates"]
    axes = {"n_chips": "chips", "global_batch_size_seqs": "batch"}
    values = {name: sorted({one[name] for one in every}) for name in axes}
    # With a single number of chips, the abscissa is the batch.
    along, across = axes if len(values["n_chips"]) > 1 else tuple(axes)[::-1]
    paid = ("price", "price") if run["step"]["price"] is not None else ("chip_hours", "chip hours")
    parts = []
    for key, label in (("days", "days"), ("energy_mwh", "energy [MWh]"), paid):
        at = {(one[along], one[across]): one[key] for one in every}
        lines = {
            # A gap for chips and batch without a candidate.
            f"{axes[across]} {other:g}": np.asarray([at.get((x, other), np.nan) for x in values[along]])
            for other in values[across]
        }
        is_days = key == "days"
        x = np.asarray(values[along])
        parts.append(Panel(label.split(" [")[0], axes[along], label, x, lines, logarithmic=(True, is_days)))
    return panels(parts, 3)


def plan_report(choice: PlanChoice, title: str, run: RunChoice | None = None) -> Report:
    """Report of ranked plans: table, breakdown of the first plans, time against memory, alternatives.

    Args:
        choice: the ranked plans.
        title: title of the report.
        run: whole run of the plans.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    if run is not None:
        document = run.to_json()
        report.add(run_table(document))
        for line in run.sentences():
            report.text(line)
        if len(run.candidates) > 1:
            report.figure("run", run_figure(document), "The whole run by chips and batch.")
    report.add(plan_ranking(choice.to_json(), "step" if run is None else run.objective))
    low, high = (seconds(end) for end in choice.step_time_interval)
    report.text(f"90 % interval of the first plan's step: {low} to {high}.")
    report.heading("Where the time goes")
    report.figure("plans", plan_breakdown(choice, title), "Terms of a step of the first plans.")
    report.heading("Time against memory")
    places = {label: (scored.memory, scored.step_time) for label, scored in fastest_plans(choice).items()}
    figure = time_against_memory(places, choice.memory_limit, title)
    caption = f"{choice.infeasible:,} of {choice.searched:,} plans are beyond the limit and not shown."
    report.figure("memory", figure, caption)
    report.heading("What binds, and what changes would cost")
    for line in (*choice.binds, *choice.reasons):
        report.text(line)
    return report


def price_figure(document: Mapping[str, Any], title: str) -> "Figure":
    """Bar chart of the shadow prices: change of the objective in per cent for one per cent more of each quantity."""
    objective = " and ".join(document["objective"]).replace("_", " ")
    return sensitivity_bars(document["shadow_prices"], title=title, answer=objective, words=("less", "more"))


def design_report(document: Mapping[str, Any], title: str) -> Report:
    """Report of a design: sizes and plan beside the continuous optimum, terms of the step time, shadow prices.

    Args:
        document: JSON document of the design; the terms of the step `terms_s` [s] are drawn if present.
        title: title of the report.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    report.add(shape_choice(document))
    report.text(f"{document['certificate']}.")
    if "law" in document:
        report.heading("What the design hangs on")
        report.add(law_choice_table(document["law"]))
    if "terms_s" in document:
        report.heading("Where the time goes")
        label = f"{document['n_layers']} layers of {document['d_model']}"
        report.figure("step", step_breakdown({label: document["terms_s"]}), "Terms of a step of the design.")
    report.heading("Prices")
    report.add(price_list(document["shadow_prices"], document["objective"]))
    caption = "Change of the objective for 1 % more of each quantity, everything else chosen anew."
    report.figure("prices", price_figure(document, "What one per cent more buys"), caption)
    return report


MOST = 12
"""Largest number of rows in a figure of terms [1]."""

NUMBERS = ("n_gpus", "tp", "pp", "dp", "micro_batch_size", "seq_len", "d_model", "n_layers")
"""Numeric columns by which errors are shown; text columns are the groupings of `errors`."""


def prediction_figure(runs: Runs, prediction: Prediction, title: str) -> "Figure":
    """Figure of predicted against measured step times; without measurements, of cost terms with intervals."""
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
    """Indices of the rows with a measurement and a prediction."""
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
    """Add to a report the errors of measured rows: against measurements, with intervals, by column."""
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


PLAN_NUMBERS = ("dp", "tp", "pp", "cp", "ep", "micro_batch_size", "n_microbatches")
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
    """Add to a report of a fit predicted against measured times, and errors by column and level."""
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
    """Columns of shape, plan, cluster and levels with more than one value, by name [row]."""
    columns = {name: getattr(batch.model, name) for name in SHAPE_COLUMNS}
    columns |= {"chips": batch.cluster.n_chips, **{name: getattr(batch.plan, name) for name in PLAN_NUMBERS}}
    numbers = {name: np.asarray(values, dtype=float).tolist() for name, values in columns.items()}
    words = {kind: levels.column(kind).tolist() for kind in LEVEL_COLUMNS}
    # A constant column shows neither slope nor step.
    return {name: values for name, values in {**numbers, **words}.items() if len(set(values)) > 1}


def add_coefficients(report: Report, result: FitResult) -> None:
    """Add to a report of a fit the coefficients with intervals, profiles and correlations."""
    report.heading("What the runs say about the coefficients")
    report.figure("coefficients", coefficient_intervals(result), "90 % intervals beside those of the priors.")
    caption = (
        "Profile likelihoods; a 90 % interval ends where the deviance has risen by 2.71. Where a curve falls again, "
        "another valley begins: the runs can be explained in a second way."
    )
    report.figure("profiles", profile_curves(result), caption)
    report.figure("correlation", correlation_matrix(result), "Coefficients that these runs cannot tell apart.")
    report.add(parameter_table(result))
