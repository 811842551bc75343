"""Fit of serving software to tables of measured runs: from the priors, or from an earlier fit for few rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.base_record import effects_of
from jaxscale.fitting.multistart import one_blas_thread
from jaxscale.fitting.statistics.mixed_effects import MixedSolution, solve_mixed
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.schema import Runs
from jaxscale.serving.serving_coefficients import serving_spec
from jaxscale.serving.serving_problem import (
    FOLDS,
    TARGETS,
    HeldOutServing,
    MeasuredServing,
    ServingProblem,
    as_fit,
    errors_left_out,
    fits_without,
    folds,
    measured_serving,
    names_left_out,
    serving_problem,
    widths_of,
)
from jaxscale.serving.serving_record import NOVELTIES, ServingFit, ServingWidth, load_serving_fit

KNOWN_SPREAD = 0.7
"""Spread of a further effect of a known level, relative to a new level [1]."""

FEW_ROWS = 10
"""Number of rows of a stack shown to the fit that predicts the rest [1]."""

LEAST_ROWS = 30
"""Minimum number of rows of a scored stack [1]."""


def refined(measured: MeasuredServing, earlier: ServingFit, name: str) -> ServingFit:
    """Earlier fit with effects refined by few rows.

    Args:
        measured: the rows.
        earlier: fit with the pooled values and spreads, which stay fixed.
        name: name of the new fit.
    """
    spreads = {
        kind: _scaled(kind, by_name, measured, earlier) for kind, by_name in serving_spec().effect_spreads().items()
    }
    problem = serving_problem(measured, earlier.unconstrained(measured.levels), spreads)
    everything = np.ones(len(measured.groups), dtype=bool)
    solution = solve_mixed(problem.mixed, everything, learns_spreads=False, steps=20)
    # Rows of one table differ less than rows of different tables: a separate scale of errors.
    noise = np.clip(_scales(problem, solution), 0.02, 0.1)
    start = MixedSolution(solution.effects, solution.spreads, noise, solution.log_errors)
    solution = solve_mixed(problem.mixed, everything, start, learns_spreads=False, steps=20)
    added = as_fit(name, problem, solution, (), everything)
    effects = effects_of(shift for effect in (*earlier.effects, *added.effects) for shift in effect.single())
    widths = (*earlier.widths, *_own_widths(measured, problem, solution))
    n_rows = earlier.n_rows + len(everything)
    return replace(earlier, name=name, effects=effects, widths=widths, n_rows=n_rows)


def _scaled(kind: str, usual: Mapping[str, float], measured: MeasuredServing, earlier: ServingFit) -> dict[str, float]:
    """Spreads of further effects of a factor: in full with a new level, else reduced."""
    is_new = earlier.is_new(kind, measured.levels).any()
    spreads = {**usual, **earlier.spreads.get(kind, {})}
    return {name: spread * (1.0 if is_new else KNOWN_SPREAD) for name, spread in spreads.items()}


def _scales(problem: ServingProblem, solution: MixedSolution) -> np.ndarray:
    """Median absolute error of each class as a standard deviation [class]."""
    classes = problem.mixed.classes
    return np.asarray(
        # Median absolute error of a normal distribution times 1.48 is the standard deviation.
        [1.48 * np.median(np.abs(solution.log_errors[classes == code])) for code in range(classes.max() + 1)]
    )


def _own_widths(
    measured: MeasuredServing, problem: ServingProblem, solution: MixedSolution
) -> tuple[ServingWidth, ...]:
    """Widths from left-out folds of the rows; empty for few rows."""
    # Quantiles at 5 and 95 % need rows.
    if len(measured.groups) < 10:
        return ()
    rows = np.arange(len(measured.groups)).astype(str)
    errors = errors_left_out(problem, solution, folds(rows, 5))
    levels, targets = measured.levels.take(problem.row), np.asarray(TARGETS, dtype=object)[problem.target]
    # Each row counts as a group: fitted and future rows both come from the user.
    found = widths_of({"seen": errors}, targets, levels, rows[problem.row])
    return tuple(width for width in found if width.stack)


def stacks_left_out(
    measured: MeasuredServing, problem: ServingProblem, solution: MixedSolution
) -> tuple[np.ndarray, np.ndarray]:
    """Log errors of stacks under a fit without the stack, and under the same fit refined by ten rows [measurement].

    The ten rows are drawn group by group. The second error is nan for the ten rows and for stacks of fewer than
    `LEAST_ROWS` rows.

    Args:
        measured: all rows.
        problem: mixed-effects problem of the rows.
        solution: solution for all rows.
    """
    stacks = names_left_out(measured, "stack").astype(str)
    unseen, few = np.full((2, len(problem.row)), np.nan)
    for is_out, held in fits_without(problem, solution, folds(stacks, FOLDS["stack"])):
        earlier = as_fit("held", problem, held, (), ~is_out)
        mine = is_out[problem.row]
        unseen[mine] = held.log_errors[mine]
        for stack in np.unique(stacks[is_out]).tolist():
            rows = np.flatnonzero(stacks == stack)
            # Ten shown rows must leave enough rows to score.
            if len(rows) < LEAST_ROWS:
                continue
            shown = rows[drawn_by_group(measured.groups[rows], FEW_ROWS)]
            fit = refined(measured.take(shown), earlier, "few")
            scored = np.isin(problem.row, np.setdiff1d(rows, shown))
            values = problem.mixed.evaluate(fit.unconstrained(measured.levels))[0]
            few[scored] = (values - problem.mixed.log_measured)[scored]
    return unseen, few


def drawn_by_group(groups: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Indices of random rows, with one row of every group before a second row of any group."""
    order = np.random.default_rng(seed).permutation(len(groups))
    codes = np.unique(groups.astype(str), return_inverse=True)[1][order]
    turns = np.asarray([np.count_nonzero(codes[:place] == code) for place, code in enumerate(codes)])
    return order[np.argsort(turns, kind="stable")[:count]]


