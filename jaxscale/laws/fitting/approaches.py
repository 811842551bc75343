"""Growth of the optimal size and tokens with compute, by the three approaches of Hoffmann et al. 2022, section 3.

1: the least losses at each compute; 2: a parabola of the loss in ln N at each budget; 3: the law's own optimum.
Parabolas are biased where the loss is no parabola over the width of the sizes tried: approach 3 is not.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import InputError
from jaxscale.laws.fitting.fitted_law import FittedLaw
from jaxscale.laws.law_fits import power_law
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.losses.loss_reader import Losses

SAME_BUDGET = 0.08
"""Largest relative difference of the compute of two runs of one budget [1]."""

FEWEST_SIZES = 4
"""Sizes of a budget from which a parabola is fitted [1]."""


class Growth(NamedTuple):
    """Power laws of the optimum, $N^* = c_N C^{a}$ and $D^* = c_D C^{b}$.

    Attributes:
        flop: computes of the optima [flop], [budget].
        n_params: optimal N [1], [budget].
        n_tokens: optimal D [token], [budget].
        loss: at the optimum [nat per token], [budget].
        params_exponent: a [1].
        tokens_exponent: b [1].
        error: standard error of a, nan for the law's own [1].
    """

    flop: Float[np.ndarray, " budget"]
    n_params: Float[np.ndarray, " budget"]
    n_tokens: Float[np.ndarray, " budget"]
    loss: Float[np.ndarray, " budget"]
    params_exponent: float
    tokens_exponent: float
    error: float


def budgets_of(table: Losses) -> list[np.ndarray]:
    """Rows of each budget of compute: runs sorted by compute, cut where it jumps by more than `SAME_BUDGET`."""
    order = np.argsort(table.log_flop, kind="stable")
    jumps = np.flatnonzero(np.diff(table.log_flop[order]) > np.log1p(SAME_BUDGET)) + 1
    return [rows for rows in np.split(order, jumps) if len(np.unique(table.n_params[rows])) >= FEWEST_SIZES]


def isoflop_minima(table: Losses) -> Float[np.ndarray, "budget 3"]:
    """Compute, optimal size and least loss of each budget, by a parabola of the loss in ln N [budget, 3].

    Budgets whose parabola opens downwards, or whose minimum lies outside the sizes tried, are left out.

    Raises:
        InputError: fewer than two budgets are left.
    """
    minima = []
    for rows in budgets_of(table):
        size = np.log(table.n_params[rows])
        middle = float(size.mean())
        bend, slope, height = np.polyfit(size - middle, table.loss[rows], 2)
        best = -slope / (2.0 * bend) if bend > 0.0 else np.inf
        if size.min() - middle <= best <= size.max() - middle:
            flop = float(np.exp(table.log_flop[rows].mean()))
            minima.append((flop, float(np.exp(best + middle)), float(height - slope**2 / (4.0 * bend))))
    if len(minima) < 2:
        raise InputError(f"{table.name}: {len(minima)} budgets of {FEWEST_SIZES} sizes with a minimum; expected two")
    return np.asarray(minima)


def growth(law: FittedLaw, approach: int = 3) -> Growth:
    """Growth of the optimum with compute by one of the three approaches.

    Args:
        law: fitted to a table; approaches 1 and 2 read the table alone.
        approach: 1, 2 or 3.

    Raises:
        InputError: another approach, a law without its table, or a table without budgets.
    """
    if approach not in (1, 2, 3):
        raise InputError(f"approach = {approach} is unknown; expected 1, 2 or 3")
    if approach == 3:
        one = law.law
        total = one.params_exponent + one.tokens_exponent
        flop = np.exp(law.span.log_flop) * np.geomspace(0.01, 100.0, 5)
        optima = [law.optimum(float(value)) for value in flop]
        size, tokens, loss = (
            np.asarray([getattr(best, name)[0] for best in optima]) for name in ("n_params", "n_tokens", "loss")
        )
        shares = [np.asarray(value / total).item() for value in (one.tokens_exponent, one.params_exponent)]
        return Growth(flop, size, tokens, loss, shares[0], shares[1], float("nan"))
    if law.table is None:
        raise InputError(f"approach {approach} needs the runs; expected a law fitted to a table")
    flop, size, loss = (isoflop_minima(law.table) if approach == 2 else envelope(law.table)).T
    tokens = flop / (FLOP_PER_PARAM_TOKEN * size)
    _, exponent, error = power_law(flop, size)
    return Growth(flop, size, tokens, loss, exponent, 1.0 - exponent, error)


def envelope(table: Losses) -> Float[np.ndarray, "budget 3"]:
    """Compute, size and loss of the runs that no run of as little compute undercuts [budget, 3].

    Runs of nearly the same compute are of one budget: each is held against all of them.

    Raises:
        InputError: fewer than three runs, which make no power law.
    """
    order = np.argsort(table.log_flop, kind="stable")
    log_flop = table.log_flop[order]
    ends = np.searchsorted(log_flop, log_flop + np.log1p(SAME_BUDGET), side="right") - 1
    lowest = np.minimum.accumulate(table.loss[order])[ends]
    best = order[table.loss[order] <= lowest]
    if len(best) < 3:
        raise InputError(f"{table.name}: {len(best)} runs on the lower envelope; expected at least three")
    return np.stack([np.exp(table.log_flop[best]), table.n_params[best], table.loss[best]], axis=1)
