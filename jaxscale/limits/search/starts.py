"""Rough plans to start from: the best of many scattered ones, in blocks, so that more blocks only add starts."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.limits.frontier.degrees import DP, EP, PP, TP_FF, TP_WIDTH
from jaxscale.limits.frontier.scaling_laws import log_ideal_chip_seconds, log_step_limit
from jaxscale.limits.search.feasible_set import EXCESS, INTERLEAVE, MICRO, N_COORDINATES, N_DEGREES, degrees_at
from jaxscale.limits.search.frontier_problem import FrontierProblem

PLANS_PER_BLOCK = 128
"""Scattered plans in a block [1]."""

LONGEST_TENSOR = math.log(1024.0)
"""Largest tensor-parallel degree of a scattered plan along either width, natural logarithm [1]."""

SPARE = math.log(64.0)
"""Most chips of a scattered plan beyond those that the arithmetic asks for, natural logarithm [1]."""

MISS_PRICE = 5.0
"""Price of a missed deadline among scattered plans, per e-fold [1]."""

INSET = 0.01
"""Distance of a start from each bound, of the range [1]."""


@functools.cache
def scattered(n_blocks: int) -> np.ndarray:
    """Additive recurrence of low discrepancy (Roberts 2018), [block, plan, coordinate] in the unit cube."""
    # The recurrence's base is the root of x^(n + 1) = x + 1.
    base = 2.0
    for _ in range(64):
        base = (1.0 + base) ** (1.0 / (N_DEGREES + 1))
    steps = base ** -np.arange(1.0, N_DEGREES + 1)
    points = (0.5 + np.outer(np.arange(1, n_blocks * PLANS_PER_BLOCK + 1), steps)) % 1.0
    return points.reshape(n_blocks, PLANS_PER_BLOCK, N_DEGREES)


def spread(cube: Float[Array, " 7"], problem: FrontierProblem) -> Float[Array, " 8"]:
    """Strictly feasible point for a point of the unit cube, with about the chips that the run needs."""
    work, scenario = problem.work, problem.scenario
    share = INSET + (1.0 - 2.0 * INSET) * cube
    point = jnp.zeros(N_COORDINATES)
    point = point.at[TP_WIDTH].set(share[TP_WIDTH] * jnp.minimum(work.log_width, LONGEST_TENSOR))
    point = point.at[TP_FF].set(share[TP_FF] * jnp.minimum(work.log_ff, LONGEST_TENSOR))
    # Squares favour few stages and few microbatches, which is where the best plans are.
    point = point.at[PP].set(share[PP] ** 2 * problem.limits.bound[10])
    point = point.at[EP].set(share[EP])
    point = point.at[INTERLEAVE].set(share[INTERLEAVE] * (problem.limits.bound[10] - point[PP]))
    needed = log_ideal_chip_seconds(work, scenario) - jnp.log(scenario.max_utilisation) - log_step_limit(work, scenario)
    chips = jnp.maximum(needed, 0.0) + share[DP] ** 2 * SPARE
    room = problem.limits.bound[9]
    replicas = chips - degrees_at(point, work).chips
    point = point.at[DP].set(jnp.clip(replicas, INSET * room, (1.0 - INSET) * room))
    return point.at[MICRO].set(share[MICRO] ** 2 * (room - point[DP]))


def with_excess(point: Float[Array, " 8"], values: Float[Array, " 1"], problem: FrontierProblem) -> Float[Array, " 8"]:
    """The point with an excess large enough for every limit to hold."""
    room = problem.slacks(point, values)
    missing = jnp.maximum(-room[-1], -room[-2])
    return point.at[EXCESS].set(jnp.maximum(missing, 0.0) + 1.0)


def best_start(cubes: Float[Array, "plan 7"], problem: FrontierProblem) -> tuple[Float[Array, " 8"], Array]:
    """The most promising of a block of scattered plans, and its log quantity."""

    def rated(cube: Array) -> tuple[Array, Array, Array]:
        point = spread(cube, problem)
        values = problem.log_quantities(point)
        room = problem.slacks(point, values)
        missed = jnp.maximum(-room[-1], 0.0) + jnp.maximum(-room[-2], 0.0)
        return problem.objective(point, values) + MISS_PRICE * missed, with_excess(point, values, problem), values

    merits, points, values = jax.vmap(rated)(cubes)
    best = jnp.argmin(merits)
    # The excess that was added has no part in the time.
    return points[best], values[best]
