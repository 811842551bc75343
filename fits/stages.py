"""The two stages of the calibration: the centre, which a stranger gets, and offsets of the stacks that the fit knows.

Stage 1 has few effects for each stack, chip and number format, Gaussian ones, and counts stacks alike. Stage 2 adds
offsets of known stacks around it, which never move the centre.
"""

import dataclasses
import sys
from dataclasses import dataclass
from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale._resources import data_path
from jaxscale.calibration.anchors import chip_anchors
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import load_fit
from jaxscale.fit.fit_problem import fit_problem, held_at
from jaxscale.fit.fit_record import Attempt, fit_record
from jaxscale.fit.multistart import one_blas_thread, refine, solve
from jaxscale.fit.objective import FitProblem, reweighted
from jaxscale.fit.parameters import CENTRE, OFFSETS, Effect
from jaxscale.fit.polish import Solution
from jaxscale.runs.arrays import Measured, concatenate, padded
from jaxscale.runs.measured import measured_runs
from jaxscale.runs.reader import read_runs

COVERED = 0.9
"""Share of the runs of an unknown stack that its interval is to hold [1]."""

RUNS_THAT_TELL = 4.0
"""Runs from which on a stack counts in full where the spread of stacks is told [1]."""


@cache
def load_reports() -> Measured:
    """Measured runs of public reports, without those that their own authors call abnormal or untuned."""
    runs = read_runs(data_path("restricted") / "public_reports.csv", skip_bad=True)
    measured, index = measured_runs(runs)
    quality = np.asarray(runs.column("quality"), dtype=object)[index]
    return measured.take(np.flatnonzero([not words for words in quality]))


@dataclass(frozen=True)
class Stages:
    """Both stages of a calibration, solved.

    Attributes:
        tables: measured runs of the shipped tables [row].
        everything: the same, and those of public reports behind them [centre row].
        centre: problem of the first stage.
        centre_effects: its effects in parameter order.
        at_centre: its solution.
        offsets: problem of the second stage, around that solution.
        offset_effects: its effects in parameter order.
        at_offsets: its solution.
    """

    tables: Measured
    everything: Measured
    centre: FitProblem
    centre_effects: tuple[Effect, ...]
    at_centre: Solution
    offsets: FitProblem
    offset_effects: tuple[Effect, ...]
    at_offsets: Solution

    def left_out(self, kept: np.ndarray) -> np.ndarray:
        """Log residuals of time and memory of the runs of the tables, both stages fitted to some of them.

        Args:
            kept: the runs of the tables to fit [row]; public reports stay.

        Returns:
            Residuals under the fit of the others [row, 2].
        """
        n, n_reports = len(self.tables.batch), len(self.everything.batch) - len(self.tables.batch)
        kept_centre = np.concatenate([kept, np.ones(n_reports, dtype=bool)])
        centre = refine(reweighted(self.centre, kept_centre), self.at_centre.parameters)
        problem = about(self.offsets, rows_at(self.centre, centre.parameters)[:n])
        found = refine(reweighted(problem, kept), self.at_offsets.parameters)
        return np.asarray(found.log_residuals)[:n]


def rows_at(problem: FitProblem, parameters: Float[Array, " parameter"]) -> np.ndarray:
    """Unconstrained coefficients of the runs of a problem at some parameters [row, coefficient]."""
    return np.asarray(problem.rows(parameters))


def about(problem: FitProblem, base: np.ndarray) -> FitProblem:
    """A problem whose runs begin at other coefficients [row, coefficient]."""
    (rows,) = padded((base,), len(base), len(problem.weight))
    return eqx.tree_at(lambda p: p.base, problem, rows)


