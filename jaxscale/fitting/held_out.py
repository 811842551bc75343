"""Prediction intervals from held-out runs: deviation of an unseen run from its prediction."""

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
    """Scatter of each source and framework, and of runs without a source, from residuals of time and memory [row, 2].

    Runs without a source and runs with a source have separate scatters: the framework of a run without a source may
    well be new to the fit.
    """
    sources, frameworks = (measured.levels.column(kind) for kind in ("source", "framework"))
    found = [scatter_by(kind, kind, measured, held_out) for kind in ("source", "framework")]
    for framework in sorted(set(frameworks[sources == ""])):
        own = (sources == "") & (frameworks == framework)
        found.append(level_scatter(UNNAMED, framework, measured.take(own), held_out[own]))
    return tuple(entry for entries in found for entry in entries)


def scatter_by(column: str, kind: str, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of the runs of each named level of a column, as entries of a kind; see `level_scatter`."""
    levels = measured.levels.column(column)
    rows = {level: levels == level for level in sorted(set(levels) - {""})}
    found = [level_scatter(kind, level, measured.take(own), held_out[own]) for level, own in rows.items()]
    return tuple(entry for entries in found for entry in entries)


def level_scatter(kind: str, level: str, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of the runs of a level.

    Args:
        kind: kind of the entry.
        level: name of the level.
        measured: runs of the level.
        held_out: log residuals of time and memory, nan where a run was not left out [row, 2].

    Returns:
        The entry; none where fewer than `MIN_RUNS` were left out.
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
    """Maximum of two scatters of a level, in time and in memory; an unknown scatter is ignored."""
    # nan is an unknown scatter.
    return replace(one, time=max(one.time, other.time), memory=float(np.fmax(one.memory, other.memory)))


def typical(kind: str, scatters: Sequence[Scatter]) -> Scatter:
    """Scatter of an unknown level: mean over the scatters of known levels."""
    # The mean over levels, not over runs: no single level dominates.
    time = np.mean([scatter.time for scatter in scatters])
    memory = [scatter.memory**2 for scatter in scatters if np.isfinite(scatter.memory)]
    return Scatter(kind, "", float(time), float(np.sqrt(np.mean(memory))) if memory else np.nan)


def _memory_scatter(errors: np.ndarray) -> float:
    """Standard deviation of log peak memory from errors [row] with nan where unknown; nan for too few known errors."""
    known = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(known**2))) if len(known) >= MIN_RUNS else np.nan


def groups_to_leave_out(measured: Measured) -> np.ndarray:
    """Groups of runs for cross-validation [row]; runs of equal settings predict each other and stay together.

    With too few groups, settings are left out one by one; with too few settings, all runs form a single group.
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
    """Residuals of each run under the fit without its group [row, 2]; nan without enough groups.

    Each fold is polished from the optimum of the whole fit. The posterior has many valleys: a search from elsewhere may
    end in a different valley.
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
