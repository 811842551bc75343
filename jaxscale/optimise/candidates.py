"""Selection of starts to refine, and certification of optima."""

import numpy as np

from jaxscale.optimise.batches import Problems
from jaxscale.optimise.interior_point import polish
from jaxscale.optimise.problems import Goals, Optimum

CONVERGED = 1e-6
"""Largest KKT residual of a certified optimum [1]."""

UNCERTAIN = 1e-3
"""Error of an uncertified optimum, in the logarithm of objective or bound [1]."""


def promising(merits: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Order in which starts are refined: the best of each group, then the second best of each, and so on [start]."""
    order = np.argsort(merits, kind="stable")
    place = np.zeros(len(order), int)
    for group in np.unique(groups):
        members = groups[order] == group
        place[members] = np.arange(members.sum())
    return order[np.argsort(place, kind="stable")]


def best_candidate(optimum: Optimum, wanted: Goals) -> int:
    """Row of the feasible candidate of least objective; an uncertified candidate needs a clear advantage."""
    objective = wanted.objective(optimum.values) + UNCERTAIN * (optimum.residual > CONVERGED)
    kept = wanted.residuals(optimum.values).max(axis=-1) <= UNCERTAIN
    return int(np.argmin(np.where(kept, objective, np.inf) if kept.any() else optimum.residual))


def certify(optimum: Optimum, rows: np.ndarray, problems: Problems, wanted: Goals) -> Optimum:
    """Optima after a second interior-point run for the unconverged rows among `rows`."""
    failed = rows[optimum.residual[rows] > CONVERGED]
    if not len(failed):
        return optimum
    again = polish(optimum.point[failed], problems.rows(failed), wanted.rows(failed))
    lower = again.residual < optimum.residual[failed]
    merged = Optimum(*(part.copy() for part in optimum))
    for part, new in zip(merged, again, strict=True):
        part[failed[lower]] = new[lower]
    return merged
