"""Fit of serving stacks to tables of measured runs: from the priors, or from an earlier fit where rows are few."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxscale.errors import InputError
from jaxscale.fit.multistart import one_blas_thread
from jaxscale.fit.statistics.mixed_effects import MixedSolution, solve_mixed
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.measured import fold_of
from jaxscale.runs.table import Runs
from jaxscale.serving.calibrate.serving_coefficients import SERVING_NAMES
from jaxscale.serving.calibrate.serving_problem import (
    TARGETS,
    MeasuredServing,
    ServingProblem,
    effect_spreads,
    measured_serving,
    serving_problem,
)
from jaxscale.serving.calibrate.serving_record import ServingFit, load_serving_fit
from jaxscale.serving.calibrate.serving_widths import NOVELTIES, ServingWidth, widths_of

FOLDS = {"seen": 5, "model": 10, "stack": 8, "chip": 8, "framework": 8}
"""Parts into which rows are divided, by what is left out [1]."""

HELD_STEPS = 6
"""Gauss-Newton steps from the fit of all rows to that without a part [1]."""

KNOWN_SPREAD = 0.4
"""Spread of a further effect of a level that the earlier fit has seen, relative to that of a new one [1]."""

Progress = Callable[[str], None]


class HeldOutServing(NamedTuple):
    """Errors of rows that a fit did not see.

    Attributes:
        measured: the rows.
        problem: their measurements.
        log_errors: log predicted less log measured by what was left out, `fit` for nothing [novelty][measurement].
    """

    measured: MeasuredServing
    problem: ServingProblem
    log_errors: Mapping[str, np.ndarray]


def folds(names: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Part of each row, rows of one name in one part, the parts of about equal size [row]."""
    codes = np.unique(names.astype(str), return_inverse=True)[1]
    return fold_of(codes, min(count, int(codes.max()) + 1), seed)


def _left_out(problem: ServingProblem, solution: MixedSolution, parts: np.ndarray) -> np.ndarray:
    """Errors of each part under the fit of the others [measurement]."""
    errors = np.full(len(problem.row), np.nan)
    for part in range(int(parts.max()) + 1):
        is_kept = parts != part
        effects = problem.mixed.without_levels_of(solution.effects, is_kept)
        start = MixedSolution(effects, solution.spreads, solution.noise, solution.log_errors)
        held = solve_mixed(problem.mixed, is_kept, start, steps=HELD_STEPS, learns_spreads=False)
        mine = ~is_kept[problem.row]
        errors[mine] = held.log_errors[mine]
    return errors


def names_left_out(measured: MeasuredServing, novelty: str) -> np.ndarray:
    """What is left out together, by novelty [row]."""
    return measured.groups if novelty == "seen" else measured.levels[novelty]


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
        for novelty in NOVELTIES:
            tell(f"leaving out: {novelty}")
            parts = folds(names_left_out(measured, novelty), FOLDS[novelty])
            errors[novelty] = _left_out(problem, solution, parts)
    held = {novelty: errors[novelty] for novelty in NOVELTIES}
    levels = {kind: measured.levels[kind][problem.row] for kind in ("serving", "kind", "stack")}
    targets, groups = np.asarray(TARGETS, dtype=object)[problem.target], measured.groups[problem.row].astype(str)
    fit = _record(name, problem, solution, widths_of(held, targets, levels, groups), len(everything))
    return fit, HeldOutServing(measured, problem, errors)


def _record(
    name: str, problem: ServingProblem, solution: MixedSolution, widths: tuple[ServingWidth, ...], n_rows: int
) -> ServingFit:
    """A solution of a problem from the priors as a fit."""
    mixed = problem.mixed
    centre = dict(zip(SERVING_NAMES, np.exp(mixed.base[0]).tolist(), strict=True))
    effects: dict[str, dict[str, dict[str, float]]] = {}
    spreads: dict[str, dict[str, float]] = {}
    for place, block in enumerate(mixed.blocks):
        coefficient = SERVING_NAMES[block.coefficient]
        values = solution.effects[mixed.offsets[place] : mixed.offsets[place + 1]].tolist()
        if block.kind == "centre":
            centre[coefficient] *= float(np.exp(values[0]))
            continue
        spreads.setdefault(block.kind, {})[coefficient] = float(solution.spreads[place])
        for level, value in zip(block.levels, values, strict=True):
            if level.strip():
                effects.setdefault(block.kind, {}).setdefault(level, {})[coefficient] = value
    return ServingFit(name, centre, effects, spreads, widths, n_rows)


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
        return _refined(measured, earlier, name)


def _refined(measured: MeasuredServing, earlier: ServingFit, name: str) -> ServingFit:
    """An earlier fit with what few rows add."""
    spreads = {kind: _scaled(kind, by_name, measured, earlier) for kind, by_name in effect_spreads().items()}
    problem = serving_problem(measured, earlier.logs(measured.levels), spreads)
    everything = np.ones(len(measured.groups), dtype=bool)
    solution = solve_mixed(problem.mixed, everything, learns_spreads=False, steps=20)
    # Rows of one table differ less among themselves than rows of all: their own scale of errors.
    noise = np.clip(_scales(problem, solution), 0.02, 0.3)
    start = MixedSolution(solution.effects, solution.spreads, noise, solution.log_errors)
    solution = solve_mixed(problem.mixed, everything, start, learns_spreads=False, steps=20)
    added = _record(name, problem, solution, (), len(everything))
    effects = {kind: dict(by_level) for kind, by_level in earlier.effects.items()}
    for kind, by_level in added.effects.items():
        for level, shifts in by_level.items():
            known = effects.setdefault(kind, {}).get(level, {})
            effects[kind][level] = {c: known.get(c, 0.0) + shifts.get(c, 0.0) for c in {**known, **shifts}}
    widths = (*earlier.widths, *_own_widths(measured, problem, solution))
    return ServingFit(name, earlier.centre, effects, earlier.spreads, widths, earlier.n_rows + len(everything))


def _scaled(kind: str, usual: Mapping[str, float], measured: MeasuredServing, earlier: ServingFit) -> dict[str, float]:
    """Spreads of further effects of a kind: in full where any level is new, else a part of them."""
    levels = set(measured.levels[kind].tolist())
    is_new = any(not earlier.has_seen(kind, level) for level in levels)
    spreads = {**usual, **earlier.spreads.get(kind, {})}
    return {name: spread * (1.0 if is_new else KNOWN_SPREAD) for name, spread in spreads.items()}


def _scales(problem: ServingProblem, solution: MixedSolution) -> np.ndarray:
    """Median absolute error of each class as a standard deviation [class]."""
    classes = problem.mixed.classes
    return np.asarray(
        [1.48 * np.median(np.abs(solution.log_errors[classes == code])) for code in range(classes.max() + 1)]
    )


def _own_widths(
    measured: MeasuredServing, problem: ServingProblem, solution: MixedSolution
) -> tuple[ServingWidth, ...]:
    """Widths from the rows themselves, each part left out once; none where they are few."""
    if len(measured.groups) < 10:
        return ()
    rows = np.arange(len(measured.groups)).astype(str)
    errors = _left_out(problem, solution, folds(rows, 5))
    levels = {kind: measured.levels[kind][problem.row] for kind in ("serving", "kind", "stack")}
    targets = np.asarray(TARGETS, dtype=object)[problem.target]
    # Each row counts as a group: the rows are those of the user, and so are the rows to come.
    found = widths_of({"seen": errors}, targets, levels, rows[problem.row])
    return tuple(width for width in found if width.stack)
