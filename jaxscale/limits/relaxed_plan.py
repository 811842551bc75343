"""Best relaxed plan (real-valued degrees) of every scenario and training compute, with a certificate of optimality.

The interior-point search starts from scattered plans. Array functions give the utilisation of many given plans, or of
the best relaxed plans of many points, at once.
"""

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxscale.base.arrays import filled_rows, host_arrays
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.limits.batch_time import DP, EP, PP, TP_FF, TP_WIDTH, AbstractOverlap, Degrees, SmoothOverlap, batch_time
from jaxscale.limits.frontier_problem import (
    EXCESS,
    INTERLEAVE,
    MICRO,
    N_COORDINATES,
    N_DEGREES,
    N_LIMITS,
    FrontierProblem,
    degrees_at,
    fastest,
    utilisation_problem,
)
from jaxscale.limits.frontier_scenario import FrontierScenario, log_ideal_chip_seconds, log_step_limit
from jaxscale.optimise.barrier import better, minimise, tolerances, where_rows
from jaxscale.optimise.problems import Optimum

PLANS_PER_BLOCK = 128
"""Scattered plans in a block [1]."""

LONGEST_TENSOR = math.log(1024.0)
"""Largest tensor-parallel degree of a scattered plan along either width, natural logarithm [1]."""

SPARE = math.log(64.0)
"""Most chips of a scattered plan over the least number by arithmetic, natural logarithm [1]."""

MISS_PRICE = 5.0
"""Price of a missed deadline among scattered plans, per e-fold [1]."""

INSET = 0.01
"""Distance of a start from each bound, of the range [1]."""


@functools.cache
def scattered(n_blocks: int) -> np.ndarray:
    """Low-discrepancy points of the unit cube by additive recurrence (Roberts 2018) [block, plan, coordinate]."""
    # The recurrence's base is the root of x^(n + 1) = x + 1.
    base = 2.0
    # Fixed-point iteration.
    for _ in range(64):
        base = (1.0 + base) ** (1.0 / (N_DEGREES + 1))
    steps = base ** -np.arange(1.0, N_DEGREES + 1)
    # 0.5 + k a, modulo 1
    points = (0.5 + np.outer(np.arange(1, n_blocks * PLANS_PER_BLOCK + 1), steps)) % 1.0
    return points.reshape(n_blocks, PLANS_PER_BLOCK, N_DEGREES)


def spread(cube: Float[Array, " 7"], problem: FrontierProblem) -> Float[Array, " 8"]:
    """Plan for a point of the unit cube, strictly within the degree limits, with about the chips that the run needs."""
    work, scenario = problem.work, problem.scenario
    share = INSET + (1.0 - 2.0 * INSET) * cube
    point = jnp.zeros(N_COORDINATES)
    point = point.at[TP_WIDTH].set(share[TP_WIDTH] * jnp.minimum(work.log_width, LONGEST_TENSOR))
    point = point.at[TP_FF].set(share[TP_FF] * jnp.minimum(work.log_ff, LONGEST_TENSOR))
    # Squares favour few stages and few microbatches, which is where the best plans are.
    point = point.at[PP].set(share[PP] ** 2 * problem.limits.bound[10])
    point = point.at[EP].set(share[EP])
    # Row 10 of the limits: PP i <= L
    point = point.at[INTERLEAVE].set(share[INTERLEAVE] * (problem.limits.bound[10] - point[PP]))
    # ln(6 N B / (u C t_max))
    needed = log_ideal_chip_seconds(work, scenario) - jnp.log(scenario.max_utilisation) - log_step_limit(work, scenario)
    chips = jnp.maximum(needed, 0.0) + share[DP] ** 2 * SPARE
    # Row 9 of the limits: m DP <= B
    room = problem.limits.bound[9]
    replicas = chips - degrees_at(point, work).chips
    # Off the bounds: an interior start.
    point = point.at[DP].set(jnp.clip(replicas, INSET * room, (1.0 - INSET) * room))
    return point.at[MICRO].set(share[MICRO] ** 2 * (room - point[DP]))


