"""Fit of the paces of traced workloads: effects of workload and chip on measured step times, with intervals.

A pace is a ratio of measured to predicted step time. The logarithm of the ratio is the sum of the paces of the
workload, of the chip and of the workload on the chip. Each log pace has mean 0, a spread taken from measured steps of
MLPerf (`data/kernels.toml`), and heavy tails, so that a step of twice the predicted time counts as a slow workload
rather than a wrong row. The chip of the kernel fit has no pace.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from jaxscale.base.errors import InputError
from jaxscale.base.show import MOST_LINES
from jaxscale.base.table import Table, TableColumn, html_of, make_table, text_column, text_of
from jaxscale.calibration.intervals import Z90
from jaxscale.calibration.kernel_coefficients import kernel_priors
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import Fit, WorkloadPace, paces_of
from jaxscale.fitting.fit_estimates import LogErrors, mean_percent
from jaxscale.fitting.statistics.mixed_effects import Block, MixedProblem, MixedSolution, effect_covariance, solve_mixed
from jaxscale.fitting.statistics.student import DEGREES_OF_FREEDOM
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.runs import Runs
from jaxscale.runs.measured import describe_runs, fold_of, measured_times
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tracing.predict_traced import predict_traced

KINDS_OF_PACE = ("workload", "chip", "workload_on_chip")
"""Factors with paces, in order of the blocks of the mixed model."""


@dataclass(frozen=True)
class PaceRows:
    """Rows of traced workloads with measured and predicted step time.

    Attributes:
        lines: line of each row in the table [row].
        workload: workload name of each row [row].
        gpu: catalogue id of the chip of each row [row].
        n_chips: number of chips [1], [row].
        measured: measured step time [s], [row].
        predicted: step time predicted by the start of the fit [s], [row].
        groups: group index of equal workload, chip, number of chips and batch [row].
    """

    lines: np.ndarray
    workload: np.ndarray
    gpu: np.ndarray
    n_chips: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    groups: np.ndarray

    @property
    def log_pace(self) -> np.ndarray:
        """Logarithm of measured over predicted step time [1], [row]."""
        return np.log(self.measured / self.predicted)


def pace_rows(runs: Runs, fit: Fit, hardware: Hardware | None = None) -> PaceRows:
    """Rows usable for the fit of paces, from a table of traced workloads.

    Raises:
        InputError: no row has a measured step time and a prediction.
    """
    measured = measured_times(runs, describe_runs(runs, hardware))
    answers = predict_traced(runs, fit, hardware or load_hardware())
    predicted = answers.numbers["step_time"]
    kept = np.flatnonzero(np.isfinite(measured) & np.isfinite(predicted))
    if not len(kept):
        unanswered = np.flatnonzero(~np.isfinite(predicted))[:1].tolist()
        reasons = [f"line {runs.lines[row]}: {answers.notes[row]}" for row in unanswered]
        raise InputError(
            f"{runs.path}: no row of a traced workload can be fitted; expected step_time_s in rows that can be "
            f"predicted ({reasons[0] if reasons else 'none has one'})"
        )
    columns = {name: runs.categories(name) for name in ("workload", "gpu")}
    batch = Categorical.of_numbers(runs.numbers("global_batch_size_seqs"))
    chips = Categorical.of_numbers(runs.numbers("n_gpus"))
    # Repeats of a setting share a fold, so as not to predict one another.
    groups = together(*columns.values(), chips, batch).codes[kept]
    return PaceRows(
        lines=runs.lines[kept],
        workload=columns["workload"].array()[kept],
        gpu=columns["gpu"].array()[kept],
        n_chips=runs.numbers("n_gpus")[kept],
        measured=measured[kept],
        predicted=predicted[kept],
        groups=np.unique(groups, return_inverse=True)[1],
    )


def pace_problem(rows: PaceRows) -> MixedProblem:
    """Mixed-effects problem of the rows: one fixed coefficient with value 0, and the log paces as random effects."""
    n = len(rows.measured)

    def evaluate(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # The fixed coefficient has value 0: the slope on each effect is 1.
        return logs[:, 0], np.ones((n, 1))

    spreads = kernel_priors()["paces"]
    pairs = np.asarray([pair_name(*pair) for pair in zip(rows.workload, rows.gpu, strict=True)])
    blocks = []
    for kind, column in zip(KINDS_OF_PACE, (rows.workload, rows.gpu, pairs), strict=True):
        names = Categorical.of(column.tolist())
        is_level = np.asarray([has_pace(kind, name) for name in names.values])
        # -1: the chip of the kernel fit has no pace.
        codes = np.where(is_level, np.cumsum(is_level) - 1, -1)[names.codes]
        levels = tuple(name for name, kept in zip(names.values, is_level, strict=True) if kept)
        # Heavy tails: a step of twice the time is a slow workload, not a wrong row.
        blocks.append(Block(kind, 0, codes, levels, float(spreads[kind]["spread"]), is_heavy=True))
    whole = np.arange(n)
    return MixedProblem(evaluate, np.zeros((n, 1)), whole, rows.log_pace, np.zeros(n, dtype=int), tuple(blocks))


def pair_name(workload: str, gpu: str) -> str:
    """Name of the level of a workload on a chip."""
    return f"{workload} on {gpu}"


def has_pace(kind: str, name: object) -> bool:
    """Whether a level of a factor has a pace; false for the chip of the kernel fit."""
    return name != kernel_priors()["paces"][kind].get("none_on")


def pace_start(problem: MixedProblem, is_counted: np.ndarray) -> MixedSolution:
    """Start of the search: median log pace of the rows of each pair of workload and chip, and prior spreads."""
    effects = np.zeros(problem.n_effects)
    codes, offset = problem.blocks[-1].codes, problem.offsets[-2]
    for code in np.unique(codes[is_counted]):
        # The median resists wrong rows.
        effects[offset + code] = np.median(problem.log_measured[is_counted & (codes == code)])
    noise = np.asarray([float(kernel_priors()["paces"]["noise"]["spread"])])
    spreads = np.asarray([block.spread for block in problem.blocks])
    # Errors at zero effects: predicted minus measured.
    return MixedSolution(effects, spreads, noise, -problem.log_measured)


PACE_COLUMNS = (
    text_column("workload"),
    text_column("chip", says="on {}"),
    TableColumn("pace", stays=True),
    TableColumn("90 % interval", "90 %", says="{}", stays=True),
)


@dataclass(frozen=True)
class PaceResult(LogErrors):
    """Result of a fit of paces to rows of traced workloads.

    Attributes:
        fit: start of the fit, with the paces.
        rows: measured rows.
        paces: paces by workload and chip.
        spreads: standard deviation of the effects of each of `KINDS_OF_PACE` [1].
        noise: scale of the errors of single rows [1].
        residuals: predicted minus measured log step time of each row, in sample [1], [row].
        held_out: predicted minus measured log step time of held-out rows; nan with one setting alone [1], [row].
    """

    fit: Fit
    rows: PaceRows
    paces: tuple[WorkloadPace, ...]
    spreads: np.ndarray
    noise: float
    residuals: np.ndarray
    held_out: np.ndarray

    @property
    def mape_before(self) -> float:
        """Mean absolute percentage error before the fit [%]."""
        return mean_percent(-self.rows.log_pace)

    @property
    def messages(self) -> tuple[str, ...]:
        """Cautions on the use of the fit."""
        few = "all rows have one setting: no row was held out, intervals rest on the spreads of other measured steps"
        return () if np.isfinite(self.held_out).any() else (few,)

    def headlines(self) -> list[str]:
        """Lines of text on the fitted paces and their errors."""
        held_out = f"{self.mape_cv:.2f} % held out (median {self.median_cv:.2f} %)"
        spreads = zip(KINDS_OF_PACE, self.spreads, strict=True)
        return [
            f"paces of traced workloads: {self.n} rows, workloads {len(set(self.rows.workload))}, kinds of chip "
            f"{len(set(self.rows.gpu))}",
            f"error of step time: {self.mape_before:.2f} % before, {self.mape_train:.2f} % in sample, "
            + (held_out if np.isfinite(self.held_out).any() else "no row held out"),
            ", ".join(f"spread of {kind.replace('_', ' ')} {spread:.3f}" for kind, spread in spreads)
            + f", of single rows {self.noise:.3f}",
        ]

    def parts(self) -> list[str | Table]:
        """Lines and tables of the report: errors, paces, messages."""
        return [*self.headlines(), self.pace_table(), *self.messages]

    def summary(self) -> str:
        """Report in plain text: errors, paces, messages."""
        return text_of(self.parts())

    def pace_table(self) -> Table:
        """Table of the paces of measured pairs of workload and chip, as ratios of measured to predicted step time."""
        pairs = set(zip(self.rows.workload, self.rows.gpu, strict=True))
        rows = [
            (
                pace.workload or "any other",
                pace.gpu or "any other",
                f"{np.exp(pace.log_pace):.3f}",
                f"[{np.exp(pace.log_pace - pace.half_width):.3f}, {np.exp(pace.log_pace + pace.half_width):.3f}]",
            )
            for pace in self.paces
            if (pace.workload, pace.gpu) in pairs or not (pace.workload and pace.gpu)
        ]
        return make_table("Paces: measured over predicted step times", PACE_COLUMNS, rows)

    def to_html(self) -> str:
        """Report in HTML: errors, paces, messages."""
        return html_of(self.parts())

    def __repr__(self) -> str:
        """First lines of the report."""
        return "\n".join(self.summary().splitlines()[:MOST_LINES])

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_json(self) -> dict[str, Any]:
        """Report as JSON values; nan becomes None."""
        return {
            "n": self.n,
            "mape_before": self.mape_before,
            "mape_train": self.mape_train,
            "mape_held_out": self.mape_cv if np.isfinite(self.held_out).any() else None,
            "spreads": dict(zip(KINDS_OF_PACE, self.spreads.tolist(), strict=True)),
            "noise": self.noise,
            "paces": [vars(pace) for pace in self.paces],
            "messages": list(self.messages),
        }

    def save(self, path: str | Path) -> None:
        """Write the fit as a TOML file, atomically.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        comment = f"jaxscale fit of {self.n} rows of traced workloads; load with jaxscale.load_fit or predict --fit"
        self.fit.save(path, comment=comment)


