"""How activities that run at the same time add up, and how a group of chips splits over domains: smooth or exact."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale._arrays import Number, as_float
from jaxscale._smooth import larger, smaller

TINY = 1e-12
"""Added to times relative to the longest: keeps slopes finite where a time is zero [1]."""

SHARPNESS = 16
"""Exponent q of the smooth minimum; at equality it is 4 % of the logarithm low [1]."""


class AbstractOverlap(eqx.Module):
    """Joins times and splits groups."""

    @abc.abstractmethod
    def longest(self, times: Float[Array, " n"]) -> Array:
        """Time of activities that overlap [s]."""

    @abc.abstractmethod
    def smaller(self, first: Array, second: Array) -> Array:
        """Smaller of two logarithms of numbers of at least one; zero where one of them is [1]."""


class ExactOverlap(AbstractOverlap):
    """Perfect overlap, sharp domain edges: for plans of whole numbers."""

    def longest(self, times: Float[Array, " n"]) -> Array:
        """The longest of the times [s]."""
        return jnp.max(times)

    def smaller(self, first: Array, second: Array) -> Array:
        """min(x, y) [1]."""
        return smaller(first, second)


class SmoothOverlap(AbstractOverlap):
    r"""Overlap with a cost, soft domain edges: for relaxed plans.

    Attributes:
        exponent: p of the norm $(\sum t^p)^{1/p}$, at least one [1].
    """

    exponent: Number = eqx.field(converter=as_float)

    def longest(self, times: Float[Array, " n"]) -> Array:
        """The p-norm of the times [s]."""
        # The longest is scaled out, so that no power leaves the range of numbers.
        scale = jax.lax.stop_gradient(jnp.max(times))
        powers = jnp.sum(jnp.exp(self.exponent * jnp.log(times / scale + TINY)))
        return scale * jnp.exp(jnp.log(powers) / self.exponent)

    def smaller(self, first: Array, second: Array) -> Array:
        r"""$(x^{-q} + y^{-q})^{-1/q}$: never above the smaller, never negative, zero where one of them is [1]."""
        low, high = smaller(first, second), larger(first, second) + TINY
        return low * (1.0 + (low / high) ** SHARPNESS) ** (-1.0 / SHARPNESS)
