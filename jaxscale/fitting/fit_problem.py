"""From measured runs and a parent fit to a problem: which effects there are, where each run's coefficients begin."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import prior_medians, priors, unconstrain
from jaxscale.calibration.record import Fit
from jaxscale.calibration.seen import is_apart
from jaxscale.fitting.informed_coefficients import bounds_memory, informed_coefficients
from jaxscale.fitting.objective import FitProblem, make_problem, reweighted
from jaxscale.fitting.parameters import OFFSETS, PACE, Effect, Stage, find_effects, membership, parametrisation
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


def base_of(measured: Measured, start: Fit) -> np.ndarray:
    """Unconstrained coefficients of each run before a fit, effects of its levels included [row, coefficient]."""
    return start.unconstrained(measured.levels)


def fit_problem(measured: Measured, start: Fit, stage: Stage = OFFSETS) -> tuple[FitProblem, tuple[Effect, ...]]:
    """The problem of fitting some runs, with the priors' own spreads around a start.

    Args:
        measured: the runs.
        start: fit around whose coefficients, effects included, the priors lie.
        stage: of the calibration, which says which levels have effects.

    Returns:
        The problem, and its effects in parameter order.
    """
    base = base_of(measured, start)
    bounds = bounds_memory(measured, base)
    effects = find_effects(measured.levels, informed_coefficients(measured, bounds), stage)
    members = membership(measured.levels, effects)
    problem = make_problem(measured, parametrisation(effects, stage), base, members, bounds)
    return (stacks_alike(problem, measured) if stage.is_centre else problem), effects


RUNS_OF_A_STACK = 40.0
"""Runs that a stack counts for in the centre at most: a table of thousands says no more of other stacks than one of
forty does [1]."""

CENTRE_SCATTER = 0.05
"""Least sigma of the log step time in the centre: what its few effects leave of the differences between shapes [1]."""


SET_APART = 0.25
"""Weight of a run that its table sets apart, composed or of a faulty release, over that of another one in the centre
[1]."""

CENTRE_MEMORY_SCATTER = 0.15
"""Sigma of the log peak memory in the centre: allocators differ more between stacks than repeats of one do [1]."""


def stacks_alike(problem: FitProblem, measured: Measured) -> FitProblem:
    """The problem of the centre: stacks count alike, and effects are Gaussian."""
    apart = measured.levels.numbers(lambda source: SET_APART if is_apart(source) else 1.0, "source", of_none=1.0)
    weight = np.asarray(problem.weight)[: len(apart)] * apart
    _, stack = np.unique(measured.levels.column("stack"), return_inverse=True)
    of_stack = np.bincount(stack, weights=weight)[stack]
    alike = reweighted(problem, apart * np.minimum(1.0, RUNS_OF_A_STACK / np.maximum(of_stack, 1e-9)))
    scatter = jnp.maximum(problem.scatter, CENTRE_SCATTER)
    return dataclasses.replace(alike, scatter=scatter, is_gaussian=True, memory_scatter=CENTRE_MEMORY_SCATTER)


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


PACE_SPREAD = 0.1
"""How far stacks that were left out of the centre differ from it in their pace: the typical one [1]."""

LEAST_SPREAD = 0.25
"""Standard deviation by which coefficients of a new stack differ from the centre, where no effect of stacks says more
[1]."""

PACE_RUNS = 5
"""Runs up to which the pace alone is fitted: one row is as far off the middle of its stack as the stack off the centre
[1]."""

ALONE = 1e-3
"""Spread of a coefficient that stays as it is [1]."""


def about_start(problem: FitProblem, n_runs: int) -> FitProblem:
    """The problem of a new stack around a fit: of few runs its pace alone, of more all of its numbers.

    Args:
        problem: of the runs of the stack.
        n_runs: how many they are [1].

    Returns:
        The problem with the spreads by which stacks differ.
    """
    widths = {name: max(prior.levels.get("stack", 0.0), LEAST_SPREAD) for name, prior in priors().items()}
    spread = [PACE_SPREAD if name == PACE else ALONE if n_runs <= PACE_RUNS else widths[name] for name in widths]
    return eqx.tree_at(lambda p: p.parametrisation.spread, problem, jnp.asarray(spread))


def held_at(problem: FitProblem) -> FitProblem:
    """The problem with the pooled coefficients held: the second stage of a calibration never moves the centre."""
    spread = jnp.full(problem.parametrisation.spread.shape, 1e-6)
    return eqx.tree_at(lambda p: p.parametrisation.spread, problem, spread)


def tightened(problem: FitProblem, tightness: float) -> FitProblem:
    """The problem with all prior spreads times a factor, below 1 where the start is trusted [1]."""
    spreads = (problem.parametrisation.spread * tightness, problem.parametrisation.scale * tightness)
    return eqx.tree_at(lambda p: (p.parametrisation.spread, p.parametrisation.scale), problem, spreads)