T90 = float(stdtrit(DEGREES_OF_FREEDOM, 0.95))
"""Quantile at 95 % of the errors of single runs, in units of their scale [1]."""


def fit_paces(
    runs: Runs, start: Fit, *, n_folds: int = 5, name: str = "fit", hardware: Hardware | None = None
) -> PaceResult:
    """Fit the paces of traced workloads to a table in which every row names a workload.

    Args:
        runs: the table.
        start: fit that predicts the rows, with its paces if any; the result keeps all further content.
        n_folds: folds of the cross-validation; rows of equal workload, chip, number of chips and batch share a fold
            [1].
        name: name of the fit.
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        The start with paces, and the errors.

    Raises:
        InputError: no row has a measured step time and a prediction.
    """
    rows = pace_rows(runs, start, hardware)
    problem = pace_problem(rows)
    with jax.enable_x64(True):
        everything = np.ones(len(rows.measured), dtype=bool)
        solution = solve_mixed(problem, everything, pace_start(problem, everything))
        paces = tuple(_paces(rows, problem, solution, start))
        held_out = _held_out(rows, problem, solution, n_folds)
    replaced = {(pace.workload, pace.gpu) for pace in paces}
    # Paces of the start stay where no row measured a pair.
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
    """Predicted minus measured log step time of held-out rows; nan with a single group [1], [row]."""
    n_groups = int(rows.groups.max()) + 1
    held_out = np.full(len(rows.measured), np.nan)
    if n_groups < 2:
        return held_out
    fold = fold_of(rows.groups, min(n_folds, n_groups))
    for place in range(int(fold.max()) + 1):
        begin = dataclasses.replace(solution, effects=pace_start(problem, fold != place).effects)
        # Folds keep the spreads learned from all rows.
        without = solve_mixed(problem, fold != place, begin, learns_spreads=False)
        held_out[fold == place] = without.log_errors[fold == place]
    return held_out


