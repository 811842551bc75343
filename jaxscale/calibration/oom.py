"""Probability that a run exceeds the memory of its chip, and the peak up to which it does so with a given one."""

import math
from collections.abc import Mapping
from statistics import NormalDist

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import Calibration, MemoryLimit


def limit_of(coefficients: Coefficients, levels: Mapping[str, str | None] | None = None) -> MemoryLimit:
    """How much memory runs of the given levels may take: as their source's did, else all of it."""
    record = coefficients.calibration or Calibration("none")
    return record.memory_limit_of(levels or {}, record.scatter_of(levels or {}).memory)


def probability_of_oom(peak: float, capacity: float, limit: MemoryLimit) -> float:
    r"""Probability that a run exceeds the chip's memory.

    $\Phi\left(\ln\frac{M}{u C} / \sigma\right)$ for log-normal scatter.

    Args:
        peak: M, predicted peak memory [byte].
        capacity: C, memory of the chip [byte].
        limit: usable share u [1] and scatter sigma of the log [1].

    Returns:
        The probability [1].
    """
    return NormalDist().cdf(math.log(peak / (limit.usable * capacity)) / limit.scatter)


def memory_limit(capacity: float, limit: MemoryLimit, probability: float) -> float:
    r"""Predicted peak up to which a run exceeds the chip's memory with at most the given probability.

    $u C \exp(-\sigma z_{1-p})$, where `probability_of_oom` is p.

    Args:
        capacity: C, memory of the chip [byte].
        limit: usable share u [1] and scatter sigma of the log [1].
        probability: p [1].

    Returns:
        The limit [byte].
    """
    return limit.usable * capacity * math.exp(-limit.scatter * NormalDist().inv_cdf(1.0 - probability))
