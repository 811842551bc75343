"""From measured runs and a parent fit to a problem: which effects there are, where each run's coefficients begin."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxscale.calibration.coefficients import prior_medians, priors
from jaxscale.calibration.coordinates import unconstrain
from jaxscale.calibration.record import Fit
from jaxscale.errors import InputError
from jaxscale.fit.informed_coefficients import bounds_memory, informed_coefficients
from jaxscale.fit.objective import FitProblem, make_problem
from jaxscale.fit.parameters import Effect, find_effects, membership, parametrisation
from jaxscale.runs.arrays import Measured


def named_as(start: Fit, measured: Measured) -> Measured:
    """The runs with the source and framework that a fit gives those that name neither."""
    return dataclasses.replace(measured, levels=start.seen.named(measured.levels))


def answering(start: Fit, measured: Measured) -> Fit:
    """The fit that answers for some runs: a start, or its parent, where that alone knows their sources or frameworks.

    Raises:
        InputError: the start answers for some of the runs and not for others.
    """
    is_parents = start.seen.only_parent_knows(measured.levels)
    if start.parent is None or not is_parents.any():
        return start
    if not is_parents.all():
        raise InputError(
            f"{np.sum(is_parents)} of {len(is_parents)} runs are of a source or framework that {start.name!r} knows "
            "from the fit it started from alone, and the others are not; expected one kind: fit each from its own start"
        )
    return answering(start.parent, measured)


def knows(start: Fit, measured: Measured) -> bool:
    """Whether a fit has seen the sources of all of some runs."""
    return set(measured.levels.column("source")) <= start.known_sources


def base_of(measured: Measured, start: Fit) -> np.ndarray:
    """Unconstrained coefficients of each run before a fit, effects of its levels included [row, coefficient]."""
    return start.unconstrained(measured.levels)


def fit_problem(measured: Measured, start: Fit) -> tuple[FitProblem, tuple[Effect, ...]]:
    """The problem of fitting some runs, with the priors' own spreads around a start.

    Args:
        measured: the runs.
        start: fit around whose coefficients, effects included, the priors lie.

    Returns:
        The problem, and its effects in parameter order.
    """
    base = base_of(measured, start)
    bounds = bounds_memory(measured, base)
    effects = find_effects(measured.levels, informed_coefficients(measured, bounds))
    members = membership(measured.levels, effects)
    return make_problem(measured, parametrisation(effects), base, members, bounds), effects


def parameters_of(fit: Fit, problem: FitProblem, effects: Sequence[Effect]) -> np.ndarray:
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


def about_start(problem: FitProblem) -> FitProblem:
    """The problem of a new source around a fit: its coefficients may lie as far from the pooled ones as levels do."""
    spread = jnp.asarray([prior.spread_of_levels for prior in priors().values()])
    return eqx.tree_at(lambda p: p.parametrisation.spread, problem, spread)


def tightened(problem: FitProblem, tightness: float) -> FitProblem:
    """The problem with all prior spreads times a factor, below 1 where the start is trusted [1]."""
    spreads = (problem.parametrisation.spread * tightness, problem.parametrisation.scale * tightness)
    return eqx.tree_at(lambda p: (p.parametrisation.spread, p.parametrisation.scale), problem, spreads)
