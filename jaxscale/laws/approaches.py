"""Power laws of the optimal size, tokens, batch and learning rate in training compute, from sweeps.

The three approaches are those of Hoffmann et al. 2022, section 3: the least losses at each compute; a parabola of the
loss in ln N at each budget; the optimum of the fitted law. Parabolas are biased if the loss is not parabolic over the
range of sizes; the third approach is not biased.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import least_squares

from jaxscale.base.errors import InputError
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.loss_reader import Losses

Column = Sequence[float] | np.ndarray
"""Numbers of several runs."""


class CriticalBatch(NamedTuple):
    """Critical batch: trade-off between steps and tokens at a target loss.

    Attributes:
        steps: S_min, fewest steps, in the limit of large batches [1].
        tokens: E_min, fewest tokens, in the limit of small batches [token].
        critical: batch with twice the fewest steps and twice the fewest tokens [token].
        misfit: largest relative error of the steps [1].
        roughness: factor r_s on the number of steps by sparsity, 1 at the lowest; empty without stated sparsity [1].
    """

    steps: float
    tokens: float
    critical: float
    misfit: float
    roughness: Mapping[float, float] = {}


ALTERNATIONS = 50
"""Number of alternating fits of extremes and sparsity factors [1]."""


def fit_critical_batch(batch_tokens: Column, steps: Column, sparsity: Column | None = None) -> CriticalBatch:
    r"""Critical batch fitted to the steps to a target loss by batch: $S = S_\mathrm{min} + E_\mathrm{min} / B$.

    The equation is equivalent to $(S / S_\mathrm{min} - 1)(E / E_\mathrm{min} - 1) = 1$ with E = S B (McCandlish et al.
    2018, equation 2.7), and fitted by least squares of the relative error. Sparse weights have a rougher loss with a
    larger Lipschitz constant of the gradient, which multiplies each extreme:
    $S = r_s (S_\mathrm{min} + E_\mathrm{min} / B)$ with one critical batch for all sparsities (Lee et al. 2021, arXiv
    2003.11316). A large misfit indicates that the critical batch depends on the sparsity.

    Args:
        batch_tokens: B, batch [token], [run].
        steps: S, steps to the target loss [1], [run].
        sparsity: share of zero weights, or a similar setting [1], [run].

    Returns:
        The trade-off and the critical batch, at the lowest sparsity.

    Raises:
        InputError: the runs show no trade-off (a fitted extreme is negative).
    """
    batch, count = np.asarray(batch_tokens, float), np.asarray(steps, float)
    # Without stated sparsity all runs share a setting.
    settings, place = np.unique(np.zeros_like(count) if sparsity is None else sparsity, return_inverse=True)
    factors, least = np.ones(len(settings)), np.zeros(2)
    # The extremes are linear for given factors, each factor is linear for given extremes: alternate until convergence.
    for _ in range(ALTERNATIONS if len(settings) > 1 else 1):
        rough = factors[place] / count
        rows = np.stack([rough, rough / batch], axis=1)
        # Columns are scaled to unit norm, because steps and tokens differ by many orders of magnitude.
        scale = np.linalg.norm(rows, axis=0)
        found, *_ = np.linalg.lstsq(rows / scale, np.ones_like(count), rcond=None)
        least = np.asarray(found) / scale
        ratio = (least[0] + least[1] / batch) / count
        factors = np.asarray(
            # Least squares of r ratio = 1 for each factor.
            [ratio[place == one].sum() / (ratio[place == one] ** 2).sum() for one in range(len(settings))]
        )
        # Factors are relative to the lowest sparsity, the first after sorting by `np.unique`.
        factors = factors / factors[0]
    least_steps, least_tokens = float(least[0]), float(least[1])
    # Negative extremes: steps do not fall with the batch.
    if not (least_steps > 0.0 and least_tokens > 0.0):
        raise InputError("fit_critical_batch: the runs show no trade of steps against tokens; expected a wider range")
    misfit = np.abs(factors[place] * (least_steps + least_tokens / batch) / count - 1.0).max()
    told = {} if sparsity is None else dict(zip(settings.tolist(), factors.tolist(), strict=True))
    return CriticalBatch(least_steps, least_tokens, least_tokens / least_steps, float(misfit), told)


def power_law(x: Column, y: Column, error: Column | None = None) -> tuple[float, float, float]:
    """Power law y = c x^p, fitted by least squares in logarithms.

    Args:
        x: positive numbers [point].
        y: positive numbers [point].
        error: standard errors of ln y, for weights; by default equal weights [point].

    Returns:
        Coefficient c, exponent p, standard error of p.
    """
    log_x, log_y = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    weight = np.ones_like(log_x) if error is None else 1.0 / np.asarray(error, float)
    # Scaled by the scatter below: weights are relative.
    (slope, start), covariance = np.polyfit(log_x, log_y, 1, w=weight, cov="unscaled")
    # Two numbers are fitted.
    scatter = np.sum((weight * (log_y - start - slope * log_x)) ** 2) / max(len(log_x) - 2, 1)
    return float(np.exp(start)), float(slope), float(np.sqrt(scatter * covariance[0, 0]))


SAME_BUDGET = 0.08
"""Largest relative difference of compute within a budget [1]."""

FEWEST_SIZES = 4
"""Least number of sizes of a budget for a parabola [1]."""


class Growth(NamedTuple):
    """Growth of the compute-optimal size and tokens with compute, $N^* = c_N C^{a}$ and $D^* = c_D C^{b}$.

    Attributes:
        flop: C, training compute of each budget [flop], [budget].
        n_params: optimal N [1], [budget].
        n_tokens: optimal D [token], [budget].
        loss: loss at the optimum [nat per token], [budget].
        params_exponent: a, exponent of the parameters [1].
        tokens_exponent: b, exponent of the tokens [1].
        error: standard error of a; nan for the fitted law [1].
    """

    flop: Float[np.ndarray, " budget"]
    n_params: Float[np.ndarray, " budget"]
    n_tokens: Float[np.ndarray, " budget"]
    loss: Float[np.ndarray, " budget"]
    params_exponent: float
    tokens_exponent: float
    error: float


def budgets_of(table: Losses) -> list[np.ndarray]:
    """Rows of each compute budget: runs sorted by compute, split at relative jumps above `SAME_BUDGET`."""
    # Rows of equal compute stay in the order of the table.
    order = np.argsort(table.log_flop, kind="stable")
    # A budget ends at a jump of compute.
    jumps = np.flatnonzero(np.diff(table.log_flop[order]) > np.log1p(SAME_BUDGET)) + 1
    return [rows for rows in np.split(order, jumps) if len(np.unique(table.n_params[rows])) >= FEWEST_SIZES]


def isoflop_minima(table: Losses) -> Float[np.ndarray, "budget 3"]:
    """Compute, optimal size and least loss of each compute budget, by a parabola of the loss in ln N [budget, 3].

    Budgets with a parabola that opens downwards, or a minimum outside the range of sizes, are omitted.

    Raises:
        InputError: fewer than two budgets remain.
    """
    minima = []
    for rows in budgets_of(table):
        size = np.log(table.n_params[rows])
        middle = float(size.mean())
        # Centred: ln N is near 20, and squares would cancel.
        bend, slope, height = np.polyfit(size - middle, table.loss[rows], 2)
        # Vertex of the parabola; no minimum where the parabola opens downwards.
        best = -slope / (2.0 * bend) if bend > 0.0 else np.inf
        # A minimum outside the sizes is extrapolated.
        if size.min() - middle <= best <= size.max() - middle:
            flop = float(np.exp(table.log_flop[rows].mean()))
            minima.append((flop, float(np.exp(best + middle)), float(height - slope**2 / (4.0 * bend))))
    if len(minima) < 2:
        raise InputError(f"{table.name}: {len(minima)} budgets of {FEWEST_SIZES} sizes with a minimum; expected two")
    return np.asarray(minima)


def growth(law: FittedLaw, approach: int = 3) -> Growth:
    """Growth of the compute-optimal size and tokens with compute, by one of the three approaches.

    Args:
        law: law fitted to a table; approaches 1 and 2 use only the table.
        approach: 1 (lower envelope), 2 (parabolas at equal compute) or 3 (fitted law).

    Raises:
        InputError: an unknown approach, a law without a table, or a table without budgets.
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
        # N* ~ C^(b / (a + b)), D* ~ C^(a / (a + b))
        shares = [np.asarray(value / total).item() for value in (one.tokens_exponent, one.params_exponent)]
        return Growth(flop, size, tokens, loss, shares[0], shares[1], float("nan"))
    if law.table is None:
        raise InputError(f"approach {approach} needs the runs; expected a law fitted to a table")
    flop, size, loss = (isoflop_minima(law.table) if approach == 2 else envelope(law.table)).T
    # D = C / (6 N)
    tokens = flop / (FLOP_PER_PARAM_TOKEN * size)
    _, exponent, error = power_law(flop, size)
    # C = 6 N D: exponents add up to 1.
    return Growth(flop, size, tokens, loss, exponent, 1.0 - exponent, error)


