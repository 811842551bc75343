"""How much memory a plan may use, so that it runs out of it with at most a given probability."""

import math
from collections.abc import Mapping
from statistics import NormalDist

from jaxscale.calibration import Calibration
from jaxscale.coefficients import Coefficients


def memory_scatter(coefficients: Coefficients, levels: Mapping[str, str | None] | None = None) -> float:
    """Standard deviation of log peak memory of runs about the model: the fit's own, else that of unseen runs [1]."""
    record = coefficients.calibration or Calibration("none")
    return record.scatter_of(levels or {}).memory


def memory_limit(capacity: float, scatter: float, oom_probability: float) -> float:
    r"""Predicted peak up to which a run exceeds the chip's memory with at most the given probability.

    $M \exp(-\sigma z_{1-p})$ for log-normal scatter.

    Args:
        capacity: M, memory of the chip [byte].
        scatter: sigma of log peak memory [1].
        oom_probability: p [1].

    Returns:
        The limit [byte].
    """
    return capacity * math.exp(-scatter * NormalDist().inv_cdf(1.0 - oom_probability))
