"""Calibration problem of measured runs, and the resulting `Fit`, merged with the parent fit."""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.base_record import LevelEffect, effects_of
from jaxscale.calibration.coefficients import (
    Coefficients,
    constrain_values,
    from_values,
    names,
    prior_medians,
    priors,
    unconstrain,
)
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.levels import SETTINGS, UNNAMED, is_apart
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.fitting.held_out import measured_scatter, wider
from jaxscale.fitting.informed_coefficients import bounds_memory, informed_coefficients
from jaxscale.fitting.multistart import Solution
from jaxscale.fitting.objective import FitProblem, make_problem, reweighted
from jaxscale.fitting.parameters import (
    FEW_RUNS,
    OFFSETS,
    PACE,
    Effect,
    Stage,
    find_effects,
    membership,
    parametrisation,
)
from jaxscale.runs.arrays import Measured


def named_as(start: Fit, measured: Measured) -> Measured:
    """Runs with the common source and framework of a fit filled in for runs that state neither."""
    return dataclasses.replace(measured, levels=start.seen.named(measured.levels))


def answering(start: Fit, measured: Measured) -> Fit:
    """Fit that predicts the runs: the start, or the parent if only the parent has seen the runs' sources or frameworks.

    Raises:
        InputError: the start predicts some runs, and the parent the rest.
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
    """Log or logit of the coefficients of each run before a fit, with the effects of levels [row, coefficient]."""
    return start.unconstrained(measured.levels)


def fit_problem(measured: Measured, start: Fit, stage: Stage = OFFSETS) -> tuple[FitProblem, tuple[Effect, ...]]:
    """Calibration problem of measured runs, with priors around the coefficients of a start.

    Args:
        measured: the runs.
        start: fit with the central values of the priors, effects included.
        stage: stage of the calibration, which selects the levels with effects.

    Returns:
        The problem, and the effects in the order of the parameters.
    """
    base = base_of(measured, start)
    bounds = bounds_memory(measured, base)
    effects = find_effects(measured.levels, informed_coefficients(measured, bounds), stage)
    members = membership(measured.levels, effects)
    problem = make_problem(measured, parametrisation(effects, stage), base, members, bounds)
    # The centre predicts unknown stacks: stacks count alike.
    return (stacks_alike(problem, measured) if stage.is_centre else problem), effects


RUNS_OF_A_STACK = 40.0
"""Maximum total weight of the runs of a stack in the centre: thousands of runs of a stack are no more informative about
further stacks than forty runs [1]."""

CENTRE_SCATTER = 0.05
"""Minimum sigma of log step time in the centre: differences between shapes that few effects cannot explain [1]."""


SET_APART = 0.25
"""Weight in the centre of a run that its table sets apart (composed steps, a faulty release), relative to an
ordinary run [1]."""

CENTRE_MEMORY_SCATTER = 0.15
"""Sigma of log peak memory in the centre: allocators of different stacks differ by more than repeats of a run [1]."""


def stacks_alike(problem: FitProblem, measured: Measured) -> FitProblem:
    """Problem of the centre of a calibration, with a capped weight per software stack and Gaussian effects."""
    apart = measured.levels.numbers(lambda source: SET_APART if is_apart(source) else 1.0, "source", of_none=1.0)
    weight = np.asarray(problem.weight)[: len(apart)] * apart
    _, stack = np.unique(measured.levels.column("stack"), return_inverse=True)
    of_stack = np.bincount(stack, weights=weight)[stack]
    # Runs of a large stack share the weight of RUNS_OF_A_STACK.
    alike = reweighted(problem, apart * np.minimum(1.0, RUNS_OF_A_STACK / np.maximum(of_stack, 1e-9)))
    scatter = jnp.maximum(problem.scatter, CENTRE_SCATTER)
    return dataclasses.replace(alike, scatter=scatter, is_gaussian=True, memory_scatter=CENTRE_MEMORY_SCATTER)


def parameters_of(fit: Fit, problem: FitProblem, effects: Sequence[Effect]) -> np.ndarray:
    """Parameters of a fit in standard deviations of the priors; effects of levels absent from the problem are dropped.

    Args:
        fit: the fit.
        problem: a problem with the priors' medians as base.
        effects: effects of the problem in the order of the parameters.

    Returns:
        Standardised parameters [parameter].
    """
    mapping = problem.parametrisation
    # z = (u - median) / spread
    pooled = (unconstrain(fit.pooled) - unconstrain(prior_medians())) / np.asarray(mapping.spread)
    shifts = {(effect.kind, effect.level): dict(effect.shifts) for effect in fit.effects}
    scale = np.asarray(mapping.scale)
    values = np.zeros(len(scale))
    for index, effect in enumerate(effects):
        values[index] = shifts.get((effect.kind, effect.level), {}).get(effect.coefficient, 0.0) / scale[index]
    return np.concatenate([pooled, values])


PACE_SPREAD = 0.1
"""Typical deviation of the log pace of held-out stacks from the centre [1]."""

LEAST_SPREAD = 0.25
"""Standard deviation of the coefficients of a new stack about the centre, where the effects of stacks state none larger
[1]."""

PACE_RUNS = 5
"""Number of runs up to which only the pace is fitted: the deviation of a row from the middle of its stack is as
large as the deviation of the stack from the centre [1]."""

ALONE = 1e-3
"""Spread of a coefficient that stays fixed [1]."""


def about_start(problem: FitProblem, n_runs: int) -> FitProblem:
    """Problem of a new software stack around a fit: only the pace is free for few runs, else all coefficients.

    Args:
        problem: problem of the runs of the stack.
        n_runs: number of runs [1].

    Returns:
        The problem with prior spreads as between known stacks.
    """
    widths = {name: max(prior.levels.get("stack", 0.0), LEAST_SPREAD) for name, prior in priors().items()}
    # Few rows of a new stack tell the pace alone.
    spread = [PACE_SPREAD if name == PACE else ALONE if n_runs <= PACE_RUNS else widths[name] for name in widths]
    return eqx.tree_at(lambda p: p.parametrisation.spread, problem, jnp.asarray(spread))


def held_at(problem: FitProblem) -> FitProblem:
    """Problem with the pooled coefficients held fixed, for the second stage of a calibration."""
    # Fixed, yet with a finite prior: the shapes of the problem stay.
    spread = jnp.full(problem.parametrisation.spread.shape, 1e-6)
    return eqx.tree_at(lambda p: p.parametrisation.spread, problem, spread)


def tightened(problem: FitProblem, tightness: float) -> FitProblem:
    """Problem with all prior spreads multiplied by a factor, below 1 for a trusted start."""
    spreads = (problem.parametrisation.spread * tightness, problem.parametrisation.scale * tightness)
    return eqx.tree_at(lambda p: (p.parametrisation.spread, p.parametrisation.scale), problem, spreads)


OWN_KINDS = ("architecture", "mixture", "gpu", "precision", "attention_kernel")
"""Kinds of level recorded for the fitted runs alone; levels of the start's sources stay in the record of the start."""


