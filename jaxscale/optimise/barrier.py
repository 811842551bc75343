r"""Optima of thousands of problems from points that keep every limit: primal-dual interior point, feasible start.

To be used for problems of a few coordinates with one curved quantity (`CurvedProblem`): the whole search is one program
of JAX, in single or double precision, and every iterate stays strictly feasible. Where a start breaks limits, or
several quantities of the limits are curved, `interior_point` serves.

The Newton step of the perturbed optimality conditions solves

$$ (H + J^T S^{-1} Z J)\, \delta u = -(\nabla f - \mu J^T S^{-1} 1), \qquad J = -\nabla s $$

with H the curvature of the Lagrangian, by an elimination whose pivots are kept positive; a line search lowers the
barrier function $f - \mu \sum \ln s$; $\mu$ falls once its problem is solved (Fiacco and McCormick; Nocedal and
Wright 2006, chapter 19).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxscale.optimise.compaction import where_rows, work_on_rows
from jaxscale.optimise.problems import CurvedProblem, Optimum

FIRST_BARRIER = 0.1
"""Barrier at the start [1]."""

STEPS = (1.0, 0.6, 0.3, 0.1, 0.03, 0.003)
"""Step lengths tried at once, of the longest that keeps limits strict [1]."""

ROUND = 2
"""Steps of a round [1]."""

KEEP = 0.99
"""Share of a slack that a step may use up [1]."""


class Tolerances(NamedTuple):
    """Tolerances of a number format.

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


class _State(NamedTuple):
    point: Float[Array, " coordinate"]
    multipliers: Float[Array, " limit"]
    barrier: Array
    shift: Array
    best: Optimum
    count: Array


def _solve(
    matrix: Float[Array, "coordinate coordinate"], right: Float[Array, " coordinate"], floor: float
) -> Float[Array, " coordinate"]:
    """Solution of a linear system by Gauss-Jordan elimination of a symmetric matrix, with pivots kept positive."""
    table = jnp.concatenate([matrix, right[:, None]], axis=1)
    for column in range(len(right)):
        pivot = jnp.maximum(jnp.abs(table[column, column]), floor)
        row = table[column].at[column].set(pivot) / pivot
        table = (table - table[:, column, None] * row).at[column].set(row)
    return table[:, -1]


def _with_derivatives(
    point: Float[Array, " coordinate"], problem: CurvedProblem
) -> tuple[Float[Array, " 1"], Float[Array, " coordinate"], Float[Array, "coordinate coordinate"]]:
    """Log quantity, slope and curvature at a point."""

    def slope(at: Array) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(lambda point: problem.log_quantities(point)[0])(at)
        return gradient, (value, gradient)

    curvature, (value, gradient) = jax.jacfwd(slope, has_aux=True)(point)
    return value[None], gradient, curvature


def _longest(values: Array, changes: Array) -> Array:
    """Longest step, at most one, that leaves every positive number positive."""
    ratio = jnp.where(changes < 0.0, -KEEP * values / jnp.where(changes < 0.0, changes, -1.0), jnp.inf)
    return jnp.minimum(jnp.min(ratio), 1.0)


def _merit(point: Array, values: Array, barrier: Array, problem: CurvedProblem) -> tuple[Array, Array]:
    """Barrier function, infinite outside, and the slacks; given the log quantity at the point."""
    room = problem.slacks(point, values)
    inside = jnp.all(room > 0.0)
    logs = jnp.sum(jnp.log(jnp.where(room > 0.0, room, 1.0)))
    value = problem.objective(point, values) - barrier * logs
    return jnp.where(inside & jnp.isfinite(value), value, jnp.inf), room


def better(new: Optimum, old: Optimum, certified: float) -> Bool[Array, "*batch"]:
    """Whether an iterate replaces the best: certified before not, then the lower objective, or the lower residual."""
    new_done, old_done = new.residual <= certified, old.residual <= certified
    return jnp.where(
        new_done & old_done, new.objective < old.objective, new_done | (~old_done & (new.residual < old.residual))
    )


