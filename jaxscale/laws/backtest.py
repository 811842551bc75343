"""Backtests and comparison of forms: left-out rows predicted from the rest, with error and coverage.

Only a prediction beyond the fitted range tells how a law extrapolates; a random split of rows does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.errors import InputError
from jaxscale.calibration.intervals import Z90
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss_fit import fit_law, problem_of
from jaxscale.laws.loss_forms import BASE, FORMS, form_of, number_names
from jaxscale.laws.loss_reader import Losses
from jaxscale.laws.loss_solver import cluster_ids, loss_residuals, optimum_of, searches

CUTS = (0.5, 0.65, 0.8)
"""Shares of the range of log compute below which runs are fitted [1]."""

FEWEST_FITTED, FEWEST_PREDICTED = 6, 2
"""Least rows of an informative cut [1]."""

BACKTEST_DRAWS = 80
"""Draws of each fit of a backtest [1]."""

DECADE = np.log(10.0)

SHIPPED_WEIGHT = 4.0
"""Rollouts of a table of the user with the weight of the discrepancy of other sources [1]."""

WIDEST = 3.0
"""Largest discrepancy of a rollout that counts, over that of other sources [1]."""

TELLING = 3.0
"""Standard errors, discrepancy included, from which a miss of a whole rollout is told [1]."""


class Rollout(NamedTuple):
    """A cut: rows above it predicted from rows below it.

    Attributes:
        cut: largest fitted compute [flop].
        n_fitted: rows below the cut [1].
        n_predicted: rows above the cut [1].
        decades: beyond the fitted range [row].
        error: ln of predicted over measured loss [row].
        parameters: half-width of the 90 % interval by the uncertainty of the numbers [row].
        noise: half-width by noise [row].
        discrepancy: half-width by the error of the law [row].
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
        """Half-width of the 90 % interval, relative [row]."""
        return np.sqrt(self.parameters**2 + self.noise**2 + self.discrepancy**2)

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error [1]."""
        return float(np.abs(np.expm1(self.error)).mean())

    @property
    def coverage(self) -> float:
        """Share of rows inside their interval [1]."""
        return float((np.abs(self.error) <= self.half_width).mean())


class Backtest(NamedTuple):
    """Rollouts of a table.

    Attributes:
        rollouts: by cut with enough rows.
        doubts: warnings, a line each.
    """

    rollouts: tuple[Rollout, ...]
    doubts: tuple[str, ...]

    @property
    def error_percent(self) -> float:
        """Mean absolute relative error over the rollouts; nan without rollouts [%]."""
        return 100.0 * float(np.mean([one.mean_error for one in self.rollouts])) if self.rollouts else float("nan")

    @property
    def coverage_90(self) -> float:
        """Share of predicted rows inside their 90 % interval, nan without a rollout [1]."""
        return float(np.mean([one.coverage for one in self.rollouts])) if self.rollouts else float("nan")


def upper_decade(table: Losses, cut: float = 0.5) -> tuple[Bool[np.ndarray, " row"], Bool[np.ndarray, " row"]]:
    """Rows of the lower share of the range of log compute, and rows above them in the highest decade.

    Args:
        cut: share of the range [1].
    """
    flop = table.log_flop
    is_fitted = flop <= flop.min() + cut * (flop.max() - flop.min()) + 1e-9
    return is_fitted, (flop >= flop.max() - DECADE) & ~is_fitted


def rollout(
    table: Losses,
    is_fitted: Bool[np.ndarray, " row"],
    is_predicted: Bool[np.ndarray, " row"],
    fit: Callable[[Losses], FittedLaw],
) -> Rollout:
    """Rows of a table predicted from further rows.

    Args:
        is_fitted: rows that the law is fitted to.
        is_predicted: rows that it predicts.
        fit: makes a law of a table.
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
    """Rollouts of the table of a law, by the same form, terms and prior.

    Args:
        law: fitted to a table.
        n_draws: of each fit [1].
        progress: is told of each rollout.
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
        if key[0] < FEWEST_FITTED or key[1] < FEWEST_PREDICTED or key in seen:
            continue
        seen.add(key)
        if progress:
            progress(f"backtest: {key[1]} runs of the upper decade predicted from {key[0]} below")
        rollouts.append(rollout(table, is_fitted, is_predicted, fit))
    return Backtest(tuple(rollouts), tuple(_doubts(law, rollouts)))


def checked_law(law: FittedLaw, progress: Callable[[str], None] | None = None) -> FittedLaw:
    """Law with its backtest, and with a discrepancy widened by its rollouts.

    The logarithm of the discrepancy per decade is a weighted mean of that of other sources, which weighs as much as
    `SHIPPED_WEIGHT` rollouts, and of what each rollout shows beyond the uncertainty of the numbers and the noise,
    between that of other sources and `WIDEST` times as much: few rollouts of small runs prove neither a perfect law nor
    a bad one.
    """
    tested = backtest_of(law, progress=progress)
    doubts = (*law.warnings, *tested.doubts)
    shown = [value for one in tested.rollouts if (value := _own_discrepancy(one)) is not None]
    if not shown or law.discrepancy <= 0.0:
        return replace(law, backtest=tested, warnings=doubts)
    wider = np.log(np.clip(np.asarray(shown) / law.discrepancy, 1.0, WIDEST))
    factor = float(np.exp(wider.sum() / (SHIPPED_WEIGHT + len(shown))))
    return replace(law, backtest=tested, discrepancy=law.discrepancy * factor, warnings=doubts)


def _own_discrepancy(one: Rollout) -> float | None:
    """Discrepancy per decade that a rollout shows, None where it does not go far enough to tell [1]."""
    if one.decades.mean() < 0.2:
        return None
    # The mean error of the rollout: noise averages out of it, the numbers and the form do not.
    known = (one.parameters.mean() / Z90) ** 2 + (one.noise.mean() / Z90) ** 2 / one.n_predicted
    excess = float(one.error.mean()) ** 2 - float(known)
    return float(np.sqrt(max(excess, 0.0)) / one.decades.mean())


def _doubts(law: FittedLaw, rollouts: list[Rollout]) -> list[str]:
    """Rollouts that miss by more than their intervals allow."""
    misses = []
    for one in rollouts:
        bias = float(one.error.mean())
        # The numbers err alike in all rows of a rollout, noise does not.
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


def left_out_errors(law: FittedLaw, cluster: str | None = "auto") -> Float[np.ndarray, " row"]:
    """Logarithm of measured over predicted loss of each row, by a fit to all rows of other groups [row].

    All fits run in one program: a row left out has weight zero.

    Args:
        law: fitted to a table.
        cluster: rows that form a group, as in `fit_law`.

    Raises:
        InputError: a law from a file, or a single group.
    """
    table = law.table
    if table is None:
        raise InputError("left-out errors need the runs; expected a law fitted to a table")
    groups: Int[np.ndarray, " row"] = cluster_ids(table, cluster)
    count = int(groups.max()) + 1
    if count < 2:
        raise InputError(f"{table.name}: one group of rows alone; expected at least two to leave one out")
    form = form_of(law.form, len(number_names(law.terms)) - len(BASE))
    with jax.enable_x64(True):
        problem = problem_of(table, form, law.terms, law.prior, law.likelihood)
        best, _ = optimum_of(form, problem, law.terms)
        kept = np.ones((count, len(problem.weights)))
        kept[:, : len(table)] = groups[None, :] != np.arange(count)[:, None]
        starts = np.broadcast_to(best, (count, len(best)))
        points, _ = searches(starts, problem, kept * problem.weights, terms=law.terms)
        every = jax.vmap(lambda point: loss_residuals(point[:-1], problem, law.terms))(points)
    return np.asarray(every)[groups, np.arange(len(table))]


def root_mean_square(errors: Float[np.ndarray, " row"]) -> float:
    """Root mean square of errors [1]."""
    return float(np.sqrt(np.mean(errors**2)))


class Compared(NamedTuple):
    """A form on one table.

    Attributes:
        form: its name.
        error_percent: mean absolute error of the upper decade predicted from below, nan for too small a table [%].
        coverage_90: share of predicted rows inside their interval [1].
        scale: of the noise of the fit to all rows [1].
        objective: of the fit to all rows, without a prior; differences of it are log likelihoods [1].
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
    n_draws: int = BACKTEST_DRAWS,
    progress: Callable[[str], None] | None = None,
) -> list[Compared]:
    """Forms on a table, the best prediction first.

    Args:
        n_draws: of each fit [1].
        progress: is told of each fit.

    Raises:
        InputError: as `fit_law`.
    """
    rows = []
    for form in forms:
        law = fit_law(table, form, terms, prior=prior, n_draws=2, progress=progress)
        free = fit_law(table, form, terms, prior=None, n_draws=0)
        tested = backtest_of(law, n_draws, progress)
        rows.append(Compared(form, tested.error_percent, tested.coverage_90, law.fitted.scale, free.fitted.objective))
    return sorted(rows, key=lambda row: (row.error_percent != row.error_percent, row.error_percent, row.objective))
