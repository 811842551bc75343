r"""Objective of a fit: negative log posterior with robust residuals of log step time and log peak memory.

With $r_i = \ln \hat t_i - \ln t_i$, scale $\sigma$, pooled parameters $z_p$, effects $e_j$, and minus the logarithm of
Student's t of $\nu$ degrees of freedom $\rho(x) = \frac{\nu + 1}{2} \ln(1 + x^2 / \nu)$, the negative log posterior is

$$ \sum_i w_i \, \rho\left(\frac{r_i}{\sigma}\right) + \frac12 \sum_p z_p^2 + \sum_j \rho(e_j) , $$

half the sum of squares of the pseudo-residuals returned by `residuals`, as Gauss-Newton methods need.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxscale.base.jit import filter_jit
from jaxscale.base.smooth import Temperature
from jaxscale.calibration.coefficients import constrain
from jaxscale.calibration.levels import Levels, table_of
from jaxscale.costs.memory import Memory, memory
from jaxscale.costs.step import StepTime, step_time
from jaxscale.fitting.parameters import Parametrisation
from jaxscale.fitting.statistics.student import robust, robust_slope
from jaxscale.runs.arrays import Measured, RunBatch, bucket_of, padded
from jaxscale.runs.defaults import default_for

TEMPERATURE = 0.005
"""Smoothing temperature of the model's maxima on the way to the optimum [1].

