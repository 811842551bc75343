r"""Diagnostics of a fit from its Jacobian: leverage, influence, effective parameters, information criteria.

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
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.fitting.multistart import Solution
from jaxscale.fitting.objective import MEMORY_SIGMA, FitProblem, of_runs, standardised_errors, weights
from jaxscale.fitting.statistics.student import DEGREES_OF_FREEDOM, robust, student_loss


class Diagnostics(NamedTuple):
    """Leverage and influence of each run on a fit.

    Attributes:
        covariance: posterior covariance of the standardised parameters [parameter, parameter].
        leverage: sensitivity of the fitted log step time of each run to its measured log step time [row].
        cooks_distance: shift of the parameters on deletion of the run, in posterior standard deviations squared [row].
        n_effective: number of parameters determined by the runs [1].
        aic: Akaike's information criterion with the effective number of parameters [1].
        bic: Schwarz's information criterion with the effective number of parameters [1].
        jacobian: J of log step times and log peak memory by the parameters [entry, parameter].
        errors: r [entry].
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
        """Cook's distance of several runs together: shift of the parameters on deletion of all of the runs.

        Args:
            rows: positions of the runs.

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
    """Diagnostics of a solution.

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
    """Factors from the derivatives of pseudo-residuals of step time and peak memory to rows of J [entry]."""
    logs = jnp.asarray(solution.log_residuals)
    errors = jnp.concatenate(standardised_errors(logs[:, 0], logs[:, 1], problem))
    # Fisher information of Student's t about the mean, over a normal residual.
    information = (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + 3.0)
    return math.sqrt(information) / jax.vmap(jax.grad(robust))(errors)


def weights_of_measured(problem: FitProblem) -> tuple[Array, Array]:
    """Weights of measured step times [row] and of measured peaks [memory row]; weight 0 for bounds on the peak [1]."""
    time, memory = weights(problem)
    return time, memory * ~problem.is_bound


def log_likelihood(problem: FitProblem, solution: Solution) -> float:
    """Log likelihood under Student's t of measured log step times and peak memories, and of violated bounds [1]."""
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