def envelope(table: Losses) -> Float[np.ndarray, "budget 3"]:
    """Compute, size and loss of the runs on the lower envelope of loss against compute [run, 3].

    Runs of nearly equal compute form a budget.

    Raises:
        InputError: fewer than three runs, too few for a power law.
    """
    order = np.argsort(table.log_flop, kind="stable")
    log_flop = table.log_flop[order]
    # Runs of nearly equal compute count as a budget.
    ends = np.searchsorted(log_flop, log_flop + np.log1p(SAME_BUDGET), side="right") - 1
    # Least loss of all runs up to the compute.
    lowest = np.minimum.accumulate(table.loss[order])[ends]
    best = order[table.loss[order] <= lowest]
    if len(best) < 3:
        raise InputError(f"{table.name}: {len(best)} runs on the lower envelope; expected at least three")
    return np.stack([np.exp(table.log_flop[best]), table.n_params[best], table.loss[best]], axis=1)


REFERENCE_TOKENS = 1e10
"""Tokens for which the optimum of a batch law is stated [token]."""

FAR_ABOVE = 0.08
"""Largest excess over the least loss of equal size and tokens for a run that informs the optimum [1]."""

SOFT = 0.005
"""Residual of the log loss above which the penalty is linear [1]."""

FEWEST_RUNS = 20
"""Least number of runs near the optimum for a fit to a sweep [1]."""


