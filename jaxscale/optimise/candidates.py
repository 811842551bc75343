"""Choice of the starts to polish, and of the optima to trust."""

import numpy as np

from jaxscale.optimise.batches import Problems
from jaxscale.optimise.goals import Goals
from jaxscale.optimise.interior_point import polish
from jaxscale.optimise.problems import Optimum

CONVERGED = 1e-6
"""KKT residual up to which an optimum is certified [1]."""

UNCERTAIN = 1e-3
"""Error of an optimum without a certificate, in the logarithm of objective or bound [1]."""


def promising(merits: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Starts in the order of polishing: the best of each group, then the second best, and so on [start]."""
    order = np.argsort(merits, kind="stable")
    place = np.zeros(len(order), int)
    for group in np.unique(groups):
        members = groups[order] == group
        place[members] = np.arange(members.sum())
    return order[np.argsort(place, kind="stable")]


def best_candidate(optimum: Optimum, wanted: Goals) -> int:
    """Row of the candidate of least objective within the bounds; without a certificate it must be clearly better."""
    objective = wanted.objective(optimum.values) + UNCERTAIN * (optimum.residual > CONVERGED)
    kept = wanted.residuals(optimum.values).max(axis=-1) <= UNCERTAIN
    return int(np.argmin(np.where(kept, objective, np.inf) if kept.any() else optimum.residual))


def certify(optimum: Optimum, rows: np.ndarray, problems: Problems, wanted: Goals) -> Optimum:
    """The optima after a second, fresh interior-point run for the given rows that did not converge."""
    failed = rows[optimum.residual[rows] > CONVERGED]
    if not len(failed):
        return optimum
    again = polish(optimum.point[failed], problems.rows(failed), wanted.rows(failed))
    lower = again.residual < optimum.residual[failed]
    merged = Optimum(*(part.copy() for part in optimum))
    for part, new in zip(merged, again, strict=True):
        part[failed[lower]] = new[lower]
    return merged
