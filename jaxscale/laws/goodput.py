r"""Goodput: share of the time that failures, checkpoints and restarts leave.

With exponential failures of mean interval M for the whole job, checkpoints of duration $\delta$ every $\tau$ of work
and restarts of duration R, a unit of work takes

$$ \frac{M}{\tau}\, e^{R/M} \left(e^{(\tau + \delta)/M} - 1\right), \qquad \tau = \sqrt{2 \delta M} . $$

References: Young 1974, Communications of the ACM 17(9) (interval); Daly 2006, Future Generation Computer Systems 22(3),
equation 13 (time).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.laws.loss import law_table

CHECKPOINT_BYTES = 14.0
"""Bytes of a checkpoint per parameter: 16-bit weight, 32-bit master weight and two moments of Adam [byte]."""

Number = Float[ArrayLike, "*batch"]


class FailureLaw(eqx.Module):
    """Rate of failures of chips, and time that checkpoints and restarts take.

    Attributes:
        failures_per_chip_second: interruptions per chip [1/s].
        storage_bytes_per_second: checkpoint bandwidth per chip [byte/s].
        restart_time: from a failure to training again [s].
    """

    failures_per_chip_second: Number = eqx.field(converter=as_float)
    storage_bytes_per_second: Number = eqx.field(converter=as_float)
    restart_time: Number = eqx.field(converter=as_float)

    def checkpoint_time(self, n_params: ArrayLike, n_chips: ArrayLike) -> Array:
        """Time to write a checkpoint, an equal share by every chip [s]."""
        return jnp.asarray(CHECKPOINT_BYTES * n_params / (self.storage_bytes_per_second * n_chips))

    def checkpoint_interval(self, n_params: ArrayLike, n_chips: ArrayLike) -> Array:
        """Work between checkpoints, Young's optimum [s]."""
        mean_interval = 1.0 / (self.failures_per_chip_second * n_chips)
        return jnp.sqrt(2.0 * self.checkpoint_time(n_params, n_chips) * mean_interval)

    def slowdown(self, n_params: ArrayLike, n_chips: ArrayLike) -> Array:
        """Time of the run over time of all steps; goodput is the inverse [1].

        Args:
            n_params: parameters in the checkpoint [1].
            n_chips: chips of the job [1].

        Returns:
            At least one; grows without bound where the job fails faster than it restarts.
        """
        failures = self.failures_per_chip_second * jnp.asarray(n_chips)
        work = self.checkpoint_interval(n_params, n_chips)
        cycle = work + self.checkpoint_time(n_params, n_chips)
        return jnp.exp(self.restart_time * failures) * jnp.expm1(cycle * failures) / (work * failures)


def failure_law(name: str = "llama3") -> FailureLaw:
    """A failure law of the shipped table."""
    return FailureLaw(**law_table("failure", name))