Kinks at a maximum stop a solver that only accepts descents; along the smooth model the solver can pass a kink. The
optimum of the exact model is close by, and the search ends there. Pipeline stages hold whole layers up to pp = 64 at
the temperature.
"""

SHARP = 1e-7
"""Smoothing temperature at the end of the search [1]: equal to the exact model to far more digits than any measurement,
with the compiled code of the smooth model."""


MEMORY_SIGMA = 0.06
"""Sigma of log peak memory in a fit; sigma of log step time is the `scatter` of the table [1]."""


class FitProblem(eqx.Module):
    """Calibration problem: measured runs, priors and weights.

    Attributes:
        batch: measured runs [row].
        log_time: natural log of measured step times [ln s], [row].
        log_memory: natural log of measured peak memory, or of its bound [ln byte], 0 without either [row].
        with_memory: indices of the rows with a measured peak, then of rows with a bound, then padding [memory row].
        has_memory: 1 for rows with a peak or a bound, 0 for the padding [memory row].
        is_bound: whether the run is only known to fit, or to run out of memory, with `log_memory` the bound of its peak
            [memory row].
        ran_out: whether the bound is a lower bound, of a run out of memory [memory row].
        memory_members: rows `with_memory` of `members`, stored since a gather is slow [memory row, effect].
        base: log or logit of the coefficients before the fit [row, coefficient].
        members: 1 if the row has the level of the effect, else 0 [row, effect].
        weight: weight of each row; 0 leaves the row out [row].
        parametrisation: map from parameters to coefficients.
        scatter: sigma, relative scatter of a run's step time [1], [row].
        is_gaussian: whether effects have a Gaussian prior instead of a heavy-tailed prior.
        memory_scatter: sigma of the log peak memory [1].
        temperature: above 0 for the model with smooth maxima [1]; None for exact maxima.
    """

    batch: RunBatch
    log_time: Float[Array, " row"]
    log_memory: Float[Array, " row"]
    with_memory: Int[Array, " memory_row"]
    has_memory: Float[Array, " memory_row"]
    is_bound: Bool[Array, " memory_row"]
    ran_out: Bool[Array, " memory_row"]
    memory_members: Float[Array, "memory_row effect"]
    base: Float[Array, "row coefficient"]
    members: Float[Array, "row effect"]
    weight: Float[Array, " row"]
    parametrisation: Parametrisation
    scatter: Float[Array, " row"]
    temperature: Float[Array, ""] | None = None
    is_gaussian: bool = eqx.field(static=True, default=False)
    memory_scatter: float = eqx.field(static=True, default=MEMORY_SIGMA)

    @property
    def smoothing(self) -> Temperature:
        """Smoothing temperature of the cost model [1]."""
        return 0.0 if self.temperature is None else self.temperature

    def rows(self, parameters: Float[Array, " parameter"]) -> Array:
        """Log or logit of the coefficients of each row, for given standardised parameters [row, coefficient]."""
        return self.parametrisation.rows(parameters, self.base, self.members)


def make_problem(
    measured: Measured, parametrisation: Parametrisation, base: np.ndarray, members: np.ndarray, bounds: np.ndarray
) -> FitProblem:
    """Calibration problem of all measured rows, padded to a standard number of rows.

    Args:
        measured: the runs.
        parametrisation: map from parameters to coefficients.
        base: log or logit of the coefficients before the fit [row, coefficient].
        members: 1 if the row has the level of the effect, else 0 [row, effect].
        bounds: whether the peak of a row is known only by a bound [row].

    Returns:
        The problem, with the measured rows first and padding behind.
    """
    n = len(measured.batch)
    weight, scatter = information(measured), time_scatter(measured.levels)
    known, bounded = np.flatnonzero(np.isfinite(measured.peak_memory)), np.flatnonzero(bounds)
    memory = np.where(bounds, measured.peak_bound, measured.peak_memory)
    # Rows without a peak have log 0, masked below.
    logs = (np.log(np.asarray(measured.step_time)), np.log(np.where(np.isfinite(memory), memory, 1.0)))
    batch, (log_time, log_memory), base_rows, member_rows, weight, scatter = padded(
        (measured.batch, logs, base, members, weight, scatter), n
    )
    told = np.concatenate([known, bounded])
    place = np.arange(bucket_of(max(len(told), 1)))
    # Padding repeats row 0, with weight 0.
    with_memory = np.pad(told, (0, len(place) - len(told)))
    return FitProblem(
        batch=batch,
        log_time=log_time,
        log_memory=log_memory,
        with_memory=jnp.asarray(with_memory),
        has_memory=jnp.asarray((place < len(told)).astype(float)),
        is_bound=jnp.asarray((place >= len(known)) & (place < len(told))),
        ran_out=jnp.asarray(np.asarray(measured.ran_out)[with_memory]),
        memory_members=jnp.asarray(members[with_memory]),
        base=base_rows,
        members=member_rows,
        # Padded rows have weight 0.
        weight=weight * (jnp.arange(len(weight)) < n),
        parametrisation=parametrisation,
        scatter=scatter,
    )


def information(measured: Measured) -> np.ndarray:
    """Weight of each run in a fit, `min(1, parts / runs of the setup)` [1], [row].

    Step times of many runs, composed of a few timed parts, have no more information than the parts.
    """
    _, setup, runs = np.unique(measured.levels.column("source"), return_inverse=True, return_counts=True)
    # min(1, parts / runs of the setup)
    return np.minimum(1.0, np.asarray(measured.parts) / runs[setup])


def time_scatter(levels: Levels) -> np.ndarray:
    """Relative scatter sigma of the step time of each run, as stated for the table of its source [1], [row]."""

    def of_source(source: str) -> float:
        return default_for("scatter", None, table_of(source))

    return levels.numbers(of_source, "source", of_none=of_source(""))


def reweighted(problem: FitProblem, kept: np.ndarray) -> FitProblem:
    """Problem with the weight of each measured row multiplied by `kept` [row]."""
    share = np.zeros(problem.weight.shape)
    # Padding keeps weight 0.
    share[: len(kept)] = kept
    return eqx.tree_at(lambda p: p.weight, problem, problem.weight * jnp.asarray(share))


def smoothed(problem: FitProblem, temperature: float) -> FitProblem:
    """Problem with the maxima of the cost model smoothed at a temperature."""
    return dataclasses.replace(problem, temperature=jnp.asarray(temperature))


def log_totals(
    costs: Callable[..., StepTime | Memory],
    batch: RunBatch,
    rows: Float[Array, "row coefficient"],
    temperature: Temperature,
) -> Array:
    """Natural logs of predicted `step_time` [ln s] or `memory` [ln byte] of each row [row].

    Memory has the definition of the row's measurement.
    """

    def one(run: RunBatch, row: Array) -> Array:
        found = costs(run.model, run.plan, run.cluster, constrain(row), temperature)
        return jnp.log(found.measured(run.counted) if isinstance(found, Memory) else found.total)

    return jax.vmap(one)(batch, rows)


@eqx.filter_jit
def predicted_logs(
    batch: RunBatch, unconstrained: Float[Array, "row coefficient"], temperature: Temperature = 0.0
) -> tuple[Array, Array]:
    """Natural logs of predicted step time [ln s] and peak memory [ln byte] of each row [row]."""
    time, peak = (log_totals(costs, batch, unconstrained, temperature) for costs in (step_time, memory))
    return time, peak


@eqx.filter_jit
def logs_with_gradients(
    batch: RunBatch, unconstrained: Float[Array, "row coefficient"], temperature: Temperature
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Predicted logs of time and memory [row], with gradients by the row's coefficients [row, coefficient].

    A separate `jit` lets all calling programs share a single trace of the model and the backward pass.
    """
    time, of_time = jax.vjp(lambda u: log_totals(step_time, batch, u, temperature), unconstrained)
    peak, of_peak = jax.vjp(lambda u: log_totals(memory, batch, u, temperature), unconstrained)
    # Each row depends on the coefficients of the row alone: a sum gives all gradients.
    return (time, peak), (of_time(jnp.ones_like(time))[0], of_peak(jnp.ones_like(peak))[0])


