r"""Energy of a step: power between idle and maximum by what the chips do.

$P = P_\mathrm{idle} + (P_\mathrm{max} - P_\mathrm{idle}) (c + w (1 - c))$, c the share of the step spent computing and
w the power above idle that a waiting chip draws: collectives spin on the processor.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale._arrays import as_float
from jaxscale.hardware.cluster import Chip
from jaxscale.laws.loss import law_table
from jaxscale.step import StepTime

COMPUTE_TERMS = ("matmul", "attention", "memory_bound", "head", "recompute", "optimizer")
"""Terms of a step during which the chip computes; during the others it waits."""


class PowerLaw(eqx.Module):
    """Power of chips that wait.

    Attributes:
        waiting_share: power above idle of a waiting chip over that of a computing one [1].
    """

    waiting_share: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)

    def chip_power(self, chip: Chip, times: StepTime) -> Array:
        """Mean power of one chip over a step [W]."""
        terms = times.terms()
        computing = sum((terms[name] for name in COMPUTE_TERMS[1:]), start=terms[COMPUTE_TERMS[0]]) / times.total
        active = computing + self.waiting_share * (1.0 - computing)
        return jnp.asarray(chip.idle_power + (chip.max_power - chip.idle_power) * active)


def power_law(name: str = "fernandez") -> PowerLaw:
    """A power law of the shipped table."""
    return PowerLaw(**law_table("power", name))