def _step(state: _State, problem: CurvedProblem, tolerance: Tolerances) -> _State:
    point, z, mu = state.point, state.multipliers, state.barrier
    values, slope, curvature = _with_derivatives(point, problem)
    room = problem.slacks(point, values)
    gradient, rows = problem.slopes(point, slope)
    stationarity = jnp.max(jnp.abs(gradient + z @ rows))
    scale = jnp.maximum(1.0, problem.multiplier_scale(z))
    products = z * room
    residual = jnp.maximum(stationarity / scale, jnp.max(products))
    here = Optimum(point, values, z, problem.objective(point, values), residual)
    take = better(here, state.best, tolerance.residual)
    best = jax.tree.map(lambda new, old: jnp.where(take, new, old), here, state.best)
    solved = jnp.maximum(stationarity / scale, jnp.max(jnp.abs(products - mu))) < 5.0 * mu
    mu = jnp.where(solved, jnp.maximum(jnp.minimum(0.2 * mu, mu**1.5), tolerance.barrier), mu)
    pull = z / room
    # The curved quantity stands once in the objective and once in the last limit.
    matrix = (1.0 + z[-1]) * curvature + rows.T @ (pull[:, None] * rows)
    matrix = matrix + state.shift * jnp.eye(len(point))
    change = _solve(matrix, -(gradient + (mu / room) @ rows), tolerance.pivot)
    room_change = -rows @ change
    z_change = mu / room - z - pull * room_change
    lengths = _longest(room, room_change) * jnp.asarray(STEPS, point.dtype)
    trials = jax.vmap(lambda length: problem.log_quantities(point + length * change))(lengths)
    # No step at all comes last.
    lengths, trials = jnp.append(lengths, 0.0), jnp.concatenate([trials, values[None]])
    merits, rooms = jax.vmap(lambda length, at: _merit(point + length * change, at, mu, problem))(lengths, trials)
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


def _first(start: Float[Array, " coordinate"], values: Float[Array, " 1"], problem: CurvedProblem) -> _State:
    room = problem.slacks(start, values)
    barrier = jnp.asarray(FIRST_BARRIER, start.dtype)
    z = barrier / room
    unknown = jnp.full_like(barrier, jnp.inf)
    nothing = Optimum(start, jnp.full_like(values, jnp.inf), z, unknown, unknown)
    return _State(start, z, barrier, jnp.zeros_like(barrier), nothing, jnp.zeros((), jnp.int32))


def _idle(first: Any, n_steps: Array | int) -> _State:
    """Searches that have ended without a result; `first` are the shapes of searches that begin."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)
    unknown = jnp.full_like(zeros.barrier, jnp.inf)
    none = zeros.best._replace(objective=unknown, residual=unknown)
    return zeros._replace(barrier=unknown, shift=unknown, best=none, count=jnp.full_like(zeros.count, n_steps))


def minimise(
    start: Callable[[Any], tuple[Array, Array]],
    problems: CurvedProblem,
    wanted: Bool[Array, " lane"],
    n_steps: Array | int,
) -> Optimum:
    """Optima of many problems, from points that keep the limits.

    Problems need from a dozen steps to many. Each round takes a few steps with the unfinished problems, packed into
    full blocks, so that no problem waits for the slowest.

    Args:
        start: gives the first point of a problem, strictly within the limits, and the log quantity at the point.
        problems: the searches, every leaf [lane].
        wanted: which problems are solved; the others return an infinite residual.
        n_steps: Newton steps at most; a search ends earlier once certified at the last barrier.

    Returns:
        The iterate of lowest objective among certified ones, or of lowest KKT residual where none is certified.
    """

    def begin_one(problem: CurvedProblem) -> _State:
        return _first(*start(problem), problem)

    shapes = jax.eval_shape(jax.vmap(begin_one), problems)
    tolerance = tolerances(shapes.point.dtype)

    def unfinished(state: _State) -> Bool[Array, " lane"]:
        done = (state.best.residual <= tolerance.residual) & (state.barrier <= tolerance.barrier)
        return (state.count < n_steps) & ~done

    def advance(state: _State, posed: CurvedProblem) -> _State:
        def step(_: Array, now: _State) -> _State:
            stepped = jax.vmap(lambda one, problem: _step(one, problem, tolerance))(now, posed)
            return where_rows(unfinished(now), stepped, now)

        return jax.lax.fori_loop(0, ROUND, step, state)

    def begin(_: _State, posed: CurvedProblem) -> _State:
        return jax.vmap(begin_one)(posed)

    first = work_on_rows(wanted, begin, _idle(shapes, n_steps), problems)
    return jax.lax.while_loop(
        lambda state: jnp.any(unfinished(state)),
        lambda state: work_on_rows(unfinished(state), advance, state, problems),
        first,
    ).best
