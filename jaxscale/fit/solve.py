"""Minimisation: optax finds the valley from many starts, Levenberg-Marquardt of optimistix polishes the best."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import optax
import optimistix as optx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxscale._compile import filter_jit
from jaxscale.fit.objective import Problem, log_residuals, loss, residuals, smoothed

TEMPERATURE = 0.01
"""Smoothing of the model's maxima on the way to the optimum [1].

Kinks of rows at a maximum stop a solver that only accepts descents; a smooth model lets it slide along them. The
exact model's optimum is close by, and the search ends there.
"""

SMOOTH_STEPS, EXACT_STEPS = 30, 20
"""Levenberg-Marquardt steps with smooth and with exact maxima [1]."""

START_SPREAD = 0.7
"""Standard deviation of the starting points, in units of the prior's [1]."""


class Solution(NamedTuple):
    """Outcome of a fit.

    Attributes:
        parameters: standardised parameters at the optimum [parameter].
        loss: negative log posterior there [1].
        gradient_norm: largest component of its gradient [1].
        start_losses: loss that each start reached [start].
        converged: whether the polish met its tolerance.
        log_residuals: predicted minus measured logs of step time and memory, padding included [row, 2].
    """

    parameters: Float[Array, " parameter"]
    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    start_losses: Float[Array, " start"]
    converged: Array
    log_residuals: Float[Array, "row 2"]


def descend(start: Float[Array, " parameter"], problem: Problem, n_steps: int) -> tuple[Array, Array]:
    """Adam with a cosine schedule from one start: parameters [parameter] and their loss one step before the end [1]."""
    optimiser = optax.adam(optax.cosine_decay_schedule(0.1, n_steps), b2=0.99)

    def update(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], Array]:
        parameters, state = carry
        value, gradient = jax.value_and_grad(loss)(parameters, problem)
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(parameters, updates), state), value  # pyright: ignore[reportReturnType]

    (parameters, _), history = jax.lax.scan(update, (start, optimiser.init(start)), length=n_steps)
    return parameters, history[-1]


def levenberg_marquardt(rtol: float) -> optx.LevenbergMarquardt:
    """The solver of fits and profiles.

    A thousandth of a prior's standard deviation is far below any interval. Normal equations are quicker than a QR, and
    the priors keep them well conditioned.
    """
    return optx.LevenbergMarquardt(rtol=rtol, atol=1e-3, linear_solver=lx.Normal(lx.Cholesky()))


def polish(start: Float[Array, " parameter"], problem: Problem, max_steps: int) -> tuple[Array, Array]:
    """Levenberg-Marquardt from one start, which only accepts descents [parameter], and whether it converged."""
    solver = levenberg_marquardt(1e-5)
    solution = optx.least_squares(residuals, solver, start, args=problem, max_steps=max_steps, throw=False)
    return solution.value, solution.result == optx.RESULTS.successful


def at_prior_without_runs(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Parameters with the effects of levels that no counted run has at their prior's centre [parameter].

    That is their optimum. Where runs are left out of a solved problem, what these said of their own levels would
    otherwise linger: their pull is gone, and a prior alone pulls too weakly for the solver to go all the way.
    """
    has_runs = (problem.weight @ problem.members) > 0.0
    n = parameters.shape[0] - has_runs.shape[0]
    return parameters.at[n:].multiply(has_runs)


@filter_jit
def search(problem: Problem, starts: Float[Array, "start parameter"], n_steps: int) -> tuple[Array, Array]:
    """Descend from every start; the best end point [parameter] and the loss that each start reached [start]."""
    ends, losses = jax.vmap(descend, in_axes=(0, None, None))(starts, problem, n_steps)
    # A start that ran off into non-finite ground must never count as the best.
    return ends[jnp.argmin(jnp.where(jnp.isfinite(losses), losses, jnp.inf))], losses


@filter_jit
def refine(problem: Problem, start: Float[Array, " parameter"]) -> Solution:
    """Polish one point: the fit itself, and enough on its own for a problem that differs little from a solved one."""
    start = at_prior_without_runs(start, problem)
    near, _ = polish(start, smoothed(problem, TEMPERATURE), SMOOTH_STEPS)
    parameters, converged = polish(near, problem, EXACT_STEPS)
    value, gradient = jax.value_and_grad(loss)(parameters, problem)
    ended = log_residuals(parameters, problem)
    return Solution(parameters, value, jnp.max(jnp.abs(gradient)), value[None], converged, ended)


def solve(problem: Problem, starts: Float[Array, "start parameter"], n_steps: int = 100) -> Solution:
    """Fit from several starts.

    Args:
        problem: what to fit.
        starts: standardised starting points; the first is usually the prior's centre [start, parameter].
        n_steps: Adam steps of each start [1].

    Returns:
        The best fit.
    """
    best, losses = search(problem, starts, n_steps)
    return refine(problem, best)._replace(start_losses=losses)


def random_starts(key: PRNGKeyArray, n_starts: int, n_parameters: int) -> Array:
    """The prior's centre and random points around it [start, parameter]."""
    spread = START_SPREAD * jax.random.normal(key, (n_starts - 1, n_parameters))
    return jnp.concatenate([jnp.zeros((1, n_parameters)), spread])
