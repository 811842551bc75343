"""Batch and learning rate of least loss from a sweep of both at several sizes and lengths."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import least_squares

from jaxscale.base.errors import InputError
from jaxscale.laws.losses.loss_reader import Losses

REFERENCE_TOKENS = 1e10
"""Tokens at which the optimum of a batch law is stated [token]."""

FAR_ABOVE = 0.08
"""Loss over the least one of its size and tokens, less one, beyond which a run says nothing of the optimum [1]."""

SOFT = 0.005
"""Residual of the log loss from which it counts linearly [1]."""

FEWEST_RUNS = 20
"""Runs near their optimum below which a sweep is refused [1]."""


class OptimalBatch(NamedTuple):
    r"""Batch and learning rate of least loss, $B^* = c D^p$ and $\eta^* \sim N^x D^y$ at $B^*$.

    Attributes:
        batch: B* at `REFERENCE_TOKENS` [token].
        batch_exponent: p [1].
        params_exponent: x, of the learning rate [1].
        tokens_exponent: y, of the learning rate [1].
        batch_curvature: rise of the log loss per squared log of the batch over B* [1].
        rate_curvature: the same of the learning rate [1].
        batch_error: standard error of p, sizes and lengths taken as independent [1].
        n: runs near their optimum [1].
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
    """Rows whose loss is near the least one of their size and tokens, and the group of each row [row]."""
    pairs = np.stack([table.n_params, table.tokens], axis=1)
    _, group = np.unique(pairs, axis=0, return_inverse=True)
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, table.loss)
    return table.loss < (1.0 + FAR_ABOVE) * least[group], group


def optimal_batch(table: Losses) -> OptimalBatch:
    r"""Batch and learning rate of least loss from a sweep, by robust least squares of the log loss.

    $\ln L = f_{ND} + k_B \ln^2(B / B^*) + k_\eta \ln^2(\eta / \eta^*)$ with a level of each size and number of tokens,
    $B^* = c D^p$, and $\eta^* \sim N^x D^y (B / B^*)^z$, as larger batches bear larger learning rates.

    Args:
        table: with the columns `batch_tokens` and `lr`.

    Returns:
        Optimum and exponents.

    Raises:
        InputError: a column is empty, or too few runs are near their optimum.
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
        return miss - (np.bincount(levels, miss, len(count)) / count)[levels]

    start = np.asarray([np.log(SOFT), batch.mean(), 0.5, np.log(SOFT), rate.mean(), -0.5, 0.2, 0.3])
    done = least_squares(residuals, start, loss="soft_l1", f_scale=SOFT)
    covariance = np.linalg.pinv(done.jac.T @ done.jac) * 2.0 * done.cost / max(len(loss) - len(start), 1)
    bend, best, p, rate_bend, _, x, y, _ = done.x
    return OptimalBatch(
        float(np.exp(best)), float(p), float(x), float(y), float(np.exp(bend)), float(np.exp(rate_bend)),
        float(np.sqrt(covariance[2, 2])), int(rows.sum()),
    )  # fmt: skip
