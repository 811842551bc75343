"""Utilisation at many points at once, by array functions: on a given plan, or on the best relaxed plan of each.

Plans of powers of two follow from the relaxed plan by a hill climb over lattice neighbourhoods: every round tries all
plans whose degrees differ by a factor of two, or not at all, in any number of coordinates at once, and goes to the best
of them.
"""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.jit import filter_jit
from jaxscale.limits.batch_time import EP, AbstractOverlap, ExactOverlap, SmoothOverlap, batch_time
from jaxscale.limits.frontier_problem import N_DEGREES, FrontierProblem, degrees_at, utilisation_problem
from jaxscale.limits.frontier_scenario import FrontierScenario, stack_scenarios
from jaxscale.limits.relaxed_plan import CHUNK, relaxed_plans, survey
from jaxscale.limits.scaling_laws import log_ideal_chip_seconds

N_ROUNDS = 10
"""Rounds of a climb [1]."""

MISS_PRICE = 1e3
"""Price of a missed limit, per e-fold, and of missing any, however little [1]."""

SLACK_ERROR = 1e-6
"""Miss of a limit that counts as rounding [1]."""

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


def point_of(degrees: Float[Array, " 7"], problem: FrontierProblem) -> Float[Array, " 8"]:
    """Coordinates of a plan of whole numbers."""
    logs = jnp.log(degrees)
    # In a dense model ln E is 0.
    share = logs[EP] / jnp.maximum(problem.work.log_experts, 1e-9)
    # No excess.
    return jnp.append(logs.at[EP].set(share), 0.0)


class Rating(NamedTuple):
    """Cost, time and missed limits of a plan of whole numbers.

    Attributes:
        cost: natural logarithm of chips times seconds of a batch [chip s].
        log_time: natural logarithm of the batch's time [s].
        missed: by how much each limit is missed, e-folds [limit].
    """

    cost: Array
    log_time: Array
    missed: Float[Array, " 15"]

    @property
    def merit(self) -> Array:
        """The cost with a price on missed limits."""
        return self.cost + MISS_PRICE * (jnp.sum(self.missed) + jnp.any(self.missed > 0.0))


def rate(degrees: Float[Array, " 7"], problem: FrontierProblem, overlap: AbstractOverlap) -> Rating:
    """Cost and missed limits of a plan, by the whole model."""
    point = point_of(degrees, problem)
    time = jnp.log(batch_time(degrees_at(point, problem.work), problem.work, problem.scenario, overlap).total)
    missed = jnp.maximum(-problem.slacks(point, time[None]) - SLACK_ERROR, 0.0)
    return Rating(problem.objective(point, time[None]), time, missed)


def climb(start: Float[Array, " 7"], problem: FrontierProblem, overlap: AbstractOverlap) -> Array:
    """Best plan that the hill climb reaches [degree]."""
    factors = jnp.asarray(2.0 ** lattice_steps(), start.dtype)

    def tried(_: Array, degrees: Array) -> Array:
        moved = jnp.maximum(degrees * factors, 1.0)
        merits = jax.vmap(lambda plan: rate(plan, problem, overlap).merit)(moved)
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


PLAN_DEGREES = ("tp_ff", "tp_width", "ep", "dp", "pp", "n_microbatches", "interleave")
"""Degrees of a plan of the data-movement model, in the order of `utilisation_of_plans`."""


def utilisation_of_plans(
    sizes: Float[Array, " point"], scenarios: FrontierScenario, degrees: Float[Array, "point degree"]
) -> dict[str, Array]:
    """Utilisation and time of a batch on given plans; utilisation counts whether or not the plan is in time.

    Args:
        sizes: training compute [flop].
        scenarios: each leaf an array [point].
        degrees: of each plan, in the order of `PLAN_DEGREES` [1].

    Returns:
        Arrays [point]: `utilisation` [1], `batch_time` [s], `feasible`.
    """

    def one(size: Array, scenario: FrontierScenario, plan: Array) -> dict[str, Array]:
        problem = utilisation_problem(jnp.log(size), scenario)
        rating = rate(plan, problem, SmoothOverlap(scenario.overlap_exponent))
        return {
            "utilisation": jnp.exp(log_ideal_chip_seconds(problem.work, scenario) - rating.cost),
            "batch_time": jnp.exp(rating.log_time),
            "feasible": jnp.all(rating.missed == 0.0),
        }

    return jax.vmap(one)(sizes, scenarios, degrees)


def utilisation_of_best_plans(sizes: Float[Array, " point"], scenarios: FrontierScenario) -> dict[str, Array]:
    """Utilisation, chips and certificate of the best relaxed plan of every point.

    Args:
        sizes: training compute [flop].
        scenarios: each leaf an array [point].

    Returns:
        Arrays [point]: `utilisation` [1], `batch_time` [s], `log_chips` (natural logarithm) [1], `feasible`,
        `residual`, the KKT residual [1].
    """
    count = sizes.shape[0]
    # So many are solved side by side; more at a time would bring nothing but memory.
    side_by_side = min(CHUNK, count)
    # Rounded up.
    blocks = -(-count // side_by_side)
    # The last point fills the last block.
    rows = jnp.minimum(jnp.arange(blocks * side_by_side), count - 1).reshape(blocks, side_by_side)

    def some(picked: Array) -> dict[str, Array]:
        size, scenario = jax.tree.map(lambda leaf: leaf[picked], (sizes, scenarios))
        problems = jax.vmap(lambda flop, one: utilisation_problem(jnp.log(flop), one))(size, scenario)
        plans = relaxed_plans(problems, jnp.ones(size.shape, bool))
        return {
            "utilisation": plans.utilisation,
            "batch_time": jnp.exp(plans.log_time),
            "log_chips": jnp.sum(plans.degrees.groups, axis=-1),
            "feasible": plans.feasible,
            "residual": plans.residual,
        }

    # Without the filling rows.
    return jax.tree.map(lambda column: column.reshape(-1)[:count], jax.lax.map(some, rows))
