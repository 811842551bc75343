"""Best plans of powers of two of the data-movement model, by a hill climb from the relaxed plan.

Every round tries all plans whose degrees differ by a factor of two, or not at all, in any number of coordinates at
once, and goes to the best of them.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.jit import filter_jit
from jaxscale.limits.batch_time import EP, AbstractOverlap, ExactOverlap
from jaxscale.limits.frontier_problem import N_DEGREES, FrontierProblem, utilisation_problem
from jaxscale.limits.frontier_scenario import FrontierScenario, log_ideal_chip_seconds, stack_scenarios
from jaxscale.limits.relaxed_plan import Rating, rate, survey

N_ROUNDS = 10
"""Rounds of a climb [1]."""

MISS_PRICE = 1e3
"""Price of a missed limit, per e-fold, and of missing any, however little [1]."""

SIMULTANEOUS = 8
"""Searches that run side by side: each has thousands of neighbours [1]."""


class IntegerPlan(NamedTuple):
    """Best plan of powers of two.

    Attributes:
        utilisation: share of the peak that the run sustains; zero where no plan ends it in time [1].
        degrees: ranks of TP_FF, TP_WIDTH, EP, DP, PP, then microbatches and interleave [degree].
    """

    utilisation: Float[Array, "*batch"]
    degrees: Float[Array, "*batch 7"]


def lattice_steps() -> np.ndarray:
    """Steps in every combination of coordinates, none at all first [neighbour, degree]."""
    # No step first: argmin stays where no neighbour is better.
    return np.asarray(list(itertools.product((0.0, 1.0, -1.0), repeat=N_DEGREES)))


def merit(rating: Rating) -> Array:
    """The cost with a price on missed limits."""
    return rating.cost + MISS_PRICE * (jnp.sum(rating.missed) + jnp.any(rating.missed > 0.0))


def climb(start: Float[Array, " 7"], problem: FrontierProblem, overlap: AbstractOverlap) -> Array:
    """Best plan that the hill climb reaches [degree]."""
    factors = jnp.asarray(2.0 ** lattice_steps(), start.dtype)

    def tried(_: Array, degrees: Array) -> Array:
        moved = jnp.maximum(degrees * factors, 1.0)
        merits = jax.vmap(lambda plan: merit(rate(plan, problem, overlap)))(moved)
        return moved[jnp.argmin(merits)]

    return jax.lax.fori_loop(0, N_ROUNDS, tried, start)


@filter_jit
def _climb_all(log_flop: Array, scenario: FrontierScenario, starts: Array, overlap: AbstractOverlap) -> IntegerPlan:
    def one(case: tuple[Array, Array]) -> IntegerPlan:
        problem = utilisation_problem(case[0], scenario)
        best = climb(case[1], problem, overlap)
        rating = rate(best, problem, overlap)
        utilisation = jnp.exp(log_ideal_chip_seconds(problem.work, scenario) - rating.cost)
        return IntegerPlan(jnp.where(jnp.any(rating.missed > 0.0), 0.0, utilisation), best)

    return jax.lax.map(one, (log_flop, starts), batch_size=SIMULTANEOUS)


def integer_survey(
    training_flop: Float[np.ndarray | Array, " size"],
    scenario: FrontierScenario,
    overlap: AbstractOverlap | None = None,
) -> IntegerPlan:
    """Best plans of powers of two along a curve.

    Args:
        training_flop: T [flop].
        overlap: how activities join; exact where None.

    Returns:
        Plans [size].
    """
    relaxed = survey(training_flop, stack_scenarios([scenario]))
    points = np.array(relaxed.optimum.point[0, :, :N_DEGREES], float)
    # From a share of ln E to ln EP.
    points[:, EP] *= math.log(float(scenario.sparsity) * float(scenario.active_experts))
    logs = jnp.asarray(np.log(np.asarray(training_flop, float)), jnp.result_type(float))
    # Nearest powers of two.
    starts = jnp.asarray(2.0 ** np.round(points / math.log(2.0)), logs.dtype)
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, logs.dtype), scenario)
    return _climb_all(logs, numbers, starts, overlap or ExactOverlap())
