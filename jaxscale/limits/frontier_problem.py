r"""The plan search as a nonlinear programme in log coordinates u, nearly a geometric programme and so nearly convex.

The eight coordinates of a plan are the logarithms of the degrees of the five groups, of the microbatches m and of the
virtual stages i, and an excess e, by which deadline and memory may be exceeded at a price. The coordinate of expert
parallelism is a share of ln E, so that a dense model has the same coordinates.

$$ \min_u\; w \ln n(u) + \ln t(u) + \rho\, e \quad\text{s.t.}\quad A u \le a, \quad \ln t(u) - \ln t_{max} - e \le 0 $$

with n chips and the batch's time t; w = 1 maximises the utilisation $6 N B / (n C t)$, w = 0 minimises the time of a
batch and has no deadline.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.base.smooth import larger
from jaxscale.limits.batch_time import DP, EP, PP, TP_FF, TP_WIDTH, Degrees, SmoothOverlap, batch_time
from jaxscale.limits.frontier_scenario import (
    FrontierScenario,
    FrontierWork,
    log_ideal_chip_seconds,
    log_step_limit,
    workload,
)

N_GROUPS = 5
MICRO, INTERLEAVE, EXCESS = range(N_GROUPS, 8)
N_COORDINATES = 8
N_DEGREES = 7
N_LINEAR = 14
"""Rows of A: eight lower bounds, the expert share, batch, depth, two widths, memory."""

MARGIN = 1e-6
"""Smallest range of a coordinate, e-folds: the feasible set keeps an interior where a degree can only be one [1]."""


def degrees_at(point: Float[Array, " 8"], work: FrontierWork) -> Degrees:
    """Degrees of parallelism at a point of the search."""
    # The coordinate of EP is a share of ln E.
    groups = point[:N_GROUPS].at[EP].multiply(work.log_experts)
    return Degrees(groups, point[MICRO], point[INTERLEAVE])


class LinearLimits(NamedTuple):
    """Linear limits A u <= a on the coordinates of a plan.

    Attributes:
        matrix: A [limit, coordinate].
        bound: a [limit].
    """

    matrix: Float[Array, "14 8"]
    bound: Float[Array, " 14"]


def log_state_bytes(work: FrontierWork, scenario: FrontierScenario) -> Array:
    """Natural logarithm of the size of weights, gradients and optimizer state of the whole model [byte]."""
    per_param = scenario.weight_bytes + scenario.gradient_bytes + scenario.optimizer_bytes
    # N E / k: idle experts have a state too.
    return work.log_params + work.log_experts - work.log_active + jnp.log(per_param)


def linear_limits(work: FrontierWork, scenario: FrontierScenario) -> LinearLimits:
    """Linear limits on a plan: degrees >= 1, b >= 1, m DP <= B, PP i <= L, tensor slices of a row or more, memory."""
    eye = jnp.eye(N_COORDINATES)
    upper = jnp.stack(
        [
            eye[EP],
            eye[DP] + eye[MICRO],
            eye[PP] + eye[INTERLEAVE],
            eye[TP_WIDTH],
            eye[TP_FF],
            # Replicas hold copies of the state; the excess relaxes the limit.
            -eye[TP_WIDTH] - eye[TP_FF] - eye[PP] - work.log_experts * eye[EP] - eye[EXCESS],
        ]
    )
    bound = jnp.stack(
        [
            # The share of ln E is at most 1.
            jnp.ones_like(work.log_batch),
            larger(work.log_batch, MARGIN),
            larger(work.log_layers, MARGIN),
            larger(work.log_width, MARGIN),
            larger(work.log_ff, MARGIN),
            jnp.log(scenario.memory_bytes) - log_state_bytes(work, scenario),
        ]
    )
    return LinearLimits(jnp.concatenate([-eye, upper]), jnp.concatenate([jnp.zeros(N_COORDINATES), bound]))


PRICE = 1e3
"""Price of the excess: above every shadow price, but within a millionth of the wall's compute [1]."""

NO_DEADLINE = 1e3
"""Logarithm that no batch's time in seconds reaches [1]."""

N_LIMITS = N_LINEAR + 1


