"""Fits of serving stacks without a part of the rows, the errors of that part, and the widths of intervals by these."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxscale.calibration.levels import Levels
from jaxscale.fitting.statistics.group_quantiles import interval_of
from jaxscale.fitting.statistics.mixed_effects import MixedSolution, solve_mixed
from jaxscale.runs.measured import fold_of
from jaxscale.serving.calibrate.serving_problem import MeasuredServing, ServingProblem
from jaxscale.serving.calibrate.serving_widths import ServingWidth, sign_of, with_density

FOLDS = {"seen": 5, "model": 10, "stack": 8, "chip": 8, "framework": 8}
"""Parts into which rows are divided, by what is left out [1]."""

LEAST_RUNS = 25
"""Errors from which quantiles are taken at least; fewer are pooled with others [1]."""

LEAST_GROUPS = 19
"""Groups of runs from which quantiles are taken at least: the least and the largest error of G cover
(G - 1) / (G + 1) of new ones, 90 % of them from here on [1]."""

FEW_GROUPS = 5
"""Groups of runs of a stack in a kind of serving below which its runs are pooled with those of other such stacks: what
the fit knows of them rests on few [1]."""

LEAST_SPARSE_GROUPS = 9
"""Groups of runs of such stacks from which quantiles are taken at least [1]."""

LEAST_UNITS = 4
"""Models, stacks, chips or frameworks left out from which quantiles are taken at least [1]."""

HELD_STEPS = 6
"""Gauss-Newton steps from the fit of all rows to that without a part [1]."""


class HeldOutServing(NamedTuple):
    """Errors of rows that a fit did not see.

    Attributes:
        measured: the rows.
        problem: their measurements.
        log_errors: log predicted less log measured by what was left out, `fit` for nothing [novelty][measurement].
        few_rows: the same of each stack under a fit without it and ten of its rows, nan for those ten and for stacks
            of few rows [measurement].
    """

    measured: MeasuredServing
    problem: ServingProblem
    log_errors: Mapping[str, np.ndarray]
    few_rows: np.ndarray


def folds(names: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Part of each row, rows of one name in one part, the parts of about equal size [row]."""
    codes = np.unique(names.astype(str), return_inverse=True)[1]
    return fold_of(codes, min(count, int(codes.max()) + 1), seed)


def names_left_out(measured: MeasuredServing, novelty: str) -> np.ndarray:
    """What is left out together, by novelty [row]."""
    return measured.groups if novelty == "seen" else measured.levels.column(novelty)


def fits_without(
    problem: ServingProblem, solution: MixedSolution, parts: np.ndarray
) -> Iterator[tuple[np.ndarray, MixedSolution]]:
    """Rows of each part [row], and the fit of the others, whose levels alone have effects."""
    for part in range(int(parts.max()) + 1):
        is_kept = parts != part
        effects = problem.mixed.without_levels_of(solution.effects, is_kept)
        start = MixedSolution(effects, solution.spreads, solution.noise, solution.log_errors)
        yield ~is_kept, solve_mixed(problem.mixed, is_kept, start, steps=HELD_STEPS, learns_spreads=False)


def errors_left_out(problem: ServingProblem, solution: MixedSolution, parts: np.ndarray) -> np.ndarray:
    """Errors of each part under the fit of the others [measurement]."""
    errors = np.full(len(problem.row), np.nan)
    for is_out, held in fits_without(problem, solution, parts):
        mine = is_out[problem.row]
        errors[mine] = held.log_errors[mine]
    return errors


def widths_of(
    log_errors: Mapping[str, np.ndarray],
    targets: np.ndarray,
    levels: Levels,
    groups: np.ndarray,
) -> tuple[ServingWidth, ...]:
    """Widths from the errors of runs that were left out.

    What was left out together counts as one: groups of runs, or models, stacks, chips and frameworks.

    Args:
        log_errors: log predicted less log measured by what was left out, nan where nothing was
            [novelty][measurement].
        targets: column of each measurement [measurement].
        levels: `serving`, `kind`, `stack` and the novelties of each [measurement].
        groups: group of runs of each [measurement].

    Returns:
        Widths of every class with enough errors, and of their unions.
    """
    levels = with_density(levels)
    columns = (targets, *(levels.column(kind) for kind in ("serving", "density", "stack")))
    classes = {tuple(key) for key in zip(*columns, strict=True)}
    unions = {key for t, s, d, k in classes for key in ((t, s, d, k), (t, s, d, ""), (t, s, "", ""), (t, "", "", ""))}
    widths = []
    for novelty, errors in log_errors.items():
        units = groups if novelty == "seen" else levels.column(novelty).astype(str)
        for place in sorted({*unions, ("", "", "", "")}):
            if place[3] and novelty != "seen":
                continue
            mask = np.isfinite(errors) & _is_in(place, columns)
            if mask.sum() >= LEAST_RUNS and _count(groups[mask]) >= LEAST_GROUPS and _count(units[mask]) >= LEAST_UNITS:
                widths.append(_width(place, novelty, -errors[mask], units[mask]))
    if "seen" in log_errors:
        widths += _sparse_widths(log_errors["seen"], columns, classes, groups)
    return tuple(widths)


def _sparse_widths(
    errors: np.ndarray, columns: Sequence[np.ndarray], classes: Collection[tuple[str, ...]], groups: np.ndarray
) -> list[ServingWidth]:
    """Widths of stacks that few groups of runs tell of: from all such stacks, of one kind of serving where they do."""
    served = np.asarray([" ".join(names) for names in zip(columns[1], columns[3], strict=True)])
    pairs, codes = np.unique(served, return_inverse=True)
    is_few = np.asarray([_count(groups[codes == code]) < FEW_GROUPS for code in range(len(pairs))])
    is_sparse = is_few[codes] & np.isfinite(errors)
    signs = np.asarray([sign_of(target) for target in columns[0]])
    widths = []
    for target, serving, density, stack in sorted(classes):
        if not is_few[np.searchsorted(pairs, f"{serving} {stack}")]:
            continue
        # Errors of other targets tell nothing: first tokens scatter ten times as far as throughputs.
        for place in ((target, serving, density, ""), (target, serving, "", ""), (target, "", "", "")):
            mask = is_sparse & _is_in(place, columns)
            if mask.sum() >= LEAST_RUNS and _count(groups[mask]) >= LEAST_SPARSE_GROUPS:
                ratios = -sign_of(target) * signs[mask] * errors[mask]
                widths.append(_width((target, serving, density, stack), "seen", ratios, groups[mask]))
                break
    return widths


def _is_in(place: Sequence[str], columns: Sequence[np.ndarray]) -> np.ndarray:
    """Whether each measurement belongs to a class, whose empty words stand for any [measurement]."""
    mask = np.ones(len(columns[0]), dtype=bool)
    for column, word in zip(columns, place, strict=True):
        mask &= (column == word) | (word == "")
    return mask


def _count(names: np.ndarray) -> int:
    return len(np.unique(names))


def _width(place: Sequence[str], novelty: str, ratios: np.ndarray, units: np.ndarray) -> ServingWidth:
    lo, hi = interval_of(ratios, units)
    target, serving, density, stack = place
    return ServingWidth(target, serving, density, stack, novelty, lo, hi, len(ratios))
