r"""Measured scaling series beside the model: runs of a table that differ only in their number of chips.

Weak series keep the batch per chip, strong series the global batch; both keep the micro-batch and every other column.
In submissions to a benchmark the plan is chosen for every size, so that a series is one model on one chip. The slope of
a series is the least-squares slope of log throughput per chip against log chips.

Published values of Fernandez et al. (arXiv 2411.13055) are compared with the model for their workload.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxscale.base.documents import run_tables
from jaxscale.calibration.record import AnyFit
from jaxscale.runs import Row, Runs, read_runs
from jaxscale.runs.defaults import table_facts
from jaxscale.runs.predict import Prediction, predict
from jaxscale.trends.deployment_library import deployment, table
from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import TENSOR_DEGREES, Outcome, best_tensor_degree, scaling_outcomes

FREE = {
    "source_row",
    "n_gpus",
    "dp",
    "global_batch_size_seqs",
    "n_microbatches",
    "step_time_s",
    "step_time_derived",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "peak_mem_gb",
    "status",
    "notes",
}
"""Columns in which the runs of a series may differ: size, consequences of size, measurements."""

SCALING_TABLES = tuple(name for name, facts in table_facts().items() if "scaling" in facts)
"""Tables made to show how training scales; in a sweep of plans, sizes are incidental and repeats differ by a fifth."""

SUBMISSION = ("model", "gpu", "precision", "seq_len")
"""Columns in which submissions to a benchmark agree."""

SUBMISSION_TABLES = tuple(name for name in SCALING_TABLES if table_facts()[name]["scaling"] == "submissions")
"""Tables whose plans are chosen anew at each size."""

MIN_CHIPS = 3
"""Different sizes that make a series worth drawing [1]."""


@dataclass(frozen=True)
class Series:
    """Runs of a table that differ only in their number of chips.

    Attributes:
        table: name of the table.
        kind: `weak`, `strong` or `submission`.
        label: text of model, chip and batch.
        rows: positions in the table [point].
        n_chips: number of chips [1], [point].
        measured: measured throughput per chip [token/s], [point].
        predicted: predicted throughput per chip [token/s], [point].
        half_width: half-width of the central 90 % interval of log predicted throughput [1], [point].
    """

    table: str
    kind: str
    label: str
    rows: np.ndarray
    n_chips: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    half_width: np.ndarray

    @property
    def n_sizes(self) -> int:
        """Number of distinct sizes, in chips [1]."""
        return len(np.unique(self.n_chips))

    @property
    def measured_slope(self) -> float:
        """Slope of log measured throughput per chip against log number of chips [1]."""
        return slope(self.n_chips, self.measured)

    @property
    def predicted_slope(self) -> float:
        """Slope of log predicted throughput per chip against log number of chips [1]."""
        return slope(self.n_chips, self.predicted)

    @property
    def slope_error(self) -> float:
        """Predicted minus measured slope of log throughput per chip [1]."""
        return self.predicted_slope - self.measured_slope

    def slope_scatter(self) -> float:
        """Standard error of the measured slope from its residuals; nan with two points [1]."""
        x = np.log(self.n_chips) - np.log(self.n_chips).mean()
        y = np.log(self.measured)
        residual = y - y.mean() - self.measured_slope * x
        # The mean and the slope take two degrees of freedom.
        freedom = len(x) - 2
        return float(np.sqrt((residual @ residual) / freedom / (x @ x))) if freedom > 0 else float("nan")


def slope(n_chips: np.ndarray, throughput: np.ndarray) -> float:
    """Least-squares slope of log throughput against log chips [1]."""
    return float(np.polyfit(np.log(n_chips), np.log(throughput), 1)[0])


def table_series(runs: Runs, prediction: Prediction, name: str) -> list[Series]:
    """Scaling series of a table: runs that differ only in their number of chips.

    Args:
        runs: the table.
        prediction: predictions of the rows.
        name: name of the table.

    Returns:
        Weak, then strong series, or submissions; each of at least `MIN_CHIPS` sizes.
    """
    usable = np.isfinite(prediction.measured) & np.isfinite(prediction.step_time)
    # A plan that completes a row is not the one that ran.
    usable &= prediction.assumed == ""
    kinds = ("submission",) if name in SUBMISSION_TABLES else ("weak", "strong")
    all_series = []
    for kind in kinds:
        groups: dict[Any, list[int]] = defaultdict(list)
        for position in np.flatnonzero(usable):
            groups[_key(runs.rows[position], kind)].append(int(position))
        candidates = (_series(runs, prediction, name, kind, rows) for rows in groups.values())
        all_series += [series for series in candidates if series.n_sizes >= MIN_CHIPS]
    return all_series


def _key(row: Row, kind: str) -> tuple[Any, ...]:
    if kind == "submission":
        return tuple(row[column] for column in SUBMISSION)
    batch = row["global_batch_size_seqs"]
    # Equal but for rounding.
    work = round(batch / row["n_gpus"], 6) if kind == "weak" else batch
    return (work, *((column, value) for column, value in sorted(row.values.items()) if column not in FREE))


def _series(runs: Runs, prediction: Prediction, name: str, kind: str, positions: Sequence[int]) -> Series:
    rows = np.asarray(positions)
    chosen = [runs.rows[position] for position in positions]
    n = np.asarray([row["n_gpus"] for row in chosen], float)
    # Samples count where there are no tokens.
    tokens = np.asarray([row["global_batch_size_seqs"] * (row["seq_len"] or 1.0) for row in chosen], float)
    first = chosen[0]
    shape = f"L{first['n_layers']:g} d{first['d_model']:g}" if first["model"] is None else first["model"]
    work = {"weak": f"{tokens[0] / n[0]:.4g} tokens per chip", "strong": f"{tokens[0]:.4g} tokens"}
    return Series(
        table=name,
        kind=kind,
        label=", ".join(text for text in (str(shape), str(first["gpu"]), work.get(kind, "")) if text),
        rows=rows,
        n_chips=n,
        measured=tokens / (prediction.measured[rows] * n),
        predicted=tokens / (prediction.step_time[rows] * n),
        half_width=np.log(prediction.hi[rows] / prediction.step_time[rows]),
    )


def shipped_series(fit: AnyFit = "default", tables: Sequence[str] | None = None) -> list[Series]:
    """Scaling series of the shipped tables, table by table.

    Args:
        fit: a fit, or its name or file.
        tables: names of the tables; all where None.
    """
    paths = run_tables()
    all_series = []
    for name in tables or paths:
        runs = read_runs(paths[name])
        all_series += table_series(runs, predict(runs, fit), name)
    return all_series


def held_out_series(series: Series, residual: Mapping[tuple[str, int], float]) -> Series | None:
    """Copy of a series with predictions of fits without the runs of the series.

    Args:
        series: a series.
        residual: log predicted over measured step time by table and row, from cross-validation [1].

    Returns:
        The copy; None if a run lacks a prediction.
    """
    errors = np.asarray([residual.get((series.table, int(row)), np.nan) for row in series.rows])
    if not np.isfinite(errors).all():
        return None
    # Throughput is inverse to the step time.
    return replace(series, predicted=series.measured * np.exp(-errors))


@dataclass(frozen=True)
class SlopeSummary:
    """Errors of predicted slopes of log throughput over many series.

    Attributes:
        n: number of series with at least `LEAST_SIZES` sizes [1].
        within: share of these series with a slope error of at most `TOLERANCE` [1].
        median: median absolute error of the slope [1].
    """

    n: int
    within: float
    median: float


TOLERANCE = 0.02
"""Error of a slope that counts as right [1]."""

LEAST_SIZES = 4
"""Least number of sizes of a series whose slope is judged [1]."""


def summarise(series: Sequence[Series]) -> SlopeSummary:
    """Summary of the errors of predicted slopes over the series with at least `LEAST_SIZES` sizes."""
    errors = np.abs([s.slope_error for s in series if s.n_sizes >= LEAST_SIZES])
    if not len(errors):
        return SlopeSummary(0, float("nan"), float("nan"))
    return SlopeSummary(len(errors), float(np.mean(errors <= TOLERANCE)), float(np.median(errors)))


FIGURES = (
    "throughput_fall",
    "power_fall",
    "tensor_parallel_gain",
    "a100_mfu",
    "h100_mfu",
    "strong_scaling_mfu_few",
    "strong_scaling_mfu_many",
    "power_level",
    "tensor_parallel_power",
)
"""Figures of the model, in the order of the columns of a comparison; the last two served to fit powers."""


@dataclass(frozen=True)
class Reproduction:
    """Predictions of the published values of scaling and power (arXiv 2411.13055).

    Attributes:
        values: prediction by name in `FIGURES`, a fraction [1] or a power [W].
        best_degree: best tensor-parallel degree at the smallest and at the largest size of the weak scaling [1].
    """

    values: dict[str, float]
    best_degree: tuple[float, float]


def reproduce(power: Mapping[str, float] | None = None, fit: AnyFit = "default") -> Reproduction:
    """Predictions of the published values of scaling and power (arXiv 2411.13055).

    Args:
        power: share of the power range above idle by activity [1]; `fitted_power` where None.
        fit: a fit, or its name or file.
    """
    work, published = table()["workload"], table()["published"]
    h100 = deployment(work["model"], work["gpu"], power=power, fit=fit)
    a100 = deployment(work["model"], published["a100_mfu"]["gpu"], power=power, fit=fit)
    older = weak_outcomes(a100)
    values, degrees = weak_figures(weak_outcomes(h100))
    strong = published["strong_scaling_mfu"]
    _, fixed = best_tensor_degree(h100, strong["n_chips"], np.full(2, float(strong["global_batch_size_seqs"])))
    # Third number of chips, tensor degree 1.
    values["a100_mfu"] = float(older.mfu[2 * len(TENSOR_DEGREES)])
    values["strong_scaling_mfu_few"], values["strong_scaling_mfu_many"] = (float(value) for value in fixed.mfu)
    return Reproduction({name: values[name] for name in FIGURES}, degrees)


def weak_outcomes(given: Deployment) -> Outcome:
    """Outcomes of the published weak scaling at its three numbers of chips, for each of `TENSOR_DEGREES` [point]."""
    work, published = table()["workload"], table()["published"]
    chips = (*published["throughput_fall"]["n_chips"], published["h100_mfu"]["n_chips"][0])
    # One call, of one shape, for all points.
    n = np.repeat(chips, len(TENSOR_DEGREES)).astype(float)
    layout = ParallelLayout(tp=np.tile(TENSOR_DEGREES, len(chips)))
    return scaling_outcomes(given, layout, n, work["sequences_per_chip"] * n)


def weak_figures(weak: Outcome) -> tuple[dict[str, float], tuple[float, float]]:
    """Predicted values of the published weak scaling by name, and best tensor degree at its fewest and most chips."""
    speed, watts, mfu = (
        # (chips, degrees)
        np.asarray(leaf).reshape(3, len(TENSOR_DEGREES))
        for leaf in (weak.tokens_per_s_per_chip, weak.chip_power, weak.mfu)
    )
    best = np.argmax(speed, axis=1)
    values = {
        # Column 0: tensor degree 1.
        "throughput_fall": float(speed[1, 0] / speed[0, 0] - 1.0),
        "power_fall": float(watts[1, 0] / watts[0, 0] - 1.0),
        "tensor_parallel_gain": float(speed[1, best[1]] / speed[1, 0] - 1.0),
        "h100_mfu": float(mfu[2, 0]),
        "power_level": float(watts[0, 0]),
        "tensor_parallel_power": float(watts[1, best[1]] - watts[1, 0]),
    }
    return values, (TENSOR_DEGREES[best[0]], TENSOR_DEGREES[best[1]])


def published_values() -> dict[str, tuple[float, float]]:
    """Published value and accepted deviation of each of `FIGURES`; nan for no accepted deviation."""
    entries: dict[str, Any] = dict(table()["published"])
    strong = entries.pop("strong_scaling_mfu")
    figures = {name: (entry["value"], entry.get("tolerance", float("nan"))) for name, entry in entries.items()}
    for name, value in zip(("few", "many"), strong["value"], strict=True):
        figures[f"strong_scaling_mfu_{name}"] = (value, strong["tolerance"])
    return {name: figures[name] for name in FIGURES}
