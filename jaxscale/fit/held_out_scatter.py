"""Intervals from held-out runs: how far a run that the fit has not seen may be from its prediction."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxscale.calibration.intervals import Z90, Scatter
from jaxscale.calibration.seen import UNNAMED
from jaxscale.fit.objective import time_scatter
from jaxscale.runs.arrays import Measured
from jaxscale.runs.measured import groups_of

MIN_RUNS = 5
"""Held-out runs below which a level gets no scatter of its own [1]."""

GROUPS_THAT_TELL = 9
"""Groups from which on the largest error of G covers 90 % of new groups: G / (G + 1) of them [1]."""


def half_width(errors: np.ndarray, groups: np.ndarray, least: float = 0.0) -> float:
    r"""Half-width that covers 90 % of the runs of a new group.

    The quantile of split-conformal prediction, $0.9 (1 + 1/G)$, with the G groups as what is exchangeable: runs of one
    group share most of their error, so that many runs of few groups tell little; fewer than `GROUPS_THAT_TELL` cannot
    tell of less than the scatter that runs are known to have.
    Reference: Lei et al. 2018, JASA 113, 1094-1111, section 2.2.

    Args:
        errors: absolute errors of held-out runs [row].
        groups: group of each run [row].
        least: half-width for the scatter of single runs.

    Returns:
        Half-width, in the unit of the errors.
    """
    n = len(np.unique(groups))
    found = float(np.nanquantile(errors, min(1.0, 0.9 * (1.0 + 1.0 / n))))
    return max(found, least) if n < GROUPS_THAT_TELL else found


def measured_scatter(measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of each source and framework, and of runs without a source, from residuals of time and memory [row, 2].

    Runs that name neither say nothing of those that do, nor the reverse: others are as likely of a new framework.
    """
    sources, frameworks = (np.asarray(measured.levels[kind], dtype=object) for kind in ("source", "framework"))
    found = [scatter_by(kind, kind, measured, held_out) for kind in ("source", "framework")]
    for framework in sorted(set(frameworks[sources == ""])):
        own = (sources == "") & (frameworks == framework)
        found.append(level_scatter(UNNAMED, framework, measured.take(own), held_out[own]))
    return tuple(entry for entries in found for entry in entries)


def scatter_by(column: str, kind: str, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of the runs of each level of a column that names one, as entries of a kind; see `level_scatter`."""
    levels = np.asarray(measured.levels[column], dtype=object)
    rows = {level: levels == level for level in sorted(set(levels) - {""})}
    found = [level_scatter(kind, level, measured.take(own), held_out[own]) for level, own in rows.items()]
    return tuple(entry for entries in found for entry in entries)


def level_scatter(kind: str, level: str, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of some runs.

    Args:
        kind: what the entry is called.
        level: which one of these.
        measured: its runs.
        held_out: log residuals of time and memory, nan where a run was not left out [row, 2].

    Returns:
        The entry; none where fewer than `MIN_RUNS` were left out.
    """
    rows = np.isfinite(held_out[:, 0])
    if rows.sum() < MIN_RUNS:
        return ()
    memory = np.where(np.isfinite(np.asarray(measured.peak_memory)), held_out[:, 1], np.nan)
    least = Z90 * float(np.max(time_scatter(measured.levels["source"])))
    time = half_width(np.abs(held_out[rows, 0]), groups_of(measured)[rows], least)
    return (Scatter(kind, level, time, _memory_scatter(memory[rows])),)


def wider(one: Scatter, other: Scatter) -> Scatter:
    """The wider of two scatters of one level, in time and in memory, whichever is known."""
    return replace(one, time=max(one.time, other.time), memory=float(np.fmax(one.memory, other.memory)))


def typical(kind: str, scatters: Sequence[Scatter]) -> Scatter:
    """Scatter of a level that is not among those of some scatters: the mean of the known ones, so that none rules."""
    time = np.mean([scatter.time for scatter in scatters])
    memory = [scatter.memory**2 for scatter in scatters if np.isfinite(scatter.memory)]
    return Scatter(kind, "", float(time), float(np.sqrt(np.mean(memory))) if memory else np.nan)


def _memory_scatter(errors: np.ndarray) -> float:
    """Standard deviation of log peak memory, nan where too few errors are known; of errors, nan where unknown [row]."""
    known = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(known**2))) if len(known) >= MIN_RUNS else np.nan
