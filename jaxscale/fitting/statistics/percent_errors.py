"""Absolute percentage errors from errors of logarithms, relative to the measured value."""

import numpy as np
from jaxtyping import Float


def mean_percent(log_errors: Float[np.ndarray, " row"]) -> float:
    """Mean absolute percentage error from predicted minus measured logarithms [%]; nan where any is nan."""
    return float(100.0 * np.mean(np.abs(np.expm1(log_errors))))


def median_percent(log_errors: Float[np.ndarray, " row"]) -> float:
    """Median absolute percentage error from predicted minus measured logarithms [%]; nan where any is nan."""
    return float(100.0 * np.median(np.abs(np.expm1(log_errors))))


class LogErrors:
    """Errors of a fit, in sample and held out.

    Attributes:
        residuals: logarithm of fitted over measured values [1], [row].
        held_out: logarithm of held-out predictions over measured values, nan without a prediction [1], [row].
    """

    residuals: np.ndarray
    held_out: np.ndarray

    @property
    def n(self) -> int:
        """Number of measured rows [1]."""
        return len(self.residuals)

    @property
    def mape_train(self) -> float:
        """Mean absolute percentage error in sample [%]."""
        return mean_percent(self.residuals)

    @property
    def mape_cv(self) -> float:
        """Mean absolute percentage error of held-out rows [%]; nan without held-out rows."""
        return mean_percent(self.held_out)

    @property
    def median_cv(self) -> float:
        """Median absolute percentage error of held-out rows [%]."""
        return median_percent(self.held_out)
