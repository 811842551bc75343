r"""Profile-likelihood intervals: range of a coefficient with all other coefficients reoptimised.

The deviance of coefficient j at value v is $D_j(v) = 2 (\min_{\theta: \theta_j = v} F - \min F)$, F the negative log
posterior; the central 90 % interval ends where the deviance reaches the 90 % quantile of chi-square with one degree of
freedom. Reference: Venzon & Moolgavkar 1988, Applied Statistics 37, 87-94, section 2.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.intervals import Z90
from jaxscale.fitting.multistart import Held, Solution, Tolerance, minimised, one_blas_thread
from jaxscale.fitting.objective import SHARP, FitProblem, smoothed

NEAR = Tolerance(1e-4, 1e-3)
"""Tolerance of the free parameters at each trial value."""

TRIALS = 6
"""Maximum number of trial values on each side; a parabola needs a single trial, but the deviance of several
coefficients is far from a parabola [1]."""

NEAR_ENOUGH = 0.005
"""Relative change of the distance from the optimum by a trial at which the search ends [1]."""

LEAST_RISE = 1e-6
"""Smallest rise of the deviance; a smaller rise counts as zero [1]."""

STEEPEST = 16.0
"""Largest exponent of the distance in the power law of the rise [1]."""

LARGEST_MOVE = 3.0
"""Largest factor on the distance from the optimum in a trial [1]."""


IDENTIFIED_BELOW = 0.7
"""Posterior spread over prior spread below which a coefficient counts as identified [1]."""

PROFILED_UP_TO = 400
"""Maximum number of parameters, effects included, for intervals from profiles [1]."""

PROFILE_REACH = 1.5
"""Reach of a profile to both sides of the optimum, over the ends of the 90 % interval [1]."""


class Profile(NamedTuple):
    """Profile likelihood of a coefficient.

    Attributes:
        values: in the coefficient's unit, ascending [point].
        rises: deviance above its minimum; 2.71 at the ends of a 90 % interval [1], [point].
        parabola: deviance above its minimum in the Laplace approximation, from the standard error [1], [point].
    """

    values: np.ndarray
    rises: np.ndarray
    parabola: np.ndarray


def deviance(index: int, value: float, start: Float[Array, " parameter"], problem: FitProblem) -> float:
    """Twice the negative log posterior, minimised over all parameters but one.

    Args:
        index: index of the held parameter.
        value: held value, in standard deviations of the prior [1].
        start: starting point of the free parameters [parameter].
        problem: the fitted problem.

    Returns:
        The minimum [1].
    """
    return 2.0 * float(minimised(start, smoothed(problem, SHARP), NEAR, Held(index, value)).loss)


def rise(
    index: int,
    distance: float,
    problem: FitProblem,
    solution: Solution,
    covariance: Float[np.ndarray, "parameter parameter"],
) -> float:
    """Rise of the deviance with a parameter held at a distance from the optimum in Laplace standard deviations.

    The free parameters start on the ridge of the Laplace approximation.

    Args:
        index: index of the held parameter.
        distance: distance from the optimum, in standard deviations of the Laplace approximation [1].
        problem: the fitted problem.
        solution: optimum of the problem.
        covariance: Laplace covariance at the optimum [parameter, parameter].

    Returns:
        Deviance above the minimum [1].
    """
    # Free parameters move along the ridge: covariance / standard deviation.
    start = solution.parameters + distance * covariance[index] / math.sqrt(covariance[index, index])
    return deviance(index, float(start[index]), start, problem) - 2.0 * float(solution.loss)


def crossing(rise_at: Callable[[float], float]) -> float:
    """Distance at which the rise of a deviance reaches the 90 % quantile.

    Each trial models the rise as a power of the distance, with the exponent of the growth since the last trial. A trial
    outside the bracket of earlier trials is replaced by the geometric middle of the bracket.

    Args:
        rise_at: rise of the deviance by the distance from the optimum in standard deviations of the Laplace
            approximation.

    Returns:
        The distance [1].
    """
    # A parabola crosses at Z90, with exponent 2; more where a hidden term begins to show.
    distance, below, above = Z90, 0.0, math.inf
    exponent, before = 2.0, None
    for _ in range(TRIALS):
        risen = max(rise_at(distance), LEAST_RISE)
        if before is not None:
            # Exponent of the growth between the last two trials.
            grown = math.log(risen / before[1]) / math.log(distance / before[0])
            exponent = min(max(grown, 1.0), STEEPEST)
        # Factor on the distance by the power law of the rise.
        move = (Z90**2 / risen) ** (1.0 / exponent)
        below, above = (distance, above) if risen < Z90**2 else (below, distance)
        following = distance * min(max(move, 1.0 / LARGEST_MOVE), LARGEST_MOVE)
        if not below <= following <= above:
            following = math.sqrt(below * above)
        distance, before = following, (distance, risen)
        if abs(distance / before[0] - 1.0) <= NEAR_ENOUGH:
            break
    return distance


def profile_intervals(
    problem: FitProblem,
    solution: Solution,
    covariance: Float[np.ndarray, "parameter parameter"],
    indices: Sequence[int],
) -> Float[np.ndarray, "profiled 2"]:
    """Ends of the central 90 % intervals of parameters by profile likelihood.

    Args:
        problem: the fitted problem.
        solution: optimum of the problem.
        covariance: Laplace covariance at the optimum, for the first trial [parameter, parameter].
        indices: parameters to profile.

    Returns:
        Lower and upper ends, standardised [profiled, 2].
    """

    def end(index: int, side: float) -> float:
        far = crossing(lambda distance: rise(index, side * distance, problem, solution, covariance))
        return float(solution.parameters[index]) + side * far * math.sqrt(covariance[index, index])

    return np.asarray([(end(index, -1.0), end(index, 1.0)) for index in indices]).reshape(-1, 2)


def identified(covariance: Float[np.ndarray, "parameter parameter"]) -> Bool[np.ndarray, " coefficient"]:
    """Whether the posterior of each pooled coefficient is narrower than `IDENTIFIED_BELOW` of its prior."""
    return np.sqrt(np.diag(covariance))[: len(names())] < IDENTIFIED_BELOW


def standardised_intervals(
    problem: FitProblem, solution: Solution, covariance: Float[np.ndarray, "parameter parameter"]
) -> Float[np.ndarray, "coefficient 2"]:
    """Ends of the 90 % intervals of the standardised pooled coefficients.

    The ends come from the profile likelihood. The Laplace approximation replaces the profile for coefficients that rest
    on their prior, and for pooled fits of more than `PROFILED_UP_TO` parameters.

    Args:
        problem: the fitted problem.
        solution: optimum of the problem.
        covariance: Laplace covariance at the optimum [parameter, parameter].

    Returns:
        Lower and upper ends [coefficient, 2].
    """
    count, centre = len(names()), np.asarray(solution.parameters)
    half = Z90 * np.sqrt(np.diag(covariance))[:count]
    # Laplace approximation, replaced by profiles below.
    ends = centre[:count, None] + half[:, None] * np.asarray([-1.0, 1.0])
    # On the prior alone the two agree; profiles of large pooled fits would take an hour.
    indices = np.flatnonzero(identified(covariance))
    if len(centre) <= PROFILED_UP_TO and len(indices):
        with jax.enable_x64(True), one_blas_thread():
            ends[indices] = profile_intervals(problem, solution, covariance, indices.tolist())
    return ends


def profiled(
    index: int,
    interval: Float[np.ndarray, "2"],
    problem: FitProblem,
    solution: Solution,
    covariance: Float[np.ndarray, "parameter parameter"],
) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    """Rises of the deviance along a parameter, to beyond the ends of its interval.

    Args:
        index: index of the held parameter.
        interval: 90 % interval of the parameter, standardised.
        problem: the fitted problem.
        solution: optimum of the problem.
        covariance: Laplace covariance at the optimum [parameter, parameter].

    Returns:
        Distances from the optimum in standard deviations of the Laplace approximation [1], [point]; rises [1], [point].
    """
    error = math.sqrt(covariance[index, index])
    low, high = PROFILE_REACH * (interval - float(solution.parameters[index])) / error
    # The optimum ends each half.
    distances = np.unique(np.concatenate([np.linspace(low, 0.0, 7), np.linspace(0.0, high, 7)]))
    with jax.enable_x64(True), one_blas_thread():
        rises = [rise(index, distance, problem, solution, covariance) for distance in distances.tolist()]
    return distances, np.asarray(rises)
