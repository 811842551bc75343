"""Utilisation at many points at once, by array functions: on a given plan, or on the best relaxed plan of each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.limits.batch_time import EP, AbstractOverlap, SmoothOverlap, batch_time
from jaxscale.limits.frontier_problem import FrontierProblem, degrees_at, utilisation_problem
from jaxscale.limits.frontier_scenario import FrontierScenario
from jaxscale.limits.relaxed_plan import CHUNK, relaxed_plans
from jaxscale.limits.scaling_laws import log_ideal_chip_seconds

SLACK_ERROR = 1e-6
"""Miss of a limit that counts as rounding [1]."""


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


def rate(degrees: Float[Array, " 7"], problem: FrontierProblem, overlap: AbstractOverlap) -> Rating:
    """Cost and missed limits of a plan, by the whole model."""
    point = point_of(degrees, problem)
    time = jnp.log(batch_time(degrees_at(point, problem.work), problem.work, problem.scenario, overlap).total)
    missed = jnp.maximum(-problem.slacks(point, time[None]) - SLACK_ERROR, 0.0)
    return Rating(problem.objective(point, time[None]), time, missed)


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
