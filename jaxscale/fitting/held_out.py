"""Cross-validation, and widths of prediction intervals from the errors of held-out runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from jaxscale.calibration.intervals import Z90, Scatter
from jaxscale.calibration.levels import UNNAMED
from jaxscale.fitting.multistart import Solution, refine
from jaxscale.fitting.objective import FitProblem, reweighted, time_scatter
from jaxscale.fitting.statistics.group_quantiles import half_width
from jaxscale.runs.arrays import Measured, classes
from jaxscale.runs.measured import fold_of, groups_of
from jaxscale.runs.table_checks import SOFTWARE

MIN_RUNS = 5
"""Minimum number of held-out runs for a scatter estimate of a level [1]."""

MIN_GROUPS = 3
"""Minimum number of groups of runs for a cross-validation; with fewer groups, settings are left out instead [1]."""


def measured_scatter(measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of the held-out runs of each source and framework, and of runs without a source.

    Runs without a source have a separate scatter, because the framework of such runs may be new to the fit.
    Arguments as of `level_scatter`.
    """
    sources, frameworks = (measured.levels.column(kind) for kind in ("source", "framework"))
    found = [scatter_by(kind, kind, measured, held_out) for kind in ("source", "framework")]
    for framework in sorted(set(frameworks[sources == ""])):
        own = (sources == "") & (frameworks == framework)
        found.append(level_scatter(UNNAMED, framework, measured.take(own), held_out[own]))
    return tuple(entry for entries in found for entry in entries)


def scatter_by(column: str, kind: str, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of the held-out runs of each level of a factor; see `level_scatter`."""
    levels = measured.levels.column(column)
    rows = {level: levels == level for level in sorted(set(levels) - {""})}
    found = [level_scatter(kind, level, measured.take(own), held_out[own]) for level, own in rows.items()]
    return tuple(entry for entries in found for entry in entries)


def level_scatter(kind: str, level: str, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of the held-out runs of a level.

    Args:
        kind: factor of the level, or condition of doubt; see `Scatter`.
        level: name of the level.
        measured: runs of the level.
        held_out: predicted minus measured logs of time and memory; nan for a run never held out [row, 2].

    Returns:
        The scatter; empty for fewer than `MIN_RUNS` held-out runs.
    """
    rows = np.isfinite(held_out[:, 0])
    if rows.sum() < MIN_RUNS:
        return ()
    memory = np.where(np.isfinite(np.asarray(measured.peak_memory)), held_out[:, 1], np.nan)
    # At least the scatter of repeats of a run.
    least = Z90 * float(np.max(time_scatter(measured.levels)))
    time = half_width(held_out[rows, 0], groups_of(measured)[rows], least)
    return (Scatter(kind, level, time, _memory_scatter(memory[rows])),)


def wider(one: Scatter, other: Scatter) -> Scatter:
    """Larger of two scatters of a level, in time and in memory separately; an unknown scatter is ignored."""
    # nan is an unknown scatter.
    return replace(one, time=max(one.time, other.time), memory=float(np.fmax(one.memory, other.memory)))


def typical(kind: str, scatters: Sequence[Scatter]) -> Scatter:
    """Scatter for an unknown level: mean over the scatters of known levels."""
    # The mean over levels, not over runs: no single level dominates.
    time = np.mean([scatter.time for scatter in scatters])
    memory = [scatter.memory**2 for scatter in scatters if np.isfinite(scatter.memory)]
    return Scatter(kind, "", float(time), float(np.sqrt(np.mean(memory))) if memory else np.nan)


def _memory_scatter(errors: np.ndarray) -> float:
    """Standard deviation of log peak memory from errors [row] with nan where unknown; nan for too few known errors."""
    known = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(known**2))) if len(known) >= MIN_RUNS else np.nan


def groups_to_leave_out(measured: Measured) -> np.ndarray:
    """Group of each run in the cross-validation [row]; runs of equal settings share a group.

    Groups have equal shape, chips, tp and pp; with too few groups, each setting is a group; with too few settings, all
    runs form a single group.
    """
    for groups in (groups_of(measured), classes(measured.batch, [measured.levels.column(kind) for kind in SOFTWARE])):
        if groups.max() + 1 >= MIN_GROUPS:
            return groups
    return np.zeros(len(measured.batch), dtype=int)


def cross_validate(
    problem: FitProblem,
    solution: Solution,
    groups: np.ndarray,
    n_folds: int,
    progress: Callable[[str], None],
) -> np.ndarray:
    """Predicted minus measured logs of time and memory of each run, by the fit without the run's group [row, 2].

    The fit of each fold starts at the optimum of all runs, because a search from elsewhere may end in a different local
    minimum of the posterior. Without enough groups, all errors are nan.
    """
    n = len(groups)
    predicted = np.full((n, 2), np.nan)
    # A fold has a group at least.
    n_folds = min(n_folds, int(groups.max()) + 1)
    if n_folds < 2:
        return predicted
    fold = fold_of(groups, n_folds)
    for index in range(n_folds):
        progress(f"cross-validation, fold {index + 1} of {n_folds}")
        # The posterior has many valleys: each fold starts at the optimum of all runs.
        left_out = refine(reweighted(problem, fold != index), solution.parameters)
        predicted[fold == index] = np.asarray(left_out.log_residuals)[:n][fold == index]
    return predicted
