r"""What a fit minimises: robust residuals of log step time, plus the priors.

With $r_i = \ln \hat t_i - \ln t_i$, scale $\sigma$, pooled parameters $z_p$, effects $e_j$, and minus the logarithm of
Student's t of $\nu$ degrees $\rho(x) = \frac{\nu + 1}{2} \ln(1 + x^2 / \nu)$, the negative log posterior is

$$ \sum_i w_i \, \rho\left(\frac{r_i}{\sigma}\right) + \frac12 \sum_p z_p^2 + \sum_j \rho(e_j) , $$

a sum of squares of the pseudo-residuals that `residuals` returns, fit for Gauss-Newton.
"""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxscale.calibration import table_of
from jaxscale.coefficients import MEMORY_COEFFICIENTS, names
from jaxscale.fit.batch import Measured, RunBatch
from jaxscale.fit.parameters import Parametrisation, constrain
from jaxscale.memory import memory
from jaxscale.runs.defaults import default_for
from jaxscale.step import step_time

DEGREES_OF_FREEDOM = 3.0
"""Student's nu, of runs and of effects: heavy tails carry mislabelled rows without letting them steer (Lange et al.
1989, section 5), and stacks that differ much in one thing without pulling the pool there (Gelman et al. 2013, Bayesian
Data Analysis, section 17.2) [1]."""


class Problem(eqx.Module):
    """A calibration problem.

    Attributes:
        batch: what ran [row].
        log_time: natural log of measured step times [ln s], [row].
        log_memory: natural log of measured peak memory [ln byte], 0 where none was measured [row].
        with_memory: positions of the rows with a measured peak, then padding [memory row].
        has_memory: 1 for those rows, 0 for the padding [memory row].
        base: unconstrained coefficients before the fit [row, coefficient].
        members: which effects apply to which row [row, effect].
        weight: weight of each row; 0 leaves it out [row].
        parametrisation: map from parameters to coefficients.
        scatter: sigma, relative scatter of a run's step time [1], [row].
        temperature: 0 for the model with its exact maxima, above 0 for their smooth forms [1].
    """

    batch: RunBatch
    log_time: Float[Array, " row"]
    log_memory: Float[Array, " row"]
    with_memory: Int[Array, " memory_row"]
    has_memory: Float[Array, " memory_row"]
    base: Float[Array, "row coefficient"]
    members: Float[Array, "row effect"]
    weight: Float[Array, " row"]
    parametrisation: Parametrisation
    scatter: Float[Array, " row"]
    temperature: float = eqx.field(static=True, default=0.0)


MEMORY_SIGMA = 0.06
"""Sigma of the log peak memory in a fit; that of step time is the `scatter` of its table [1]."""

ROW_BUCKETS = (128, 512, 1024, 1536, 2048, 3072, 3584, 4096, 6144, 8192, 16384, 32768, 65536, 262144)
"""Rows are padded with copies of weight 0 to one of these counts, so that few shapes are compiled [1]."""


def make_problem(
    measured: Measured, parametrisation: Parametrisation, base: np.ndarray, members: np.ndarray
) -> Problem:
    """A problem in which every row counts once, padded to a bucket of rows.

    Args:
        measured: the runs.
        parametrisation: map from parameters to coefficients.
        base: unconstrained coefficients before the fit [row, coefficient].
        members: which effects apply to which row [row, effect].

    Returns:
        The problem; its first `len(measured.batch)` rows are the measured ones.
    """
    n = len(measured.batch)
    size = next(bucket for bucket in ROW_BUCKETS if bucket >= n)
    rows = np.concatenate([np.arange(n), np.zeros(size - n, dtype=int)])
    weight = (np.arange(size) < n).astype(float)
    batch = jax.tree.map(jnp.asarray, measured.batch.take(rows))
    memory = np.asarray(measured.peak_memory)[rows]
    log_memory = jnp.asarray(np.log(np.where(np.isfinite(memory), memory, 1.0)))
    log_time = jnp.log(jnp.asarray(np.asarray(measured.step_time)[rows]))
    fixed = (jnp.asarray(base[rows]), jnp.asarray(members[rows]), jnp.asarray(weight))
    known = np.flatnonzero(np.isfinite(memory) & (weight > 0.0))
    room = next(bucket for bucket in ROW_BUCKETS if bucket >= max(len(known), 1))
    with_memory = jnp.asarray(np.concatenate([known, np.zeros(room - len(known))]).astype(int))
    has_memory = jnp.asarray((np.arange(room) < len(known)).astype(float))
    logs = (log_time, log_memory, with_memory, has_memory)
    scatter = time_scatter(measured.levels["source"])[rows]
    return Problem(batch, *logs, *fixed, parametrisation, jnp.asarray(scatter))