class FrontierProblem(NamedTuple):
    """Search for the best plan of a run: a `CurvedProblem` whose only curved quantity is ln t, the time of a batch.

    Attributes:
        work: model and tokens of the run.
        scenario: assumptions on hardware and scaling.
        limits: linear limits on the plan.
        log_deadline: natural logarithm of the longest allowed time of a batch [s].
        chip_weight: weight w of the chips: one for the highest utilisation, zero for the fastest batch [1].
    """

    work: FrontierWork
    scenario: FrontierScenario
    limits: LinearLimits
    log_deadline: Array
    chip_weight: Array

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the only log quantity, the batch's time."""
        return ("time",)

    def log_quantities(self, point: Float[Array, " 8"]) -> Float[Array, " 1"]:
        """Natural logarithm of the batch's time at a point, by the smooth model [s], [1]."""
        overlap = SmoothOverlap(self.scenario.overlap_exponent)
        return jnp.log(batch_time(degrees_at(point, self.work), self.work, self.scenario, overlap).total)[None]

    def objective(self, point: Float[Array, " 8"], values: Float[Array, " 1"]) -> Float[Array, ""]:
        """Objective w ln n + ln t + rho e at a point, given ln t."""
        return self.chip_weight * degrees_at(point, self.work).chips + values[0] + PRICE * point[EXCESS]

    def slacks(self, point: Float[Array, " 8"], values: Float[Array, " 1"]) -> Float[Array, " 15"]:
        """Slack of every limit at a point, the deadline last, given ln t [limit]."""
        linear = self.limits.bound - self.limits.matrix @ point
        return jnp.append(linear, self.log_deadline + point[EXCESS] - values[0])

    def slopes(self, point: Float[Array, " 8"], slope: Float[Array, " 8"]) -> tuple[Array, Float[Array, "15 8"]]:
        """Gradients of the objective and of every limit, given the gradient of ln t."""
        chips = jax.grad(lambda at: degrees_at(at, self.work).chips)(point)
        gradient = (self.chip_weight * chips + slope).at[EXCESS].add(PRICE)
        return gradient, jnp.concatenate([self.limits.matrix, slope.at[EXCESS].add(-1.0)[None]])

    def multiplier_scale(self, multipliers: Float[Array, " 15"]) -> Float[Array, ""]:
        """Largest multiplier except that of the excess [1]."""
        # The multiplier of the excess follows from the price.
        return jnp.max(multipliers.at[EXCESS].set(0.0))

    def lagrangian(self, point: Float[Array, " 8"], multipliers: Float[Array, " 15"]) -> Float[Array, ""]:
        """Lagrangian: objective less multipliers times slacks.

        By the envelope theorem its derivative in the scenario is the derivative of the optimum.
        """
        values = self.log_quantities(point)
        return self.objective(point, values) - multipliers @ self.slacks(point, values)

    def log_utilisation(self, point: Float[Array, " 8"], log_time: Array) -> Array:
        """Natural logarithm of the utilisation of the chips' peak, 6 N B / (n C t), given ln t at the point [1]."""
        chips = degrees_at(point, self.work).chips
        return log_ideal_chip_seconds(self.work, self.scenario) - chips - log_time


def utilisation_problem(log_flop: Array, scenario: FrontierScenario, speed: Array | bool = False) -> FrontierProblem:
    """Search for the plan of highest utilisation, or of the fastest batch, at a training compute.

    Args:
        log_flop: natural logarithm of the training compute [flop].
        scenario: assumptions on hardware and scaling.
        speed: whether the goal is the fastest batch instead of the highest utilisation.
    """
    work = workload(log_flop, scenario)
    deadline = log_step_limit(work, scenario)
    problem = FrontierProblem(work, scenario, linear_limits(work, scenario), deadline, jnp.ones_like(deadline))
    # A choice by `where` serves either goal in a `vmap`.
    return jax.tree.map(lambda fast, best: jnp.where(speed, fast, best), fastest(problem), problem)


def fastest(problem: FrontierProblem) -> FrontierProblem:
    """The search for the fastest batch on any number of chips.

    If the fastest batch misses the deadline, no plan is feasible.
    """
    unbounded = jnp.full_like(problem.log_deadline, NO_DEADLINE)
    return problem._replace(log_deadline=unbounded, chip_weight=jnp.zeros_like(problem.chip_weight))
