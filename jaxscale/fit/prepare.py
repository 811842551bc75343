"""From measured runs to a calibration problem: which effects there are, where each run's coefficients begin."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxscale.calibration.coefficients import prior_medians, priors
from jaxscale.calibration.coordinates import unconstrain
from jaxscale.calibration.record import Fit
from jaxscale.fit.censored_memory import bounds_memory
from jaxscale.fit.objective import Problem, make_problem
from jaxscale.fit.parameters import Effect, find_effects, membership, parametrisation
from jaxscale.fit.scope import scope
from jaxscale.fit.start import columns
from jaxscale.runs.arrays import Measured


def base_of(measured: Measured, start: Fit) -> np.ndarray:
    """Unconstrained coefficients of each run before a fit, effects of its levels included [row, coefficient]."""
    return start.unconstrained(columns(measured.levels))


def fit_problem(measured: Measured, start: Fit) -> tuple[Problem, tuple[Effect, ...]]:
    """The problem of fitting some runs, with the priors' own spreads around a start.

    Args:
        measured: the runs.
        start: fit around whose coefficients, effects included, the priors lie.

    Returns:
        The problem, and its effects in parameter order.
    """
    base = base_of(measured, start)
    bounds = bounds_memory(measured, base)
    effects = find_effects(measured.levels, scope(measured, bounds))
    members = membership(measured.levels, effects)
    return make_problem(measured, parametrisation(effects), base, members, bounds), effects


def parameters_of(fit: Fit, problem: Problem, effects: Sequence[Effect]) -> np.ndarray:
    """Where a fit from the priors stands in a problem that begins there too, effects of other levels left out.

    Args:
        fit: the fit.
        problem: a problem whose base is the priors' medians.
        effects: its effects in parameter order.

    Returns:
        Standardised parameters [parameter].
    """
    mapping = problem.parametrisation
    pooled = (unconstrain(fit.pooled) - unconstrain(prior_medians())) / np.asarray(mapping.spread)
    shifts = {(effect.kind, effect.level): dict(effect.shifts) for effect in fit.effects}
    scale = np.asarray(mapping.scale)
    values = np.zeros(len(scale))
    for index, effect in enumerate(effects):
        values[index] = shifts.get((effect.kind, effect.level), {}).get(effect.coefficient, 0.0) / scale[index]
    return np.concatenate([pooled, values])


def about_start(problem: Problem) -> Problem:
    """The problem of a new source around a fit: its coefficients may lie as far from the pooled ones as levels do."""
    spread = jnp.asarray([prior.spread_of_levels for prior in priors().values()])
    return eqx.tree_at(lambda p: p.parametrisation.spread, problem, spread)


def tightened(problem: Problem, tightness: float) -> Problem:
    """The problem with all prior spreads times a factor, below 1 where the start is trusted [1]."""
    spreads = (problem.parametrisation.spread * tightness, problem.parametrisation.scale * tightness)
    return eqx.tree_at(lambda p: (p.parametrisation.spread, p.parametrisation.scale), problem, spreads)
