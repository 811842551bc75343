r"""Primal-dual interior-point method with feasible start, for optima of thousands of small problems at once.

The method suits problems of a few coordinates with one curved quantity (`CurvedProblem`): the whole search is one JAX
program, in single or double precision, and every iterate stays strictly feasible. For infeasible starts, or several
curved quantities in the limits, see `interior_point`.

The Newton step of the perturbed optimality conditions solves

$$ (H + J^T S^{-1} Z J)\, \delta u = -(\nabla f - \mu J^T S^{-1} 1), \qquad J = -\nabla s $$

with H the Hessian of the Lagrangian, by an elimination with positive pivots; a line search lowers the barrier function
$f - \mu \sum \ln s$; $\mu$ decreases once the barrier problem is solved (Fiacco and McCormick; Nocedal and Wright 2006,
chapter 19).

Rows that still move are packed into full blocks, so that idle rows of a batch cost no time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxscale.optimise.problems import CurvedProblem, Optimum

Rows = TypeVar("Rows")

BLOCK = 64
"""Rows processed simultaneously, few enough for a core's cache [1]."""


def work_on_rows(wanted: Bool[Array, " row"], work: Callable[[Any, Any], Any], state: Rows, given: Any) -> Rows:
    """Apply a function to selected rows of a batch, in blocks.

    Args:
        wanted: mask of the selected rows.
        work: function from the old state of a block of rows and `given` to the new state.
        state: arrays [row, ...].
        given: further input arrays of `work` [row, ...].

    Returns:
        The state, changed in the selected rows.
    """
    size = min(BLOCK, wanted.shape[0])
    order = jnp.argsort(~wanted)

    def block(index: Array, state: Rows) -> Rows:
        # `dynamic_slice` shifts a block that exceeds the end backwards, so that a few rows are processed twice.
        rows = jax.lax.dynamic_slice(order, (index * size,), (size,))
        part, read = jax.tree.map(lambda leaf: leaf[rows], (state, given))
        moved = where_rows(wanted[rows], work(part, read), part)
        return jax.tree.map(lambda whole, new: whole.at[rows].set(new), state, moved)

    n_blocks = (jnp.sum(wanted) + size - 1) // size
    return jax.lax.fori_loop(0, n_blocks, block, state)


def where_rows(condition: Bool[Array, " row"], new: Rows, old: Rows) -> Rows:
    """Rows of `new` where the condition holds, else of `old`."""

    def pick(first: Array, second: Array) -> Array:
        return jnp.where(condition.reshape(-1, *[1] * (first.ndim - 1)), first, second)

    return jax.tree.map(pick, new, old)


FIRST_BARRIER = 0.1
"""Initial barrier parameter [1]."""

STEPS = (1.0, 0.6, 0.3, 0.1, 0.03, 0.003)
"""Step lengths tried simultaneously, relative to the longest strictly feasible step [1]."""

ROUND = 2
"""Newton steps per round [1]."""

KEEP = 0.99
"""Largest share of a slack used up by one step [1]."""


class Tolerances(NamedTuple):
    """Tolerances for a number format.

    Attributes:
        residual: largest KKT residual of a certified optimum [1].
        barrier: final barrier parameter [1].
        excess: largest excess of a feasible plan [1].
        pivot: smallest pivot of the factorisation [1].
        noise: changes of the merit function up to this size count as zero [1].
    """

    residual: float
    barrier: float
    excess: float
    pivot: float
    noise: float


def tolerances(dtype: jnp.dtype) -> Tolerances:
    """Tolerances for single or double precision."""
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
    """Solution of a symmetric linear system by Gauss-Jordan elimination with pivots of at least `floor`."""
    table = jnp.concatenate([matrix, right[:, None]], axis=1)
    for column in range(len(right)):
        pivot = jnp.maximum(jnp.abs(table[column, column]), floor)
        row = table[column].at[column].set(pivot) / pivot
        table = (table - table[:, column, None] * row).at[column].set(row)
    return table[:, -1]


