"""Intervals from held-out runs: how far a run that the fit has not seen may be from its prediction."""

import numpy as np

from jaxscale.calibration import Scatter
from jaxscale.fit.batch import Measured
from jaxscale.fit.measured import groups_of

MIN_RUNS = 5
"""Held-out runs below which a level gets no scatter of its own [1]."""

MEMORY_SCATTER = 0.15
"""Relative scatter of peak memory where fewer than `MIN_RUNS` were measured [1]."""


def half_width(errors: np.ndarray, groups: np.ndarray) -> float:
    r"""Half-width that covers 90 % of the runs of a new group.

    The quantile of split-conformal prediction, $0.9 (1 + 1/G)$, with the G groups as what is exchangeable: runs of one
    group share most of their error, so that many runs of few groups tell little.
    Reference: Lei et al. 2018, JASA 113, 1094-1111, section 2.2.

    Args:
        errors: absolute errors of held-out runs [row].
        groups: group of each run [row].

    Returns:
        Half-width, in the unit of the errors.
    """
    level = min(1.0, 0.9 * (1.0 + 1.0 / len(np.unique(groups))))
    return float(np.nanquantile(errors, level))


def measured_scatter(measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of each source and framework, and of all runs, from residuals of time and memory [row, 2]."""
    parts = [("known", "", np.ones(len(held_out), dtype=bool))]
    for kind in ("framework", "source"):
        column = np.asarray(measured.levels[kind], dtype=object)
        parts = [(kind, level, column == level) for level in sorted(set(column) - {""})] + parts
    time, groups = np.abs(held_out[:, 0]), groups_of(measured)
    memory = np.where(np.isfinite(np.asarray(measured.peak_memory)), held_out[:, 1], np.nan)
    enough = [part for part in parts if np.isfinite(time[part[2]]).sum() >= MIN_RUNS]
    return tuple(
        Scatter(kind, level, half_width(time[rows], groups[rows]), _memory_scatter(memory[rows]))
        for kind, level, rows in enough
    )


def _memory_scatter(errors: np.ndarray) -> float:
    """Standard deviation of log peak memory, from held-out errors, nan where none was measured [row]."""
    known = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(known**2))) if len(known) >= MIN_RUNS else MEMORY_SCATTER
