"""Sizes of errors of logarithms, in percent of the measured value."""

import numpy as np
from jaxtyping import Float


def mean_percent(log_errors: Float[np.ndarray, " row"]) -> float:
    """Mean absolute percentage error of predicted less measured logarithms [%]; nan where any is nan."""
    return float(100.0 * np.mean(np.abs(np.expm1(log_errors))))


def median_percent(log_errors: Float[np.ndarray, " row"]) -> float:
    """Median absolute percentage error of predicted less measured logarithms [%]; nan where any is nan."""
    return float(100.0 * np.median(np.abs(np.expm1(log_errors))))
