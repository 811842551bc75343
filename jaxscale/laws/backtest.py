"""Backtests of laws of the loss: runs of large compute predicted from runs of small compute, with error and coverage.

Only predictions beyond the fitted range measure the error of extrapolation; a random split of rows does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.calibration.intervals import Z90
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss_fit import fit_law
from jaxscale.laws.loss_forms import FORMS
from jaxscale.laws.loss_reader import Losses

CUTS = (0.5, 0.65, 0.8)
"""Fitted shares of the range of log compute [1]."""

FEWEST_FITTED, FEWEST_PREDICTED = 6, 2
"""Least number of fitted and of predicted rows of a cut [1]."""

BACKTEST_DRAWS = 80
"""Draws of each fit in a backtest [1]."""

DECADE = np.log(10.0)

SHIPPED_WEIGHT = 4.0
"""Number of rollouts of a user's table with equal weight to the discrepancy of published sources [1]."""

WIDEST = 3.0
"""Largest counted discrepancy of a rollout relative to that of published sources [1]."""

TELLING = 3.0
"""Least miss of a whole rollout that is reported, in standard errors with discrepancy [1]."""


class Rollout(NamedTuple):
    """Backtest at a cut in compute: runs above the cut predicted from runs below.

    Attributes:
        cut: largest fitted compute [flop].
        n_fitted: number of rows below the cut [1].
        n_predicted: number of predicted rows above the cut [1].
        decades: decades beyond the fitted range [1], [row].
        error: log of predicted over measured loss [1], [row].
        parameters: relative half-width of the 90 % interval by the uncertainty of the coefficients [1], [row].
        noise: relative half-width by the noise of a run [1], [row].
        discrepancy: relative half-width by the error of the law beyond the range [1], [row].
    """

    cut: float
    n_fitted: int
    n_predicted: int
    decades: Float[np.ndarray, " row"]
    error: Float[np.ndarray, " row"]
    parameters: Float[np.ndarray, " row"]
    noise: Float[np.ndarray, " row"]
    discrepancy: Float[np.ndarray, " row"]

    @property
    def half_width(self) -> Float[np.ndarray, " row"]:
        """Relative half-width of the 90 % interval of the loss [1], [row]."""
        return np.sqrt(self.parameters**2 + self.noise**2 + self.discrepancy**2)

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error of the predicted losses [1]."""
        return float(np.abs(np.expm1(self.error)).mean())

    @property
    def coverage(self) -> float:
        """Share of predicted rows inside the 90 % interval [1]."""
        return float((np.abs(self.error) <= self.half_width).mean())


class Backtest(NamedTuple):
    """Backtest of a law at several cuts in compute.

    Attributes:
        rollouts: results at each cut with enough rows.
        doubts: warnings, a line each.
    """

    rollouts: tuple[Rollout, ...]
    doubts: tuple[str, ...]

    @property
    def error_percent(self) -> float:
        """Mean absolute relative error over all cuts; nan without a cut [%]."""
        return 100.0 * float(np.mean([one.mean_error for one in self.rollouts])) if self.rollouts else float("nan")

    @property
    def coverage_90(self) -> float:
        """Share of predicted rows inside the 90 % interval; nan without a cut [1]."""
        return float(np.mean([one.coverage for one in self.rollouts])) if self.rollouts else float("nan")


def upper_decade(table: Losses, cut: float = 0.5) -> tuple[Bool[np.ndarray, " row"], Bool[np.ndarray, " row"]]:
    """Masks of the rows below a cut in log compute, and of rows above the cut in the top decade of compute.

    Args:
        cut: cut as a share of the range of log compute [1].
    """
    flop = table.log_flop
    # The tolerance keeps rows exactly at the cut.
    is_fitted = flop <= flop.min() + cut * (flop.max() - flop.min()) + 1e-9
    # Extrapolation is judged on the upper decade of compute.
    return is_fitted, (flop >= flop.max() - DECADE) & ~is_fitted


def rollout(
    table: Losses,
    is_fitted: Bool[np.ndarray, " row"],
    is_predicted: Bool[np.ndarray, " row"],
    fit: Callable[[Losses], FittedLaw],
) -> Rollout:
    """Predictions of a subset of the rows of a table by a law fitted to a second subset.

    Args:
        is_fitted: rows for the fit of the law.
        is_predicted: rows to predict.
        fit: function from a table to a fitted law.
    """
    law, held_out = fit(table.select(is_fitted)), table.select(is_predicted)
    told = law.predict_table(held_out)
    cut = float(np.exp(law.span.log_flop))
    return Rollout(
        cut, int(is_fitted.sum()), int(is_predicted.sum()), told.decades, np.log(told.loss / held_out.loss),
        told.parameters, told.noise, told.discrepancy,
    )  # fmt: skip


def backtest_of(
    law: FittedLaw, n_draws: int = BACKTEST_DRAWS, progress: Callable[[str], None] | None = None
) -> Backtest:
    """Backtest of a law on its table, with form, terms and prior of the law.

    Args:
        law: law fitted to a table.
        n_draws: draws of each fit [1].
        progress: function that receives a message for each cut.
    """
    table = law.table
    if table is None:
        return Backtest((), ("a law from a file has no table to test itself on",))

    def fit(part: Losses) -> FittedLaw:
        return fit_law(part, law.form, law.terms, prior=law.prior, likelihood=law.likelihood, n_draws=n_draws)

    rollouts, seen = [], set()
    for cut in CUTS:
        is_fitted, is_predicted = upper_decade(table, cut)
        key = (int(is_fitted.sum()), int(is_predicted.sum()))
        # Cuts of small tables may give equal rows.
        if key[0] < FEWEST_FITTED or key[1] < FEWEST_PREDICTED or key in seen:
            continue
        seen.add(key)
        if progress:
            progress(f"backtest: {key[1]} runs of the upper decade predicted from {key[0]} below")
        rollouts.append(rollout(table, is_fitted, is_predicted, fit))
    return Backtest(tuple(rollouts), tuple(_doubts(law, rollouts)))


def checked_law(law: FittedLaw, progress: Callable[[str], None] | None = None) -> FittedLaw:
    """Law with its backtest, and with a discrepancy widened by the backtest.

    The discrepancy is the relative error of the law per decade of extrapolation. Its logarithm is a weighted mean over
    published sources (with the weight of `SHIPPED_WEIGHT` rollouts) and the rollouts. A rollout contributes the error
    beyond the uncertainty of coefficients and noise, within 1 to `WIDEST` times the value of published sources.
    """
    tested = backtest_of(law, progress=progress)
    doubts = (*law.warnings, *tested.doubts)
    shown = [value for one in tested.rollouts if (value := _own_discrepancy(one)) is not None]
    if not shown or law.discrepancy <= 0.0:
        return replace(law, backtest=tested, warnings=doubts)
    # Few rollouts of small runs prove neither a perfect nor a bad law.
    wider = np.log(np.clip(np.asarray(shown) / law.discrepancy, 1.0, WIDEST))
    # Weighted mean of logarithms: published sources have log 0.
    factor = float(np.exp(wider.sum() / (SHIPPED_WEIGHT + len(shown))))
    return replace(law, backtest=tested, discrepancy=law.discrepancy * factor, warnings=doubts)


def _own_discrepancy(one: Rollout) -> float | None:
    """Discrepancy per decade shown by a rollout, None for a rollout of too short an extrapolation [1]."""
    if one.decades.mean() < 0.2:
        return None
    # In the mean error of the rollout, noise averages out, while errors of the numbers and the form remain.
    known = (one.parameters.mean() / Z90) ** 2 + (one.noise.mean() / Z90) ** 2 / one.n_predicted
    excess = float(one.error.mean()) ** 2 - float(known)
    return float(np.sqrt(max(excess, 0.0)) / one.decades.mean())


def _doubts(law: FittedLaw, rollouts: list[Rollout]) -> list[str]:
    """Warnings about rollouts whose miss exceeds the intervals."""
    misses = []
    for one in rollouts:
        bias = float(one.error.mean())
        # Errors of the numbers are common to all rows of a rollout; noise is independent.
        allowed = float(np.sqrt(one.parameters.mean() ** 2 + one.noise.mean() ** 2 / one.n_predicted)) / Z90
        if abs(bias) > TELLING * allowed:
            misses.append(bias)
    if misses and len(misses) >= 0.5 * len(rollouts):
        worst = max(misses, key=abs)
        return [
            f"backtest: the {law.form} law misses the upper decade by {100.0 * np.expm1(worst):+.1f} %, "
            "beyond what its numbers and the noise allow: the form may be wrong"
        ]
    return []


class Compared(NamedTuple):
    """Scores of a form of the law on a table.

    Attributes:
        form: name of the form.
        error_percent: mean absolute error of the backtest, nan for too small a table [%].
        coverage_90: share of predicted rows inside the interval [1].
        scale: noise scale of the fit to all rows [1].
        objective: negative log likelihood of the fit to all rows without a prior, up to a constant [1].
    """

    form: str
    error_percent: float
    coverage_90: float
    scale: float
    objective: float


def compare_forms(
    table: Losses,
    forms: Sequence[str] = tuple(FORMS),
    terms: Sequence[str] = (),
    *,
    prior: str | None = "shipped",
    progress: Callable[[str], None] | None = None,
) -> list[Compared]:
    """Scores of several forms of the law on a table, the best prediction first.

    Args:
        progress: function that receives a message for each fit.

    Raises:
        InputError: as `fit_law`.
    """
    rows = []
    for form in forms:
        law = fit_law(table, form, terms, prior=prior, n_draws=2, progress=progress)
        # Objectives without a prior are log likelihoods.
        free = fit_law(table, form, terms, prior=None, n_draws=0)
        tested = backtest_of(law, progress=progress)
        rows.append(Compared(form, tested.error_percent, tested.coverage_90, law.fitted.scale, free.fitted.objective))
    # nan sorts last.
    return sorted(rows, key=lambda row: (row.error_percent != row.error_percent, row.error_percent, row.objective))
