"""`fit`: from a table of measured runs to coefficients, with held-out error, intervals and effects of levels."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from jaxscale.calibration.coefficients import Coefficients, from_values, names
from jaxscale.calibration.coordinates import constrain_values, unconstrain
from jaxscale.calibration.effects import OTHER_SOURCES, LevelEffect
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.record import Fit
from jaxscale.calibration.seen import SETTINGS, UNNAMED
from jaxscale.calibration.store import fit_of, load_fit
from jaxscale.errors import InputError
from jaxscale.fit.held_out_scatter import measured_scatter, wider
from jaxscale.fit.memory_limits import with_memory_limits
from jaxscale.fit.objective import Problem, reweighted
from jaxscale.fit.parameters import EFFECT_SPREAD, Effect, effect_spread
from jaxscale.fit.polish import Solution
from jaxscale.fit.prepare import about_start, fit_problem, parameters_of, tightened
from jaxscale.fit.result import FitResult
from jaxscale.fit.solve import one_blas_thread, random_starts, refine, solve
from jaxscale.fit.start import answering, knows, levels_of, named_as
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs import Runs
from jaxscale.runs.arrays import Measured, classes
from jaxscale.runs.measured import fold_of, groups_of, measured_runs
from jaxscale.runs.siblings import SOFTWARE
from jaxscale.runs.table_checks import tell

TIGHTNESS_OF_FEW_RUNS = (0.02, 0.6, 1.5)
"""Prior spreads of a fit of few runs, over those by which levels differ; `near_the_best` chooses. The first one leaves
the start as it is [1]."""

FEW_RUNS = 60
"""Runs up to which the data cannot overrule a wrong tightness by themselves [1]."""

NEAR_THE_BEST = 1.2
"""Held-out error of an attempt, over that of the best, up to which left-out runs do not tell them apart (about one
standard error of ten runs; Breiman et al. 1984, Classification and Regression Trees, section 3.4.3) [1]."""

OWN_KINDS = ("architecture", "mixture", "gpu", "precision", "attention_kernel")
"""Kinds of level of which a fit knows those of its own runs alone: of the start's sources the start itself tells."""

MIN_ROWS = 3

MIN_GROUPS = 3
"""Groups of runs that a cross-validation needs; below it, settings are left out instead, as far as they go [1]."""


def fit(
    runs: Runs,
    *,
    start: Fit | str | Path | None = "default",
    n_starts: int = 4,
    n_folds: int = 5,
    name: str = "fit",
    hardware: Hardware | None = None,
    progress: Callable[[str], None] | None = None,
) -> FitResult:
    """Fit the coefficients to a table of measured runs.

    Args:
        runs: the table; rows without a measured step time are left out.
        start: fit to start from and shrink towards, or its name or file; None, or `prior`, for the priors alone.
        n_starts: starting points of the search [1].
        n_folds: folds of the cross-validation; whole groups of (shape, chips, tp, pp) are left out together [1].
        name: what the fit is called.
        hardware: catalogue of chips; the shipped one where None.
        progress: called with a line of text at each stage.

    Returns:
        The fit.

    Raises:
        InputError: too few measured rows, or no starting point.
    """
    parent = None if start is None else fit_of(start)
    with jax.enable_x64(True):
        measured, index = measured_runs(runs, hardware)
        if progress is not None:
            tell(runs, measured, index, progress)
        data_hash = hashlib.sha256(runs.path.read_bytes()).hexdigest()[:16]
        result = fit_measured(
            measured,
            start=parent,
            n_starts=n_starts,
            n_folds=n_folds,
            name=name,
            data_hash=data_hash,
            progress=progress,
        )
        result = dataclasses.replace(result, lines=tuple(runs.lines[index].tolist()))
        return with_memory_limits(result, [runs], hardware)


