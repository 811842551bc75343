"""`predict`: step time with interval, memory and cost terms for every row of a runs table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxscale._compile import filter_jit
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.intervals import Z90, interval_ends
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.memory_limit import probability_of_oom
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of
from jaxscale.hardware.catalogue import Hardware
from jaxscale.plan.rules import broken_rules, model_columns, plan_columns
from jaxscale.runs import Runs
from jaxscale.runs.arrays import RunBatch, padded
from jaxscale.runs.measured import describe_runs, measured_memory, measured_times, run_status
from jaxscale.step import StepTime, step_and_memory

GROUPINGS = ("source", "model", "gpu", "framework", "precision")
"""Columns by which errors are broken down."""

NUMBERS = ("step_time", "lo", "hi", "memory", "memory_lo", "memory_hi", "oom_probability")
"""What is predicted of every row, besides the terms of its step."""


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
    notes: tuple[str, ...]
    measured: np.ndarray
    measured_memory: np.ndarray
    status: tuple[str, ...]
    levels: Mapping[str, tuple[str | None, ...]]

    @property
    def fits(self) -> np.ndarray:
        """Whether the predicted peak stays within memory: running out is less likely than not [row]."""
        return self.oom_probability < 0.5

    def errors(self) -> dict[str, Any]:
        """Error of the predictions where the table has measurements, in all and by group.

        Returns:
            `n`, `mape`, `median_ape`, `p90_ape` [%], `coverage_90` and `oom_accuracy` [1], of peak memory `n_memory`
            and `memory_mape` [%], and the same `by` each grouping column; None where nothing was measured.
        """
        everything = np.ones(len(self.measured), dtype=bool)
        by: dict[str, dict[str, Any]] = {}
        for column, values in self.levels.items():
            labels = np.asarray([value or "" for value in values], dtype=object)
            by[column] = {str(level): self._errors(labels == level) for level in sorted(set(labels)) if level}
        return {**self._errors(everything), "by": by}

    def _errors(self, rows: np.ndarray) -> dict[str, Any]:
        scored = rows & np.isfinite(self.measured) & np.isfinite(self.step_time)
        ape = 100.0 * np.abs(self.step_time[scored] / self.measured[scored] - 1.0)
        inside = (self.lo[scored] <= self.measured[scored]) & (self.measured[scored] <= self.hi[scored])
        ran = np.asarray([status in ("ok", "oom") for status in self.status])
        known = rows & ran & np.isfinite(self.memory)
        is_oom = np.asarray([status == "oom" for status in self.status])
        # What a run had taken when it ran out says little of its peak.
        held = rows & ~is_oom & np.isfinite(self.measured_memory) & np.isfinite(self.memory)
        memory_ape = 100.0 * np.abs(self.memory[held] / self.measured_memory[held] - 1.0)
        has_oom = bool((known & is_oom).any())
        return {
            "n": int(scored.sum()),
            "mape": float(ape.mean()) if scored.any() else None,
            "median_ape": float(np.median(ape)) if scored.any() else None,
            "p90_ape": float(np.quantile(ape, 0.9)) if scored.any() else None,
            "coverage_90": float(inside.mean()) if scored.any() else None,
            "n_memory": int(held.sum()),
            "memory_mape": float(memory_ape.mean()) if held.any() else None,
            "oom_accuracy": float(np.mean(self.fits[known] != is_oom[known])) if has_oom else None,
        }


@filter_jit
def _evaluate(batch: RunBatch, coefficients: Coefficients) -> tuple[StepTime, jax.Array]:
    def one(run: RunBatch, row: Coefficients) -> tuple[StepTime, jax.Array]:
        times, peak = step_and_memory(run.model, run.plan, run.cluster, row)
        return times, peak.total

    return jax.vmap(one)(batch, coefficients)


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
    fit = fit_of(fit)
    described = describe_runs(runs, hardware)
    numbers, terms = (
        {name: np.full(len(runs), np.nan) for name in names} for names in (NUMBERS, StepTime.__dataclass_fields__)
    )
    notes = described.notes.array().tolist()
    if described.batch is not None:
        levels = described.levels
        answers, parts = _answers(described.batch, fit, levels)
        numbers, terms = (
            {name: _at(described.index, column, len(runs)) for name, column in found.items()}
            for found in (answers, parts)
        )
        new = fit.notes(levels, np.asarray(described.batch.cluster.n_chips))
        for position, broken, unseen in zip(described.index, _broken_rules(described.batch), new, strict=True):
            notes[position] = "; ".join(text for text in (notes[position], broken, unseen) if text)
    times = measured_times(runs, described)
    return Prediction(
        **numbers,
        terms=terms,
        notes=tuple(notes),
        measured=times,
        measured_memory=measured_memory(runs),
        status=tuple(run_status(runs, times).array().tolist()),
        levels={name: tuple(runs.column(name)) for name in GROUPINGS},
    )


def _at(index: np.ndarray, column: np.ndarray, n: int) -> np.ndarray:
    """A column of n rows that has the given values at `index`, and nan elsewhere."""
    rows = np.full(n, np.nan)
    rows[index] = column
    return rows


def _answers(batch: RunBatch, fit: Fit, levels: Levels) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """`NUMBERS` of each run by name, and the terms of its step by name [answered row]."""
    count = len(batch)
    step, peak = _evaluate(*padded((batch, fit.coefficients_of(levels)), count))
    total, peak = (np.asarray(values)[:count] for values in (step.total, peak))
    terms = {name: np.asarray(values)[:count] for name, values in step.terms().items()}
    chips, capacity = np.asarray(batch.cluster.n_chips), np.asarray(batch.cluster.chip.hbm_bytes)
    interval = fit.interval(levels, chips)
    lo, hi = interval_ends(total, interval.time)
    memory_lo, memory_hi = interval_ends(peak, Z90 * interval.memory)
    oom = probability_of_oom(peak, capacity, fit.memory_limit(levels, chips))
    return dict(zip(NUMBERS, (total, lo, hi, peak, memory_lo, memory_hi, oom), strict=True)), terms


def _broken_rules(batch: RunBatch) -> list[str]:
    """What each plan breaks, as the model takes it, in words; empty for a valid one [row]."""
    network = {"n_chips": batch.cluster.n_chips, "domain_size": np.asarray(batch.cluster.network.domain_size)[:, 0]}
    broken = broken_rules({**model_columns(batch.model), **plan_columns(batch.plan), **network}, len(batch))
    return [f"predicted although {' and '.join(rules)}" if rules else "" for rules in broken]