class Attempt(NamedTuple):
    """Fit with a given factor on the prior spreads, and its held-out errors.

    Attributes:
        problem: the fitted problem.
        effects: effects of levels, in the order of the parameters.
        solution: optimum of the problem.
        held_out: log residuals of step time and memory of held-out runs; nan without groups [row, 2].
        tightness: factor on the prior spreads [1].
    """

    problem: FitProblem
    effects: tuple[Effect, ...]
    solution: Solution
    held_out: np.ndarray
    tightness: float = 1.0

    @property
    def error(self) -> float:
        """Mean absolute log error of step time of held-out runs; nan without held-out runs [1]."""
        return float(np.mean(np.abs(self.held_out[:, 0])))


def fit_record(name: str, measured: Measured, start: Fit, best: Attempt, data_hash: str) -> Fit:
    """`Fit` from an attempt: coefficients, effects, scatter and levels, merged with the fit of the start."""
    before = answering(start, measured)
    # Standardised effects times the scale of the prior.
    scale = np.asarray(best.problem.parametrisation.scale)
    values = scale * np.asarray(best.solution.parameters[len(names()) :])
    held_out = best.held_out
    effects = level_effects(best.effects, values)
    levels = (measured.levels.row(place) for place in range(len(measured.levels)))
    rows = [{kind: level or "" for kind, level in row.items()} for row in levels]
    ape = np.abs(np.expm1(held_out[:, 0]))
    passed_on = {level for level in start.known if level[0] not in (*OWN_KINDS, *SETTINGS)}
    shown = {level for level in level_kinds(rows) if level[0] not in SETTINGS or len(rows) <= FEW_RUNS}
    unnamed = {(UNNAMED, row["framework"]) for row in rows if not row["source"]}
    provenance = {
        "runs": str(len(rows)),
        "data_sha256": data_hash,
        "held_out_mape_percent": f"{100 * np.nanmean(ape):.2f}" if np.isfinite(ape).any() else "none",
        "jaxscale": version("jaxscale"),
        "jax": jax.__version__,
    }
    return Fit(
        name=name,
        centre=moved(before.pooled, best),
        effects=kept_effects(before, rows) + effects,
        widths=own_scatter(before, measured, held_out) + (before.scatter or novel_scatter()),
        known=tuple(sorted(passed_on | shown | unnamed)),
        largest=largest_clusters(before, measured),
        provenance=tuple(provenance.items()),
        limits=before.limits,
        own=shared_levels(rows),
        fitted=level_kinds([{kind: row[kind] for kind in ("source", "framework")} for row in rows]),
        parent=start if start.known else None,
        anchors=start.anchors,
        paces=start.paces,
    )


