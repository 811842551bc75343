"""How the global batch follows the number of chips."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float


class Batch(eqx.Module):
    """Global batch B = B_0 + s n: weak scaling with B_0 = 0, strong scaling with s = 0.

    Attributes:
        per_chip: s [sequence].
        fixed: B_0 [sequence].
    """

    per_chip: Number = eqx.field(converter=as_float, default=0.0)
    fixed: Number = eqx.field(converter=as_float, default=0.0)

    def at(self, n_chips: ArrayLike) -> Array:
        """Global batch on n chips [sequence]."""
        return jnp.asarray(self.fixed + self.per_chip * n_chips)
