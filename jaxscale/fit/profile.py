r"""Profile-likelihood intervals: how far one coefficient can go while all others make the best of it.

The deviance of coefficient j at value v is $D_j(v) = 2 (\min_{\theta: \theta_j = v} F - \min F)$, F the negative log
posterior; the central 90 % interval ends where it reaches the 90 % quantile of chi-square with one degree of freedom.
Reference: Venzon & Moolgavkar 1988, Applied Statistics 37, 87-94, section 2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float, Int

from jaxscale._compile import filter_jit
from jaxscale.calibration import Z90
from jaxscale.fit.objective import Problem, loss, residuals
from jaxscale.fit.solve import levenberg_marquardt

POLISH_STEPS = 10
"""Levenberg-Marquardt steps of the other parameters at each trial value [1]."""

TRIALS = 6
"""Most trial values on each side; one would do for a parabola, but the deviance of some coefficients is far from one
[1]."""

NEAR_ENOUGH = 0.005
"""Change of the distance from the optimum by a trial at which no further one is made [1]."""

LEAST_RISE = 1e-6
"""Rise of the deviance that counts as none [1]."""

STEEPEST = 16.0
"""Largest power of the distance for which a rise is taken [1]."""

LARGEST_MOVE = 3.0
"""Factor by which one trial may change the distance from the optimum [1]."""


def deviance(
    index: Int[Array, ""], value: Float[Array, ""], start: Float[Array, " parameter"], problem: Problem
) -> tuple[Array, Array]:
    """Twice the negative log posterior, minimised over all parameters but one.

    Args:
        index: parameter that is held.
        value: at which it is held, in standard deviations of its prior [1].
        start: where the others begin [parameter].
        problem: what was fitted.

    Returns:
        The minimum [1], and where it lies [parameter].
    """

    def held(others: Array, problem: Problem) -> Array:
        return residuals(others.at[index].set(value), problem)[0]

    found = optx.least_squares(
        held, levenberg_marquardt(1e-4), start, args=problem, max_steps=POLISH_STEPS, throw=False
    )
    end = found.value.at[index].set(value)
    return 2.0 * loss(end, problem), end


def along_ridge(
    index: Int[Array, ""],
    distance: Float[Array, ""],
    optimum: Float[Array, " parameter"],
    covariance: Float[Array, "parameter parameter"],
    problem: Problem,
) -> Array:
    """Deviance with one parameter held some Laplace standard deviations from the optimum, the others on the ridge."""
    start = optimum + distance * covariance[index] / jnp.sqrt(covariance[index, index])
    return deviance(index, start[index], start, problem)[0]


class Trials(NamedTuple):
    """Search for where a deviance reaches its quantile.

    Attributes:
        distance: next trial [1].
        last: the trial before it, and the deviance's rise there; where none was made the optimum [1].
        below: farthest distance at which the deviance was below the quantile [1].
        above: nearest distance at which it was above [1].
        count: trials made [1].
    """

    distance: Array
    last: tuple[Array, Array]
    below: Array
    above: Array
    count: Array


def crossing(rise: Callable[[Array], Array]) -> Array:
    """Distance at which the rise of a deviance reaches the 90 % quantile.

    Each trial takes the rise for a power of the distance, of the exponent by which it grew from the trial before: two,
    a parabola's, at first, and more where a term that was hidden begins to show. What would leave the bracket of
    earlier trials gives way to its middle.

    Args:
        rise: of the deviance, by the distance from the optimum in standard deviations of the Laplace approximation.

    Returns:
        The distance [1].
    """

    def trial(now: Trials) -> Trials:
        before, rise_before = now.last
        rises = jnp.maximum(rise(now.distance), LEAST_RISE)
        grown = jnp.log(rises / rise_before) / jnp.log(now.distance / before)
        exponent = jnp.where(now.count == 0, 2.0, jnp.clip(grown, 1.0, STEEPEST))
        move = jnp.clip((Z90**2 / rises) ** (1.0 / exponent), 1.0 / LARGEST_MOVE, LARGEST_MOVE)
        is_below = rises < Z90**2
        below, above = jnp.where(is_below, now.distance, now.below), jnp.where(is_below, now.above, now.distance)
        following = now.distance * move
        is_inside = (below <= following) & (following <= above)
        following = jnp.where(is_inside, following, jnp.sqrt(below * above))
        return Trials(following, (now.distance, rises), below, above, now.count + 1)

    def is_far(now: Trials) -> Array:
        return (now.count < TRIALS) & (jnp.abs(now.distance / now.last[0] - 1.0) > NEAR_ENOUGH)

    first, optimum, endless = (jnp.asarray(distance) for distance in (Z90, 0.0, jnp.inf))
    begin = Trials(first, (optimum, jnp.asarray(LEAST_RISE)), optimum, endless, jnp.asarray(0))
    return jax.lax.while_loop(is_far, trial, begin).distance


@filter_jit
def profile_intervals(
    problem: Problem,
    optimum: Float[Array, " parameter"],
    covariance: Float[Array, "parameter parameter"],
    indices: Int[Array, " profiled"],
) -> Float[Array, "profiled 2"]:
    """Ends of the central 90 % intervals of some parameters.

    Args:
        problem: what was fitted.
        optimum: standardised parameters at the optimum [parameter].
        covariance: Laplace covariance there, which gives the first trial [parameter, parameter].
        indices: parameters to profile.

    Returns:
        Lower and upper ends, standardised [profiled, 2].
    """
    least = 2.0 * loss(optimum, problem)

    def end(index: Array, side: Array) -> Array:
        distance = crossing(lambda far: along_ridge(index, side * far, optimum, covariance, problem) - least)
        return optimum[index] + side * distance * jnp.sqrt(covariance[index, index])

    sides = jnp.asarray([-1.0, 1.0])
    return jax.lax.map(lambda index: jax.vmap(lambda side: end(index, side))(sides), indices)


@filter_jit
def profile_rises(
    problem: Problem,
    optimum: Float[Array, " parameter"],
    covariance: Float[Array, "parameter parameter"],
    index: Int[Array, ""],
    distances: Float[Array, " point"],
) -> Float[Array, " point"]:
    """Rise of the deviance along one parameter.

    Args:
        problem: what was fitted.
        optimum: standardised parameters at the optimum [parameter].
        covariance: Laplace covariance there, along whose ridge the others begin [parameter, parameter].
        index: parameter to profile.
        distances: from the optimum, in standard deviations of the Laplace approximation [point].

    Returns:
        Deviance above its least [point].
    """
    found = jax.vmap(lambda distance: along_ridge(index, distance, optimum, covariance, problem))(distances)
    return found - 2.0 * loss(optimum, problem)
