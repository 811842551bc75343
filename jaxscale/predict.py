"""`predict`: step time with interval, memory and cost terms for every row of a runs table."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale._compile.jit import array_jit
from jaxscale.calibration.answer_intervals import with_intervals
from jaxscale.calibration.coefficients import Coefficients, from_values
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of
from jaxscale.completion import completed, open_questions
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.plan.rules import broken_rules, model_columns, plan_columns
from jaxscale.predict_traced import predict_traced
from jaxscale.runs import Runs
from jaxscale.runs.arrays import RunBatch, bucket_of, padded
from jaxscale.runs.categorical import Categorical, joined
from jaxscale.runs.measured import Described, describe_runs, measured_memory, measured_times, run_status
from jaxscale.runs.traced.named_workloads import names_workload
from jaxscale.step import TERM_NAMES, step_and_memory

GROUPINGS = ("source", "model", "gpu", "framework", "precision")
"""Columns by which errors are broken down."""

BLOCK_ROWS = 16384
"""Rows of a table that are evaluated together: they bound the memory, and one compiled program serves them all [1]."""

NUMBERS = ("step_time", "lo", "hi", "memory", "memory_lo", "memory_hi", "oom_probability")
"""Predicted figures of every row, besides the terms of its step."""


@dataclass(frozen=True)
class Prediction:
    """Predictions for the rows of a table, in its order; nan where a row cannot be answered.

    Attributes:
        step_time: predicted [s], [row].
        lo: lower end of the central 90 % interval [s], [row].
        hi: upper end [s], [row].
        memory: predicted peak memory [byte], [row].
        memory_lo: lower end of its central 90 % interval [byte], [row].
        memory_hi: upper end [byte], [row].
        oom_probability: probability that the peak exceeds the chip's memory [1], [row].
        terms: cost terms of the step by name [s], [row].
        assumed: values that an open row was completed with, in words; empty for any other row [row].
        notes: why a row has no prediction, or what was assumed; empty if nothing [row].
        measured: measured step time where the table has one, never used for the prediction [s], [row].
        measured_memory: measured peak memory where the table has one, as little used [byte], [row].
        status: how each run ended, see `outcome`; never used for the prediction [row].
        levels: columns by which errors are broken down [row].
    """

    step_time: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    memory: np.ndarray
    memory_lo: np.ndarray
    memory_hi: np.ndarray
    oom_probability: np.ndarray
    terms: Mapping[str, np.ndarray]
    assumed: np.ndarray
    notes: np.ndarray
    measured: np.ndarray
    measured_memory: np.ndarray
    status: np.ndarray
    levels: Mapping[str, Categorical]

    @property
    def fits(self) -> np.ndarray:
        """Whether the predicted peak stays within memory: running out is less likely than not [row]."""
        return self.oom_probability < 0.5

    def to_pandas(self) -> Any:
        """Predictions as a pandas DataFrame, one row for each of the table, in SI units.

        Raises:
            ImportError: pandas is not installed (`pip install jaxscale[tables]`).
        """
        pandas = importlib.import_module("pandas")  # an extra, which type checkers need not have
        columns = {name: getattr(self, name) for name in (*NUMBERS, "fits", "assumed", "notes", "measured")}
        return pandas.DataFrame(columns | {f"term_{name}": values for name, values in self.terms.items()})

    def errors(self) -> dict[str, Any]:
        """Error of the predictions where the table has measurements, in all and by group.

        Returns:
            `n`, `mape`, `median_ape`, `p90_ape` [%], `coverage_90` and `oom_accuracy` [1], of peak memory `n_memory`
            and `memory_mape` [%], and the same `by` each grouping column; None where nothing was measured.
        """
        by: dict[str, dict[str, Any]] = {}
        for column, levels in self.levels.items():
            present = {levels.values[code] for code in np.unique(levels.codes)} - {None, ""}
            groups = {level: np.flatnonzero(levels.codes == levels.values.index(level)) for level in sorted(present)}
            by[column] = {str(level): self._errors_of(rows) for level, rows in groups.items()}
        return {**self._errors_of(np.arange(len(self.measured))), "by": by}

    def _errors_of(self, rows: np.ndarray) -> dict[str, Any]:
        """Errors of some rows."""
        scored = rows[np.isfinite(self.measured[rows]) & np.isfinite(self.step_time[rows])]
        ape = 100.0 * np.abs(self.step_time[scored] / self.measured[scored] - 1.0)
        inside = (self.lo[scored] <= self.measured[scored]) & (self.measured[scored] <= self.hi[scored])
        rows = rows[np.isfinite(self.memory[rows])]
        is_oom, is_ok = self.status[rows] == "oom", self.status[rows] == "ok"
        # What a run had taken when it ran out says little of its peak.
        held = rows[~is_oom & np.isfinite(self.measured_memory[rows])]
        memory_ape = 100.0 * np.abs(self.memory[held] / self.measured_memory[held] - 1.0)
        is_right = (self.fits[rows] != is_oom)[is_oom | is_ok]
        return {
            "n": len(scored),
            "mape": float(ape.mean()) if len(scored) else None,
            "median_ape": float(np.median(ape)) if len(scored) else None,
            "p90_ape": float(np.quantile(ape, 0.9)) if len(scored) else None,
            "coverage_90": float(inside.mean()) if len(scored) else None,
            "n_memory": len(held),
            "memory_mape": float(memory_ape.mean()) if len(held) else None,
            "oom_accuracy": float(is_right.mean()) if is_oom.any() else None,
        }


@array_jit
def _evaluate(batch: RunBatch, coefficients: Float[Array, "coefficient row"]) -> dict[str, Array]:
    def one(run: RunBatch, values: Array) -> dict[str, Array]:
        times, peak = step_and_memory(run.model, run.plan, run.cluster, from_values(list(values)))
        return {**times.terms(), "step_time": times.total, "memory": peak.total}

    return jax.vmap(one, in_axes=(0, 1))(batch, coefficients)


def predict(runs: Runs, fit: Fit | str | Path = "default", hardware: Hardware | None = None) -> Prediction:
    """Predict every row of a table.

    Measured columns are never read to make a prediction: a row without them is a planned run.

    Args:
        runs: the table.
        fit: a fit, or its name or file; the effects and the scatter of each row's levels apply.
        hardware: catalogue of chips; the shipped one where None.

    Returns:
        Predictions in the order of the table.

    Raises:
        InputError: no such fit.
    """
    return predict_open(runs, describe_runs(runs, hardware), fit_of(fit), hardware)


def predict_open(runs: Runs, described: Described, fit: Fit, hardware: Hardware | None = None) -> Prediction:
    """Predict every row of a table that has been described for the model; rows that leave open how they run as well.

    An open row is completed by the plan of the least time over the chance that it fits, of those that agree with it,
    and its interval covers the plans that are nearly as fast. Rows that name a traced workload are predicted by their
    kernels.
    """
    is_traced = names_workload(runs)
    if is_traced.any():
        return _with_traced(runs, is_traced, fit, hardware)
    unanswered = np.ones(len(runs), dtype=bool)
    unanswered[described.index] = False
    tried = open_questions(runs, unanswered) if unanswered.any() else None
    if tried is None:
        return predict_described(runs, described, fit)
    of_tried = describe_runs(tried.runs, hardware)
    answers = predict_described(tried.runs, of_tried, fit)
    is_valid = np.zeros(len(tried.runs), dtype=bool)
    if of_tried.batch is not None:
        is_valid[of_tried.index] = _broken_rules(of_tried.batch).matches(lambda text: not text)
    completion = completed(runs, tried, answers.step_time, answers.oom_probability, is_valid)
    found = predict_described(completion.runs, describe_runs(completion.runs, hardware), fit)
    return replace(
        found, lo=found.lo * completion.fastest, hi=found.hi * completion.slowest, assumed=completion.assumed
    )


def _with_traced(runs: Runs, is_traced: np.ndarray, fit: Fit, hardware: Hardware | None) -> Prediction:
    """Predictions of a table of which some rows name a traced workload."""
    rows = np.flatnonzero(is_traced)
    traced = runs.take(rows)
    answers = predict_traced(traced, fit, hardware or load_hardware())
    # Without a model no row is answered: measured columns and levels are left.
    told = predict_described(traced, describe_runs(traced, hardware), fit)
    told = replace(
        told,
        **{name: answers.numbers[name] for name in NUMBERS},
        terms={name: answers.numbers[name] for name in TERM_NAMES},
        assumed=answers.assumed,
        notes=answers.notes,
    )
    others = runs.take(~is_traced)
    if not len(others):
        return told
    parts = (told, predict_open(others, describe_runs(others, hardware), fit, hardware))
    place = np.argsort(np.concatenate([rows, np.flatnonzero(~is_traced)]))
    arrays = (*NUMBERS, "assumed", "notes", "measured", "measured_memory", "status")
    return replace(
        told,
        **{name: np.concatenate([getattr(part, name) for part in parts])[place] for name in arrays},
        terms={name: np.concatenate([part.terms[name] for part in parts])[place] for name in TERM_NAMES},
        levels={name: runs.categories(name) for name in GROUPINGS},
    )


def predict_described(runs: Runs, described: Described, fit: Fit) -> Prediction:
    """Predict every row of a table that has been described for the model."""
    answers, notes = dict.fromkeys((*NUMBERS, *TERM_NAMES), np.zeros(0)), described.notes
    if described.batch is not None:
        # The host writes notes and measured columns while the device works.
        blocks = _started(described.batch, *fit.coefficient_table(described.levels))
        notes = _all_notes(described, described.batch, fit)
        answers = _finished(blocks, described.batch, described.levels, fit)
    times = measured_times(runs, described)
    columns = {name: _spread(values, described.index, len(runs)) for name, values in answers.items()}
    return Prediction(
        **{name: columns[name] for name in NUMBERS},
        terms={name: columns[name] for name in TERM_NAMES},
        assumed=np.full(len(runs), "", dtype=object),
        notes=notes.array(),
        measured=times,
        measured_memory=measured_memory(runs),
        status=run_status(runs, times).array(),
        levels={name: runs.categories(name) for name in GROUPINGS},
    )


def _started(batch: RunBatch, table: Coefficients, combination: np.ndarray) -> list[dict[str, Array]]:
    """Step time and its terms [s] and peak memory [byte] by name, block by block, on their way.

    Args:
        batch: the runs [row].
        table: coefficients of each combination of levels [combination].
        combination: of each run [row].

    Returns:
        Answers of each block [row of the block], with padding in the last.
    """
    size = min(bucket_of(len(batch)), BLOCK_ROWS)
    # One matrix instead of a column for each coefficient: a transfer to the device costs more than its bytes.
    matrix = np.stack(jax.tree.leaves(table))
    blocks = []
    for start in range(0, len(batch), size):
        rows = slice(start, start + size)
        part, count = jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch), len(combination[rows])
        index = np.pad(combination[rows], (0, size - count))
        blocks.append(_evaluate(padded(part, count, size), jnp.asarray(matrix[:, index])))
    return blocks


def _finished(blocks: list[dict[str, Array]], batch: RunBatch, levels: Levels, fit: Fit) -> dict[str, np.ndarray]:
    """`NUMBERS` and the cost terms of each run by name, on the host [answered row]."""
    chips, capacity = np.asarray(batch.cluster.n_chips), np.asarray(batch.cluster.chip.hbm_bytes)
    answers = {name: np.concatenate([np.asarray(block[name]) for block in blocks])[: len(batch)] for name in blocks[0]}
    return with_intervals(answers, levels, chips, capacity, fit)


def _spread(values: np.ndarray, index: np.ndarray, n_rows: int) -> np.ndarray:
    """A column of the table that has the given values in the answered rows, nan in the others [row]."""
    if len(index) == n_rows:
        return values
    column = np.full(n_rows, np.nan)
    column[index] = values
    return column


def _all_notes(described: Described, batch: RunBatch, fit: Fit) -> Categorical:
    """Notes on every row of the table: of its description, its plan and what the fit never saw [row]."""
    unseen = Categorical.of(fit.notes(described.levels, np.asarray(batch.cluster.n_chips)).tolist())
    n_rows = len(described.notes)
    remarks = (column.spread(described.index, n_rows, "") for column in (_broken_rules(batch), unseen))
    return joined([described.notes, *remarks])


def _broken_rules(batch: RunBatch) -> Categorical:
    """Rules that each plan breaks, as the model takes it, in words; empty for a valid one [row]."""
    network = {"n_chips": batch.cluster.n_chips, "domain_size": np.asarray(batch.cluster.network.domain_size)[:, 0]}
    broken = broken_rules({**model_columns(batch.model), **plan_columns(batch.plan), **network}, len(batch))
    return Categorical.of(broken).map(lambda rules: f"predicted although {' and '.join(rules)}" if rules else "")
