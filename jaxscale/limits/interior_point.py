r"""Primal-dual interior point of a few variables, for thousands of problems under `jax.vmap`.

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

from jaxscale.limits.feasible_set import EXCESS, N_COORDINATES, degrees_at
from jaxscale.limits.problem import PRICE, Problem, log_time, objective, slacks, time_with_derivatives

FIRST_BARRIER = 0.1
"""Barrier at the start [1]."""

STEPS = (1.0, 0.6, 0.3, 0.1, 0.03, 0.003, 0.0)
"""Step lengths tried at once, of the longest that keeps limits strict; none at all comes last [1]."""

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


def _merit(point: Array, barrier: Array, problem: Problem) -> tuple[Array, Array]:
    """Barrier function, infinite outside, and the slacks."""
    time = log_time(point, problem)
    room = slacks(point, time, problem)
    inside = jnp.all(room > 0.0)
    logs = jnp.sum(jnp.log(jnp.where(room > 0.0, room, 1.0)))
    value = objective(point, time, problem) - barrier * logs
    return jnp.where(inside & jnp.isfinite(value), value, jnp.inf), room


def _better(new: Optimum, old: Optimum, certified: float) -> Bool[Array, ""]:
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
    take = _better(found, state.best, tolerance.residual)
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
    merits, rooms = jax.vmap(lambda length: _merit(point + length * change, mu, problem))(lengths)
    here, trials = merits[-1], merits[:-1]
    lower = trials <= here + tolerance.noise * (1.0 + jnp.abs(here))
    pick = jnp.where(jnp.any(lower), jnp.argmax(lower), len(STEPS) - 1)
    # A step without gain is still taken where another barrier may follow.
    pick = jnp.where(jnp.any(lower), pick, jnp.where(jnp.isfinite(trials[-1]), len(STEPS) - 2, len(STEPS) - 1))
    moved = point + lengths[pick] * change
    z_moved = z + _longest(z, z_change) * z_change
    # Multipliers stay within reach of those of the barrier function.
    centre = mu / rooms[pick]
    z_moved = jnp.clip(z_moved, 1e-6 * centre, 1e6 * centre)
    shift = jnp.where(pick == 0, 0.2 * state.shift, jnp.where(pick > 2, 5.0 * state.shift + 1e-4, state.shift))
    return _State(moved, z_moved, mu, jnp.minimum(shift, 1e3), best, state.count + 1)


def minimise(start: Float[Array, " 8"], problem: Problem, n_steps: int) -> Optimum:
    """Optimum from a strictly feasible start.

    Args:
        start: coordinates.
        problem: the search.
        n_steps: Newton steps at most; ends earlier once certified at the last barrier.

    Returns:
        The best iterate: certified by its KKT residual, and of those the one of lowest objective.
    """
    tolerance = tolerances(start.dtype)
    room = slacks(start, log_time(start, problem), problem)
    barrier = jnp.asarray(FIRST_BARRIER, start.dtype)
    z = barrier / room
    unknown = jnp.asarray(jnp.inf, start.dtype)
    first = Optimum(start, z, unknown, unknown)
    state = _State(start, z, barrier, jnp.zeros_like(barrier), first, jnp.zeros((), int))

    def unfinished(state: _State) -> Bool[Array, ""]:
        done = (state.best.residual <= tolerance.residual) & (state.barrier <= tolerance.barrier)
        return (state.count < n_steps) & ~done

    return jax.lax.while_loop(unfinished, lambda s: _step(s, problem, tolerance), state).best
