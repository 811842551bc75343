"""Continuous problem behind a search for a plan: plans of one model and batch as points of a unit cube.

Every degree is a share, in logarithms, of the room left by the earlier degrees. Whole replicas divide chips and batch,
which gives a second constraint beside memory: dp is at most the greatest common divisor of chips and batch.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float, number
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.step import step_and_memory
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.optimise.goals import UNBOUNDED, Goals
from jaxscale.plans.enumerate import PlanSpace
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxation import TEMPERATURE, Family, families_for, plan_with, splits

PLAN_COORDINATES = ("tp", "cp", "pp", "micro_batch_size", "vpp", "ep")
"""Degrees of the coordinates, in order."""

PLAN_QUANTITIES = ("step_time", "memory", "replicas")
"""Log quantities of the problem: natural logarithms, SI units; `replicas` is dp."""


class PlanProblem(eqx.Module):
    """Search problem over continuous plans of one family; every leaf is an array.

    Attributes:
        model: the transformer.
        cluster: chips and network, all used by a plan.
        coefficients: fitted parameters.
        batch: B, sequences of a step [sequence].
        software: plan with the fixed fields of all plans; the degrees are not used.
        family: sharding and recomputation.
    """

    model: Transformer
    cluster: Cluster
    coefficients: Coefficients
    batch: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    software: Plan
    family: Family

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the log quantities: `PLAN_QUANTITIES`."""
        return PLAN_QUANTITIES

    def plan_at(self, point: Float[Array, " coordinate"]) -> Plan:
        """Continuous plan at a point of the unit cube."""
        share = {name: point[index] for index, name in enumerate(PLAN_COORDINATES)}
        room = jnp.log(self.cluster.n_chips)
        split = splits(share, self.family, self.model, jnp.log(self.model.n_heads), room)
        # B / dp sequences for each replica.
        return plan_with(share, split, jnp.log(self.batch) - split["dp"], self.family, self.software)

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Logarithms of `PLAN_QUANTITIES` at a point of the unit cube, by the smooth model."""
        plan = self.plan_at(point)
        times, peak = step_and_memory(self.model, plan, self.cluster, self.coefficients, TEMPERATURE)
        return jnp.log(jnp.stack([times.total, peak.total, plan.dp]))


class PlanTask(NamedTuple):
    """Task of a search for a plan: model, cluster and batch with limits.

    Attributes:
        model: the transformer.
        cluster: chips and network, all used by a plan.
        batch: sequences of a step; None where the batch follows from each plan [sequence].
        coefficients: fitted parameters, effects applied.
        memory_limit: largest predicted peak of a chip [byte].
        space: open choices.
    """

    model: Transformer
    cluster: Cluster
    batch: float | int | None
    coefficients: Coefficients
    memory_limit: float
    space: PlanSpace = PlanSpace()

    @property
    def n_chips(self) -> float:
        """Chips of the cluster [1]."""
        return number(self.cluster.n_chips)

    def problems(self) -> list[PlanProblem]:
        """Continuous problems of the task, one for each family of sharding and recomputation."""
        fixed = (self.model, self.cluster, self.coefficients, self.stated_batch, self.space.base)
        return [PlanProblem(*fixed, family) for family in families_for(self.n_chips)]

    @property
    def stated_batch(self) -> float:
        """Sequences of a step; one per chip without a stated batch [sequence]."""
        return self.n_chips if self.batch is None else float(self.batch)

    @property
    def most_replicas(self) -> float:
        """Largest dp: whole replicas divide chips and batch [1]."""
        return float(math.gcd(round(self.n_chips), round(self.stated_batch)))


def plan_goals(tasks: list[PlanTask]) -> Goals:
    """Goals of the search, one row per task: least step time within the limits of memory and replicas."""
    # Step time is the objective and has no bound.
    unbounded = np.full(len(tasks), UNBOUNDED)
    memory_limits = np.asarray([task.memory_limit for task in tasks])
    most_replicas = np.asarray([task.most_replicas for task in tasks])
    upper = np.stack([unbounded, np.log(memory_limits), np.log(most_replicas)], axis=1)
    return Goals(PLAN_QUANTITIES, np.tile([1.0, 0.0, 0.0], (len(tasks), 1)), upper)