@one_blas_thread()
def solve_stages(tables: Measured) -> Stages:
    """Fit the centre to all runs, and the offsets of the stacks of the shipped tables around it."""
    everything = concatenate([tables, load_reports()])
    problem, effects = fit_problem(everything, load_fit("prior"), CENTRE)
    say(f"centre: {len(everything.batch)} runs, {len(effects)} effects")
    at_centre = solve(problem, jnp.zeros((1, problem.parametrisation.n_parameters)))
    record = centre_record(everything, problem, effects, at_centre)
    offsets, offset_effects = fit_problem(tables, record, OFFSETS)
    offsets = about(held_at(offsets), rows_at(problem, at_centre.parameters)[: len(tables.batch)])
    say(f"offsets: {len(tables.batch)} runs, {len(offset_effects)} effects")
    at_offsets = solve(offsets, jnp.zeros((1, offsets.parametrisation.n_parameters)))
    return Stages(tables, everything, problem, effects, at_centre, offsets, offset_effects, at_offsets)


def centre_record(
    everything: Measured,
    problem: FitProblem,
    effects: tuple[Effect, ...],
    solution: Solution,
    scatter: tuple[Scatter, ...] = (),
) -> Fit:
    """Record of the centre: it lists no stack as known, so that none has a narrower interval than another."""
    attempt = Attempt(problem, effects, solution, np.full((len(everything.batch), 2), np.nan))
    record = fit_record("centre", everything, load_fit("prior"), attempt, "")
    stacks = ("source", "stack", "unnamed")
    places = tuple(place for place in record.known if place[0] not in stacks)
    return dataclasses.replace(
        record, scatter=scatter, known=places, fitted=(), own=(), largest=(), parent=None, is_centre=True
    )


@one_blas_thread()
def stacks_left_out(stages: Stages) -> np.ndarray:
    """Log residuals of time and memory of each run under the centre that never saw its stack [centre row, 2]."""
    stack = stages.everything.levels.column("stack")
    residuals = np.full((len(stack), 2), np.nan)
    names = sorted(set(stack))
    for place, name in enumerate(names):
        say(f"leaving out stack {place + 1} of {len(names)}: {name}")
        outside = stack != name
        found = refine(reweighted(stages.centre, outside), stages.at_centre.parameters)
        residuals[~outside] = np.asarray(found.log_residuals)[: len(stack)][~outside]
    return residuals


def centre_scatter(everything: Measured, residuals: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of unknown stacks, each stack counted once: dense models, mixtures, and chips without timed kernels.

    Args:
        everything: the runs.
        residuals: of time and memory, under the centre that never saw the stack of a run [row, 2].

    Returns:
        Entries `unseen`, `new_mixture` and `new_chip`.
    """
    levels = everything.levels
    is_mixture = ~levels.missing("mixture")
    is_new_chip = ~levels.has(lambda chip: chip in chip_anchors(), "gpu")
    groups = {"unseen": ~is_mixture & ~is_new_chip, "new_mixture": is_mixture, "new_chip": is_new_chip}
    stack = levels.column("stack")
    memory = np.where(np.isfinite(np.asarray(everything.peak_memory)), residuals[:, 1], np.nan)
    return tuple(
        Scatter(kind, "", quantile_of_stacks(np.abs(residuals[own, 0]), stack[own]), spread_of(memory[own], stack[own]))
        for kind, own in groups.items()
    )


def quantile_of_stacks(errors: np.ndarray, stack: np.ndarray) -> float:
    """Quantile of errors that covers `COVERED` of the runs of a stack drawn at random; small stacks count less [1]."""
    _, which, runs = np.unique(stack, return_inverse=True, return_counts=True)
    weight = np.minimum(1.0, runs[which] / RUNS_THAT_TELL) / runs[which]
    order = np.argsort(errors)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(errors[order][np.searchsorted(reached, COVERED)])


def spread_of(errors: np.ndarray, stack: np.ndarray) -> float:
    """Root mean square of errors, each stack counted once; nan where nothing is known [1]."""
    known = np.isfinite(errors)
    if not known.any():
        return float("nan")
    means = [np.mean(errors[known & (stack == name)] ** 2) for name in sorted(set(stack[known]))]
    return float(np.sqrt(np.mean(means)))


def say(text: str) -> None:
    """Progress, on the terminal."""
    print(text, file=sys.stderr, flush=True)
