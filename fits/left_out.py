"""Fits that never saw some runs, and how far their predictions of them are off."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.calibration.record import Fit, load_fit
from jaxscale.fitting.fit_record import Attempt, base_of, fit_record
from jaxscale.fitting.multistart import Solution, refine
from jaxscale.fitting.objective import FitProblem, predicted_logs, reweighted
from jaxscale.fitting.parameters import Effect
from jaxscale.runs.arrays import Measured


def without(
    measured: Measured,
    problem: FitProblem,
    effects: tuple[Effect, ...],
    kept: np.ndarray,
    parameters: Float[Array, " parameter"],
) -> Fit:
    """The fit of some of the runs as it would be shipped, so that what they do not show counts as never seen.

    Args:
        measured: all runs.
        problem: of fitting them from the priors.
        effects: its effects in parameter order.
        kept: which runs to fit [row].
        parameters: where to begin.

    Returns:
        The fit.
    """
    return recorded(measured.take(kept), problem, effects, refine(reweighted(problem, kept), parameters))


def recorded(fitted: Measured, problem: FitProblem, effects: tuple[Effect, ...], solution: Solution) -> Fit:
    """Fit of a solution, as the fitted runs leave it."""
    attempt = Attempt(problem, effects, solution, np.zeros((len(fitted.batch), 2)))
    return fit_record("without", fitted, load_fit("prior"), attempt, "")


def log_residuals(measured: Measured, fit: Fit) -> np.ndarray:
    """Logs of predicted over measured step time and peak memory of each run; memory is nan where unknown [row, 2]."""
    batch = jax.tree.map(jnp.asarray, measured.batch)
    predicted = predicted_logs(batch, jnp.asarray(base_of(measured, fit)))
    found = (measured.step_time, measured.peak_memory)
    return np.stack([np.asarray(log) - np.log(value) for log, value in zip(predicted, found, strict=True)], axis=1)