def with_excess(point: Float[Array, " 8"], values: Float[Array, " 1"], problem: FrontierProblem) -> Float[Array, " 8"]:
    """The point with an excess large enough to satisfy every limit."""
    room = problem.slacks(point, values)
    # The deadline is the last limit, memory the last linear limit.
    missing = jnp.maximum(-room[-1], -room[-2])
    # A margin of 1 keeps the start in the interior.
    return point.at[EXCESS].set(jnp.maximum(missing, 0.0) + 1.0)


def best_start(cubes: Float[Array, "plan 7"], problem: FrontierProblem) -> tuple[Float[Array, " 8"], Array]:
    """Best start of a block of scattered plans, by objective and missed limits, and the log quantity at the start."""

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


N_STARTS = 1
"""Starts of every search [1]."""

FIRST_STEPS = 30
"""Newton steps of the first start at most; 97 of 100 searches need fewer [1]."""

MOST_STARTS = 4
"""Starts of a search that finds no certificate [1]."""

N_STEPS = 60
"""Newton steps of a search at most [1]."""

CHUNK = 2048
"""Problems in a call of the compiled search; fewer are padded, so that it is compiled once [1]."""

SIZES = 32
"""Training computes of a curve: a common size, so that all curves share a compilation [1]."""

CERTIFIED = {True: 1e-6, False: 1e-4}
"""KKT residual of a certified optimum, in double precision and not [1]."""


class PlanResult(NamedTuple):
    """Best relaxed plans of a batch of searches.

    Attributes:
        utilisation: sustained share of the chips' peak; zero where no plan ends the run in time [1].
        log_time: natural logarithm of the batch's time [s].
        degrees: degrees of the plans.
        feasible: whether a plan ends the run in time and fits the memory.
        residual: KKT residual of the plan, or of the fastest batch where even that misses deadline or memory [1].
        certified: whether the residual is within the tolerance of the number format.
        optimum: end point of the search.
    """

    utilisation: Float[Array, "*batch"]
    log_time: Float[Array, "*batch"]
    degrees: Degrees
    feasible: Bool[Array, "*batch"]
    residual: Float[Array, "*batch"]
    certified: Bool[Array, "*batch"]
    optimum: Optimum


class _Ends(NamedTuple):
    """Ends of a search so far: the best end of its starts, and the fastest batch."""

    best: Optimum
    fast: Optimum


def relaxed_plans(
    problems: FrontierProblem,
    asked: Bool[Array, " problem"],
    n_starts: Array | int = N_STARTS,
    n_steps: Array | int = N_STEPS,
) -> PlanResult:
    """Best relaxed plans of many problems; more starts or steps never give a worse plan.

    Each block of scattered plans gives one start; the best certified iterate of all starts is returned. Where the first
    start finds no certified plan in time within `FIRST_STEPS`, the fastest batch is sought. If even the fastest batch
    misses deadline or memory, no plan is feasible, and the residual of the fastest batch certifies this. Searches that
    are still open continue from further starts. In the shipped library, from 1e25 to 10^31.7 flop, 1,118 of 1,120
    points are certified in double precision; the other two belong to a decentralised cluster.

    Args:
        problems: the searches, every leaf [problem].
        asked: mask of the problems to search; masked-out problems cost no time.
        n_starts: starts of every search, at most `MOST_STARTS` [1].
        n_steps: largest number of Newton steps of each start [1].
    """
    dtype = jnp.result_type(problems.log_deadline)
    limit, excess = CERTIFIED[jnp.finfo(dtype).bits > 32], tolerances(dtype).excess
    cubes = jnp.asarray(scattered(MOST_STARTS), dtype)
    unknown = jnp.full(problems.log_deadline.shape, jnp.inf, dtype)
    origin = jnp.zeros((*unknown.shape, N_COORDINATES), dtype)
    nothing = Optimum(origin, unknown[:, None], jnp.zeros((*unknown.shape, N_LIMITS), dtype), unknown, unknown)

    def late(fast: Optimum) -> Array:
        """Whether the fastest batch, certified, misses the deadline or the memory."""
        return ((fast.values[:, 0] > problems.log_deadline + excess) | (fast.point[:, EXCESS] > excess)) & (
            fast.residual <= limit
        )

    def stage(ends: _Ends, which: tuple[Array, Array, Array, Array]) -> tuple[_Ends, None]:
        cube, speed, always, steps = which
        done = (ends.best.residual <= limit) & (ends.best.point[:, EXCESS] <= excess)
        # Fewer steps than the first start's leave much open: then no further starts, or more steps might do worse.
        further = ~(done | late(ends.fast)) & (speed | (n_steps >= FIRST_STEPS))
        wanted = asked & (always | further)
        posed = jax.tree.map(lambda fast, best: jnp.where(speed, fast, best), fastest(problems), problems)
        end = minimise(partial(best_start, cube), posed, wanted, steps)
        gain = better(end, ends.best, limit)
        return _Ends(where_rows(~speed & gain, end, ends.best), where_rows(speed & wanted, end, ends.fast)), None

    block = jnp.asarray([0, 0, *range(1, MOST_STARTS)])
    stages = jnp.arange(MOST_STARTS + 1)
    # Stage 1 seeks the fastest batch, after the first start.
    speed = stages == 1
    always = (block < n_starts) & ~speed
    steps = jnp.where(stages == 0, jnp.minimum(n_steps, FIRST_STEPS), n_steps)
    ends, _ = jax.lax.scan(stage, _Ends(nothing, nothing), (cubes[block], speed, always, steps))
    best, hopeless = ends.best, late(ends.fast)
    # Infeasibility is certified by the fastest batch.
    residual = jnp.where(hopeless, ends.fast.residual, best.residual)
    feasible = ~hopeless & (best.point[:, EXCESS] <= excess)
    times = best.values[:, 0]
    utilisation = jnp.exp(jax.vmap(FrontierProblem.log_utilisation)(problems, best.point, times))
    return PlanResult(
        jnp.where(feasible, utilisation, 0.0),
        times,
        jax.vmap(degrees_at)(best.point, problems.work),
        feasible,
        residual,
        residual <= limit,
        best,
    )


