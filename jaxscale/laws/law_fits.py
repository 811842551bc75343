"""Laws of the batch from measured runs: the critical batch, and a power law of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxscale.base.errors import InputError

Column = Sequence[float] | np.ndarray
"""Numbers of several runs."""


class CriticalBatch(NamedTuple):
    """The trade of steps against tokens at one target loss.

    Attributes:
        steps: fewest steps, with very large batches [1].
        tokens: fewest tokens, with very small batches [token].
        critical: batch that takes twice of both [token].
        misfit: largest relative error of the steps [1].
    """

    steps: float
    tokens: float
    critical: float
    misfit: float


def fit_critical_batch(batch_tokens: Column, steps: Column) -> CriticalBatch:
    r"""Critical batch from steps to one loss at several batches: $S = S_\mathrm{min} + E_\mathrm{min} / B$.

    The same as $(S / S_\mathrm{min} - 1)(E / E_\mathrm{min} - 1) = 1$ with E = S B (McCandlish et al. 2018, equation
    2.7), fitted by least squares of the relative error.

    Args:
        batch_tokens: B [token], [run].
        steps: S [1], [run].

    Returns:
        The trade and the critical batch.

    Raises:
        InputError: no trade in the runs: an extreme comes out negative.
    """
    batch, count = np.asarray(batch_tokens, float), np.asarray(steps, float)
    rows = np.stack([1.0 / count, 1.0 / (batch * count)], axis=1)
    scale = np.linalg.norm(rows, axis=0)
    (least_steps, least_tokens), *_ = np.linalg.lstsq(rows / scale, np.ones_like(count), rcond=None)
    least_steps, least_tokens = least_steps / scale[0], least_tokens / scale[1]
    if not (least_steps > 0.0 and least_tokens > 0.0):
        raise InputError("fit_critical_batch: the runs show no trade of steps against tokens; expected a wider range")
    misfit = np.abs((least_steps + least_tokens / batch) / count - 1.0).max()
    return CriticalBatch(float(least_steps), float(least_tokens), float(least_tokens / least_steps), float(misfit))


def power_law(x: Column, y: Column, error: Column | None = None) -> tuple[float, float, float]:
    """Coefficient c, exponent p and standard error of p of y = c x^p, by least squares in logarithms.

    Args:
        x: positive numbers [point].
        y: positive numbers [point].
        error: standard errors of ln y, whose inverse squares weigh the points; equal weights where None [point].
    """
    log_x, log_y = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    weight = np.ones_like(log_x) if error is None else 1.0 / np.asarray(error, float)
    (slope, start), covariance = np.polyfit(log_x, log_y, 1, w=weight, cov="unscaled")
    scatter = np.sum((weight * (log_y - start - slope * log_x)) ** 2) / max(len(log_x) - 2, 1)
    return float(np.exp(start)), float(slope), float(np.sqrt(scatter * covariance[0, 0]))