def moved(pooled: Coefficients, best: Attempt) -> Coefficients:
    """Pooled coefficients shifted by the standardised parameters of an attempt."""
    shift = np.asarray(best.problem.parametrisation.spread * best.solution.parameters[: len(names())])
    return from_values(constrain_values(unconstrain(pooled) + shift).tolist())


def level_kinds(levels: Sequence[Mapping[str, str | None]]) -> tuple[tuple[str, str], ...]:
    """Factor and name of every level of the runs, sorted."""
    return tuple(sorted({(kind, level) for row in levels for kind, level in row.items() if level}))


def own_scatter(before: Fit, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Held-out scatter of the fitted runs by source and framework, combined with the scatter of the start.

    Runs known to the start are not held out of it. The scatter of such runs may widen the known scatter of a level, but
    never narrows it.
    """
    known = before.scatter_by_level
    return tuple(
        wider(entry, known.get(place, entry))
        for entry in measured_scatter(measured, held_out)
        # Runs known to the start are not held out: the scatter may only widen.
        if (place := (entry.kind, entry.level)) in known or place not in before.known
    )


def novel_scatter() -> tuple[Scatter, ...]:
    """Scatter of new models, larger clusters and new sources from the shipped fit, for a fit without a start."""
    novel = ("new_model", "larger", "new_source")
    return tuple(entry for entry in load_fit("default").scatter if entry.kind in novel and not entry.level)


def shared_levels(rows: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Source and framework common to all runs, if any."""
    named = {kind: {row[kind] for row in rows} for kind in ("source", "framework")}
    return tuple((kind, max(levels)) for kind, levels in named.items() if len(levels) == 1 and levels != {""})


def largest_clusters(before: Fit, measured: Measured) -> tuple[tuple[str, float], ...]:
    """Largest number of chips of any run by source, sources of the start included [1]."""
    largest = dict(before.largest)
    for source, count in zip(measured.levels.column("source"), np.asarray(measured.batch.cluster.n_chips), strict=True):
        largest[source] = max(largest.get(source, 0.0), float(count))
    return tuple(sorted(largest.items()))


def level_effects(effects: Sequence[Effect], values: np.ndarray) -> tuple[LevelEffect, ...]:
    """Effects grouped by level, without shifts below a thousandth."""
    pairs = zip(effects, values, strict=False)
    return effects_of((e.kind, e.level, e.coefficient, value) for e, value in pairs if abs(value) > 1e-3)


def kept_effects(before: Fit, rows: Sequence[Mapping[str, str]]) -> tuple[LevelEffect, ...]:
    """Effects of the start kept in the fit: all except effects by source for sources without fitted runs.

    Runs of such sources are predicted by the start.
    """
    own = {row["source"] for row in rows if row["source"]}
    return tuple(effect for effect in before.effects if effect.kind != "source" or effect.level in own)
