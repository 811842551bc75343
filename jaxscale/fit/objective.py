r"""What a fit minimises: robust residuals of log step time, plus the priors.

With $r_i = \ln \hat t_i - \ln t_i$ and Student's t of $\nu$ degrees and scale $\sigma$, the negative log posterior is

$$ \sum_i w_i \frac{\nu + 1}{2} \ln\left(1 + \frac{r_i^2}{\nu \sigma^2}\right) + \frac12 \sum_j \theta_j^2 , $$

a sum of squares of the pseudo-residuals that `residuals` returns, fit for Gauss-Newton.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.fit.batch import Measured, RunBatch
from jaxscale.fit.parameters import Parametrisation
from jaxscale.step import step_time

DEGREES_OF_FREEDOM = 3.0
"""Student's nu: heavy tails carry mislabelled rows without letting them steer (Lange et al. 1989, section 5) [1]."""


class Problem(eqx.Module):
    """A calibration problem.

    Attributes:
        batch: what ran [row].
        log_time: natural log of measured step times [ln s], [row].
        members: which effects apply to which row [row, effect].
        weight: weight of each row; 0 leaves it out [row].
        parametrisation: map from parameters to coefficients.
        scatter: sigma, relative scatter of a run [1].
    """

    batch: RunBatch
    log_time: Float[Array, " row"]
    members: Float[Array, "row effect"]
    weight: Float[Array, " row"]
    parametrisation: Parametrisation
    scatter: Float[Array, ""]


def make_problem(
    measured: Measured, parametrisation: Parametrisation, members: np.ndarray, scatter: float = 0.03
) -> Problem:
    """A problem in which every row counts once."""
    log_time = jnp.log(jnp.asarray(measured.step_time))
    batch = jax.tree.map(jnp.asarray, measured.batch)
    ones = jnp.ones_like(log_time)
    return Problem(batch, log_time, jnp.asarray(members), ones, parametrisation, jnp.asarray(scatter))


def predicted_log_time(
    batch: RunBatch, unconstrained: Float[Array, "row coefficient"], parametrisation: Parametrisation
) -> Array:
    """Natural log of the predicted step time of each row [ln s], [row]."""

    def one(run: RunBatch, row: Array) -> Array:
        return jnp.log(step_time(run.model, run.plan, run.cluster, parametrisation.constrain(row)).total)

    return jax.vmap(one)(batch, unconstrained)


def log_residuals(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Predicted minus measured log step time [row].

    The derivative is assembled from one gradient per row, since rows meet only in their coefficients, linearly.
    """
    return _log_residuals(parameters, problem)


@jax.custom_jvp
def _log_residuals(parameters: Array, problem: Problem) -> Array:
    rows = problem.parametrisation.rows(parameters, problem.members)
    return predicted_log_time(problem.batch, rows, problem.parametrisation) - problem.log_time


@_log_residuals.defjvp
def _log_residuals_jvp(primals: tuple[Array, Problem], tangents: tuple[Array, Problem]) -> tuple[Array, Array]:
    parameters, problem = primals
    rows = problem.parametrisation.rows(parameters, problem.members)

    def summed(unconstrained: Array) -> tuple[Array, Array]:
        log_time = predicted_log_time(problem.batch, unconstrained, problem.parametrisation)
        return jnp.sum(log_time), log_time

    gradient, log_time = jax.grad(summed, has_aux=True)(rows)
    jacobian = problem.parametrisation.row_jacobian(gradient, problem.members)
    return log_time - problem.log_time, jacobian @ tangents[0]


def residuals(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Pseudo-residuals whose squares add up to twice the negative log posterior [row + parameter]."""
    scaled = log_residuals(parameters, problem) / problem.scatter
    nu = DEGREES_OF_FREEDOM
    # log1p(x) / x stays smooth through zero, where the square root of the loss has a kink.
    square = scaled**2 / nu
    ratio = jnp.where(square > 1e-8, jnp.log1p(square) / jnp.maximum(square, 1e-8), 1.0 - 0.5 * square)
    # The root of the weight is apart: a row of weight zero must not meet the infinite slope of sqrt(0).
    robust = jnp.sqrt(problem.weight) * scaled * jnp.sqrt((nu + 1.0) / nu * ratio)
    return jnp.concatenate([robust, parameters])


def loss(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Negative log posterior, up to a constant [1]."""
    return 0.5 * jnp.sum(residuals(parameters, problem) ** 2)
