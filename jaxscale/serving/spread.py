r"""Distribution over requests: percentiles of latency, and lengths of unequal answers.

The lengths of answers, with mean 1 and squared coefficient of variation v, are assumed to have a gamma distribution.
The cube root of a gamma variable is approximately normal (Wilson and Hilferty 1931), with the quantile at a share q

$$ x_q = \left( 1 - \frac{v}{9} + \sqrt{\frac{v}{9}} \Phi^{-1}(q) \right)^3 . $$
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number
from jaxscale.base.smooth import larger, smaller
from jaxscale.serving.engine import Requests
from jaxscale.serving.serving_coefficients import ServingCoefficients

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Reported percentiles by name [1]."""

GUMBEL = 0.5615
"""exp(-0.5772), with Euler's constant: the mean of the largest of n is about the quantile at 1 - 0.5615 / n [1]."""

UNIFORM = 1.0 / 3.0
"""Squared coefficient of variation of lengths from 0 to twice the mean, as benchmark clients draw lengths [1]."""

WIDER = 8.0
"""Growth of the bound of lengths beyond the spread of uniform lengths: exponential lengths have no bound [1]."""

SHORTER = 0.63
"""Exponent of v in the density of lengths near 0: 1 / 2 of an exponential distribution for uniform lengths [1]."""


class Percentiles(eqx.Module):
    """Mean and percentiles of a time over requests [s].

    Attributes:
        mean: mean over all requests.
        p50: median.
        p90: 90 % quantile.
        p99: 99 % quantile.
    """

    mean: Number
    p50: Number
    p90: Number
    p99: Number


def percentiles_of(mean: Array, quantile: Callable[[float], Array]) -> Percentiles:
    """Mean and percentiles of a time, from its mean and quantile function [s]."""
    return Percentiles(mean, *(quantile(share) for share in QUANTILES.values()))


def gamma_quantile(variance: ArrayLike, share: ArrayLike) -> Array:
    """Quantile of a gamma distribution of mean 1 and given variance, within 1 % for an exponential distribution [1]."""
    ninth = jnp.asarray(variance) / 9.0
    # The root has no finite slope at 0.
    root = jnp.sqrt(ninth + 1e-12)
    # A wide spread would make the cube root negative.
    return larger(1.0 - ninth + root * norm.ppf(share), 0.05) ** 3


def gamma_percentiles(mean: Array, variance: Array) -> Percentiles:
    """Mean and percentiles of a gamma-distributed time, from its mean [s] and variance [s^2]."""
    relative = variance / mean**2
    return percentiles_of(mean, lambda share: mean * gamma_quantile(relative, share))


def length_variance(requests: Requests, coefficients: ServingCoefficients) -> Array:
    """Squared coefficient of variation of the lengths of requests: as stated, else from the fit [1]."""
    return jnp.asarray(requests.length_variance + requests.lengths_open * coefficients.length_spread**2)


def longest(count: ArrayLike, variance: ArrayLike) -> Array:
    """Expected length of the longest of n answers relative to the mean of all answers, at least 1 [1].

    Lengths are assumed to be bounded for a variation up to that of uniform lengths, else to be gamma-distributed.

    Args:
        count: number of answers n [1].
        variance: squared coefficient of variation of the lengths [1].
    """
    count = larger(count, 1.0)
    wide = gamma_quantile(variance, 1.0 - GUMBEL / count)
    # 1 + sqrt(3 v): the end of a uniform distribution.
    end = jnp.sqrt(3.0 * jnp.asarray(variance) + 1e-12)
    bounded = 1.0 + end * (1.0 - 2.0 / (count + 1.0))
    return larger(smaller(wide, bounded * (1.0 + WIDER * larger(variance - UNIFORM, 0.0))), 1.0)


def half_difference(variance: ArrayLike) -> Array:
    r"""Half the mean absolute difference of two lengths relative to the mean, about $\sqrt{v / (\pi + 0.86 v)}$ [1].

    Exact for exponential lengths (1/2), within 0.02 for uniform lengths (1/3).
    """
    return jnp.sqrt(variance / (jnp.pi + 0.86 * variance) + 1e-12)


def shortness(variance: ArrayLike) -> Array:
    """Probability density of lengths near 0 relative to an exponential distribution, v^0.63 [1]."""
    # No finite slope at 0.
    return (jnp.asarray(variance) + 1e-9) ** SHORTER