Progress = Callable[[str], None]


def fit_and_hold_out(
    measured: MeasuredServing, name: str = "default", progress: Progress | None = None
) -> tuple[ServingFit, HeldOutServing]:
    """Fit of measured rows from the priors, with cross-validation for the intervals.

    Args:
        measured: the rows.
        name: name of the fit.
        progress: callback with messages of progress.

    Returns:
        The fit with its intervals, and the errors of held-out rows.
    """
    tell = progress or (lambda _: None)
    with jax.enable_x64(True), one_blas_thread():
        problem = serving_problem(measured)
        everything = np.ones(len(measured.groups), dtype=bool)
        tell(f"fitting {problem.mixed.weights(everything).sum():.0f} measurements of {len(everything)} rows")
        solution = solve_mixed(problem.mixed, everything)
        # Last steps with fixed spreads: effects at the optimum of the final spreads.
        solution = solve_mixed(problem.mixed, everything, solution, steps=12, learns_spreads=False)
        errors = {"fit": solution.log_errors}
        few_rows = np.empty(0)
        for novelty in NOVELTIES:
            tell(f"leaving out: {novelty}")
            if novelty == "stack":
                errors[novelty], few_rows = stacks_left_out(measured, problem, solution)
                continue
            parts = folds(names_left_out(measured, novelty), FOLDS[novelty])
            errors[novelty] = errors_left_out(problem, solution, parts)
    held = {novelty: errors[novelty] for novelty in NOVELTIES}
    levels = measured.levels.take(problem.row)
    targets, groups = np.asarray(TARGETS, dtype=object)[problem.target], measured.groups[problem.row].astype(str)
    fit = as_fit(name, problem, solution, widths_of(held, targets, levels, groups), everything)
    return fit, HeldOutServing(measured, problem, errors, few_rows)


def fit_serving(
    tables: Runs | Sequence[Runs],
    start: "ServingFit | str" = "default",
    *,
    name: str = "own",
    hardware: Hardware | None = None,
    progress: Progress | None = None,
) -> ServingFit:
    """Fit of serving software to measured rows, `js.serving.fit_serving(js.serving.read_serving("mine.csv"))`.

    Ten rows of a new stack are enough: effects without information stay as in the start.

    Args:
        tables: serving tables.
        start: an earlier fit; unseen levels may differ from the start by its spreads, seen levels by a fraction of the
            spreads. `prior` starts from the priors alone.
        name: name of the fit.
        hardware: catalogue of chips; the shipped catalogue where None.
        progress: callback with messages of progress.

    Raises:
        InputError: no row has a measured time or rate, or unknown start.
    """
    listed = [tables] if isinstance(tables, Runs) else list(tables)
    measured = measured_serving(listed, hardware)
    if not len(measured.groups):
        raise InputError(f"{listed[0].path}: no row has a measured time or rate and status ok; expected at least one")
    earlier = load_serving_fit(start)
    if earlier.name == "prior":
        return fit_and_hold_out(measured, name, progress)[0]
    with jax.enable_x64(True), one_blas_thread():
        return refined(measured, earlier, name)
