"""Fits that never saw some runs, and how far their predictions of them are off."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.calibration.coefficients import Coefficients, prior_medians
from jaxscale.fit.fitting import Attempt, calibration_record, moved
from jaxscale.fit.objective import Problem, predicted_logs, reweighted
from jaxscale.fit.parameters import Effect
from jaxscale.fit.polish import Solution
from jaxscale.fit.prepare import base_of
from jaxscale.fit.solve import refine
from jaxscale.runs.arrays import Measured


def without(
    measured: Measured,
    problem: Problem,
    effects: tuple[Effect, ...],
    kept: np.ndarray,
    parameters: Float[Array, " parameter"],
) -> Coefficients:
    """The fit of some of the runs as it would be shipped, so that what they do not show counts as never seen.

    Args:
        measured: all runs.
        problem: of fitting them from the priors.
        effects: its effects in parameter order.
        kept: which runs to fit [row].
        parameters: where to begin.

    Returns:
        The fitted coefficients with their record.
    """
    return fit_of(measured.take(kept), problem, effects, refine(reweighted(problem, kept), parameters))


def fit_of(fitted: Measured, problem: Problem, effects: tuple[Effect, ...], solution: Solution) -> Coefficients:
    """Coefficients of a solution with the record that the fitted runs leave."""
    attempt = Attempt(problem, effects, solution, np.zeros((len(fitted.batch), 2)))
    record = calibration_record("without", fitted, prior_medians(), attempt, "")
    return moved(prior_medians(), problem.parametrisation.spread, solution.parameters, record)


def log_residuals(measured: Measured, coefficients: Coefficients) -> np.ndarray:
    """Logs of predicted over measured step time and peak memory of each run; memory is nan where unknown [row, 2]."""
    batch = jax.tree.map(jnp.asarray, measured.batch)
    predicted = predicted_logs(batch, jnp.asarray(base_of(measured, coefficients)))
    found = (measured.step_time, measured.peak_memory)
    return np.stack([np.asarray(log) - np.log(value) for log, value in zip(predicted, found, strict=True)], axis=1)