@filter_jit
def _searched(
    log_flop: Array, scenarios: FrontierScenario, speed: Array, asked: Array, n_starts: Array, n_steps: Array
) -> PlanResult:
    return relaxed_plans(jax.vmap(utilisation_problem)(log_flop, scenarios, speed), asked, n_starts, n_steps)


def survey_logs(
    log_flop: Float[np.ndarray | Array, "scenario size"],
    scenarios: FrontierScenario,
    speed: Bool[np.ndarray, "scenario size"] | bool = False,
    *,
    n_starts: int = N_STARTS,
    n_steps: int = N_STEPS,
) -> PlanResult:
    """Best relaxed plans of scenarios, each at training computes of its own.

    Args:
        log_flop: natural logarithms of training compute [flop].
        scenarios: assumptions, every leaf [scenario].
        speed: mask of the searches for the fastest batch instead of the highest utilisation.
        n_starts: starts of each search, at most `MOST_STARTS` [1].
        n_steps: largest number of Newton steps of each start [1].

    Returns:
        Plans [scenario, size].

    Raises:
        InputError: more than `MOST_STARTS` starts, or none.
    """
    if not 1 <= n_starts <= MOST_STARTS:
        raise InputError(f"n_starts = {n_starts} is out of range; expected 1 to {MOST_STARTS}")
    logs, scenarios = host_arrays((log_flop, scenarios))
    effort: Any = (np.asarray(n_starts), np.asarray(n_steps))

    def searched(sizes: Any, assumed: FrontierScenario, kinds: Any, asked: Any) -> PlanResult:
        return _searched(sizes, assumed, kinds, asked, *effort)

    return at_sizes(searched, logs, scenarios, np.broadcast_to(np.asarray(speed), logs.shape))


def at_sizes(
    function: Callable[..., Any],
    log_flop: Float[np.ndarray, "scenario size"],
    scenarios: FrontierScenario,
    *others: Any,
) -> Any:
    """Results of a compiled function at every size of every scenario, in chunks.

    Args:
        function: function of log compute, scenario, further arguments, each [case], and the mask of valid rows.
        log_flop: natural logarithms of training compute [flop].
        scenarios: assumptions, every leaf [scenario].
        others: further arguments, trees with every leaf [scenario, size, ...].

    Returns:
        Results of the function as numpy arrays, every leaf [scenario, size, ...].
    """
    n_scenarios, n_sizes = log_flop.shape
    sizes, *parts = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (log_flop, *others))
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf, n_sizes), scenarios)
    results = in_chunks(function, (sizes, repeated, *parts))
    return jax.tree.map(lambda leaf: leaf.reshape(n_scenarios, n_sizes, *leaf.shape[1:]), results)


