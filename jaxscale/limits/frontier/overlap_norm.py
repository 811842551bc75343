"""Time of activities that overlap, and split of a group of chips over domains: smooth or exact."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.smooth import p_norm, p_norm_smaller, smaller

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
        return p_norm(times, self.exponent)

    def smaller(self, first: Array, second: Array) -> Array:
        r"""$(x^{-q} + y^{-q})^{-1/q}$: never above the smaller, never negative, zero where one of them is [1]."""
        return p_norm_smaller(first, second, SHARPNESS)
