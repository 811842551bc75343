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
import jax.numpy as jnp
import numpy as np

from jaxscale._compile import filter_jit
from jaxscale.fit.objective import DEGREES_OF_FREEDOM, MEMORY_SIGMA, Problem, residuals, standardised_errors, weights
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
        n_data = sum(float(weight.sum()) for weight in weights(problem))
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    size = problem.log_time.shape[0]
    memory = np.asarray(problem.with_memory)
    leverages = np.sum(jacobian @ covariance * jacobian, axis=1)
    moved = pseudo**2 * leverages / np.maximum(1.0 - leverages, 1e-9) ** 2
    leverage, cook = leverages[:size].copy(), moved[:size].copy()
    has_memory = np.asarray(problem.has_memory) > 0.0
    np.add.at(cook, memory[has_memory], moved[size : size + len(memory)][has_memory])
    n_effective = float(leverages[: size + len(memory)].sum())
    deviance = -2.0 * log_likelihood(problem, solution)
    aic, bic = deviance + 2.0 * n_effective, deviance + math.log(n_data) * n_effective
    return Diagnostics(covariance, leverage[:n], cook[:n], n_effective, aic, bic)


def log_likelihood(problem: Problem, solution: Solution) -> float:
    """Log likelihood of the measured logs of time and memory under Student's t [1]."""
    nu = DEGREES_OF_FREEDOM
    constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu * math.pi)
    total = 0.0
    with jax.enable_x64(True):
        logs = jnp.asarray(solution.log_residuals)
        errors = standardised_errors(logs[:, 0], logs[:, 1], problem)
        for values, sigma, weight in zip(errors, (problem.scatter, MEMORY_SIGMA), weights(problem), strict=True):
            density = constant - jnp.log(sigma) - 0.5 * (nu + 1.0) * jnp.log1p(values**2 / nu)
            total += float(jnp.sum(weight * density))
    return total