def in_chunks(function: Callable[..., Any], cases: Any) -> Any:
    """Results of a function for many cases, in chunks of equal shape run on the cores of the host in parallel.

    Args:
        function: function of the cases of a chunk, and of the mask of rows that are cases rather than padding.
        cases: tuple of trees, every leaf [case, ...].
    """
    count = len(cases[0])
    # Equal shapes share a compilation.
    chunks = filled_rows(count, CHUNK).reshape(-1, CHUNK)
    wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]

    def run(first: int, rows: np.ndarray) -> Any:
        # Arrays of the host: each operation on arrays of JAX would compile a small program.
        part = jax.tree.map(lambda leaf: leaf[rows], cases)
        # The precision chosen for a block of code is that of its thread.
        with jax.enable_x64(wide):
            return jax.tree.map(np.asarray, function(*part, np.arange(first, first + CHUNK) < count))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(run, range(0, chunks.size, CHUNK), chunks))
    # Without the filling rows.
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *results)


def survey(
    training_flop: Float[np.ndarray | Array, " size"],
    scenarios: FrontierScenario,
    *,
    n_starts: int = N_STARTS,
    n_steps: int = N_STEPS,
) -> PlanResult:
    """Best relaxed plans of many scenarios at the same training computes, in one call.

    Args:
        training_flop: T [flop].
        scenarios: assumptions, every leaf [scenario].
        n_starts: starts of each search, at most `MOST_STARTS` [1].
        n_steps: largest number of Newton steps of each start [1].

    Returns:
        Plans [scenario, size].

    Raises:
        InputError: more than `MOST_STARTS` starts, or none.
    """
    log_flop = np.log(np.asarray(training_flop, float))
    shape = (np.shape(scenarios.peak_flops)[0], len(log_flop))
    return survey_logs(np.broadcast_to(log_flop, shape), scenarios, n_starts=n_starts, n_steps=n_steps)


SLACK_ERROR = 1e-6
"""Miss of a limit that counts as rounding [1]."""


def point_of(degrees: Float[Array, " 7"], problem: FrontierProblem) -> Float[Array, " 8"]:
    """Coordinates in the search of a plan with given degrees, without excess."""
    logs = jnp.log(degrees)
    # In a dense model ln E is 0.
    share = logs[EP] / jnp.maximum(problem.work.log_experts, 1e-9)
    # No excess.
    return jnp.append(logs.at[EP].set(share), 0.0)


class Rating(NamedTuple):
    """Cost, time and missed limits of a plan with given degrees.

    Attributes:
        cost: natural logarithm of chips times seconds of a batch [chip s].
        log_time: natural logarithm of the batch's time [s].
        missed: log ratio by which each limit is exceeded, zero where kept [1], [limit].
    """

    cost: Array
    log_time: Array
    missed: Float[Array, " 15"]


def rate(degrees: Float[Array, " 7"], problem: FrontierProblem, overlap: AbstractOverlap) -> Rating:
    """Cost, time and missed limits of a plan with given degrees."""
    point = point_of(degrees, problem)
    time = jnp.log(batch_time(degrees_at(point, problem.work), problem.work, problem.scenario, overlap).total)
    missed = jnp.maximum(-problem.slacks(point, time[None]) - SLACK_ERROR, 0.0)
    return Rating(problem.objective(point, time[None]), time, missed)


PLAN_DEGREES = ("tp_ff", "tp_width", "ep", "dp", "pp", "n_microbatches", "interleave")
"""Degrees of a plan of the data-movement model, in the order of `utilisation_of_plans`."""


def utilisation_of_plans(
    sizes: Float[Array, " point"], scenarios: FrontierScenario, degrees: Float[Array, "point degree"]
) -> dict[str, Array]:
    """Utilisation and batch time of given plans, whether or not the run ends in time.

    Args:
        sizes: training compute [flop].
        scenarios: assumptions, every leaf [point].
        degrees: degrees of each plan, in the order of `PLAN_DEGREES` [1].

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
    """Utilisation, batch time, chips and certificate of the best relaxed plan of every point.

    Args:
        sizes: training compute [flop].
        scenarios: assumptions, every leaf [point].

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
