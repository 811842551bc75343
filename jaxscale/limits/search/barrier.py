r"""Primal-dual interior point of a few variables, for thousands of problems side by side.

Every iterate stays strictly feasible. The Newton step of the perturbed optimality conditions solves

$$ (H + J^T S^{-1} Z J)\, \delta u = -(\nabla f - \mu J^T S^{-1} 1), \qquad J = -\nabla s $$

with H the curvature of the Lagrangian, by an elimination whose pivots are kept positive; a line search lowers the
barrier function $f - \mu \sum \ln s$; $\mu$ falls once its problem is solved (Fiacco and McCormick; Nocedal and
Wright 2006, chapter 19).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxscale.limits.search.feasible_set import EXCESS, N_COORDINATES, degrees_at
from jaxscale.limits.search.frontier_problem import (
    N_LIMITS,
    PRICE,
    Problem,
    log_time,
    objective,
    slacks,
    time_with_derivatives,
)
from jaxscale.limits.search.starts import best_start
from jaxscale.optimise.packed_rows import packed, where_rows

FIRST_BARRIER = 0.1
"""Barrier at the start [1]."""

STEPS = (1.0, 0.6, 0.3, 0.1, 0.03, 0.003)
"""Step lengths tried at once, of the longest that keeps limits strict [1]."""

ROUND = 2
"""Steps of a round [1]."""

KEEP = 0.99
"""Share of a slack that a step may use up [1]."""


class Tolerances(NamedTuple):
    """What the number format allows.

    Attributes:
        residual: KKT residual of a certified optimum [1].
        barrier: last barrier [1].
        excess: excess of a plan that counts as feasible [1].
        pivot: smallest pivot of the factorisation [1].
        noise: change of the merit that counts as none [1].
    """

    residual: float
    barrier: float
    excess: float
    pivot: float
    noise: float


def tolerances(dtype: jnp.dtype) -> Tolerances:
    """Tolerances of single or double precision."""
    if jnp.finfo(dtype).bits > 32:
        return Tolerances(1e-7, 1e-9, 1e-6, 1e-7, 1e-12)
    return Tolerances(5e-5, 1e-6, 3e-4, 1e-4, 1e-5)


class Optimum(NamedTuple):
    """End of a search.

    Attributes:
        point: coordinates [coordinate].
        multipliers: of the limits, the deadline's last [limit].
        objective: what was minimised, with the price of the excess [1].
        residual: KKT residual: largest of stationarity and complementarity, relative to the multipliers' scale [1].
    """

    point: Float[Array, "*batch 8"]
    multipliers: Float[Array, "*batch 15"]
    objective: Float[Array, "*batch"]
    residual: Float[Array, "*batch"]


class _State(NamedTuple):
    point: Float[Array, " 8"]
    multipliers: Float[Array, " 15"]
    barrier: Array
    shift: Array
    best: Optimum
    count: Array


def _solve(matrix: Float[Array, "8 8"], right: Float[Array, " 8"], floor: float) -> Float[Array, " 8"]:
    """Gauss-Jordan elimination of a symmetric matrix, its pivots kept positive."""
    table = jnp.concatenate([matrix, right[:, None]], axis=1)
    for column in range(N_COORDINATES):
        pivot = jnp.maximum(jnp.abs(table[column, column]), floor)
        row = table[column].at[column].set(pivot) / pivot
        table = (table - table[:, column, None] * row).at[column].set(row)
    return table[:, -1]


def _longest(values: Array, changes: Array) -> Array:
    """Longest step, at most one, that leaves every positive number positive."""
    ratio = jnp.where(changes < 0.0, -KEEP * values / jnp.where(changes < 0.0, changes, -1.0), jnp.inf)
    return jnp.minimum(jnp.min(ratio), 1.0)


def _merit(point: Array, time: Array, barrier: Array, problem: Problem) -> tuple[Array, Array]:
    """Barrier function, infinite outside, and the slacks; given ln t at the point."""
    room = slacks(point, time, problem)
    inside = jnp.all(room > 0.0)
    logs = jnp.sum(jnp.log(jnp.where(room > 0.0, room, 1.0)))
    value = objective(point, time, problem) - barrier * logs
    return jnp.where(inside & jnp.isfinite(value), value, jnp.inf), room


def better(new: Optimum, old: Optimum, certified: float) -> Bool[Array, "*batch"]:
    """Whether an iterate replaces the best: certified before not, then the lower objective, or the lower residual."""
    new_done, old_done = new.residual <= certified, old.residual <= certified
    return jnp.where(
        new_done & old_done, new.objective < old.objective, new_done | (~old_done & (new.residual < old.residual))
    )


def _step(state: _State, problem: Problem, tolerance: Tolerances) -> _State:
    point, z, mu = state.point, state.multipliers, state.barrier
    time, slope, curvature = time_with_derivatives(point, problem)
    room = slacks(point, time, problem)
    # Gradient of the objective and rows of J: what lowers each slack.
    chips = jax.grad(lambda at: degrees_at(at, problem.work).chips)(point)
    gradient = (problem.chip_weight * chips + slope).at[EXCESS].add(PRICE)
    rows = jnp.concatenate([problem.limits.matrix, slope.at[EXCESS].add(-1.0)[None]])
    stationarity = jnp.max(jnp.abs(gradient + z @ rows))
    # Without the excess's own multiplier: next to its price everything would look stationary, and the barrier
    # would fall before its problem is solved.
    scale = jnp.maximum(1.0, jnp.max(z.at[EXCESS].set(0.0)))
    products = z * room
    residual = jnp.maximum(stationarity / scale, jnp.max(products))
    found = Optimum(point, z, objective(point, time, problem), residual)
    take = better(found, state.best, tolerance.residual)
    best = jax.tree.map(lambda new, old: jnp.where(take, new, old), found, state.best)
    solved = jnp.maximum(stationarity / scale, jnp.max(jnp.abs(products - mu))) < 5.0 * mu
    mu = jnp.where(solved, jnp.maximum(jnp.minimum(0.2 * mu, mu**1.5), tolerance.barrier), mu)
    pull = z / room
    matrix = (1.0 + z[-1]) * curvature + rows.T @ (pull[:, None] * rows)
    matrix = matrix + state.shift * jnp.eye(N_COORDINATES)
    change = _solve(matrix, -(gradient + (mu / room) @ rows), tolerance.pivot)
    room_change = -rows @ change
    z_change = mu / room - z - pull * room_change
    lengths = _longest(room, room_change) * jnp.asarray(STEPS, point.dtype)
    times = jax.vmap(lambda length: log_time(point + length * change, problem))(lengths)
    # No step at all comes last.
    lengths, times = jnp.append(lengths, 0.0), jnp.append(times, time)
    merits, rooms = jax.vmap(lambda length, t: _merit(point + length * change, t, mu, problem))(lengths, times)
    lower = merits[:-1] <= merits[-1] + tolerance.noise * (1.0 + jnp.abs(merits[-1]))
    # A step without gain is still taken where another barrier may follow.
    shortest = jnp.where(jnp.isfinite(merits[-2]), len(STEPS) - 1, len(STEPS))
    pick = jnp.where(jnp.any(lower), jnp.argmax(lower), shortest)
    moved = point + lengths[pick] * change
    z_moved = z + _longest(z, z_change) * z_change
    # Multipliers stay within reach of those of the barrier function.
    centre = mu / rooms[pick]
    z_moved = jnp.clip(z_moved, 1e-6 * centre, 1e6 * centre)
    shift = jnp.where(pick == 0, 0.2 * state.shift, jnp.where(pick > 2, 5.0 * state.shift + 1e-4, state.shift))
    return _State(moved, z_moved, mu, jnp.minimum(shift, 1e3), best, state.count + 1)


def _first(start: Float[Array, " 8"], time: Array, problem: Problem) -> _State:
    room = slacks(start, time, problem)
    barrier = jnp.asarray(FIRST_BARRIER, start.dtype)
    z = barrier / room
    unknown = jnp.full_like(barrier, jnp.inf)
    return _State(
        start, z, barrier, jnp.zeros_like(barrier), Optimum(start, z, unknown, unknown), jnp.zeros((), jnp.int32)
    )


def _idle(dtype: jnp.dtype, n_steps: Array | int) -> _State:
    """A search that has ended without a result."""
    point, limits, unknown = jnp.zeros(N_COORDINATES, dtype), jnp.zeros(N_LIMITS, dtype), jnp.asarray(jnp.inf, dtype)
    none = Optimum(point, limits, unknown, unknown)
    return _State(point, limits, unknown, unknown, none, jnp.asarray(n_steps, jnp.int32))


def minimise(
    plans: Float[Array, "plan 7"], problems: Problem, wanted: Bool[Array, " lane"], n_steps: Array | int
) -> Optimum:
    """Optima of many problems, each from the most promising of some scattered plans.

    Problems need from a dozen steps to many. Each round takes a few steps with those that are not done yet, packed
    into full blocks, so that none waits for the slowest.

    Args:
        plans: scattered plans, as points of the unit cube.
        problems: the searches, every leaf [lane].
        wanted: which of them are solved; the others return an infinite residual.
        n_steps: Newton steps at most; a search ends earlier once certified at the last barrier.

    Returns:
        The best iterate of each: certified by its KKT residual, and of those the one of lowest objective.
    """
    tolerance = tolerances(plans.dtype)

    def unfinished(state: _State) -> Bool[Array, " lane"]:
        done = (state.best.residual <= tolerance.residual) & (state.barrier <= tolerance.barrier)
        return (state.count < n_steps) & ~done

    def advance(state: _State, posed: Problem) -> _State:
        def step(_: Array, now: _State) -> _State:
            stepped = jax.vmap(lambda one, problem: _step(one, problem, tolerance))(now, posed)
            return where_rows(unfinished(now), stepped, now)

        return jax.lax.fori_loop(0, ROUND, step, state)

    def begin(_: _State, posed: Problem) -> _State:
        return jax.vmap(lambda problem: _first(*best_start(plans, problem), problem))(posed)

    idle = jax.vmap(lambda _: _idle(plans.dtype, n_steps))(wanted)
    first = packed(wanted, begin, idle, problems)
    return jax.lax.while_loop(
        lambda state: jnp.any(unfinished(state)),
        lambda state: packed(unfinished(state), advance, state, problems),
        first,
    ).best
