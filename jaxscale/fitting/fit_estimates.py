"""Results of a fit: coefficients with intervals, errors of runs, influence of runs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import check_known
from jaxscale.calibration.coefficients import constrain_values, names, priors, training_spec, unconstrain
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.memory_limit import MemoryLimit
from jaxscale.calibration.record import Fit
from jaxscale.fitting.diagnostics import (
    Diagnostics,
    Profile,
    diagnose,
    identified,
    profiled,
    standardised_intervals,
    weights_of_measured,
)
from jaxscale.fitting.multistart import Solution
from jaxscale.fitting.objective import FitProblem
from jaxscale.fitting.parameters import Effect
from jaxscale.runs.arrays import RunBatch
from jaxscale.runs.table_checks import deviations


def mean_percent(log_errors: Float[np.ndarray, " row"]) -> float:
    """Mean absolute percentage error from predicted minus measured logarithms [%]; nan where any is nan."""
    return float(100.0 * np.mean(np.abs(np.expm1(log_errors))))


def median_percent(log_errors: Float[np.ndarray, " row"]) -> float:
    """Median absolute percentage error from predicted minus measured logarithms [%]; nan where any is nan."""
    return float(100.0 * np.median(np.abs(np.expm1(log_errors))))


class LogErrors:
    """Errors of a fit for runs in sample and for held-out runs.

    Attributes:
        residuals: logarithm of fitted over measured values [1], [row].
        held_out: logarithm of held-out predictions over measured values, nan without a prediction [1], [row].
    """

    residuals: np.ndarray
    held_out: np.ndarray

    @property
    def n(self) -> int:
        """Number of measured rows [1]."""
        return len(self.residuals)

    @property
    def mape_train(self) -> float:
        """Mean absolute percentage error in sample [%]."""
        return mean_percent(self.residuals)

    @property
    def mape_cv(self) -> float:
        """Mean absolute percentage error of held-out rows [%]; nan without held-out rows."""
        return mean_percent(self.held_out)

    @property
    def median_cv(self) -> float:
        """Median absolute percentage error of held-out rows [%]."""
        return median_percent(self.held_out)


MOST_INFLUENTIAL = 5
"""Number of most influential runs in the report [1]."""


@dataclass(frozen=True)
class FitEstimates(LogErrors):
    """Fit with problem, solution, errors and influence of the runs.

    Attributes:
        fit: coefficients, effects, intervals, memory limits and provenance.
        problem: the fitted problem.
        solution: optimum of the problem.
        effects: effects of levels, in the order of the parameters.
        residuals: predicted minus measured log step time of each run, in sample [row].
        held_out: predicted minus measured log step time of held-out runs; nan with too few groups [row].
        groups: group of each run in the cross-validation; groups are left out as a whole [row].
        levels: level of each run by factor [row].
        lines: line of each run in the table; empty if the runs come from several tables [row].
        tightness: factor on the prior spreads, below 1 if a fit of few runs stays near the start [1].
        settings_left_out: whether, for lack of groups, only runs of equal settings were left out together.
        paces: fitted paces of the rows with traced workloads; None without traced workloads.
    """

    fit: Fit
    problem: FitProblem
    solution: Solution
    effects: tuple[Effect, ...]
    residuals: np.ndarray
    held_out: np.ndarray
    groups: np.ndarray
    levels: Levels
    lines: tuple[int, ...] = ()
    tightness: float = 1.0
    settings_left_out: bool = False
    paces: Any = None

    @property
    def batch(self) -> RunBatch:
        """Measured runs, without padding [row]."""
        return self.problem.batch.take(np.arange(self.n))

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Posterior covariance, leverage and influence of each run, effective number of parameters, AIC and BIC."""
        return diagnose(self.problem, self.solution, self.n)

    @property
    def correlation(self) -> np.ndarray:
        """Posterior correlation of the pooled coefficients, in the order of `names()` [coefficient, coefficient]."""
        count = len(names())
        covariance = self.diagnostics.covariance[:count, :count]
        scale = np.sqrt(np.diag(covariance))
        return covariance / np.outer(scale, scale)

    @cached_property
    def intervals(self) -> np.ndarray:
        """Ends of the 90 % intervals of pooled coefficients, in standard deviations of the prior [coefficient, 2]."""
        return standardised_intervals(self.problem, self.solution, self.diagnostics.covariance)

    @property
    def identified(self) -> np.ndarray:
        """Whether the runs rather than the prior determine each coefficient [coefficient]."""
        return identified(self.diagnostics.covariance)

    @cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Value, standard error, 90 % interval and unit of each coefficient by name, and whether the runs identify it.

        If all runs have an equal coefficient, the value includes the effects of the common levels; otherwise the value
        is the pooled coefficient.
        """
        return self._parameters_about(self._centre)

    @property
    def _centre(self) -> np.ndarray:
        """Unconstrained coefficients of the runs; the pooled value where runs differ [coefficient]."""
        rows = self.fit.unconstrained(self.levels)
        # Effects common to all runs belong to the value.
        return np.where(np.ptp(rows, axis=0) == 0.0, rows[0], unconstrain(self.fit.pooled))

    def _parameters_about(self, centre: np.ndarray) -> dict[str, dict[str, Any]]:
        values = constrain_values(centre)
        spread = np.asarray(self.problem.parametrisation.spread)
        # Delta method: error of u times the slope of the coefficient.
        error = spread * np.sqrt(np.diag(self.diagnostics.covariance))[: len(names())] * training_spec().slopes(centre)
        moves = (self.intervals - np.asarray(self.solution.parameters)[: len(names()), None]) * spread[:, None]
        # Intervals are about the shifted value, in the unconstrained coordinate.
        low, high = (constrain_values(centre + moves[:, side]) for side in (0, 1))
        is_identified = self.identified
        return {
            name: {
                "value": float(values[index]),
                "lo": float(low[index]),
                "hi": float(high[index]),
                "standard_error": float(error[index]),
                "unit": prior.unit,
                "identified": bool(is_identified[index]),
            }
            for index, (name, prior) in enumerate(priors().items())
        }

    @property
    def tested(self) -> np.ndarray:
        """Predicted minus measured log step time of each run, held out if available, else in sample [1], [row]."""
        return np.where(np.isfinite(self.held_out), self.held_out, self.residuals)

    @cached_property
    def repeats(self) -> np.ndarray:
        """Deviation of log step time from the mean of runs of equal settings; nan for a run without repeats [1], [row].

        The scatter of repeats is a lower bound of the prediction error; see `jaxscale.runs.table_checks`.
        """
        return deviations(np.asarray(self.problem.log_time)[: self.n], self.batch, self.levels)

    def errors_by(self, kind: str) -> dict[str, dict[str, float | int]]:
        """Error of step time by level of a factor such as `source` or `gpu`: held out if available, else in sample.

        Returns:
            Number of runs, mean and median absolute percentage error, and bias of the median run [%], by level.

        Raises:
            InputError: an unknown factor.
        """
        found = {}
        for level, rows in self._rows_by(kind).items():
            values = 100.0 * np.expm1(self.tested[rows])
            errors = np.abs(values)
            entry = {"mape": np.mean(errors), "median_ape": np.median(errors), "bias": np.median(values)}
            found[level] = {"n": len(values), **{key: float(value) for key, value in entry.items()}}
        return found

    @property
    def influence(self) -> tuple[tuple[int, float], ...]:
        """Most influential runs: position among the measured runs, and Cook's distance [1]."""
        distance = self.diagnostics.cooks_distance
        order = np.argsort(-distance)[:MOST_INFLUENTIAL]
        return tuple((int(row), float(distance[row])) for row in order)

    def influence_by(self, kind: str) -> dict[str, float]:
        """Influence on the parameters of all runs of each level of a factor, for example `source` or `gpu`.

        Returns:
            Cook's distance of the level's runs together, in posterior standard deviations squared [1], by level.

        Raises:
            InputError: an unknown factor.
        """
        return {level: self.diagnostics.without(np.flatnonzero(rows)) for level, rows in self._rows_by(kind).items()}

    def _rows_by(self, kind: str) -> dict[str, np.ndarray]:
        check_known("kind of level", kind, self.levels.codes)
        column = self.levels.column(kind)
        return {level: column == level for level in sorted(set(column) - {""})}

    def name_of(self, row: int) -> str:
        """Label of a run: line in the table, `line 12`, else position among the measured runs, `run 10`."""
        return f"line {self.lines[row]}" if self.lines else f"run {row}"

    def profile(self, name: str) -> Profile:
        """Profile likelihood of a coefficient at several values around the optimum.

        Raises:
            InputError: an unknown coefficient.
        """
        check_known("coefficient", name, names())
        index, covariance = names().index(name), self.diagnostics.covariance
        distances, rises = profiled(index, self.intervals[index], self.problem, self.solution, covariance)
        rows = np.tile(self._centre, (len(distances), 1))
        error = np.sqrt(covariance[index, index])
        # Steps along the profile in standard deviations of the posterior.
        rows[:, index] += distances * error * float(self.problem.parametrisation.spread[index])
        return Profile(constrain_values(rows)[:, index], rises, distances**2)

    @property
    def memory_errors(self) -> np.ndarray:
        """Predicted minus measured log peak memory of runs with a measured peak, in sample [1], [run with a peak]."""
        is_measured = np.asarray(weights_of_measured(self.problem)[1]) > 0.0
        return np.asarray(self.solution.log_residuals)[np.asarray(self.problem.with_memory)[is_measured], 1]

    @property
    def valid(self) -> bool:
        """Whether the optimiser converged to a finite loss."""
        return bool(self.solution.converged) and bool(np.isfinite(self.solution.loss))

    @property
    def memory_limits(self) -> tuple[MemoryLimit, ...]:
        """Usable memory of the fitted sources with enough runs out of memory."""
        limits = self.fit.limit_by_source
        return tuple(limits[source] for source in sorted(set(self.levels.column("source")) & set(limits)))
