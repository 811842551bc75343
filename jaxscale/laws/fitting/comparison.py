"""Comparison of forms by how well each predicts what it did not see, not by how well it fits."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxscale.laws.fitting.backtest import BACKTEST_DRAWS, backtest_of
from jaxscale.laws.fitting.loss_fit import fit_law
from jaxscale.laws.fitting.loss_forms import FORMS
from jaxscale.laws.losses.loss_reader import Losses


class Compared(NamedTuple):
    """One form on one table.

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
    """Forms on one table, the one that predicts best first.

    Args:
        table: of the runs.
        forms: names.
        terms: of every form.
        prior: of every form.
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
