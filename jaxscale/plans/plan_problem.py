"""Plans of one model and batch as points of a unit cube: the continuous search for a parallel plan.

Every degree is a share of the room that the earlier ones leave, in logarithms. A constraint
beside memory: whole replicas divide chips and batch, so that dp is at most their greatest common divisor.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale._arrays import as_float
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.optimise.goals import UNBOUNDED, Goals
from jaxscale.plan.plan import Plan
from jaxscale.plans.relaxation import TEMPERATURE, Family, plan_with, splits
from jaxscale.step import step_and_memory
from jaxscale.workload import Transformer

PLAN_COORDINATES = ("tp", "cp", "pp", "micro_batch_size", "vpp", "ep")
"""What each coordinate decides, in order."""

PLAN_QUANTITIES = ("step_time", "memory", "replicas")
"""Natural logarithms, SI units; `replicas` is dp."""


class PlanSetting(eqx.Module):
    """What a plan is judged in; every leaf an array.

    Attributes:
        model: the transformer.
        cluster: chips and network, all of which a plan uses.
        coefficients: fitted parameters.
        batch: B, sequences of a step [sequence].
        family: sharding and recomputation.
    """

    model: Transformer
    cluster: Cluster
    coefficients: Coefficients
    batch: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    family: Family

    def plan_at(self, point: Float[Array, " coordinate"]) -> Plan:
        """The continuous plan at a point of the unit cube."""
        share = {name: point[index] for index, name in enumerate(PLAN_COORDINATES)}
        room = jnp.log(self.cluster.n_chips)
        split = splits(share, self.family, self.model, jnp.log(self.model.n_heads), room)
        return plan_with(share, split, jnp.log(self.batch) - split["dp"], self.family)

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Logarithms of `PLAN_QUANTITIES` at a point of the unit cube, by the smooth model."""
        plan = self.plan_at(point)
        times, peak = step_and_memory(self.model, plan, self.cluster, self.coefficients, TEMPERATURE)
        return jnp.log(jnp.stack([times.total, peak.total, plan.dp]))


def plan_goals(memory_limits: np.ndarray, most_replicas: np.ndarray) -> Goals:
    """Least step time within the memory of each problem.

    Args:
        memory_limits: largest predicted peak of a chip [byte], [problem].
        most_replicas: largest dp [1], [problem].

    Returns:
        One row for each problem.
    """
    unbounded = np.full(len(memory_limits), UNBOUNDED)
    upper = np.stack([unbounded, np.log(memory_limits), np.log(most_replicas)], axis=1)
    return Goals(PLAN_QUANTITIES, np.tile([1.0, 0.0, 0.0], (len(memory_limits), 1)), upper)
