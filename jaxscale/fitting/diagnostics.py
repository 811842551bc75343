r"""Diagnostics of a fit: leverage and influence of runs, information criteria, profile-likelihood intervals.

A standardised residual e with the loss $\rho(e)$ of Student's t with $\nu$ degrees of freedom has the Fisher
information $I = (\nu + 1) / (\nu + 3)$ about its mean, relative to a normal residual. With E the Jacobian of the
residuals, $J_i = \sqrt{I} E_i$ and $r_i = \rho'(e_i) / \sqrt{I}$, the covariance of the parameters is
$C = (J^T J)^{-1}$, priors included (Fisher scoring; the pseudo-residuals of the solver would count a run as 0.91 for
0.67). Run i has the leverage $h_i = J_i C J_i^T$; deletion of run i moves the parameters by the Cook's distance
$D_i = r_i^2 h_i / (1 - h_i)^2$, in posterior standard deviations squared. The sum of the $h_i$ is the number of
parameters determined by the runs rather than by the priors.
References: Lange, Little & Taylor 1989, JASA 84, 881-896, appendix B (information of the t distribution); Cook 1977,
Technometrics 19, 15-18; Cook and Weisberg 1980, Technometrics 22, 495-508 (several runs); Spiegelhalter et al. 2002,
JRSS B 64, 583-639, section 4.

The profile of coefficient j reoptimises all others: its deviance at value v is
$D_j(v) = 2 (\min_{\theta: \theta_j = v} F - \min F)$, F the negative log posterior; the 90 % interval ends where the
deviance reaches the 90 % quantile of chi-square with one degree of freedom. Reference: Venzon & Moolgavkar 1988,
Applied Statistics 37, 87-94, section 2.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.intervals import Z90
from jaxscale.fitting.multistart import Held, Solution, Tolerance, minimised, one_blas_thread
from jaxscale.fitting.objective import MEMORY_SIGMA, SHARP, FitProblem, of_runs, smoothed, standardised_errors, weights
from jaxscale.fitting.statistics.student import DEGREES_OF_FREEDOM, robust, student_loss


class Diagnostics(NamedTuple):
    """Posterior covariance of a fit, leverage and influence of each run, and information criteria.

    Attributes:
        covariance: posterior covariance of the standardised parameters [parameter, parameter].
        leverage: derivative of the fitted log step time of each run by the run's measured log step time [1], [row].
        cooks_distance: shift of the parameters on deletion of the run, in posterior standard deviations squared [row].
        n_effective: number of parameters determined by the runs [1].
        aic: Akaike's information criterion with the effective number of parameters [1].
        bic: Schwarz's information criterion with the effective number of parameters [1].
        jacobian: J, scaled derivative of log step times and log peak memories by the parameters [entry, parameter].
        errors: r, scaled errors of log step times and log peak memories [entry].
        owner: run of each entry, -1 for padding [entry].
    """

    covariance: np.ndarray
    leverage: np.ndarray
    cooks_distance: np.ndarray
    n_effective: float
    aic: float
    bic: float
    jacobian: np.ndarray
    errors: np.ndarray
    owner: np.ndarray

    def without(self, rows: np.ndarray) -> float:
        """Cook's distance of a set of runs: shift of the parameters on deletion of the whole set.

        Args:
            rows: positions of the runs among the measured runs.

        Returns:
            The shift, in posterior standard deviations squared [1].
        """
        theirs = np.isin(self.owner, rows)
        jacobian = self.jacobian[theirs]
        # Woodbury identity in the parameter space: parameters are few, the deleted runs may be all runs.
        precision = np.linalg.inv(self.covariance)
        move = np.linalg.solve(precision - jacobian.T @ jacobian, jacobian.T @ self.errors[theirs])
        return float(move @ precision @ move)


def diagnose(problem: FitProblem, solution: Solution, n: int) -> Diagnostics:
    """Diagnostics of the optimum of a calibration problem.

    Args:
        problem: the fitted problem.
        solution: optimum of the problem.
        n: number of measured runs; rows after the first n are padding [1].

    Returns:
        The diagnostics.
    """
    logs, jacobian = jnp.asarray(solution.log_residuals), np.array(solution.jacobian)
    with jax.enable_x64(True):
        n_data = sum(float(jnp.sum(weight)) for weight in weights_of_measured(problem))
        scale = np.asarray(information_scale(problem, solution))
        errors = np.asarray(of_runs(logs[:, 0], logs[:, 1], problem)) / scale
    # Rows of runs: from pseudo-residuals to Fisher information.
    jacobian[: len(scale)] *= scale[:, None]
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    is_known = np.asarray(problem.has_memory) > 0.0
    size = problem.log_time.shape[0]
    jacobian = jacobian[: len(scale)]
    # h_i = J_i C J_i^T, without the whole product.
    leverages = np.sum(jacobian @ covariance * jacobian, axis=1)
    # A run alone in deciding a parameter has leverage 1.
    moved = errors**2 * leverages / np.maximum(1.0 - leverages, 1e-9) ** 2
    cook, with_memory = moved[:size].copy(), np.asarray(problem.with_memory)
    # A run has an entry for time and an entry for memory.
    np.add.at(cook, with_memory[is_known], moved[size:][is_known])
    n_effective = float(leverages.sum())
    deviance = -2.0 * log_likelihood(problem, solution)
    owner = np.concatenate([np.arange(size), np.where(is_known, with_memory, -1)])
    return Diagnostics(
        covariance=covariance,
        leverage=leverages[:n],
        cooks_distance=cook[:n],
        n_effective=n_effective,
        aic=deviance + 2.0 * n_effective,
        bic=deviance + math.log(n_data) * n_effective,
        jacobian=jacobian,
        errors=errors,
        owner=owner,
    )


def information_scale(problem: FitProblem, solution: Solution) -> Array:
    """Factors that turn derivatives of pseudo-residuals of step time and peak memory into rows of J [1], [entry]."""
    logs = jnp.asarray(solution.log_residuals)
    errors = jnp.concatenate(standardised_errors(logs[:, 0], logs[:, 1], problem))
    # Fisher information of Student's t about the mean, over a normal residual.
    information = (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + 3.0)
    return math.sqrt(information) / jax.vmap(jax.grad(robust))(errors)


def weights_of_measured(problem: FitProblem) -> tuple[Array, Array]:
    """Weights of measured step times [row] and of measured peaks [memory row]; 0 for bounds on a peak [1]."""
    time, memory = weights(problem)
    return time, memory * ~problem.is_bound


def log_likelihood(problem: FitProblem, solution: Solution) -> float:
    """Log likelihood of measured log step times, log peak memories and violated bounds, under Student's t [1]."""
    nu = DEGREES_OF_FREEDOM
    # Normalisation of Student's t.
    constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu * math.pi)
    total = 0.0
    with jax.enable_x64(True):
        logs = jnp.asarray(solution.log_residuals)
        errors = standardised_errors(logs[:, 0], logs[:, 1], problem)
        kinds = (errors, (problem.scatter, MEMORY_SIGMA), weights(problem), weights_of_measured(problem))
        for values, sigma, told, of_measured in zip(*kinds, strict=True):
            # A bound that holds has probability one and contributes nothing.
            total -= float(jnp.sum(told * student_loss(values)))
            total += float(jnp.sum(of_measured * (constant - jnp.log(sigma))))
    return total


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
    """Profile likelihood of a coefficient: deviance as a function of the coefficient.

    Attributes:
        values: values of the coefficient in its unit, ascending [point].
        rises: deviance above the minimum; 2.71 at the ends of a 90 % interval [1], [point].
        parabola: deviance above the minimum in the Laplace approximation, from the standard error [1], [point].
    """

    values: np.ndarray
    rises: np.ndarray
    parabola: np.ndarray