@one_blas_thread()
def fit_measured(
    measured: Measured,
    *,
    start: Fit | None = None,
    n_starts: int = 4,
    n_folds: int = 5,
    name: str = "fit",
    data_hash: str = "",
    resumed: Fit | None = None,
    progress: Callable[[str], None] | None = None,
) -> FitResult:
    """Fit the coefficients to measured runs that are arrays already; see `fit`.

    A search from random points may miss a valley that an earlier one found: `resumed`, a fit from the priors to about
    the same runs, adds its point to them.
    """
    say = progress or (lambda _: None)
    n = len(measured.batch)
    for what, count, least in (("n_starts", n_starts, 1), ("n_folds", n_folds, 2)):
        if count < least:
            raise InputError(f"{what} = {count} is out of range; expected at least {least}")
    if n < MIN_ROWS:
        raise InputError(f"{n} measured runs are too few to fit; expected at least {MIN_ROWS} rows with a step time")
    begun = start if start is not None else load_fit("prior")
    measured = named_as(begun, measured)
    parent = answering(begun, measured)
    problem, effects = fit_problem(measured, parent)
    say(f"fitting {n} runs, {len(names())} coefficients, {len(effects)} effects, {n_starts} starts")
    groups = groups_to_leave_out(measured)
    attempts = []
    for tightness, tight in candidates(problem, start, n).items():
        say(f"priors with {tightness:g} times their spreads")
        starts = random_starts(jr.key(0), n_starts, tight.parametrisation.n_parameters)
        known = [] if resumed is None else [jnp.asarray(parameters_of(resumed, tight, effects))]
        solution = solve(tight, starts, known)
        held_out = cross_validate(tight, solution, groups, n_folds, say)
        attempts.append(Attempt(tight, effects, solution, held_out, tightness))
    alike = near_the_best(attempts)
    # Priors as wide as sources differ are what is known of a new one; of one that the start has fitted more is known.
    best = alike[0] if knows(parent, measured) else alike[len(alike) // 2]
    return FitResult(
        fit=fit_record(name, measured, begun, best, data_hash),
        problem=best.problem,
        solution=best.solution,
        effects=best.effects,
        residuals=np.asarray(best.solution.log_residuals)[:n, 0],
        held_out=best.held_out[:, 0],
        groups=groups,
        levels=measured.levels,
        tightness=best.tightness,
        settings_left_out=bool(groups.max() > groups_of(measured).max()),
    )


class Attempt(NamedTuple):
    """A fit with one tightness of the priors.

    Attributes:
        problem: what was fitted.
        effects: levels that were given effects, in parameter order.
        solution: where the optimiser ended.
        held_out: log residuals of time and memory of runs that the fit did not see; nan without groups [row, 2].
        tightness: spreads of its priors over their own [1].
    """

    problem: Problem
    effects: tuple[Effect, ...]
    solution: Solution
    held_out: np.ndarray
    tightness: float = 1.0

    @property
    def error(self) -> float:
        """Mean absolute log error of step time of held-out runs; nan without any [1]."""
        return float(np.mean(np.abs(self.held_out[:, 0])))


def candidates(problem: Problem, start: Fit | None, n: int) -> dict[float, Problem]:
    """Problems by the width of their priors, tightest first; one where the start has no runs or n runs decide."""
    if start is None or not start.has_runs:
        return {1.0: problem}
    around = about_start(problem)
    if n > FEW_RUNS:
        return {1.0: around}
    return {tightness: tightened(around, tightness) for tightness in TIGHTNESS_OF_FEW_RUNS}


def near_the_best(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts that foretell left-out runs nearly as well as the best does, tightest first.

    Few left-out runs cannot tell these apart. An attempt without a finite error, which ran off, does not count; where
    no run was left out, all are alike.
    """
    errors = np.asarray([attempt.error for attempt in attempts])
    near = np.flatnonzero(errors <= NEAR_THE_BEST * np.min(errors, initial=np.inf, where=np.isfinite(errors)))
    return [attempts[int(index)] for index in near] or list(attempts)


def groups_to_leave_out(measured: Measured) -> np.ndarray:
    """Groups of runs for cross-validation [row]; runs of equal settings, which foretell each other, stay together.

    Where there are too few groups, settings are left out one by one; where these are too few, one group is all.
    """
    for groups in (groups_of(measured), classes(measured.batch, [measured.levels[kind] for kind in SOFTWARE])):
        if groups.max() + 1 >= MIN_GROUPS:
            return groups
    return np.zeros(len(measured.batch), dtype=int)


def cross_validate(
    problem: Problem,
    solution: Solution,
    groups: np.ndarray,
    n_folds: int,
    progress: Callable[[str], None],
) -> np.ndarray:
    """Residuals of each run under the fit that did not see its group [row, 2]; nan without enough groups.

    Each fold is polished from where the whole fit ended. The posterior has many valleys: a search from elsewhere may
    end in another one.
    """
    n = len(groups)
    predicted = np.full((n, 2), np.nan)
    n_folds = min(n_folds, int(groups.max()) + 1)
    if n_folds < 2:
        return predicted
    fold = fold_of(groups, n_folds)
    for index in range(n_folds):
        progress(f"cross-validation, fold {index + 1} of {n_folds}")
        left_out = refine(reweighted(problem, fold != index), solution.parameters)
        predicted[fold == index] = np.asarray(left_out.log_residuals)[:n][fold == index]
    return predicted


def moved(pooled: Coefficients, best: Attempt) -> Coefficients:
    """Pooled coefficients moved by the standardised parameters of an attempt."""
    shift = np.asarray(best.problem.parametrisation.spread * best.solution.parameters[: len(names())])
    return from_values(constrain_values(unconstrain(pooled) + shift).tolist())


def fit_record(name: str, measured: Measured, start: Fit, best: Attempt, data_hash: str) -> Fit:
    """Fit of some runs: effects, scatter and levels of an attempt, merged with those of its start."""
    before = answering(start, measured)
    scale = np.asarray(best.problem.parametrisation.scale)
    values = scale * np.asarray(best.solution.parameters[len(names()) :])
    held_out = best.held_out
    effects = level_effects(best.effects, values)
    rows = levels_of(measured)
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
        pooled=moved(before.pooled, best),
        effects=kept_effects(before, rows) + effects + other_sources_effects(effects, rows),
        scatter=own_scatter(before, measured, held_out) + (before.scatter or novel_scatter()),
        known=tuple(sorted(passed_on | shown | unnamed)),
        largest=largest_clusters(before, measured),
        provenance=tuple(provenance.items()),
        limits=before.limits,
        own=shared_levels(rows),
        fitted=level_kinds([{kind: row[kind] for kind in ("source", "framework")} for row in rows]),
        parent=start if start.known else None,
    )


def level_kinds(levels: Sequence[Mapping[str, str | None]]) -> tuple[tuple[str, str], ...]:
    """Kind and name of every level that occurs, sorted."""
    return tuple(sorted({(kind, level) for row in levels for kind, level in row.items() if level}))


def own_scatter(before: Fit, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter that the runs of a fit show, by source and framework.

    Runs that the start was fitted to are no longer held out: they may widen what it knows of their level, no more.
    """
    known = before.scatter_by_level
    return tuple(
        wider(entry, known.get(place, entry))
        for entry in measured_scatter(measured, held_out)
        if (place := (entry.kind, entry.level)) in known or place not in before.known
    )


def novel_scatter() -> tuple[Scatter, ...]:
    """Scatter of new models, larger clusters and new sources in the shipped fit, for one that starts from none."""
    novel = ("new_model", "larger", "new_source")
    return tuple(entry for entry in load_fit("default").scatter if entry.kind in novel and not entry.level)


def shared_levels(rows: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """The source and the framework of some runs, each where all of them name the same one."""
    named = {kind: {row[kind] for row in rows} for kind in ("source", "framework")}
    return tuple((kind, max(levels)) for kind, levels in named.items() if len(levels) == 1 and levels != {""})


def largest_clusters(before: Fit, measured: Measured) -> tuple[tuple[str, float], ...]:
    """Most chips of any run of each source, those of the start included [1]."""
    largest = dict(before.largest)
    for source, count in zip(measured.levels["source"], np.asarray(measured.batch.cluster.n_chips), strict=True):
        largest[source] = max(largest.get(source, 0.0), float(count))
    return tuple(sorted(largest.items()))


def level_effects(effects: Sequence[Effect], values: np.ndarray) -> tuple[LevelEffect, ...]:
    """Effects gathered by level; shifts below a thousandth are dropped."""
    shifts: dict[tuple[str, str], dict[str, float]] = {}
    for effect, value in zip(effects, values, strict=False):
        if abs(value) > 1e-3:
            shifts.setdefault((effect.kind, effect.level), {})[effect.coefficient] = float(value)
    return tuple(LevelEffect(kind, level, tuple(sorted(s.items()))) for (kind, level), s in shifts.items())


def kept_effects(before: Fit, rows: Sequence[Mapping[str, str]]) -> tuple[LevelEffect, ...]:
    """Effects of the start from which the fitted runs began.

    Of the sources those of the runs, as the start itself answers for others; where it did not know them, what their
    framework's other sources foretold.
    """
    sources = {(row["source"], row["framework"]) for row in rows if row["source"]}
    own = {source for source, _ in sources}
    kept = tuple(effect for effect in before.effects if effect.kind != "source" or effect.level in own)
    return kept + tuple(
        LevelEffect("source", source, effect.shifts)
        for source, framework in sorted(sources)
        for effect in before.effects
        if ("source", source) not in before.known and (effect.kind, effect.level) == (OTHER_SOURCES, framework)
    )


def other_sources_effects(effects: Sequence[LevelEffect], rows: Sequence[Mapping[str, str]]) -> tuple[LevelEffect, ...]:
    r"""Expected effect of a new source of each framework, given the effects $e_j$ of the framework's sources.

    What they have in common is about as large as the spread of `framework` and what each has of its own as that of
    `source`, or as wide as the spread of runs set apart: with $w_j$ the square of the first over the second, it is

    $$ \sum_j w_j e_j / (1 + \sum_j w_j) . $$

    A coefficient by which the framework itself was found to differ needs nothing more.

    Source: Efron & Morris 1975, J. Am. Stat. Assoc. 70, section 2 (the mean of a level, given those of its members).
    """
    by_source = {effect.level: dict(effect.shifts) for effect in effects if effect.kind == "source"}
    by_framework = {effect.level: dict(effect.shifts) for effect in effects if effect.kind == "framework"}
    sources: dict[str, set[str]] = {}
    for row in rows:
        if row["framework"] and row["source"] in by_source:
            sources.setdefault(row["framework"], set()).add(row["source"])
    found = []
    for framework, members in sorted(sources.items()):
        spreads = {member: effect_spread("source", member) for member in sorted(members)}
        weight = {member: (EFFECT_SPREAD["framework"] / spread) ** 2 for member, spread in spreads.items()}
        total = 1.0 + sum(weight.values())
        moved_names = {name for member in members for name in by_source[member]} - set(by_framework.get(framework, {}))
        sums = {name: sum(w * by_source[m].get(name, 0.0) for m, w in weight.items()) for name in sorted(moved_names)}
        found.append(LevelEffect(OTHER_SOURCES, framework, tuple((name, sums[name] / total) for name in sums)))
    return tuple(found)
