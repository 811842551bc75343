"""Intervals and the risk of running out of memory beside predicted step times and peaks."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from jaxscale.calibration.intervals import Z90, interval_ends
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.memory_limit import probability_of_oom
from jaxscale.calibration.record import Fit


def with_intervals(
    answers: Mapping[str, np.ndarray],
    levels: Levels,
    n_chips: Float[np.ndarray, " row"],
    capacity: Float[np.ndarray, " row"],
    fit: Fit,
) -> dict[str, np.ndarray]:
    """Predictions with their 90 % intervals and the probability of running out of memory.

    Args:
        answers: `step_time` [s] and `memory` [byte], among others, by name [row].
        levels: of the rows.
        n_chips: of each row [1].
        capacity: memory of its chip [byte].
        fit: scatter of its levels.

    Returns:
        The answers, with `lo`, `hi` [s], `memory_lo`, `memory_hi` [byte] and `oom_probability` [1] [row].
    """
    interval, limit = fit.interval(levels, n_chips), fit.memory_limit(levels, n_chips)
    ends = dict(zip(("lo", "hi"), interval_ends(answers["step_time"], interval.time), strict=True))
    peaks = interval_ends(answers["memory"], Z90 * interval.memory)
    ends |= dict(zip(("memory_lo", "memory_hi"), peaks, strict=True))
    return {**answers, **ends, "oom_probability": probability_of_oom(answers["memory"], capacity, limit)}