class RowErrors(NamedTuple):
    """Predicted minus measured logs of each row, and their derivatives by the coefficients of the row.

    Attributes:
        time: predicted minus measured log step time [row].
        memory: predicted minus measured log peak memory [row].
        by_time: derivatives of `time` by log or logit of the coefficients [row, coefficient].
        by_memory: derivatives of `memory` by log or logit of the coefficients [row, coefficient].
    """

    time: Float[Array, " row"]
    memory: Float[Array, " row"]
    by_time: Float[Array, "row coefficient"]
    by_memory: Float[Array, "row coefficient"]


compiled_logs_with_gradients = filter_jit(logs_with_gradients)
"""`logs_with_gradients` as a compiled program. Compilation takes longer than that of any further program of a fit:
all callers therefore evaluate the model here, outside of their own programs, with the temperature as an array, and
share the program among problems with equal numbers of rows."""

_rows = filter_jit(FitProblem.rows)


def errors_at(parameters: Float[Array, " parameter"], problem: FitProblem) -> RowErrors:
    """Errors of all rows at given parameters, with derivatives; called outside of compiled solver programs."""
    answer = compiled_logs_with_gradients(problem.batch, _rows(problem, parameters), problem.smoothing)
    return _minus_measured(answer, problem)


def _minus_measured(answer: tuple[tuple[Array, Array], tuple[Array, Array]], problem: FitProblem) -> RowErrors:
    (time, memory), gradients = answer
    return RowErrors(time - problem.log_time, memory - problem.log_memory, *gradients)


@jax.custom_jvp
def row_errors(rows: Float[Array, "row coefficient"], problem: FitProblem) -> tuple[Array, Array]:
    """Predicted minus measured logs of step time [row] and peak memory [row], from the coefficients of each row."""
    time, memory = predicted_logs(problem.batch, rows, problem.smoothing)
    return time - problem.log_time, memory - problem.log_memory


