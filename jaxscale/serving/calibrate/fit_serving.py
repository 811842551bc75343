"""Fit of serving stacks to tables of measured runs: from the priors, or from an earlier fit where rows are few."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.fitting.multistart import one_blas_thread
from jaxscale.fitting.statistics.mixed_effects import solve_mixed
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.table import Runs
from jaxscale.serving.calibrate.serving_few_rows import refined, stacks_left_out
from jaxscale.serving.calibrate.serving_held_out import (
    FOLDS,
    HeldOutServing,
    errors_left_out,
    folds,
    names_left_out,
    widths_of,
)
from jaxscale.serving.calibrate.serving_problem import (
    TARGETS,
    MeasuredServing,
    as_fit,
    measured_serving,
    serving_problem,
)
from jaxscale.serving.calibrate.serving_record import ServingFit, load_serving_fit
from jaxscale.serving.calibrate.serving_widths import NOVELTIES

Progress = Callable[[str], None]


def fit_and_hold_out(
    measured: MeasuredServing, name: str = "default", progress: Progress | None = None
) -> tuple[ServingFit, HeldOutServing]:
    """Fit measured rows from the priors, and refit without parts of them.

    Args:
        measured: the rows.
        name: of the fit.
        progress: told what begins.

    Returns:
        The fit with its intervals, and the errors they rest on.
    """
    tell = progress or (lambda _: None)
    with jax.enable_x64(True), one_blas_thread():
        problem = serving_problem(measured)
        everything = np.ones(len(measured.groups), dtype=bool)
        tell(f"fitting {len(problem.row)} measurements of {len(everything)} rows")
        solution = solve_mixed(problem.mixed, everything)
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
    """Fit serving stacks to measured rows, `js.serving.fit_serving(js.serving.read_serving("mine.csv"))`.

    Ten rows of a new stack are enough: what they do not tell stays as the start has it.

    Args:
        tables: one serving table, or several.
        start: an earlier fit, from which levels that it has not seen may differ by its spreads, and levels that it has
            seen by a part of them; `prior` to begin from the priors alone.
        name: of the fit.
        hardware: catalogue of chips; the shipped one where None.
        progress: told what begins.

    Returns:
        The fit.

    Raises:
        InputError: no row has a measured time or rate, or no such start.
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
