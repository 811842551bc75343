"""Minimisation: optax finds the valley from many starts, Levenberg-Marquardt of optimistix polishes the best."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optimistix as optx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxscale.fit.objective import Problem, loss, residuals

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
    """

    parameters: Float[Array, " parameter"]
    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    start_losses: Float[Array, " start"]
    converged: Array


def descend(start: Float[Array, " parameter"], problem: Problem, n_steps: int) -> Array:
    """Adam with a cosine schedule from one start [parameter]."""
    optimiser = optax.adam(optax.cosine_decay_schedule(0.1, n_steps), b2=0.99)

    def update(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], None]:
        parameters, state = carry
        gradient = jax.grad(loss)(parameters, problem)
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(parameters, updates), state), None  # pyright: ignore[reportReturnType]

    (parameters, _), _ = jax.lax.scan(update, (start, optimiser.init(start)), length=n_steps)
    return parameters


def polish(start: Float[Array, " parameter"], problem: Problem, max_steps: int = 60) -> tuple[Array, Array]:
    """Levenberg-Marquardt from one start; the best point seen [parameter], and whether it converged."""
    solver = optx.BestSoFarLeastSquares(optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6))
    solution = optx.least_squares(residuals, solver, start, args=problem, max_steps=max_steps, throw=False)
    return solution.value, solution.result == optx.RESULTS.successful


@eqx.filter_jit
def solve(
    problem: Problem, starts: Float[Array, "start parameter"], n_steps: int = 100, n_polished: int = 2
) -> Solution:
    """Fit from several starts.

    Args:
        problem: what to fit.
        starts: standardised starting points; the first is usually the prior's centre [start, parameter].
        n_steps: Adam steps of each start [1].
        n_polished: starts that Levenberg-Marquardt polishes [1].

    Returns:
        The best fit.
    """
    rough = jax.vmap(descend, in_axes=(0, None, None))(starts, problem, n_steps)
    rough_losses = jax.vmap(loss, in_axes=(0, None))(rough, problem)
    # A start that ran off into non-finite ground must never count as the best.
    order = jnp.argsort(jnp.where(jnp.isfinite(rough_losses), rough_losses, jnp.inf))[:n_polished]
    polished, converged = jax.lax.map(lambda start: polish(start, problem), rough[order])
    losses = jax.vmap(loss, in_axes=(0, None))(polished, problem)
    best = jnp.nanargmin(losses)
    value, gradient = jax.value_and_grad(loss)(polished[best], problem)
    return Solution(polished[best], value, jnp.max(jnp.abs(gradient)), rough_losses, converged[best])


def random_starts(key: PRNGKeyArray, n_starts: int, n_parameters: int) -> Array:
    """The prior's centre and random points around it [start, parameter]."""
    spread = START_SPREAD * jax.random.normal(key, (n_starts - 1, n_parameters))
    return jnp.concatenate([jnp.zeros((1, n_parameters)), spread])
