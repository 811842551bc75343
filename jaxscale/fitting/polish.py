"""Levenberg-Marquardt of optimistix: the way down from one point, which only accepts descents."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import Array, Bool, Float

from jaxscale.base.jit import filter_jit
from jaxscale.fitting.objective import FitProblem, RowErrors, errors_at, residuals

POLISH_STEPS = 12
"""Most Levenberg-Marquardt steps at each smoothing, and at each trial value of a profile [1]."""


class Solution(NamedTuple):
    """Outcome of a fit.

    Attributes:
        parameters: standardised parameters at the optimum [parameter].
        loss: negative log posterior there [1].
        start_losses: `search_loss` that each start reached, at the end or where it was given up [start].
        converged: whether the polish met its tolerance, or settled where polishing again is of no help.
        log_residuals: predicted minus measured logs of step time and memory, padding included [row, 2].
        jacobian: of the pseudo-residuals, by each parameter [row + memory row + parameter, parameter].
    """

    parameters: Float[Array, " parameter"]
    loss: Float[Array, ""]
    start_losses: Float[Array, " start"]
    converged: Array
    log_residuals: Float[Array, "row 2"]
    jacobian: Float[Array, "entry parameter"]


class Held(NamedTuple):
    """A parameter that a minimisation leaves where it is.

    Attributes:
        index: which; past the last one, none [1].
        value: where it is [1].
    """

    index: int
    value: float

    def put(self, parameters: Float[Array, " parameter"]) -> Array:
        """Parameters with the held one in its place [parameter]."""
        return parameters.at[self.index].set(self.value, mode="drop")


class Tolerance(NamedTuple):
    """Change of parameters and loss at which a minimisation ends.

    Attributes:
        relative: to what changes [1].
        absolute: in standard deviations of priors, and of the loss [1].
    """

    relative: float
    absolute: float


POLISHED, ANYWHERE = Tolerance(1e-5, 1e-3), Tolerance(0.0, math.inf)
"""Of a fit, where a thousandth of a prior's standard deviation is far below any interval; and met by any point."""


class Polish(NamedTuple):
    """A Levenberg-Marquardt minimisation on its way.

    Attributes:
        parameters: the best so far [parameter].
        state: of the solver; `state.y_eval` is where it asks for the errors next.
        ended: whether it is near enough, or lost.
        converged: whether it is near enough.
    """

    parameters: Float[Array, " parameter"]
    state: Any
    ended: Bool[Array, ""]
    converged: Bool[Array, ""]


Evaluation = tuple[FitProblem, Held, RowErrors]
"""FitProblem, held parameter, and the errors at the point where the solver asks for them."""


def _solver(tolerance: Tolerance) -> optx.LevenbergMarquardt:
    """Normal equations are quicker than a QR, and the priors keep them well conditioned."""
    return optx.LevenbergMarquardt(*tolerance, linear_solver=lx.Normal(lx.Cholesky()))


def _function(parameters: Array, evaluation: Evaluation) -> tuple[Array, Array]:
    problem, held, errors = evaluation
    return residuals(held.put(parameters), problem, errors)


@filter_jit
def _begun(start: Float[Array, " parameter"], evaluation: Evaluation, tolerance: Tolerance) -> Polish:
    """Compiled too, lest each state hold a Jacobian program of its own, by which a step would be compiled anew."""
    values, logs = jax.eval_shape(_function, start, evaluation)
    state = _solver(tolerance).init(_function, start, evaluation, {}, values, logs, frozenset())
    return Polish(start, state, jnp.asarray(False), jnp.asarray(False))


@filter_jit
def _stepped(now: Polish, evaluation: Evaluation, tolerance: Tolerance) -> Polish:
    solver = _solver(tolerance)
    parameters, state, _ = solver.step(_function, now.parameters, evaluation, {}, now.state, frozenset())
    is_near, result = solver.terminate(_function, parameters, evaluation, {}, state, frozenset())
    lost = (result != optx.RESULTS.successful) | ~jnp.all(jnp.isfinite(parameters))
    return Polish(parameters, state, is_near | lost, is_near & ~lost)


@filter_jit
def _solution_of(now: Polish, held: Held) -> Solution:
    """What the state has belongs to the best so far; the last evaluation may be of a rejected step."""
    end, log_residuals = now.state.f_info, now.state.aux
    value = 0.5 * jnp.sum(end.residual**2)
    parameters = held.put(now.parameters)
    return Solution(parameters, value, value[None], now.converged, log_residuals, end.jac.as_matrix())


def minimised(
    start: Float[Array, " parameter"], problem: FitProblem, tolerance: Tolerance, held: Held | None = None
) -> Solution:
    """Levenberg-Marquardt from one start, which only accepts descents.

    Args:
        start: where it begins [parameter].
        problem: what to fit; smoothed, as all problems that share the compiled program are.
        tolerance: near enough to the optimum.
        held: a parameter that stays where it is; None where all move.

    Returns:
        Where it ends.
    """
    nothing = Held(len(start), 0.0)
    kept, near = jax.tree.map(jnp.asarray, (held or nothing, tolerance))

    def evaluated(at: Array) -> Evaluation:
        return problem, kept, errors_at(kept.put(at), problem)

    first = evaluated(start)
    now = _stepped(_begun(start, first, near), first, near)
    for _ in range(POLISH_STEPS - 1):
        if now.ended:
            break
        now = _stepped(now, evaluated(now.state.y_eval), near)
    return _solution_of(now, kept)
