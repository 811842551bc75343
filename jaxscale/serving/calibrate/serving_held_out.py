"""Fits of serving stacks without a part of the rows, and the errors of that part."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jaxscale.fitting.statistics.mixed_effects import MixedSolution, solve_mixed
from jaxscale.runs.measured import fold_of
from jaxscale.serving.calibrate.serving_problem import MeasuredServing, ServingProblem

FOLDS = {"seen": 5, "model": 10, "stack": 8, "chip": 8, "framework": 8}
"""Parts into which rows are divided, by what is left out [1]."""

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
