"""From measured runs to a calibration problem: which effects there are, where each run's coefficients begin."""

from collections.abc import Sequence

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike

from jaxscale.calibration import Calibration
from jaxscale.coefficients import Coefficients, names, prior_medians, priors
from jaxscale.fit.batch import Measured
from jaxscale.fit.objective import Problem, make_problem
from jaxscale.fit.parameters import Effect, find_effects, membership, parametrisation, unconstrain
from jaxscale.fit.scope import scope
from jaxscale.fit.store import unconstrained_rows

MIN_SOURCES = 4
"""Sources from which on their differences say what to expect of another one [1]."""

LEAST_DIFFERENCE, MOST_DIFFERENCE = 0.1, 3.0
"""Bounds of that expectation: shrunken effects of few sources understate it, one odd source overstates it [1]."""


def base_of(measured: Measured, coefficients: Coefficients) -> np.ndarray:
    """Unconstrained coefficients of each run before a fit, effects of its levels included [row, coefficient]."""
    rows = zip(*measured.levels.values(), strict=True)
    return unconstrained_rows(coefficients, [dict(zip(measured.levels, row, strict=True)) for row in rows])


def fit_problem(measured: Measured, start: Coefficients) -> tuple[Problem, tuple[Effect, ...]]:
    """The problem of fitting some runs, with the priors' own spreads around a start.

    Args:
        measured: the runs.
        start: coefficients, with their effects, around which the priors lie.

    Returns:
        The problem, and its effects in parameter order.
    """
    effects = find_effects(measured.levels, scope(measured))
    members = membership(measured.levels, effects)
    return make_problem(measured, parametrisation(effects), base_of(measured, start), members), effects


def parameters_of(coefficients: Coefficients, problem: Problem, effects: Sequence[Effect]) -> np.ndarray:
    """Where a fit from the priors stands in a problem that begins there too, effects of other levels left out.

    Args:
        coefficients: the fit, with its record.
        problem: a problem whose base is the priors' medians.
        effects: its effects in parameter order.

    Returns:
        Standardised parameters [parameter].
    """
    mapping = problem.parametrisation
    pooled = (unconstrain(coefficients) - unconstrain(prior_medians())) / np.asarray(mapping.spread)
    record = coefficients.calibration or Calibration("none")
    shifts = {(effect.kind, effect.level): dict(effect.shifts) for effect in record.effects}
    scale = np.asarray(mapping.scale)
    values = np.zeros(len(scale))
    for index, effect in enumerate(effects):
        values[index] = shifts.get((effect.kind, effect.level), {}).get(effect.coefficient, 0.0) / scale[index]
    return np.concatenate([pooled, values])


def between_stacks(start: Coefficients) -> np.ndarray:
    """How much the sources of a fit differ in each coefficient: what a new one may be expected to.

    The root mean square of their effects, in standard deviations of the coefficient's prior (empirical Bayes, Efron and
    Morris 1975, JASA 70, 311-319), within `LEAST_DIFFERENCE` and `MOST_DIFFERENCE`.

    Returns:
        Differences; 1 where the start knows fewer than `MIN_SOURCES` [coefficient].
    """
    record = start.calibration or Calibration("none")
    shifts = [dict(effect.shifts) for effect in record.effects if effect.kind == "source"]
    if len(shifts) < MIN_SOURCES:
        return np.ones(len(names()))
    moved = np.asarray([[shift.get(name, 0.0) / priors()[name].spread for name in names()] for shift in shifts])
    return np.clip(np.sqrt(np.mean(moved**2, axis=0)), LEAST_DIFFERENCE, MOST_DIFFERENCE)


def tightened(problem: Problem, tightness: float, by_coefficient: ArrayLike = 1.0) -> Problem:
    """The problem with all prior spreads times a factor, below 1 where the start is trusted, and one by coefficient."""
    mapping = problem.parametrisation
    spreads = (mapping.spread * tightness * by_coefficient, mapping.scale * tightness)
    return eqx.tree_at(lambda p: (p.parametrisation.spread, p.parametrisation.scale), problem, spreads)
