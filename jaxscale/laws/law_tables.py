"""Tables of fitted laws of loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.laws.backtest import Compared
from jaxscale.laws.fitted_law import FittedLaw, LawOptimum, LossPrediction
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.loss_reader import Losses
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
    """Value, interval and identification of each number as text."""
    rows = []
    for name, entry in law.parameters.items():
        label = f"{name}, {SYMBOLS[name]}" if name in SYMBOLS else name
        # No spread over draws: set by the form.
        fixed = entry["lo"] == entry["hi"]
        ends = "set by the form" if fixed else f"{rounded_text(entry['lo'])} to {rounded_text(entry['hi'])}"
        rows.append((label, rounded_text(entry["value"], 4), ends, "" if fixed else yes_or_no(entry["identified"])))
    return rows


def yes_or_no(fact: bool) -> str:
    """Text `yes` or `no` of a truth value."""
    return "yes" if fact else "no"


def law_summary(law: FittedLaw) -> list[Any]:
    """Text and tables that summarise a fit."""
    parts: list[Any] = [law_headline(law), number_table(law)]
    if law.backtest is not None and law.backtest.rollouts:
        parts.append(rollout_table(law))
    return [*parts, optimum_table(usual_optima(law))]


def number_table(law: FittedLaw) -> Table:
    """Table of the numbers of a law."""
    return make_table("Numbers", NUMBER_COLUMNS, number_rows(law))


def law_headline(law: FittedLaw) -> str:
    """One line with form, runs, prior and errors of a law."""
    counted = f"parameters: {law.count}" if law.count else "the count of parameters is not stated"
    return (
        f"{law.form} law of {law.n} runs in {law.n_groups} groups ({counted}); prior {law.prior.name}; "
        f"noise {100.0 * law.noise:.2f} %, {100.0 * law.discrepancy:.2f} % per decade of extrapolation"
    )


def usual_optima(law: FittedLaw) -> list[LawOptimum]:
    """Compute-optimal runs from one decade below the largest compute of the runs to two decades above."""
    decades = np.log10(np.exp(law.span.log_flop)) + np.arange(-1.0, 3.0)
    return [law.optimum(float(10.0**decade)) for decade in decades]


def rollout_rows(law: FittedLaw) -> list[tuple[Any, ...]]:
    """Figures of each rollout of a backtest, by `ROLLOUT_COLUMNS`."""
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
    """Table of the rollouts of a backtest."""
    return make_table("Upper decade predicted from below", ROLLOUT_COLUMNS, rollout_rows(law))


def optimum_rows(optima: Sequence[LawOptimum]) -> list[list[str]]:
    """Compute-optimal sizes with their intervals as text, by `OPTIMUM_COLUMNS`."""
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
    """Table of compute-optimal sizes."""
    return make_table("Compute-optimal runs, 90 % intervals", OPTIMUM_COLUMNS, optimum_rows(optima))


def prediction_table(table: Losses, told: LossPrediction) -> Table:
    """Table of the first predictions."""
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
    """Table of forms, the best prediction first."""
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
    """Choices of a design as text, by `CHOICE_COLUMNS`.

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
    """Table of a design under a law, with compute-optimal figures, the range under alternative laws, and safe choices.

    Args:
        under: document of `LawDesign.to_json`.
    """
    title = f"How far the design hangs on the laws: chosen again under {len(under['alternatives'])} others"
    return make_table(title, CHOICE_COLUMNS, choice_rows(under))
