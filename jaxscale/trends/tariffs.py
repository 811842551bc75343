"""Money: a chip's share of its system, written off over its life, and the electricity that it takes."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float


class Price(eqx.Module):
    """Price of a chip and of its electricity.

    Attributes:
        capital: of a chip with its share of server and network [dollar].
        lifetime: over which it is written off [s].
        electricity: price of energy [dollar/J].
        overhead: power of the facility over that of its computers (PUE) [1].
    """

    capital: Number = eqx.field(converter=as_float)
    lifetime: Number = eqx.field(converter=as_float)
    electricity: Number = eqx.field(converter=as_float)
    overhead: Number = eqx.field(converter=as_float)

    def rate(self, watts: ArrayLike) -> Array:
        """Cost of a chip whose system draws a power: capital / lifetime + electricity * overhead * P [dollar/s].

        Args:
            watts: power of the chip and its share of the server [W].

        Returns:
            Cost [dollar/s].
        """
        return jnp.asarray(self.capital / self.lifetime + self.electricity * self.overhead * watts)
