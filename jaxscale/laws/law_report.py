"""Reports and tables of laws of the loss: a fit with its runs, compute-optimal and time-optimal runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.designs.law_designs import LawDesign
from jaxscale.laws.backtest import Compared
from jaxscale.laws.fitted_law import FittedLaw, LawOptimum, LossPrediction
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.loss_reader import Losses
from jaxscale.report.document import Report
from jaxscale.report.figures.accuracy import residuals_by_column
from jaxscale.report.figures.loss_laws import (
    design_spread,
    isoflop_curves,
    loss_against_compute,
    optima_against_compute,
    rollout_errors,
)
from jaxscale.report.terminal_tables import rounded_text

SYMBOLS = {
    "irreducible": "E [nat/token]",
    "params_coefficient": "A",
    "tokens_coefficient": "B",
    "params_exponent": "alpha",
    "tokens_exponent": "beta",
    "joint": "k",
}
"""Symbols of the numbers of a law."""

MOST_ROWS = 40
"""Largest number of predictions in the terminal [1]."""


NUMBER_COLUMNS = (
    text_column("number"),
    TableColumn("value", stays=True),
    TableColumn("90 % interval", "90 %"),
    TableColumn("identified", is_text=True),
)
ROLLOUT_COLUMNS = (
    TableColumn("fitted up to", unit="flop", says="fitted up to {} flop"),
    TableColumn("runs"),
    TableColumn("predicted"),
    TableColumn("decades"),
    TableColumn("bias", "bias %", "%"),
    TableColumn("error", "error %", "%"),
    TableColumn("half-width", "+- %", "%"),
    TableColumn("holds", "holds %", "%"),
)
OPTIMUM_COLUMNS = (
    TableColumn("6 N D", "flop", "flop", says="{} flop"),
    TableColumn("parameters", "params"),
    TableColumn("tokens"),
    TableColumn("tokens per parameter", "tok/param"),
    TableColumn("loss"),
)
CHOICE_COLUMNS = (
    text_column("choice"),
    TableColumn("design", stays=True),
    TableColumn("compute-optimal at its flop", "optimal"),
    TableColumn("least under other laws", "least"),
    TableColumn("largest", "most"),
    TableColumn("safe", is_text=True),
)
"""Columns of the tables."""


def number_rows(law: FittedLaw) -> list[tuple[str, ...]]:
    """Name, value, interval and identification of each coefficient of a law, as text."""
    rows = []
    for name, entry in law.parameters.items():
        label = f"{name}, {SYMBOLS[name]}" if name in SYMBOLS else name
        # No spread over draws: set by the form.
        fixed = entry["lo"] == entry["hi"]
        ends = "set by the form" if fixed else f"{rounded_text(entry['lo'])} to {rounded_text(entry['hi'])}"
        rows.append((label, rounded_text(entry["value"], 4), ends, "" if fixed else yes_or_no(entry["identified"])))
    return rows


def yes_or_no(fact: bool) -> str:
    """Text of a truth value, `yes` or `no`."""
    return "yes" if fact else "no"


def law_summary(law: FittedLaw) -> list[Any]:
    """Headline and tables of a fit for the terminal."""
    parts: list[Any] = [law_headline(law), number_table(law)]
    if law.backtest is not None and law.backtest.rollouts:
        parts.append(rollout_table(law))
    return [*parts, optimum_table(usual_optima(law))]


def number_table(law: FittedLaw) -> Table:
    """Table of the coefficients of a law."""
    return make_table("Numbers", NUMBER_COLUMNS, number_rows(law))


def law_headline(law: FittedLaw) -> str:
    """Line of text with form, number of runs, prior and errors of a law."""
    counted = f"parameters: {law.count}" if law.count else "the count of parameters is not stated"
    return (
        f"{law.form} law of {law.n} runs in {law.n_groups} groups ({counted}); prior {law.prior.name}; "
        f"noise {100.0 * law.noise:.2f} %, {100.0 * law.discrepancy:.2f} % per decade of extrapolation"
    )


def usual_optima(law: FittedLaw) -> list[LawOptimum]:
    """Compute-optimal runs from a decade below the largest compute of the runs to two decades above."""
    decades = np.log10(np.exp(law.span.log_flop)) + np.arange(-1.0, 3.0)
    return [law.optimum(float(10.0**decade)) for decade in decades]


def rollout_rows(law: FittedLaw) -> list[tuple[Any, ...]]:
    """Rows of the table of a backtest, by `ROLLOUT_COLUMNS`."""
    return [
        (
            f"{one.cut:.2g}",
            one.n_fitted,
            one.n_predicted,
            f"{one.decades.mean():.1f}",
            f"{100.0 * np.expm1(one.error).mean():+.2f}",
            f"{100.0 * one.mean_error:.2f}",
            f"{100.0 * np.median(one.half_width):.2f}",
            f"{100.0 * one.coverage:.0f}",
        )
        for one in law.backtest.rollouts
    ]


def rollout_table(law: FittedLaw) -> Table:
    """Table of a backtest: errors and coverage for each cut in compute."""
    return make_table("Upper decade predicted from below", ROLLOUT_COLUMNS, rollout_rows(law))


def optimum_rows(optima: Sequence[LawOptimum]) -> list[list[str]]:
    """Rows of the table of compute-optimal runs, by `OPTIMUM_COLUMNS`."""
    rows = []
    for one in optima:
        cells = [f"{one.flop:.2g}"]
        for value, lo, hi in (one.n_params, one.n_tokens):
            cells.append(f"{value:.3g} ({lo:.2g} to {hi:.2g})")
        cells.append(f"{one.n_tokens[0] / one.n_params[0]:.3g}")
        cells.append(f"{one.loss[0]:.4g} ({one.loss[1]:.4g} to {one.loss[2]:.4g})")
        rows.append(cells)
    return rows


def optimum_table(optima: Sequence[LawOptimum]) -> Table:
    """Table of compute-optimal runs, with 90 % intervals."""
    return make_table("Compute-optimal runs, 90 % intervals", OPTIMUM_COLUMNS, optimum_rows(optima))


def prediction_table(table: Losses, told: LossPrediction) -> Table:
    """Table of the first `MOST_ROWS` predictions."""
    rows = [
        (f"{n:.4g}", f"{d:.4g}", f"{loss:.4g}", f"{lo:.4g}", f"{hi:.4g}", f"{decades:.1f}")
        for n, d, loss, lo, hi, decades in list(
            zip(table.n_params, table.tokens, told.loss, told.lo, told.hi, told.decades, strict=True)
        )[:MOST_ROWS]
    ]
    columns = (
        TableColumn("parameters", "params"),
        TableColumn("tokens"),
        TableColumn("loss", stays=True),
        TableColumn("lo", says="from {}"),
        TableColumn("hi", says="to {}"),
        TableColumn("decades outside", "outside"),
    )
    return make_table("Predicted losses [nat per token], 90 % intervals", columns, rows)


def comparison_table(rows: Sequence[Compared]) -> Table:
    """Table of the forms of the law with scores, the best prediction first."""
    best = min(row.objective for row in rows)
    cells = [
        (
            row.form,
            rounded_text(row.error_percent),
            rounded_text(100.0 * row.coverage_90),
            f"{100.0 * row.scale:.2f}",
            f"{row.objective - best:.1f}",
        )
        for row in rows
    ]
    columns = (
        text_column("form"),
        TableColumn("error of the upper decade", "error %", "%", stays=True),
        TableColumn("holds", "holds %", "%"),
        TableColumn("noise", "noise %", "%"),
        TableColumn("log likelihood below the best", "log L below"),
    )
    return make_table("Forms, the best prediction first", columns, cells)


def choice_rows(under: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table of a design under a law, by `CHOICE_COLUMNS`.

    Args:
        under: document of `LawDesign.to_json`.
    """
    compute, rows = under["compute_optimal"], []
    same = {
        "params": compute["n_params"]["value"],
        "tokens": compute["n_tokens"]["value"],
        "loss": compute["loss"]["value"],
    }
    same["tokens_per_param"] = same["tokens"] / same["params"]
    # N in the count of the law: T / (6 D).
    own = under["flop"] / FLOP_PER_PARAM_TOKEN / under["design"]["tokens"]
    if abs(own / under["design"]["params"] - 1.0) > 1e-6:
        # The law's count excludes embeddings, while the design's count includes them, so the two do not compare.
        rows.append(("params as the law counts", rounded_text(own, 4), rounded_text(same.pop("params"), 4), "", "", ""))
        same.pop("tokens_per_param")
    for name, value in under["design"].items():
        moves = under["sensitivity"][name]
        figures = (
            rounded_text(value, 4),
            rounded_text(same.get(name), 4),
            *map(rounded_text, (moves["lo"], moves["hi"])),
        )
        rows.append((name, *figures, yes_or_no(moves["safe"])))
    return rows


