r"""Measured steps of traced workloads as a problem of mixed effects.

The logarithm of measured over predicted step time is the sum of a pace of the workload, one of the chip and one of the
workload on the chip, each about nothing with a spread that measured steps of MLPerf have (`data/kernels.toml`) and with
heavy tails: a step that takes twice as long as predicted is a slow workload rather than a wrong row. The chip on which
the coefficients of kernels were fitted has no pace of its own.
"""

from dataclasses import dataclass

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.kernel_coefficients import kernel_priors
from jaxscale.calibration.record import Fit
from jaxscale.fitting.statistics.mixed_effects import Block, MixedProblem, MixedSolution
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.runs import Runs
from jaxscale.runs.measured import describe_runs, measured_times
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tracing.rows.predict_traced import predict_traced

KINDS_OF_PACE = ("workload", "chip", "workload_on_chip")
"""Kinds of level that have paces, in the order of the blocks."""


@dataclass(frozen=True)
class PaceRows:
    """Rows of traced workloads that have a measured and a predicted step time.

    Attributes:
        lines: of the table [row].
        workload: name of each row's workload [row].
        gpu: catalogue id of its chip [row].
        n_chips: [1], [row].
        measured: step time [s], [row].
        predicted: step time by the start of the fit [s], [row].
        groups: rows of equal workload, chip, number of chips and batch have one [row].
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
    """Rows of traced workloads that can be fitted; all rows of the table name one.

    Args:
        runs: the table.
        fit: predicts them.
        hardware: catalogue; the shipped one where None.

    Returns:
        The rows.

    Raises:
        InputError: no row has both a measured step time and a prediction.
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
    """The rows as measurements of one coefficient, whose effects are the paces."""
    n = len(rows.measured)

    def evaluate(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return logs[:, 0], np.ones((n, 1))

    spreads = kernel_priors()["paces"]
    pairs = np.asarray([pair_name(*pair) for pair in zip(rows.workload, rows.gpu, strict=True)])
    blocks = []
    for kind, column in zip(KINDS_OF_PACE, (rows.workload, rows.gpu, pairs), strict=True):
        names = Categorical.of(column.tolist())
        is_level = np.asarray([has_pace(kind, name) for name in names.values])
        codes = np.where(is_level, np.cumsum(is_level) - 1, -1)[names.codes]
        levels = tuple(name for name, kept in zip(names.values, is_level, strict=True) if kept)
        blocks.append(Block(kind, 0, codes, levels, float(spreads[kind]["spread"]), is_heavy=True))
    whole = np.arange(n)
    return MixedProblem(evaluate, np.zeros((n, 1)), whole, rows.log_pace, np.zeros(n, dtype=int), tuple(blocks))


def pair_name(workload: str, gpu: str) -> str:
    """Name of the level of a workload on a chip."""
    return f"{workload} on {gpu}"


def has_pace(kind: str, name: object) -> bool:
    """Whether a level of a kind has a pace: all but the chip on which the coefficients of kernels were fitted."""
    return name != kernel_priors()["paces"][kind].get("none_on")


def pace_start(problem: MixedProblem, is_counted: np.ndarray) -> MixedSolution:
    """Where the search begins: each pair of workload and chip at the median of its rows, spreads of other steps."""
    effects = np.zeros(problem.n_effects)
    codes, offset = problem.blocks[-1].codes, problem.offsets[-2]
    for code in np.unique(codes[is_counted]):
        effects[offset + code] = np.median(problem.log_measured[is_counted & (codes == code)])
    noise = np.asarray([float(kernel_priors()["paces"]["noise"]["spread"])])
    spreads = np.asarray([block.spread for block in problem.blocks])
    return MixedSolution(effects, spreads, noise, -problem.log_measured)
