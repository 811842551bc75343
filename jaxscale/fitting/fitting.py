"""Function `fit`: coefficients from a table of measured runs, with held-out error, intervals and effects of levels."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import names
from jaxscale.calibration.record import AnyFit, Fit, fit_of, load_fit
from jaxscale.fitting.fit_record import (
    PACE_RUNS,
    Attempt,
    about_start,
    answering,
    fit_problem,
    fit_record,
    named_as,
    parameters_of,
    tightened,
)
from jaxscale.fitting.held_out import cross_validate, groups_to_leave_out
from jaxscale.fitting.memory_outcomes import with_memory_limits
from jaxscale.fitting.multistart import one_blas_thread, random_starts, solve
from jaxscale.fitting.objective import FitProblem
from jaxscale.fitting.parameters import FEW_RUNS
from jaxscale.fitting.result import FitResult
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs import Runs
from jaxscale.runs.arrays import Measured
from jaxscale.runs.measured import describe_runs, groups_of, measured_of
from jaxscale.runs.reader import read_runs
from jaxscale.runs.row_kinds import kinds_in, of_a_kind
from jaxscale.runs.table_checks import tell
from jaxscale.tables.reader import AnyTable

TIGHTNESS_OF_FEW_RUNS = (0.02, 0.6, 1.5)
"""Candidate factors on the prior spreads of a fit of few runs, relative to the spreads between levels; `near_the_best`
selects. The first factor leaves the start unchanged [1]."""

NEAR_THE_BEST = 1.2
"""Held-out error of an attempt, relative to the best attempt, up to which left-out runs cannot distinguish the two
(about one standard error of ten runs; Breiman et al. 1984, Classification and Regression Trees, section 3.4.3) [1]."""

MIN_ROWS = 1


def fit(
    runs: AnyTable,
    *,
    start: AnyFit | None = "default",
    n_starts: int = 4,
    n_folds: int = 5,
    name: str = "fit",
    hardware: Hardware | None = None,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """Fit the coefficients to a table of measured runs: `js.fit("runs.csv")`.

    Rows of traced workloads give paces, the ratios of measured to predicted step time.

    Args:
        runs: `Runs`, or an argument of `js.read_runs`; rows without a measured step time are left out.
        start: fit at the centre of the priors, or name or file of a fit; None, or `prior`, for the priors alone.
        n_starts: starting points of the search [1].
        n_folds: folds of the cross-validation; whole groups of (shape, chips, tp, pp) are left out together [1].
        name: name of the fit.
        hardware: catalogue of chips; by default the shipped catalogue.
        progress: function called with a line of text at each stage.

    Returns:
        A `FitResult`; for traced workloads only, the start with fitted paces.

    Raises:
        InputError: too few measured rows, or no starting point.
    """
    if start is None and hardware is not None and hardware.anchors:
        start = "prior"
    parent, table = None if start is None else fit_of(start, hardware), read_runs(runs, hardware=hardware)
    is_model, result = ~of_a_kind(table), None
    if is_model.any() or not len(table):
        # Rows of models first: traced workloads start from the fit.
        result = _fit_models(table.take(is_model), parent, n_starts, n_folds, name, hardware, progress)
    for kind, is_kind in kinds_in(table):
        begun = parent or load_fit("prior") if result is None else result.fit
        found = kind.fit(table.take(is_kind), begun, n_folds=n_folds, name=name, hardware=hardware, progress=progress)
        result = found if result is None else dataclasses.replace(result, fit=found.fit, paces=found)
    return result


def _fit_models(
    runs: Runs,
    parent: Fit | None,
    n_starts: int,
    n_folds: int,
    name: str,
    hardware: Hardware | None,
    progress: Callable[[str], None] | None,
) -> FitResult:
    """Fit the coefficients to rows that all describe a model."""
    with jax.enable_x64(True):
        described = describe_runs(runs, hardware)
        measured, index = measured_of(runs, described)
        if progress is not None:
            tell(runs, described, measured, index, progress)
        # Identifies the table of a fit.
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
    """Fit the coefficients to arrays of measured runs; arguments as of `fit`.

    The optimum of `resumed`, an earlier fit to nearly equal runs, is a candidate: a search from random points may miss
    a minimum found by an earlier search.
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
    # Widths of priors compete by the held-out error.
    for tightness, tight in candidates(problem, start, n).items():
        say("priors with their own spreads" if tightness == 1.0 else f"priors with {tightness:g} times their spreads")
        # A fixed seed: equal runs give equal fits.
        starts = random_starts(jr.key(0), n_starts, tight.parametrisation.n_parameters)
        known = [] if resumed is None else [jnp.asarray(parameters_of(resumed, tight, effects))]
        solution = solve(tight, starts, known)
        held_out = cross_validate(tight, solution, groups, n_folds, say)
        attempts.append(Attempt(tight, effects, solution, held_out, tightness))
    best = near_the_best(attempts)[0]
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
        # More groups than shapes: settings were left out.
        settings_left_out=bool(groups.max() > groups_of(measured).max()),
    )


def candidates(problem: FitProblem, start: Fit | None, n: int) -> dict[float, FitProblem]:
    """Problems with different factors on the prior spreads, by factor, tightest first.

    Several factors are tried only for `PACE_RUNS` < n <= `FEW_RUNS` runs and a start with runs.
    """
    if start is None or not start.has_runs:
        return {1.0: problem}
    around = about_start(problem, n)
    if n > FEW_RUNS or n <= PACE_RUNS:
        return {1.0: around}
    return {tightness: tightened(around, tightness) for tightness in TIGHTNESS_OF_FEW_RUNS}


def near_the_best(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Attempts with a held-out error of at most `NEAR_THE_BEST` times the least error, tightest priors first.

    Few held-out runs cannot distinguish such attempts. A diverged attempt, without a finite error, does not
    count; without held-out runs all attempts are returned.
    """
    errors = np.asarray([attempt.error for attempt in attempts])
    # A diverged attempt does not count.
    near = np.flatnonzero(errors <= NEAR_THE_BEST * np.min(errors, initial=np.inf, where=np.isfinite(errors)))
    return [attempts[int(index)] for index in near] or list(attempts)
