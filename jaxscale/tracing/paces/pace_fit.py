"""Fit of the paces of traced workloads: effects of workload and chip, shrunk, with the interval of each pair."""

import dataclasses
import hashlib
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from jaxscale.calibration.intervals import Z90
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import Fit
from jaxscale.calibration.workload_paces import WorkloadPace, paces_of
from jaxscale.fitting.statistics.mixed_effects import MixedProblem, MixedSolution, effect_covariance, solve_mixed
from jaxscale.fitting.statistics.student import DEGREES_OF_FREEDOM
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs import Runs
from jaxscale.runs.measured import fold_of
from jaxscale.tracing.paces.pace_problem import (
    PaceRows,
    has_pace,
    pace_problem,
    pace_rows,
    pace_start,
    pair_name,
)
from jaxscale.tracing.paces.pace_result import PaceResult

T90 = float(stdtrit(DEGREES_OF_FREEDOM, 0.95))
"""Quantile at 95 % of the errors of single runs, over their scale [1]."""


def fit_paces(
    runs: Runs, start: Fit, *, n_folds: int = 5, name: str = "fit", hardware: Hardware | None = None
) -> PaceResult:
    """Fit the paces of traced workloads to a table of which all rows name one.

    Args:
        runs: the table.
        start: predicts the rows, by its paces too where it has some; the fit has all that it knows.
        n_folds: folds of the cross-validation; rows of equal workload, chip, chips and batch are left out together [1].
        name: what the fit is called.
        hardware: catalogue of chips; the shipped one where None.

    Returns:
        The start with paces, and how near it comes.

    Raises:
        InputError: no row has both a measured step time and a prediction.
    """
    rows = pace_rows(runs, start, hardware)
    problem = pace_problem(rows)
    with jax.enable_x64(True):
        everything = np.ones(len(rows.measured), dtype=bool)
        solution = solve_mixed(problem, everything, pace_start(problem, everything))
        paces = tuple(_paces(rows, problem, solution, start))
        held_out = _held_out(rows, problem, solution, n_folds)
    replaced = {(pace.workload, pace.gpu) for pace in paces}
    kept = tuple(pace for pace in start.paces if (pace.workload, pace.gpu) not in replaced)
    provenance = {
        **dict(start.provenance),
        "workload_runs": str(len(rows.measured)),
        "workload_data_sha256": hashlib.sha256(runs.path.read_bytes()).hexdigest()[:16],
    }
    fit = dataclasses.replace(start, name=name, paces=(*paces, *kept), provenance=tuple(provenance.items()))
    return PaceResult(
        fit=fit,
        rows=rows,
        paces=paces,
        spreads=solution.spreads,
        noise=float(solution.noise[0]),
        residuals=solution.log_errors,
        held_out=held_out,
    )


def _held_out(rows: PaceRows, problem: MixedProblem, solution: MixedSolution, n_folds: int) -> np.ndarray:
    """Predicted minus measured log step time of rows that the paces did not see; nan where there is one group [row]."""
    n_groups = int(rows.groups.max()) + 1
    held_out = np.full(len(rows.measured), np.nan)
    if n_groups < 2:
        return held_out
    fold = fold_of(rows.groups, min(n_folds, n_groups))
    for place in range(int(fold.max()) + 1):
        begin = dataclasses.replace(solution, effects=pace_start(problem, fold != place).effects)
        without = solve_mixed(problem, fold != place, begin, learns_spreads=False)
        held_out[fold == place] = without.log_errors[fold == place]
    return held_out


def _paces(rows: PaceRows, problem: MixedProblem, solution: MixedSolution, start: Fit) -> Iterator[WorkloadPace]:
    """Pace of each measured workload on each measured chip and on others, and of other workloads on measured chips."""
    covariance = effect_covariance(problem, solution, np.ones(len(rows.measured), dtype=bool))
    noise = T90 * float(solution.noise[0])
    for workload in (*sorted(set(rows.workload)), ""):
        of_workload = (rows.workload == workload) | (not workload)
        for gpu in (*sorted(set(rows.gpu)), ""):
            has, unseen = _levels_of(problem, solution, workload, gpu)
            if not has.any():
                continue
            variance = float(has @ covariance @ has) + unseen
            yield WorkloadPace(
                workload=workload,
                gpu=gpu,
                log_pace=float(has @ solution.effects) + _pace_of(start, workload, gpu),
                half_width=float(np.hypot(Z90 * np.sqrt(variance), noise)),
                n_chips=float(rows.n_chips[of_workload].max()),
            )


def _levels_of(
    problem: MixedProblem, solution: MixedSolution, workload: str, gpu: str
) -> tuple[Float[np.ndarray, " effect"], float]:
    """Which effects make up the pace of a workload on a chip, and the variance of those that no row had [1]."""
    has, unseen = np.zeros(problem.n_effects), 0.0
    levels = (workload, gpu, pair_name(workload, gpu))
    parts = zip(problem.blocks, problem.offsets[:-1], solution.spreads, levels, strict=True)
    for block, offset, spread, level in parts:
        if level in block.levels:
            has[offset + block.levels.index(level)] = 1.0
        elif has_pace(block.kind, level):
            unseen += float(spread) ** 2
    return has, unseen


def _pace_of(start: Fit, workload: str, gpu: str) -> float:
    """Log pace that the start of a fit has [1]."""
    levels = Levels.of_rows([{"architecture": workload, "gpu": gpu}])
    return float(paces_of(start.paces, levels, np.ones(1)).log_pace[0])