def deviance(index: int, value: float, start: Float[Array, " parameter"], problem: FitProblem) -> float:
    """Deviance with a parameter held fixed: twice the negative log posterior, minimised over all other parameters.

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
    """Rise of the deviance above the minimum, with a parameter held at a distance from the optimum.

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
    """Distance from the optimum at which the rise of the deviance reaches the 90 % quantile of chi-square.

    Each trial models the rise as a power of the distance, with the exponent of the growth since the last trial. A trial
    outside the bracket of earlier trials is replaced by the geometric middle of the bracket.

    Args:
        rise_at: rise of the deviance as a function of the distance, in standard deviations of the Laplace
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
    """Ends of the central 90 % intervals of parameters, by profile likelihood.

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
    """Whether the runs identify each pooled coefficient: posterior narrower than `IDENTIFIED_BELOW` times the prior."""
    return np.sqrt(np.diag(covariance))[: len(names())] < IDENTIFIED_BELOW


def standardised_intervals(
    problem: FitProblem, solution: Solution, covariance: Float[np.ndarray, "parameter parameter"]
) -> Float[np.ndarray, "coefficient 2"]:
    """Ends of the 90 % intervals of the pooled coefficients, in standard deviations of the prior.

    The ends come from the profile likelihood. The Laplace approximation replaces the profile for coefficients not
    identified by the runs, and for fits of more than `PROFILED_UP_TO` parameters.

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
    """Rise of the deviance along a parameter, from beyond the lower to beyond the upper end of the interval.

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
