"""Plans of whole numbers, powers of two or any, by a hill climb over lattice neighbourhoods from the relaxed plan.

Every round tries all plans whose degrees differ by one step of the lattice in any number of coordinates at once, and
goes to the best of them. Powers of two step by factors of two; other whole numbers by ever finer factors.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxscale._compile import filter_jit
from jaxscale.limits.batch_time import batch_time
from jaxscale.limits.degrees import EP
from jaxscale.limits.feasible_set import N_DEGREES, degrees_at
from jaxscale.limits.overlap import AbstractOverlap, ExactOverlap
from jaxscale.limits.problem import Problem, objective, slacks, utilisation_problem
from jaxscale.limits.relaxed_plan import survey
from jaxscale.limits.scenario import Scenario, stack

POWERS_OF_TWO = (2.0,) * 10
"""Factors of one step of the lattice, round by round [1]."""

WHOLE_NUMBERS = (2.0,) * 8 + (1.4,) * 3 + (1.2,) * 3 + (1.1,) * 3 + (1.05,) * 3 + (1.01,) * 3
"""Likewise, with plans rounded to whole numbers [1]."""

MISS_PRICE = 1e3
"""Price of a missed limit, per e-fold [1]."""

SLACK_ERROR = 1e-6
"""Miss of a limit that counts as rounding [1]."""

SIMULTANEOUS = 8
"""Searches that run side by side: each has thousands of neighbours [1]."""


class IntegerPlan(NamedTuple):
    """Best plan of whole numbers.

    Attributes:
        utilisation: share of the peak that the run sustains; zero where no plan ends it in time [1].
        degrees: ranks of TP_FF, TP_WIDTH, EP, DP, PP, then microbatches and interleave [degree].
    """

    utilisation: Float[Array, "*batch"]
    degrees: Float[Array, "*batch 7"]


def neighbours() -> np.ndarray:
    """Steps in every combination of coordinates, none at all first [neighbour, degree]."""
    return np.asarray(list(itertools.product((0.0, 1.0, -1.0), repeat=N_DEGREES)))


def point_of(degrees: Float[Array, " 7"], problem: Problem) -> Float[Array, " 8"]:
    """Coordinates of a plan of whole numbers."""
    logs = jnp.log(degrees)
    share = logs[EP] / jnp.maximum(problem.work.log_experts, 1e-9)
    return jnp.append(logs.at[EP].set(share), 0.0)


def merit(degrees: Float[Array, " 7"], problem: Problem, overlap: AbstractOverlap) -> Array:
    """Logarithm of chips times time, with a price on missed limits [1]."""
    point = point_of(degrees, problem)
    time = jnp.log(batch_time(degrees_at(point, problem.work), problem.work, problem.scenario, overlap).total)
    missed = jnp.maximum(-slacks(point, time, problem) - SLACK_ERROR, 0.0)
    return objective(point, time, problem) + MISS_PRICE * jnp.sum(missed)


def climb(start: Float[Array, " 7"], problem: Problem, overlap: AbstractOverlap, factors: Array) -> Array:
    """Best plan that the hill climb reaches [degree]."""
    steps = jnp.asarray(neighbours(), start.dtype)

    def tried(degrees: Array, factor: Array) -> tuple[Array, None]:
        # Twos keep powers of two exact; finer factors move by one at least.
        scaled = jnp.round(degrees * jnp.where(steps > 0.0, factor, jnp.where(steps < 0.0, 1.0 / factor, 1.0)))
        moved = jnp.where((scaled == degrees) & (steps != 0.0), degrees + steps, scaled)
        moved = jnp.where((factor == 2.0) & (degrees == 1.0) & (steps < 0.0), 1.0, jnp.maximum(moved, 1.0))
        merits = jax.vmap(lambda plan: merit(plan, problem, overlap))(moved)
        return moved[jnp.argmin(merits)], None

    return jax.lax.scan(tried, start, factors)[0]


@filter_jit
def _climb_all(
    log_flop: Array, scenario: Scenario, starts: Array, factors: Array, overlap: AbstractOverlap
) -> IntegerPlan:
    def one(case: tuple[Array, Array]) -> IntegerPlan:
        problem = utilisation_problem(case[0], scenario)
        best = climb(case[1], problem, overlap, factors)
        point = point_of(best, problem)
        degrees, work = degrees_at(point, problem.work), problem.work
        time = jnp.log(batch_time(degrees, work, scenario, overlap).total)
        feasible: Bool[Array, ""] = jnp.all(slacks(point, time, problem) >= -SLACK_ERROR)
        flop = jnp.log(6.0 / scenario.peak_flops) + work.log_params + work.log_batch
        return IntegerPlan(jnp.where(feasible, jnp.exp(flop - degrees.chips - time), 0.0), best)

    return jax.lax.map(one, (log_flop, starts), batch_size=SIMULTANEOUS)


def integer_survey(
    training_flop: Float[np.ndarray | Array, " size"],
    scenario: Scenario,
    overlap: AbstractOverlap | None = None,
    *,
    powers_of_two: bool = True,
) -> IntegerPlan:
    """Best plans of whole numbers along a curve.

    Args:
        training_flop: T [flop].
        scenario: assumptions.
        overlap: how activities join; exact where None.
        powers_of_two: whether degrees are powers of two.

    Returns:
        Plans [size].
    """
    found = survey(training_flop, stack([scenario]))
    points = np.array(found.optimum.point[0, :, :N_DEGREES], float)
    points[:, EP] *= math.log(float(scenario.sparsity) * float(scenario.active_experts))
    logs = jnp.asarray(np.log(np.asarray(training_flop, float)), jnp.result_type(float))
    starts = jnp.asarray(2.0 ** np.round(points / math.log(2.0)), logs.dtype)
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, logs.dtype), scenario)
    factors = jnp.asarray(POWERS_OF_TWO if powers_of_two else WHOLE_NUMBERS, logs.dtype)
    return _climb_all(logs, numbers, starts, factors, overlap or ExactOverlap())
