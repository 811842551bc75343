"""What it says of memory that a run ended: its peak was at most what its chip has.

Most tables state step times alone. A run without a stated peak still bounds it, where its table says what was kept for
the backward pass: in a fit the predicted peak counts where it exceeds the chip's memory, by as much, and nowhere else
(a censored observation; Tobin 1958, Econometrica 26, 24-36).
"""

import jax.numpy as jnp
import numpy as np

from jaxscale.fit.objective import SHARP, compiled_logs_with_gradients
from jaxscale.runs.arrays import Measured, RunBatch, padded

NEAR_CAPACITY = 0.5
"""Peak over the chip's memory, as predicted before a fit, up to which it says nothing that a run ended: no fit moves a
prediction so far that it would bound it [1]."""


def log_use(batch: RunBatch, unconstrained: np.ndarray) -> np.ndarray:
    """Natural log of predicted peak memory over the chip's memory of some runs.

    Args:
        batch: the runs, at least one.
        unconstrained: their unconstrained coefficients [row, coefficient].

    Returns:
        Logs [1], [row].
    """
    n = len(batch)
    runs, rows = padded((batch, unconstrained), n)
    (_, log_peak), _ = compiled_logs_with_gradients(runs, rows, jnp.asarray(SHARP))
    return np.asarray(log_peak)[:n] - np.log(np.asarray(batch.cluster.chip.hbm_bytes))


def bounds_memory(measured: Measured, base: np.ndarray) -> np.ndarray:
    """Whether all that is known of the peak of each run is that it fitted, where that says something [row].

    Args:
        measured: the runs, all of which ended.
        base: their unconstrained coefficients before a fit [row, coefficient].

    Returns:
        Booleans [row].
    """
    bounds = np.isfinite(measured.peak_bound) & ~np.isfinite(measured.peak_memory)
    if bounds.any():
        bounds &= log_use(measured.batch, base) > np.log(NEAR_CAPACITY)
    return bounds