class OptimalBatch(NamedTuple):
    r"""Optimal batch and learning rate, $B^* = c D^p$ and $\eta^* \sim N^x D^y$ at $B^*$.

    Attributes:
        batch: B* at `REFERENCE_TOKENS` [token].
        batch_exponent: p, exponent of the batch in the tokens [1].
        params_exponent: x, exponent of the learning rate in the parameters [1].
        tokens_exponent: y, exponent of the learning rate in the tokens [1].
        batch_curvature: k_B, rise of the log loss per squared log of the batch over B* [1].
        rate_curvature: k_eta, rise of the log loss per squared log of the learning rate over the optimum [1].
        batch_error: standard error of p, with pairs of size and tokens taken as independent [1].
        n: number of runs near the optimum [1].
    """

    batch: float
    batch_exponent: float
    params_exponent: float
    tokens_exponent: float
    batch_curvature: float
    rate_curvature: float
    batch_error: float
    n: int


def near_optimum(table: Losses) -> tuple[Bool[np.ndarray, " row"], np.ndarray]:
    """Mask of runs near the least loss at equal size and tokens, and the group number of each run [row]."""
    pairs = np.stack([table.n_params, table.tokens], axis=1)
    _, group = np.unique(pairs, axis=0, return_inverse=True)
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, table.loss)
    return table.loss < (1.0 + FAR_ABOVE) * least[group], group


def optimal_batch(table: Losses) -> OptimalBatch:
    r"""Batch and learning rate of least loss from a sweep, by robust least squares of the log loss.

    $\ln L = f_{ND} + k_B \ln^2(B / B^*) + k_\eta \ln^2(\eta / \eta^*)$ with a constant f for each size and number of
    tokens, $B^* = c D^p$, and $\eta^* \sim N^x D^y (B / B^*)^z$, since larger batches allow larger learning rates.

    Args:
        table: table with the columns `batch_tokens` and `lr`.

    Raises:
        InputError: a column is empty, or too few runs are near the optimum.
    """
    for column in ("batch_tokens", "lr"):
        if not np.isfinite(table.number(column)).all():
            raise InputError(f"{table.name}: column {column!r} is empty in a row; a sweep needs it in all")
    rows, group = near_optimum(table)
    if rows.sum() < FEWEST_RUNS:
        raise InputError(f"{table.name}: {rows.sum()} runs near their optimum; expected at least {FEWEST_RUNS}")
    size = np.log(table.n_params[rows] / 1e9)
    tokens = np.log(table.tokens[rows] / REFERENCE_TOKENS)
    batch, rate, loss = (
        np.log(values[rows]) for values in (table.number("batch_tokens"), table.number("lr"), table.loss)
    )
    levels, count = group[rows], np.maximum(np.bincount(group[rows], minlength=int(group.max()) + 1), 1)

    def residuals(point: Float[np.ndarray, " number"]) -> Float[np.ndarray, " row"]:
        log_batch_bend, best_batch, p, log_rate_bend, best_rate, x, y, z = point
        far = batch - best_batch - p * tokens
        off = rate - best_rate - x * size - y * tokens - z * far
        miss = loss - np.exp(log_batch_bend) * far**2 - np.exp(log_rate_bend) * off**2
        # f for each size and tokens: the mean of the group, eliminated.
        return miss - (np.bincount(levels, miss, len(count)) / count)[levels]

    # Logarithms of bends keep bends positive.
    start = np.asarray([np.log(SOFT), batch.mean(), 0.5, np.log(SOFT), rate.mean(), -0.5, 0.2, 0.3])
    done = least_squares(residuals, start, loss="soft_l1", f_scale=SOFT)
    # Twice the cost is the robust sum of squares.
    covariance = np.linalg.pinv(done.jac.T @ done.jac) * 2.0 * done.cost / max(len(loss) - len(start), 1)
    bend, best, p, rate_bend, _, x, y, _ = done.x
    return OptimalBatch(
        float(np.exp(best)), float(p), float(x), float(y), float(np.exp(bend)), float(np.exp(rate_bend)),
        float(np.sqrt(covariance[2, 2])), int(rows.sum()),
    )  # fmt: skip