def law_choice_table(under: Mapping[str, Any]) -> Table:
    """Table of a design under a law: choices, compute-optimal run of equal flop, and range under alternative laws.

    Args:
        under: document of `LawDesign.to_json`.
    """
    title = f"How far the design hangs on the laws: chosen again under {len(under['alternatives'])} others"
    return make_table(title, CHOICE_COLUMNS, choice_rows(under))


RESIDUAL_BAND = 0.01
"""Half-width of the shaded band of relative loss errors [1]."""

RESIDUAL_COLUMNS = ("d_model", "n_layers", "batch_tokens", "lr", "epochs_unique_tokens", "n_experts")
"""Columns of a table of losses with figures of errors, in addition to size, tokens and compute."""


def law_report(law: FittedLaw, title: str) -> Report:
    """HTML report of a law fitted to a table: fit, errors by column, extrapolation, equal compute, and optima.

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
    """Figure of the errors of the fitted losses against size, tokens, compute and further varying columns."""
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
    """Add to a report the section on compute-optimal sizes and tokens, and time-optimal designs if any."""
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
    """HTML report of compute-optimal runs and time-optimal designs, with sensitivities of the designs.

    Args:
        law: law fitted to a table or read from a file.
        designs: time-optimal designs by label, for example `10 days`.

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
