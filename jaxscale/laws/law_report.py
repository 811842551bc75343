"""Reports of laws of the loss: a fit with its runs, and optima of compute and of time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscale.designs.law_designs import LawDesign
from jaxscale.laws.fitted_law import FittedLaw, LawOptimum
from jaxscale.laws.law_tables import (
    law_choice_table,
    law_headline,
    number_table,
    optimum_table,
    rollout_table,
    usual_optima,
)
from jaxscale.report.document import Report
from jaxscale.report.figures.accuracy import residuals_by_column
from jaxscale.report.figures.loss_laws import (
    design_spread,
    isoflop_curves,
    loss_against_compute,
    optima_against_compute,
    rollout_errors,
)

RESIDUAL_BAND = 0.01
"""Half-width of the shaded band of relative loss errors [1]."""

RESIDUAL_COLUMNS = ("d_model", "n_layers", "batch_tokens", "lr", "epochs_unique_tokens", "n_experts")
"""Columns of a table of losses with figures of errors, in addition to size, tokens and compute."""


def law_report(law: FittedLaw, title: str) -> Report:
    """Report of a law with its runs: the fit, errors by column, extrapolation, equal compute, and optima.

    Args:
        law: law fitted to a table.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    report.sentences([law_headline(law)])
    report.add(number_table(law))
    report.heading("The fit")
    caption = (
        "Measured losses, without the terms of shape, batch, repetition and experts, and the least loss by the law."
    )
    report.figure("loss_against_compute", loss_against_compute(law), caption)
    report.figure("residuals_by_column", residual_figure(law), "A slope or a step is a cause that the law misses.")
    if law.backtest is not None and law.backtest.rollouts:
        report.heading("Beyond the runs")
        report.text("The law was fitted again to the lower part of the runs, and asked for their upper decade.")
        report.figure("rollouts", rollout_errors(law), "Each bar is a 90 % interval; those that miss zero are red.")
        report.add(rollout_table(law))
    report.heading("Equal compute")
    caption = "Curves of the law at some computes; runs of about the same compute are moved to it along the law."
    report.figure("isoflop", isoflop_curves(law), caption)
    add_optima(report, law, usual_optima(law), {})
    if law.warnings:
        report.heading("What to doubt")
        report.sentences(law.warnings)
    return report


def residual_figure(law: FittedLaw) -> Any:
    """Errors of the fitted losses against size, tokens, compute and further varying columns."""
    table = law.table
    assert table is not None
    columns = {
        "parameters": table.n_params,
        "tokens": table.tokens,
        "tokens per parameter": table.tokens / table.n_params,
        "compute 6ND [flop]": np.exp(table.log_flop),
    }
    for name in RESIDUAL_COLUMNS:
        values = table.number(name)
        # A constant column explains no error.
        if np.isfinite(values).all() and np.ptp(values) > 0.0 and not np.array_equal(values, table.tokens):
            columns[name] = values
    told = {name: values.tolist() for name, values in columns.items()}
    return residuals_by_column(np.log(law.predict_table(table).loss / table.loss), told, RESIDUAL_BAND)


def add_optima(report: Report, law: FittedLaw, optima: Sequence[LawOptimum], designs: Mapping[str, LawDesign]) -> None:
    """Add compute-optimal sizes and tokens with bands, and time-optimal designs if any."""
    report.heading("Compute-optimal and time-optimal" if designs else "Optimal size and tokens")
    caption = (
        "Bands are 90 % intervals. Marks of the runs: the least losses, and the minima of parabolas at each budget."
    )
    if designs:
        caption += " Red: the best designs of a time on the cluster, at the compute that they spend."
    report.figure("optima", optima_against_compute(law, designs), caption)
    report.add(optimum_table(optima))


def optimum_report(
    law: FittedLaw, optima: Sequence[LawOptimum], designs: Mapping[str, LawDesign], title: str
) -> Report:
    """Report of optima: compute-optimal runs, time-optimal designs, and sensitivities of the designs.

    Args:
        law: law fitted to a table or read from a file.
        designs: time-optimal designs by label, such as `10 days`.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    add_optima(report, law, optima, designs)
    if not designs:
        return report
    report.heading("What the designs hang on")
    if any(design.alternatives for design in designs.values()):
        caption = "Each design chosen again under drawn laws and other shape laws; within the grey band it is safe."
        report.figure("design_spread", design_spread(designs), caption)
    for told, design in designs.items():
        report.text(f"Design of {told}:")
        report.add(law_choice_table(design.to_json()))
    return report