@row_errors.defjvp
def _row_errors_jvp(
    primals: tuple[Array, FitProblem], tangents: tuple[Array, FitProblem]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    rows, problem = primals
    found = _minus_measured(logs_with_gradients(problem.batch, rows, problem.smoothing), problem)
    # A row's change is the slope times the change of the row's coefficients.
    changes = (jnp.sum(found.by_time * tangents[0], axis=1), jnp.sum(found.by_memory * tangents[0], axis=1))
    return (found.time, found.memory), changes


def log_residuals(parameters: Float[Array, " parameter"], problem: FitProblem) -> Array:
    """Predicted minus measured logs of step time and memory [row, 2].

    Without a measured peak, the memory residual is the violation of a bound (log of predicted peak over chip memory),
    or 0 without a violation.
    """
    return _log_residuals(*row_errors(problem.rows(parameters), problem), problem)


def _log_residuals(time: Float[Array, " row"], memory: Float[Array, " row"], problem: FitProblem) -> Array:
    """Residuals of `log_residuals` from the errors of all rows [row, 2]."""
    return _by_row(time, beyond_bound(memory[problem.with_memory], problem), problem)


def _by_row(time: Float[Array, " row"], memory: Float[Array, " memory_row"], problem: FitProblem) -> Array:
    """Values of step times and of known peaks or bounds side by side, 0 without a peak or bound [row, 2]."""
    # Padding adds 0 to row 0.
    told = jnp.zeros_like(time).at[problem.with_memory].add(problem.has_memory * memory)
    return jnp.stack([time, told], axis=1)


def beyond_bound(memory: Float[Array, " memory_row"], problem: FitProblem) -> Array:
    """Errors of log peak memory, with 0 for bounds that hold [memory row]."""
    is_kept = jnp.where(problem.ran_out, memory > 0.0, memory < 0.0)
    return jnp.where(problem.is_bound & is_kept, 0.0, memory)


def pseudo_residuals(parameters: Float[Array, " parameter"], problem: FitProblem) -> Array:
    """Residuals with a sum of squares of twice the negative log posterior [row + memory row + parameter]."""
    return _pseudo_residuals(*row_errors(problem.rows(parameters), problem), parameters, problem)


def _pseudo_residuals(time: Array, memory: Array, parameters: Array, problem: FitProblem) -> Array:
    """Pseudo-residuals from the errors of all rows [row + memory row + parameter]."""
    return jnp.concatenate([of_runs(time, memory, problem), *of_priors(parameters, problem)])


def of_runs(time: Float[Array, " row"], memory: Float[Array, " row"], problem: FitProblem) -> Array:
    """Pseudo-residuals of the runs, from errors of log step time and log peak memory [row + memory row]."""
    errors = zip(_root_weights(problem), standardised_errors(time, memory, problem), strict=True)
    return jnp.concatenate([count * robust(error) for count, error in errors])


def of_priors(parameters: Float[Array, " parameter"], problem: FitProblem) -> tuple[Array, Array]:
    """Pseudo-residuals of the priors of pooled coefficients and of effects [parameter]."""
    n_pooled = problem.parametrisation.spread.shape[0]
    effects = parameters[n_pooled:]
    # Effects of the centre are normal, offsets heavy-tailed.
    return parameters[:n_pooled], effects if problem.is_gaussian else robust(effects)


@jax.custom_jvp
def residuals(parameters: Float[Array, " parameter"], problem: FitProblem, errors: RowErrors) -> tuple[Array, Array]:
    """Pseudo-residuals with a fast Jacobian for solvers, and the `log_residuals`.

    The coefficients of a row are linear in the parameters. The Jacobian is therefore assembled from the gradients of
    the rows by the row's coefficients.

    Args:
        parameters: standardised parameters [parameter].
        problem: the problem to fit.
        errors: errors at these parameters, from `errors_at`.

    Returns:
        Pseudo-residuals [row + memory row + parameter] and log residuals [row, 2].
    """
    values = _pseudo_residuals(errors.time, errors.memory, parameters, problem)
    return values, _log_residuals(errors.time, errors.memory, problem)


@residuals.defjvp
def _residuals_jvp(
    primals: tuple[Array, FitProblem, RowErrors], tangents: tuple[Array, FitProblem, RowErrors]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (parameters, problem, errors), tangent = primals, tangents[0]
    mapping, known, n_pooled = problem.parametrisation, problem.with_memory, problem.parametrisation.spread.shape[0]
    standardised, counts = standardised_errors(errors.time, errors.memory, problem), _root_weights(problem)
    slope_of_time, slope_of_memory = (robust_slope(values) for values in standardised)
    change = mapping.row_jacobian(errors.by_time, problem.members) @ tangent
    change_of_memory = mapping.row_jacobian(errors.by_memory[known], problem.memory_members) @ tangent
    # A bound that holds has an error of exactly zero, and no gradient.
    change_of_memory = jnp.where(problem.is_bound & (standardised[1] == 0.0), 0.0, change_of_memory)
    changes = (
        # Chain rule: pseudo-residual by error, error by parameters.
        counts[0] * slope_of_time / problem.scatter * change,
        counts[1] * slope_of_memory / problem.memory_scatter * change_of_memory,
        tangent[:n_pooled],
        tangent[n_pooled:] * (1.0 if problem.is_gaussian else robust_slope(parameters[n_pooled:])),
    )
    return residuals(*primals), (jnp.concatenate(changes), _by_row(change, change_of_memory, problem))


def standardised_errors(time: Array, memory: Array, problem: FitProblem) -> tuple[Array, Array]:
    """Errors of log step time [row] and of log peak memory or bound [memory row], divided by the scatter [1]."""
    return time / problem.scatter, beyond_bound(memory[problem.with_memory], problem) / problem.memory_scatter


def weights(problem: FitProblem) -> tuple[Array, Array]:
    """Weights of step times [row] and of peaks or bounds [memory row]; 0 for padding [1]."""
    return problem.weight, problem.weight[problem.with_memory] * problem.has_memory


def _root_weights(problem: FitProblem) -> tuple[Array, Array]:
    """Square roots of the weights of step times [row] and of peaks or bounds [memory row].

    The roots are computed apart from the errors: a row of weight zero must not meet the infinite slope of sqrt(0).
    """
    time, memory = weights(problem)
    return jnp.sqrt(time), jnp.sqrt(memory)


def loss(parameters: Float[Array, " parameter"], problem: FitProblem) -> Array:
    """Negative log posterior, up to a constant [1]."""
    return 0.5 * jnp.sum(pseudo_residuals(parameters, problem) ** 2)


def search_loss(parameters: Float[Array, " parameter"], problem: FitProblem, errors: RowErrors) -> Array:
    """Negative log posterior of step times without peak memory, for the search for minima [1].

    Args:
        parameters: standardised parameters [parameter].
        problem: the problem to fit.
        errors: errors and derivatives at these parameters, from `errors_at`.

    Returns:
        The loss [1].
    """
    rows = problem.rows(parameters)
    # Linear in the rows: value of the errors, slope of `by_time`.
    time = errors.time + jnp.sum(errors.by_time * (rows - jax.lax.stop_gradient(rows)), axis=1)
    of_runs = jnp.sum(problem.weight * robust(time / problem.scatter) ** 2)
    return 0.5 * (of_runs + sum(jnp.sum(part**2) for part in of_priors(parameters, problem)))