def _with_derivatives(
    point: Float[Array, " coordinate"], problem: CurvedProblem
) -> tuple[Float[Array, " 1"], Float[Array, " coordinate"], Float[Array, "coordinate coordinate"]]:
    """Log quantity, gradient and Hessian at a point."""

    def slope(at: Array) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(lambda point: problem.log_quantities(point)[0])(at)
        return gradient, (value, gradient)

    curvature, (value, gradient) = jax.jacfwd(slope, has_aux=True)(point)
    return value[None], gradient, curvature


def _longest(values: Array, changes: Array) -> Array:
    """Longest step, at most 1, that keeps every positive number positive [1]."""
    ratio = jnp.where(changes < 0.0, -KEEP * values / jnp.where(changes < 0.0, changes, -1.0), jnp.inf)
    return jnp.minimum(jnp.min(ratio), 1.0)


def _merit(point: Array, values: Array, barrier: Array, problem: CurvedProblem) -> tuple[Array, Array]:
    """Barrier function (infinite outside the limits) and slacks, given the log quantity at the point."""
    room = problem.slacks(point, values)
    inside = jnp.all(room > 0.0)
    logs = jnp.sum(jnp.log(jnp.where(room > 0.0, room, 1.0)))
    value = problem.objective(point, values) - barrier * logs
    return jnp.where(inside & jnp.isfinite(value), value, jnp.inf), room


def better(new: Optimum, old: Optimum, certified: float) -> Bool[Array, "*batch"]:
    """Whether an iterate is better than the best so far.

    A certified iterate is better than an uncertified one. Of two certified iterates the lower objective is better, of
    two uncertified iterates the lower residual.

    Args:
        new: present iterates.
        old: best iterates so far.
        certified: largest residual of a certified iterate [1].
    """
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
    # The barrier parameter decreases superlinearly, mu^1.5, once below 0.04, and by a factor of five before.
    mu = jnp.where(solved, jnp.maximum(jnp.minimum(0.2 * mu, mu**1.5), tolerance.barrier), mu)
    pull = z / room
    # The curved quantity occurs once in the objective and once in the last limit, hence the factor 1 + z.
    matrix = (1.0 + z[-1]) * curvature + rows.T @ (pull[:, None] * rows)
    matrix = matrix + state.shift * jnp.eye(len(point))
    change = _solve(matrix, -(gradient + (mu / room) @ rows), tolerance.pivot)
    room_change = -rows @ change
    z_change = mu / room - z - pull * room_change
    lengths = _longest(room, room_change) * jnp.asarray(STEPS, point.dtype)
    trials = jax.vmap(lambda length: problem.log_quantities(point + length * change))(lengths)
    # The last trial is the step of length zero.
    lengths, trials = jnp.append(lengths, 0.0), jnp.concatenate([trials, values[None]])
    merits, rooms = jax.vmap(lambda length, at: _merit(point + length * change, at, mu, problem))(lengths, trials)
    lower = merits[:-1] <= merits[-1] + tolerance.noise * (1.0 + jnp.abs(merits[-1]))
    # Without gain the shortest finite step is taken, since the barrier may decrease afterwards.
    shortest = jnp.where(jnp.isfinite(merits[-2]), len(STEPS) - 1, len(STEPS))
    pick = jnp.where(jnp.any(lower), jnp.argmax(lower), shortest)
    moved = point + lengths[pick] * change
    z_moved = z + _longest(z, z_change) * z_change
    # Multipliers stay within a range around mu / s, those of the barrier function.
    centre = mu / rooms[pick]
    z_moved = jnp.clip(z_moved, 1e-6 * centre, 1e6 * centre)
    # The shift of the Hessian falls after a full step and grows after short steps, like a trust region.
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
    """State of empty lanes: searches without a result, with the array shapes of `first`."""
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
    """Optima of many problems, from feasible starts.

    Problems differ in the number of steps, from a dozen upwards. Each round takes a few steps with the unfinished
    problems, packed into full blocks, so that no problem waits for the slowest.

    Args:
        start: function from a problem to a start strictly within the limits and the log quantity at the start.
        problems: the problems, every leaf [lane].
        wanted: mask of the problems to solve; the remaining lanes return an infinite residual.
        n_steps: largest number of Newton steps; a search ends earlier once certified at the final barrier.

    Returns:
        The certified iterate of lowest objective, or the iterate of lowest KKT residual without a certified iterate.
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
            # A lane that finishes within a round keeps its state.
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