def _paces(rows: PaceRows, problem: MixedProblem, solution: MixedSolution, start: Fit) -> Iterator[WorkloadPace]:
    """Paces by pair of workload and chip, where the workload or the chip was measured."""
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
                # Uncertainty of the pace and noise of a single run are independent.
                half_width=float(np.hypot(Z90 * np.sqrt(variance), noise)),
                n_chips=float(rows.n_chips[of_workload].max()),
            )


def _levels_of(
    problem: MixedProblem, solution: MixedSolution, workload: str, gpu: str
) -> tuple[Float[np.ndarray, " effect"], float]:
    """Mask of the effects in the pace of a workload on a chip, and the summed variance of unseen effects [1]."""
    has, unseen = np.zeros(problem.n_effects), 0.0
    levels = (workload, gpu, pair_name(workload, gpu))
    parts = zip(problem.blocks, problem.offsets[:-1], solution.spreads, levels, strict=True)
    for block, offset, spread, level in parts:
        if level in block.levels:
            has[offset + block.levels.index(level)] = 1.0
        elif has_pace(block.kind, level):
            # Effects without a level have the variance of the spread.
            unseen += float(spread) ** 2
    return has, unseen


def _pace_of(start: Fit, workload: str, gpu: str) -> float:
    """Log pace in the start of a fit [1]."""
    levels = Levels.of_rows([{"architecture": workload, "gpu": gpu}])
    return float(paces_of(start.paces, levels, np.ones(1)).log_pace[0])
