r"""Laws of the loss and of the batch from measured runs, with uncertainty.

The loss law is fitted as by Hoffmann et al. 2022, appendix D.2: with $A = e^a$, $B = e^b$, $E = e^e$ the sum of Huber
losses of $\ln L - \operatorname{logsumexp}(a - \alpha \ln N, b - \beta \ln D, e)$ is least. Uncertainty comes from
resampled runs, all five strongly correlated numbers together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from jaxscale._compile.jit import filter_jit
from jaxscale.errors import InputError
from jaxscale.laws.loss import LossLaw

HUBER_DELTA = 1e-3
"""Residual of the log loss from which it counts linearly (Hoffmann et al. 2022, appendix D.2) [1]."""

FIRST_GUESS = (6.0, 7.0, 0.5, 0.35, 0.35)
"""a, b, e, alpha, beta: the middle of the grid of Hoffmann et al., appendix D.2."""


Column = Sequence[float] | np.ndarray
"""Numbers of several runs."""


class LossFit(NamedTuple):
    """A fitted loss law.

    Attributes:
        law: the best fit.
        samples: laws of resampled runs, every leaf [sample].
        objective: sum of Huber losses at the best fit [1].
    """

    law: LossLaw
    samples: LossLaw
    objective: float


def _law(numbers: Float[Array, "*sample 5"]) -> LossLaw:
    a, b, e, alpha, beta = jnp.moveaxis(numbers, -1, 0)
    return LossLaw(jnp.exp(e), jnp.exp(a), jnp.exp(b), alpha, beta)


def _objective(numbers: Array, data: tuple[Array, Array, Array, Array]) -> Array:
    log_params, log_tokens, log_loss, weight = data
    a, b, e, alpha, beta = numbers
    parts = jnp.stack([a - alpha * log_params, b - beta * log_tokens, jnp.broadcast_to(e, log_params.shape)])
    miss = jnp.abs(jax.nn.logsumexp(parts, axis=0) - log_loss)
    huber = jnp.where(miss < HUBER_DELTA, 0.5 * miss**2, HUBER_DELTA * (miss - 0.5 * HUBER_DELTA))
    return jnp.sum(weight * huber)


@filter_jit
def _fit(start: Array, data: tuple[Array, Array, Array], weights: Array) -> tuple[Array, Array]:
    def one(weight: Array) -> tuple[Array, Array]:
        # In units of Huber's delta the objective is of order one, as the solver's tolerances expect.
        scaled = optx.minimise(
            lambda numbers, rest: _objective(numbers, rest) / HUBER_DELTA,
            optx.BestSoFarMinimiser(optx.BFGS(rtol=1e-9, atol=1e-9)),
            start,
            args=(*data, weight),
            max_steps=2000,
            throw=False,
        ).value
        return scaled, _objective(scaled, (*data, weight))

    return jax.vmap(one)(weights)


def fit_loss_law(params: Column, tokens: Column, loss: Column, n_samples: int = 100, seed: int = 0) -> LossFit:
    """Fit of $L = E + A N^{-α} + B D^{-β}$.

    Args:
        params: N of each run [1], [run].
        tokens: D [token], [run].
        loss: final loss [nat per token], [run].
        n_samples: resampled fits for the uncertainty [1].
        seed: of the resampling.

    Returns:
        The law and samples of resampled runs.

    Raises:
        InputError: columns that are not positive numbers of one length, or too few runs.
    """
    columns = [np.asarray(column, float) for column in (params, tokens, loss)]
    count = len(columns[0])
    if any(column.shape != (count,) or not (column > 0.0).all() for column in columns):
        raise InputError("fit_loss_law: expected three columns of positive numbers, equally long")
    if count < 10:
        raise InputError(f"fit_loss_law: {count} runs are too few for five numbers; expected at least 10")
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), size=n_samples)
    with jax.enable_x64(True):
        data = (jnp.log(columns[0]), jnp.log(columns[1]), jnp.log(columns[2]))
        weights = np.concatenate([np.ones((1, count)), drawn])
        first, _ = _fit(jnp.asarray(FIRST_GUESS), data, jnp.asarray(weights[:1]))
        numbers, objective = _fit(first[0], data, jnp.asarray(weights))
        numbers = np.asarray(numbers)
        law = jax.tree.map(float, _law(jnp.asarray(numbers[0])))
        return LossFit(law, jax.tree.map(np.asarray, _law(jnp.asarray(numbers[1:]))), float(objective[0]))


class CriticalBatch(NamedTuple):
    """The trade of steps against tokens at one target loss.

    Attributes:
        steps: fewest steps, with very large batches [1].
        tokens: fewest tokens, with very small batches [token].
        critical: batch that takes twice of both [token].
        misfit: largest relative error of the steps [1].
    """

    steps: float
    tokens: float
    critical: float
    misfit: float


def fit_critical_batch(batch_tokens: Column, steps: Column) -> CriticalBatch:
    r"""Critical batch from steps to one loss at several batches: $S = S_\mathrm{min} + E_\mathrm{min} / B$.

    The same as $(S / S_\mathrm{min} - 1)(E / E_\mathrm{min} - 1) = 1$ with E = S B (McCandlish et al. 2018, equation
    2.7), fitted by least squares of the relative error.

    Args:
        batch_tokens: B [token], [run].
        steps: S [1], [run].

    Returns:
        The trade and the critical batch.

    Raises:
        InputError: no trade in the runs: an extreme comes out negative.
    """
    batch, count = np.asarray(batch_tokens, float), np.asarray(steps, float)
    rows = np.stack([1.0 / count, 1.0 / (batch * count)], axis=1)
    scale = np.linalg.norm(rows, axis=0)
    (least_steps, least_tokens), *_ = np.linalg.lstsq(rows / scale, np.ones_like(count), rcond=None)
    least_steps, least_tokens = least_steps / scale[0], least_tokens / scale[1]
    if not (least_steps > 0.0 and least_tokens > 0.0):
        raise InputError("fit_critical_batch: the runs show no trade of steps against tokens; expected a wider range")
    misfit = np.abs((least_steps + least_tokens / batch) / count - 1.0).max()
    return CriticalBatch(float(least_steps), float(least_tokens), float(least_tokens / least_steps), float(misfit))


def power_law(x: Column, y: Column) -> tuple[float, float, float]:
    """Coefficient c, exponent p and standard error of p of y = c x^p, by least squares in logarithms."""
    log_x, log_y = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    (slope, start), covariance = np.polyfit(log_x, log_y, 1, cov="unscaled")
    scatter = np.sum((log_y - start - slope * log_x) ** 2) / max(len(log_x) - 2, 1)
    return float(np.exp(start)), float(slope), float(np.sqrt(scatter * covariance[0, 0]))