def time_scatter(sources: Sequence[str]) -> np.ndarray:
    """Sigma of the step time of runs of the given sources, from the defaults of their tables [1], [row]."""
    by_source = {source: default_for("scatter", None, table_of(source)) for source in set(sources)}
    return np.asarray([by_source[source] for source in sources])


def reweighted(problem: Problem, kept: np.ndarray) -> Problem:
    """The problem with only the kept rows counted [row of the measured ones]."""
    weight = np.zeros(problem.weight.shape)
    weight[: len(kept)] = kept
    return eqx.tree_at(lambda p: p.weight, problem, jnp.asarray(weight))


def smoothed(problem: Problem, temperature: float) -> Problem:
    """The problem with maxima of the model smoothed at a temperature [1]."""
    return dataclasses.replace(problem, temperature=temperature)


def predicted_logs(
    batch: RunBatch, unconstrained: Float[Array, "row coefficient"], temperature: float = 0.0
) -> tuple[Array, Array]:
    """Natural logs of predicted step time [ln s] and peak memory [ln byte] of each row [row]."""

    def one(run: RunBatch, row: Array) -> tuple[Array, Array]:
        arguments = (run.model, run.plan, run.cluster, constrain(row), temperature)
        return jnp.log(step_time(*arguments).total), jnp.log(memory(*arguments).total)

    return jax.vmap(one)(batch, unconstrained)


@jax.custom_jvp
def log_errors(parameters: Float[Array, " parameter"], problem: Problem) -> tuple[Array, Array]:
    """Predicted minus measured logs of step time [row] and of the peaks that were measured [memory row].

    Rows meet only in their coefficients, and linearly: the derivative is put together from one gradient per row.
    """
    rows = problem.parametrisation.rows(parameters, problem.base, problem.members)
    return _less_measured(predicted_logs(problem.batch, rows, problem.temperature), problem)


@log_errors.defjvp
def _log_errors_jvp(
    primals: tuple[Array, Problem], tangents: tuple[Array, Problem]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    parameters, problem = primals
    mapping, known = problem.parametrisation, problem.with_memory
    rows = mapping.rows(parameters, problem.base, problem.members)
    # Step time and memory have no coefficient in common: one backward pass of their sum holds both gradients.
    logs, pullback = jax.vjp(lambda u: predicted_logs(problem.batch, u, problem.temperature), rows)
    (gradient,) = pullback((jnp.ones_like(logs[0]), jnp.ones_like(logs[1])))
    is_memory = np.asarray([name in MEMORY_COEFFICIENTS for name in names()], dtype=float)
    by_time = mapping.row_jacobian(gradient * (1.0 - is_memory), problem.members)
    by_memory = mapping.row_jacobian(gradient[known] * is_memory, problem.members[known])
    return _less_measured(logs, problem), (by_time @ tangents[0], by_memory @ tangents[0])


def _less_measured(logs: tuple[Array, Array], problem: Problem) -> tuple[Array, Array]:
    time, memory = logs
    return time - problem.log_time, (memory - problem.log_memory)[problem.with_memory]


def log_residuals(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Predicted minus measured logs of step time and memory, 0 where no peak was measured [row, 2]."""
    time, memory = log_errors(parameters, problem)
    everywhere = jnp.zeros_like(time).at[problem.with_memory].add(memory * problem.has_memory)
    return jnp.stack([time, everywhere], axis=1)


def residuals(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Pseudo-residuals whose squares add up to twice the negative log posterior [row + memory row + parameter]."""
    weight = jnp.concatenate([problem.weight, problem.weight[problem.with_memory] * problem.has_memory])
    time, memory = log_errors(parameters, problem)
    scaled = jnp.concatenate([time / problem.scatter, memory / MEMORY_SIGMA])
    # The root of the weight is apart: a row of weight zero must not meet the infinite slope of sqrt(0).
    measured = jnp.sqrt(weight) * robust(scaled)
    n_pooled = problem.parametrisation.spread.shape[0]
    return jnp.concatenate([measured, parameters[:n_pooled], robust(parameters[n_pooled:])])


def robust(standardised: Array) -> Array:
    r"""Numbers whose squares are $2 \rho$ of standardised residuals or effects [1]."""
    nu = DEGREES_OF_FREEDOM
    square = standardised**2 / nu
    # log1p(x) / x stays smooth through zero, where the square root of the loss has a kink.
    ratio = jnp.where(square > 1e-8, jnp.log1p(square) / jnp.maximum(square, 1e-8), 1.0 - 0.5 * square)
    return standardised * jnp.sqrt((nu + 1.0) / nu * ratio)


def loss(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Negative log posterior, up to a constant [1]."""
    return 0.5 * jnp.sum(residuals(parameters, problem) ** 2)
