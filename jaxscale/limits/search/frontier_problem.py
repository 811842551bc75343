r"""The plan search as a nonlinear programme in log coordinates u, nearly a geometric one and so nearly convex.

$$ \min_u\; w \ln n(u) + \ln t(u) + \rho\, e \quad\text{s.t.}\quad A u \le a, \quad \ln t(u) - \ln t_{max} - e \le 0 $$

n chips, t the batch's time, e the excess; w = 1 maximises the utilisation $6 N B / (n C t)$, w = 0 finds the fastest
batch and has no deadline.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.limits.frontier.batch_time import batch_time
from jaxscale.limits.frontier.frontier_scenario import Scenario
from jaxscale.limits.frontier.overlap_norm import SmoothOverlap
from jaxscale.limits.frontier.scaling_laws import Workload, log_ideal_chip_seconds, log_step_limit, workload
from jaxscale.limits.search.feasible_set import EXCESS, N_LINEAR, Limits, degrees_at, linear_limits

PRICE = 1e3
"""Price of the excess: above every shadow price, but within a millionth of the wall's compute [1]."""

NO_DEADLINE = 1e3
"""Logarithm that no batch's time in seconds reaches [1]."""

N_LIMITS = N_LINEAR + 1


class Problem(NamedTuple):
    """One search.

    Attributes:
        work: what is trained.
        scenario: assumptions.
        limits: linear limits.
        log_deadline: natural logarithm of the longest batch [s].
        chip_weight: w; one for utilisation, zero for speed [1].
    """

    work: Workload
    scenario: Scenario
    limits: Limits
    log_deadline: Array
    chip_weight: Array


def utilisation_problem(log_flop: Array, scenario: Scenario, speed: Array | bool = False) -> Problem:
    """Highest utilisation at a training compute, or the fastest batch.

    Args:
        log_flop: natural logarithm of the training compute [flop].
        scenario: assumptions.
        speed: whether the fastest batch is wanted.

    Returns:
        The search.
    """
    work = workload(log_flop, scenario)
    deadline = log_step_limit(work, scenario)
    problem = Problem(work, scenario, linear_limits(work, scenario), deadline, jnp.ones_like(deadline))
    return jax.tree.map(lambda fast, best: jnp.where(speed, fast, best), fastest(problem), problem)


def fastest(problem: Problem) -> Problem:
    """The search for the fastest batch, whatever it costs: what it cannot end in time, no plan can."""
    unbounded = jnp.full_like(problem.log_deadline, NO_DEADLINE)
    return problem._replace(log_deadline=unbounded, chip_weight=jnp.zeros_like(problem.chip_weight))


def log_time(point: Float[Array, " 8"], problem: Problem) -> Array:
    """Ln t of the smooth model [s]."""
    overlap = SmoothOverlap(problem.scenario.overlap_exponent)
    return jnp.log(batch_time(degrees_at(point, problem.work), problem.work, problem.scenario, overlap).total)


def log_utilisation(point: Float[Array, " 8"], time: Array, problem: Problem) -> Array:
    """Logarithm of the share of the peak that the run sustains, 6 N B / (n C t); given ln t at the point."""
    chips = degrees_at(point, problem.work).chips
    return log_ideal_chip_seconds(problem.work, problem.scenario) - chips - time


def objective(point: Float[Array, " 8"], time: Array, problem: Problem) -> Array:
    """What is minimised, given ln t at the point."""
    return problem.chip_weight * degrees_at(point, problem.work).chips + time + PRICE * point[EXCESS]


def log_time_from(value: Array, point: Float[Array, " 8"], problem: Problem) -> Array:
    """Ln t given the objective's value: the model need not be evaluated again [s]."""
    return value - problem.chip_weight * degrees_at(point, problem.work).chips - PRICE * point[EXCESS]


def slacks(point: Float[Array, " 8"], time: Array, problem: Problem) -> Float[Array, " 15"]:
    """Room left in every limit, the deadline last; given ln t at the point."""
    linear = problem.limits.bound - problem.limits.matrix @ point
    return jnp.append(linear, problem.log_deadline + point[EXCESS] - time)


def lagrangian(point: Float[Array, " 8"], multipliers: Float[Array, " 15"], problem: Problem) -> Array:
    """Objective less multipliers times slacks; its slope in the scenario is that of the optimum (envelope theorem)."""
    time = log_time(point, problem)
    return objective(point, time, problem) - multipliers @ slacks(point, time, problem)


def time_with_derivatives(
    point: Float[Array, " 8"], problem: Problem
) -> tuple[Array, Float[Array, " 8"], Float[Array, "8 8"]]:
    """Ln t, its slope and its curvature."""

    def slope(at: Array) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(log_time)(at, problem)
        return gradient, (value, gradient)

    curvature, (value, gradient) = jax.jacfwd(slope, has_aux=True)(point)
    return value, gradient, curvature
