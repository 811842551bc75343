"""Best relaxed plan of every scenario and training compute, with a certificate."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxscale._compile import filter_jit
from jaxscale.limits.degrees import Degrees
from jaxscale.limits.feasible_set import EXCESS, degrees_at
from jaxscale.limits.interior_point import Optimum, minimise, tolerances
from jaxscale.limits.problem import Problem, fastest, log_time, log_utilisation, utilisation_problem
from jaxscale.limits.scenario import Scenario
from jaxscale.limits.starts import best_start, scattered

N_STARTS = 2
"""Starts of a search [1]."""

N_STEPS = 60
"""Newton steps of a search at most [1]."""

CHUNK = 2048
"""Searches that run side by side [1]."""

SIZES = 32
"""Training computes of a curve: one size for all curves, since each asks for a compilation of its own [1]."""

CERTIFIED = {True: 1e-6, False: 1e-4}
"""KKT residual of a certified optimum, in double precision and not [1]."""


class PlanResult(NamedTuple):
    """Best plans found.

    Attributes:
        utilisation: share of the peak that the run sustains; zero where no plan ends the run in time [1].
        log_time: natural logarithm of the batch's time [s].
        degrees: the plans.
        feasible: whether a plan ends the run in time and fits the memory.
        residual: KKT residual; of the fastest batch where even that misses the deadline or the memory [1].
        certified: whether the residual is small enough for the number format.
        optimum: where the search ended.
    """

    utilisation: Float[Array, "*batch"]
    log_time: Float[Array, "*batch"]
    degrees: Degrees
    feasible: Bool[Array, "*batch"]
    residual: Float[Array, "*batch"]
    certified: Bool[Array, "*batch"]
    optimum: Optimum


def search(problem: Problem, n_starts: int = N_STARTS, n_steps: int = N_STEPS) -> PlanResult:
    """Best relaxed plan of one problem; more starts or steps never make it worse.

    Each block of scattered plans gives one start of its own, and of all iterates the best certified one counts. The
    fastest batch is sought beside them: where even that misses the deadline or the memory, no plan is feasible, and its
    residual certifies this. In the shipped library, from 1e25 to 10^31.7 flop, 1,081 of 1,088 points are certified so
    (double precision); the others lie at the wall, or in decentralised clusters.

    Args:
        problem: the search.
        n_starts: blocks of scattered plans [1].
        n_steps: Newton steps for each at most [1].

    Returns:
        The plan.
    """
    dtype = jnp.result_type(problem.log_deadline)
    cubes = jnp.asarray(scattered(n_starts), dtype)
    starts = jax.vmap(lambda block: best_start(block, problem))(cubes)
    # Lanes of one loop: all starts of the search, and the fastest batch from the first of them.
    weights = jnp.append(jnp.full(n_starts, problem.chip_weight), 0.0)
    deadlines = jnp.append(jnp.full(n_starts, problem.log_deadline), fastest(problem).log_deadline)
    lanes = problem._replace(log_deadline=deadlines, chip_weight=weights)
    axes = jax.tree.map(lambda _: None, problem)._replace(log_deadline=0, chip_weight=0)
    ends = jax.vmap(lambda start, lane: minimise(start, lane, n_steps), in_axes=(0, axes))(
        jnp.concatenate([starts, starts[:1]]), lanes
    )
    optima: Optimum = jax.tree.map(lambda leaf: leaf[:-1], ends)
    fast: Optimum = jax.tree.map(lambda leaf: leaf[-1], ends)
    limit, excess = CERTIFIED[jnp.finfo(dtype).bits > 32], tolerances(dtype).excess
    done = optima.residual <= limit
    # Certified ends by objective; where there are none, the least residual.
    order = jnp.where(done, optima.objective, jnp.inf)
    pick = jnp.where(jnp.any(done), jnp.argmin(order), jnp.argmin(optima.residual))
    best: Optimum = jax.tree.map(lambda leaf: leaf[pick], optima)
    late = (log_time(fast.point, problem) > problem.log_deadline + excess) | (fast.point[EXCESS] > excess)
    hopeless = late & (fast.residual <= limit)
    residual = jnp.where(hopeless, fast.residual, best.residual)
    feasible = ~hopeless & (best.point[EXCESS] <= excess)
    return PlanResult(
        jnp.where(feasible, jnp.exp(log_utilisation(best.point, problem)), 0.0),
        log_time(best.point, problem),
        degrees_at(best.point, problem.work),
        feasible,
        residual,
        residual <= limit,
        best,
    )


@filter_jit
def _survey(log_flop: Array, scenarios: Scenario, speed: Array, n_starts: int, n_steps: int) -> PlanResult:
    n_scenarios, n_sizes = log_flop.shape
    flat = jax.tree.map(lambda leaf: jnp.repeat(leaf, n_sizes), scenarios)

    def one(case: tuple[Array, Scenario, Array]) -> PlanResult:
        return search(utilisation_problem(*case), n_starts, n_steps)

    cases = (log_flop.reshape(-1), flat, speed.reshape(-1))
    found = jax.lax.map(one, cases, batch_size=min(CHUNK, n_scenarios * n_sizes))
    return jax.tree.map(lambda leaf: leaf.reshape(n_scenarios, n_sizes, *leaf.shape[1:]), found)


def survey_logs(
    log_flop: Float[np.ndarray | Array, "scenario size"],
    scenarios: Scenario,
    speed: Bool[np.ndarray, "scenario size"] | bool = False,
    *,
    n_starts: int = N_STARTS,
    n_steps: int = N_STEPS,
) -> PlanResult:
    """Best relaxed plans where each scenario has training computes of its own.

    Args:
        log_flop: natural logarithms of training compute [flop].
        scenarios: assumptions, every leaf [scenario].
        speed: where the fastest batch is wanted, not the highest utilisation.
        n_starts: starts of each search [1].
        n_steps: Newton steps of each start at most [1].

    Returns:
        Plans [scenario, size].
    """
    dtype = jnp.result_type(float)
    scenarios = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), scenarios)
    logs = jnp.asarray(log_flop, dtype)
    return _survey(logs, scenarios, jnp.broadcast_to(jnp.asarray(speed), logs.shape), n_starts, n_steps)


def survey(
    training_flop: Float[np.ndarray | Array, " size"],
    scenarios: Scenario,
    *,
    n_starts: int = N_STARTS,
    n_steps: int = N_STEPS,
) -> PlanResult:
    """Best relaxed plans of many scenarios at many training computes, in one call.

    Args:
        training_flop: T [flop].
        scenarios: assumptions, every leaf [scenario].
        n_starts: starts of each search [1].
        n_steps: Newton steps of each start at most [1].

    Returns:
        Plans [scenario, size].
    """
    log_flop = np.log(np.asarray(training_flop, float))
    shape = (np.shape(scenarios.peak_flops)[0], len(log_flop))
    return survey_logs(np.broadcast_to(log_flop, shape), scenarios, n_starts=n_starts, n_steps=n_steps)
