r"""Diagnostics of a fit from its Jacobian: leverage, influence, effective parameters, information criteria.

With J the Jacobian of the pseudo-residuals, priors included, and $C = (J^T J)^{-1}$, run i has the leverage
$h_i = J_i C J_i^T$; leaving it out moves the parameters by the Cook's distance $D_i = r_i^2 h_i / (1 - h_i)^2$, in
posterior standard deviations squared. The $h_i$ add up to the number of parameters that the runs and not the priors
decide.
References: Cook 1977, Technometrics 19, 15-18; Spiegelhalter et al. 2002, JRSS B 64, 583-639, section 4.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from jaxscale._compile import filter_jit
from jaxscale.fit.objective import DEGREES_OF_FREEDOM, MEMORY_SIGMA, Problem, residuals
from jaxscale.fit.solve import Solution

_jacobian = filter_jit(jax.jacfwd(residuals))


class Diagnostics(NamedTuple):
    """What each run does to a fit.

    Attributes:
        covariance: of the standardised parameters [parameter, parameter].
        leverage: share of each run's own time in its fitted time [row].
        cooks_distance: move of the parameters without the run, in posterior standard deviations squared [row].
        n_effective: parameters that the runs decide [1].
        aic: Akaike's criterion with the effective number of parameters [1].
        bic: Schwarz's [1].
    """

    covariance: np.ndarray
    leverage: np.ndarray
    cooks_distance: np.ndarray
    n_effective: float
    aic: float
    bic: float


def diagnose(problem: Problem, solution: Solution, n: int) -> Diagnostics:
    """Diagnostics of a solution.

    Args:
        problem: what was fitted.
        solution: where the optimiser ended.
        n: measured runs; rows after them are padding [1].

    Returns:
        The diagnostics.
    """
    with jax.enable_x64(True):
        jacobian = np.asarray(_jacobian(solution.parameters, problem))
        pseudo = np.asarray(residuals(solution.parameters, problem))
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    size = problem.log_time.shape[0]
    memory = np.asarray(problem.with_memory)
    leverages = np.sum(jacobian @ covariance * jacobian, axis=1)
    moved = pseudo**2 * leverages / np.maximum(1.0 - leverages, 1e-9) ** 2
    leverage, cook = leverages[:size].copy(), moved[:size].copy()
    has_memory = np.asarray(problem.has_memory) > 0.0
    np.add.at(cook, memory[has_memory], moved[size : size + len(memory)][has_memory])
    n_data = sum(float(weight.sum()) for weight in _weights(problem, n))
    n_effective = float(leverages[: size + len(memory)].sum())
    deviance = -2.0 * log_likelihood(problem, solution, n)
    aic, bic = deviance + 2.0 * n_effective, deviance + math.log(n_data) * n_effective
    return Diagnostics(covariance, leverage[:n], cook[:n], n_effective, aic, bic)


def log_likelihood(problem: Problem, solution: Solution, n: int) -> float:
    """Log likelihood of the measured logs of time and memory under Student's t [1]."""
    nu = DEGREES_OF_FREEDOM
    constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu * math.pi)
    errors = np.asarray(solution.log_residuals)
    with_memory = np.asarray(problem.with_memory)[np.asarray(problem.has_memory) > 0.0]
    total = 0.0
    time = (errors[:n, 0], np.asarray(problem.scatter)[:n])
    memory = (errors[with_memory, 1], np.full(len(with_memory), MEMORY_SIGMA))
    for (values, sigma), weight in zip((time, memory), _weights(problem, n), strict=True):
        square = (values / sigma) ** 2 / nu
        total += float(np.sum(weight * (constant - np.log(sigma) - 0.5 * (nu + 1.0) * np.log1p(square))))
    return total


def _weights(problem: Problem, n: int) -> tuple[np.ndarray, np.ndarray]:
    """What measured step times [row] and measured peaks [memory row] count in a fit [1]."""
    weight, with_memory = np.asarray(problem.weight), np.asarray(problem.with_memory)
    return weight[:n], weight[with_memory[np.asarray(problem.has_memory) > 0.0]]
