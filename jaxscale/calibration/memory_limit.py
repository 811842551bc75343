"""Probability of running out of memory, and the largest predicted peak at a given probability."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

ACCEPTED_RISK = 0.1
"""Default limit of the probability of running out of memory for a plan [1]."""

LIKELY = 0.5
"""Probability of running out of memory below which a plan is more likely to fit than not [1]."""

NEAR = 1.5
"""Largest time of an alternative plan relative to that of the best plan [1]."""


@dataclass(frozen=True)
class MemoryLimit:
    """Usable share of a chip's memory for the runs of a source, with the uncertainty of the share.

    Attributes:
        source: source of the runs; empty for all sources.
        usable: predicted peak at which half of the runs run out of memory, relative to the chip's memory [1].
        scatter: standard deviation of the log peak of runs about the limit [1].
    """

    source: str
    usable: Any
    scatter: Any


def probability_of_oom(peak: Any, capacity: Any, limit: MemoryLimit) -> Any:
    r"""Probability that the peak memory of a run exceeds the usable memory of the chip, for log-normal scatter.

    $p = \Phi\left(\ln\frac{M}{u C} / \sigma\right)$.

    Args:
        peak: M, predicted peak memory, a number or a number per run [byte], [row].
        capacity: C, memory of the chip [byte], [row].
        limit: usable share u [1] and scatter sigma of the log [1], [row].

    Returns:
        The probability [1], [row].
    """
    return normal_probability(np.log(np.asarray(peak) / (limit.usable * np.asarray(capacity))) / limit.scatter)


def normal_probability(deviates: Any) -> np.ndarray:
    r"""Cumulative normal distribution, $\Phi(z) = \mathrm{erfc}(-z / \sqrt 2) / 2$ [1].

    Args:
        deviates: z, a number or an array of any shape [1].

    Returns:
        Probabilities, of the same shape [1].
    """
    # The standard library has the error function; importing scipy takes as long as predicting a table.
    complements = np.frompyfunc(math.erfc, 1, 1)(-np.asarray(deviates) / math.sqrt(2.0))
    return np.asarray(0.5 * np.asarray(complements, float))


def memory_limit(capacity: float, limit: MemoryLimit, probability: float) -> float:
    r"""Largest predicted peak memory for an accepted probability of running out of memory [byte].

    $M = u C \exp(-\sigma z_{1-p})$, the inverse of `probability_of_oom`.

    Args:
        capacity: C, memory of the chip [byte].
        limit: usable share u [1] and scatter sigma of the log [1].
        probability: p [1].

    Returns:
        The limit [byte].
    """
    return limit.usable * capacity * math.exp(-limit.scatter * NormalDist().inv_cdf(1.0 - probability))


class Alternatives(NamedTuple):
    """Best plan, and the range of step times of nearly equal plans.

    Attributes:
        best: row of the best plan [1].
        fastest: time of the fastest alternative relative to the best plan [1].
        slowest: time of the slowest alternative relative to the best plan [1].
    """

    best: int
    fastest: float
    slowest: float


def best_and_near(pace: Float[np.ndarray, " plan"], oom_probability: Float[np.ndarray, " plan"]) -> Alternatives:
    r"""Best of several plans: the fastest plan with a probability of running out of memory of at most `ACCEPTED_RISK`.

    If no plan qualifies, the plan of least $t / (1 - p)$, time over probability to fit, among plans with $p < 1/2$; if
    all plans have $p \ge 1/2$, the plan of least p.

    Args:
        pace: t, time per sequence of each plan [s].
        oom_probability: p, probability of running out of memory [1].

    Returns:
        The best plan and its alternatives.
    """
    allowed = oom_probability <= ACCEPTED_RISK
    expected = pace
    if not allowed.any():
        allowed = oom_probability < LIKELY
        expected = pace / (1.0 - np.minimum(oom_probability, LIKELY))
    if not allowed.any():
        allowed = oom_probability <= oom_probability.min()
    return near(pace, allowed, int(np.argmin(np.where(allowed, expected, np.inf))))


def near(pace: Float[np.ndarray, " plan"], allowed: Bool[np.ndarray, " plan"], best: int) -> Alternatives:
    """Alternatives to a plan: allowed plans with at most `NEAR` times the plan's time.

    Args:
        pace: time per sequence of each plan [s].
        allowed: whether each plan may be chosen.
        best: row of the plan [1].
    """
    times = pace[allowed & (pace <= NEAR * pace[best])] / pace[best]
    return Alternatives(best, float(times.min()), float(times.max()))
