"""Levenberg-Marquardt minimisation by optimistix: local descent from one point."""

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
"""Maximum number of Levenberg-Marquardt steps at each smoothing, and at each trial value of a profile [1]."""


class Solution(NamedTuple):
    """Outcome of a fit.

    Attributes:
        parameters: standardised parameters at the optimum [parameter].
        loss: negative log posterior at the optimum [1].
        start_losses: `search_loss` reached from each start, at the end or on abandonment [start].
        converged: whether the polish met its tolerance, or settled where repeated polishes make no progress.
        log_residuals: predicted minus measured logs of step time and memory, padding included [row, 2].
        jacobian: derivative of the pseudo-residuals by each parameter [row + memory row + parameter, parameter].
    """

    parameters: Float[Array, " parameter"]
    loss: Float[Array, ""]
    start_losses: Float[Array, " start"]
    converged: Array
    log_residuals: Float[Array, "row 2"]
    jacobian: Float[Array, "entry parameter"]


class Held(NamedTuple):
    """Parameter held fixed in a minimisation.

    Attributes:
        index: index of the parameter; beyond the last parameter, none is held [1].
        value: value of the parameter [1].
    """

    index: int
    value: float

    def put(self, parameters: Float[Array, " parameter"]) -> Array:
        """Parameters with the held parameter at its value [parameter]."""
        # An index beyond the end holds nothing.
        return parameters.at[self.index].set(self.value, mode="drop")


class Tolerance(NamedTuple):
    """Change of parameters and loss at which a minimisation ends.

    Attributes:
        relative: relative change [1].
        absolute: absolute change of the parameters, in standard deviations of priors, and of the loss [1].
    """

    relative: float
    absolute: float


POLISHED, ANYWHERE = Tolerance(1e-5, 1e-3), Tolerance(0.0, math.inf)
"""Tolerance of a fit, where a thousandth of a prior's standard deviation is far below any interval; and a tolerance
met by every point."""


class Polish(NamedTuple):
    """State of a Levenberg-Marquardt minimisation.

    Attributes:
        parameters: best parameters so far [parameter].
        state: state of the solver; `state.y_eval` is the next point at which the solver needs the errors.
        ended: whether the minimisation converged or failed.
        converged: whether the minimisation converged.
    """

    parameters: Float[Array, " parameter"]
    state: Any
    ended: Bool[Array, ""]
    converged: Bool[Array, ""]


Evaluation = tuple[FitProblem, Held, RowErrors]
"""FitProblem, held parameter, and errors at the point requested by the solver."""


def _solver(tolerance: Tolerance) -> optx.LevenbergMarquardt:
    """Levenberg-Marquardt solver by normal equations: faster than a QR, and well conditioned thanks to the priors."""
    return optx.LevenbergMarquardt(*tolerance, linear_solver=lx.Normal(lx.Cholesky()))


def _function(parameters: Array, evaluation: Evaluation) -> tuple[Array, Array]:
    problem, held, errors = evaluation
    return residuals(held.put(parameters), problem, errors)


@filter_jit
def _begun(start: Float[Array, " parameter"], evaluation: Evaluation, tolerance: Tolerance) -> Polish:
    """Initial state of the solver, compiled."""
    # Uncompiled, each state would hold a Jacobian program, and every step would be compiled anew.
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
    """Solution at the best point so far, from the solver's state; the last evaluation may be of a rejected step."""
    end, log_residuals = now.state.f_info, now.state.aux
    # Half the sum of squares of the pseudo-residuals.
    value = 0.5 * jnp.sum(end.residual**2)
    parameters = held.put(now.parameters)
    return Solution(parameters, value, value[None], now.converged, log_residuals, end.jac.as_matrix())


def minimised(
    start: Float[Array, " parameter"], problem: FitProblem, tolerance: Tolerance, held: Held | None = None
) -> Solution:
    """Levenberg-Marquardt minimisation from one start; only descents are accepted.

    Args:
        start: starting point [parameter].
        problem: the problem to fit; smoothed, as are all problems that share the compiled program.
        tolerance: tolerance of the minimisation.
        held: parameter held fixed; None where all parameters move.

    Returns:
        The solution at the end point.
    """
    # An index beyond the last parameter: no parameter is held.
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
