"""`predict`: step time with interval, memory and cost terms for every row of a runs table."""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Array

from jaxscale.base.errors import similar
from jaxscale.base.show import MOST_LINES, Printout, printed
from jaxscale.base.units import GB, quantity
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import AnyFit, Fit, fit_of
from jaxscale.calibration.unstated import worth_stating
from jaxscale.costs.evaluate import CACHED, FIRST_STAGE, blocks_of, collected, started
from jaxscale.costs.step import TERM_NAMES
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.plans.plan import DECIDED, decided_words, in_short
from jaxscale.plans.rules import broken_rules, model_columns, plan_columns
from jaxscale.runs.arrays import RunBatch
from jaxscale.runs.defaults import Meanings, known_frameworks, remedies
from jaxscale.runs.measured import Described, describe_runs, measured_memory, measured_times, run_status
from jaxscale.runs.reader import read_runs
from jaxscale.runs.row_kinds import kinds_in, of_a_kind
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical, joined, together
from jaxscale.tables.reader import AnyTable

GROUPINGS = ("source", "model", "gpu", "framework", "precision")
"""Columns by which errors are broken down."""

EVALUATED = ("step_time", "memory", "mfu", *TERM_NAMES)
"""Columns that are evaluated for every row."""

BESIDE = "memory_framework"
"""Column of the memory that the driver holds beside a program's own."""

MISSPELT = 0.7
"""Likeness (`difflib`) from which an unknown framework may be a misspelt known one [1]."""

NUMBERS = ("step_time", "lo", "hi", "memory", "memory_lo", "memory_hi", "oom_probability", "mfu")
"""Predicted figures of every row, besides the terms of its step."""


@printed(lambda prediction: _shown(prediction))
@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions for the rows of a table, in order; nan for incomplete rows.

    Attributes:
        runs: the table, with the values by which open rows were completed.
        step_time: predicted step time [s], [row].
        lo: lower end of the central 90 % interval of the step time [s], [row].
        hi: upper end of the interval of the step time [s], [row].
        memory: predicted peak memory, counted as the row's `mem_kind` states [byte], [row].
        memory_lo: lower end of the central 90 % interval of the peak memory [byte], [row].
        memory_hi: upper end of the interval of the peak memory [byte], [row].
        oom_probability: probability that the peak exceeds the chip's memory [1], [row].
        mfu: model flops over the 16-bit peak, attention counted in full; nan for a traced workload [1], [row].
        terms: cost terms of the step by name [s], [row].
        plans: fields of `DECIDED` of the plan of each row; nan for a traced workload [field][row].
        assumed: values that complete an open row, as text; empty for complete rows [row].
        notes: reason of a missing prediction, or assumptions; may be empty [row].
        measured: measured step time, nan if absent, never used for the prediction [s], [row].
        measured_memory: measured peak memory, nan if absent, never used for the prediction [byte], [row].
        status: outcome of each run, see `run_status`; never used for the prediction [row].
        levels: columns by which errors are broken down [row].
    """

    runs: Runs
    step_time: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    memory: np.ndarray
    memory_lo: np.ndarray
    memory_hi: np.ndarray
    oom_probability: np.ndarray
    mfu: np.ndarray
    terms: Mapping[str, np.ndarray]
    plans: Mapping[str, np.ndarray]
    assumed: np.ndarray
    notes: np.ndarray
    measured: np.ndarray
    measured_memory: np.ndarray
    status: np.ndarray
    levels: Mapping[str, Categorical]

    def __len__(self) -> int:
        """Rows of the table [1]."""
        return len(self.step_time)

    @property
    def fits(self) -> np.ndarray:
        """Whether the probability of running out of memory is below one half [row]."""
        # Less likely than not to run out.
        return self.oom_probability < 0.5

    @property
    def tokens_per_s(self) -> np.ndarray:
        """Throughput of all chips: global batch times sequence length over the step time [token/s], [row]."""
        tokens = self.runs.numbers("global_batch_size_seqs") * self.runs.numbers("seq_len")
        return tokens / self.step_time

    def plan(self, row: int) -> dict[str, Any] | None:
        """Plan of a row in numbers and words, by argument of `Plan`; None for a traced workload or if not predicted."""
        fields = {name: float(column[row]) for name, column in self.plans.items()}
        return None if np.isnan(fields["dp"]) else decided_words(fields)

    def plan_texts(self) -> np.ndarray:
        """Plan of each row as short text, see `in_short`; empty without a plan [row]."""
        distinct = together(*(Categorical.of_numbers(column) for column in self.plans.values()))
        names = tuple(self.plans)

        def text(values: tuple[float, ...]) -> str:
            fields = dict(zip(names, values, strict=True))
            return "" if np.isnan(fields["dp"]) else in_short(decided_words(fields))

        return distinct.map(text).array()

    def columns(self) -> dict[str, np.ndarray]:
        """Columns of predictions in units of tables, as added by `jaxscale predict --out` [column][row]."""
        answered = np.isfinite(self.step_time)
        return {
            "predicted_step_time_s": self.step_time,
            "predicted_step_time_lo_s": self.lo,
            "predicted_step_time_hi_s": self.hi,
            "predicted_memory_gb": self.memory / GB,
            "predicted_memory_lo_gb": self.memory_lo / GB,
            "predicted_memory_hi_gb": self.memory_hi / GB,
            "predicted_fits": np.where(answered, self.fits.astype(object), ""),
            "predicted_oom_probability": self.oom_probability,
            "predicted_tokens_per_s": self.tokens_per_s,
            "predicted_mfu": self.mfu,
            "predicted_plan": self.plan_texts(),
            "predicted_assumed": self.assumed,
            "predicted_note": self.notes,
            **{f"term_{name}_s": values for name, values in self.terms.items()},
        }

    def to_pandas(self) -> Any:
        """Table with predictions as a pandas DataFrame, with the columns of `jaxscale predict --out`.

        Raises:
            ImportError: pandas is not installed (`pip install jaxscale[tables]`).
        """
        frame, added = self.runs.to_pandas(), self.columns()
        # New predictions replace columns of an earlier prediction.
        kept = frame[[name for name in frame.columns if name not in added]]
        return kept.assign(**added).infer_objects()

    def errors(self) -> dict[str, Any]:
        """Errors of the predictions of measured rows, overall and by group.

        Returns:
            `n`, `mape`, `median_ape`, `p90_ape` [%], `coverage_90` and `oom_accuracy` [1], of peak memory `n_memory`
            and `memory_mape` [%], and these figures `by` each grouping column; None without measured rows.
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
        # A fit is right where an ok run fits and an oom run does not.
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


def _shown(prediction: Prediction) -> Printout:
    """Text table of the first rows: run, step time with interval, utilisation, memory, plan."""
    errors = prediction.errors()
    measured = f", mean error {errors['mape']:.2g} % of {errors['n']} measured ones" if errors["n"] else ""
    rows = [_shown_row(prediction, row) for row in range(min(len(prediction), MOST_LINES))]
    heads = ("model", "chips", "plan", "step", "90 % interval", "MFU", "memory")
    title = f"Prediction of {len(prediction)} runs{measured}"
    return Printout(title, heads, rows, prediction.runs.doubts, n_left=3)


def _shown_row(prediction: Prediction, row: int) -> tuple[str, ...]:
    """Cells of a row, with the reason of a missing prediction in place of the plan."""
    runs = prediction.runs
    what = runs.categories("model")[row] or runs.categories("workload")[row] or ""
    chips = f"{runs.numbers('n_gpus')[row]:g} x {runs.categories('gpu')[row]}"
    if not np.isfinite(prediction.step_time[row]):
        return what, chips, str(prediction.notes[row]), "-", "-", "-", "-"
    interval = " to ".join(quantity(end[row], "s") for end in (prediction.lo, prediction.hi))
    peak = quantity(prediction.memory[row], "byte") + ("" if prediction.fits[row] else ", does not fit")
    plan, mfu = prediction.plan(row), prediction.mfu[row]
    utilisation = f"{100.0 * mfu:.1f} %" if np.isfinite(mfu) else "-"
    step = quantity(prediction.step_time[row], "s")
    return what, chips, in_short(plan) if plan else "", step, interval, utilisation, peak


def predict(runs: AnyTable, fit: AnyFit = "default", hardware: Hardware | None = None) -> Prediction:
    """Predicted step time, memory and cost terms of every row of a table: `js.predict("runs.csv")`.

    Measured columns are never read to make a prediction: a row without them is a planned run.

    Args:
        runs: `Runs`, or an argument of `js.read_runs`: a path, a DataFrame, a mapping of columns, a list of mappings.
        fit: a fit, its name or its file; effects and scatter apply by the levels of each row.
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        Predictions in the order of the table.

    Raises:
        InputError: a malformed table, or an unknown fit.
    """
    table = read_runs(runs, hardware=hardware)
    return predict_open(table, describe_runs(table, hardware), fit_of(fit, hardware), hardware)


def predict_open(runs: Runs, described: Described, fit: Fit, hardware: Hardware | None = None) -> Prediction:
    """Predictions for every row of a described table, including rows without a full plan.

    An open row is completed by the fastest plan that fits and agrees with its cells; the interval also covers plans
    that are nearly as fast. Rows of registered kinds, such as traced workloads, are predicted by the class of the kind.
    """
    if of_a_kind(runs).any():
        return _with_kinds(runs, fit, hardware)
    unanswered = np.ones(len(runs), dtype=bool)
    unanswered[described.index] = False
    if not unanswered.any():
        return _over_meanings(predict_described(runs, described, fit), fit, hardware)
    # Open rows alone need the search for plans.
    from jaxscale.runs.completion import completed, open_rows

    asked = open_rows(runs, unanswered, hardware)
    if asked is None:
        return _over_meanings(predict_described(runs, described, fit), fit, hardware)
    completion = completed(runs, asked, fit)
    found = predict_described(completion.runs, describe_runs(completion.runs, hardware), fit)
    found = _over_meanings(found, fit, hardware)
    return replace(
        # The interval covers plans of nearly equal time.
        found,
        lo=found.lo * completion.fastest,
        hi=found.hi * completion.slowest,
        assumed=completion.assumed,
    )


def _over_meanings(found: Prediction, fit: Fit, hardware: Hardware | None) -> Prediction:
    """Prediction whose intervals cover the possible meanings of blank cells, with notes on cells that would decide."""

    def predicted(runs: Runs) -> Prediction:
        return predict_described(runs, describe_runs(runs, hardware), fit)

    meanings, smaller = Meanings(found, predicted), remedies(found, predicted)
    if not any((*meanings.notes.values, *smaller.values)):
        return found
    notes = joined([Categorical.of(found.notes.tolist()), meanings.notes, smaller]).array()
    return replace(found, lo=found.lo * meanings.fastest, hi=found.hi * meanings.slowest, notes=notes)


def _with_kinds(runs: Runs, fit: Fit, hardware: Hardware | None) -> Prediction:
    """Predictions of a table with rows of several kinds."""
    parts, rows = [], []
    for kind, is_kind in kinds_in(runs):
        some = runs.take(is_kind)
        answers = kind.predict(some, fit, hardware or load_hardware())
        # Without a model no row is answered: measured columns and levels are left.
        told = predict_described(some, describe_runs(some, hardware), fit)
        numbers = {name: answers.numbers[name] for name in NUMBERS if name in answers.numbers}
        terms = {name: answers.numbers[name] for name in TERM_NAMES}
        parts.append(replace(told, **numbers, terms=terms, assumed=answers.assumed, notes=answers.notes))
        rows.append(np.flatnonzero(is_kind))
    is_other = ~of_a_kind(runs)
    if is_other.any():
        others = runs.take(is_other)
        parts.append(predict_open(others, describe_runs(others, hardware), fit, hardware))
        rows.append(np.flatnonzero(is_other))
    return _joined(runs, parts, np.concatenate(rows))


def _joined(runs: Runs, parts: Sequence[Prediction], rows: np.ndarray) -> Prediction:
    """Predictions of parts of a table, joined in the order of the table.

    Args:
        runs: the table.
        parts: predictions of disjoint sets of rows.
        rows: positions of the rows of all parts, concatenated.
    """
    if len(parts) == 1:
        return parts[0]
    # Back in the order of the table.
    place = np.argsort(rows)
    arrays = (*NUMBERS, "assumed", "notes", "measured", "measured_memory", "status")
    return replace(
        parts[0],
        runs=functools.reduce(operator.add, [part.runs for part in parts]).take(place),
        **{name: np.concatenate([getattr(part, name) for part in parts])[place] for name in arrays},
        terms={name: np.concatenate([part.terms[name] for part in parts])[place] for name in TERM_NAMES},
        plans={name: np.concatenate([part.plans[name] for part in parts])[place] for name in DECIDED},
        levels={name: runs.categories(name) for name in GROUPINGS},
    )


def predict_described(runs: Runs, described: Described, fit: Fit) -> Prediction:
    """Predictions for the complete rows of a described table; nan for the other rows."""
    answers, notes = dict.fromkeys((*NUMBERS, *TERM_NAMES, *DECIDED), np.zeros(0)), described.notes
    if described.batch is not None:
        # The host writes notes and measured columns while the device works.
        blocks = [started(*block) for block in blocks_of(described.batch, *fit.coefficient_table(described.levels))]
        notes = _all_notes(described, described.batch, fit)
        plans = {name: np.asarray(getattr(described.batch.plan, name), float) for name in DECIDED}
        answers = {**_finished(blocks, described.batch, described.levels, fit), **plans}
    times = measured_times(runs, described)
    columns = {name: _spread(values, described.index, len(runs)) for name, values in answers.items()}
    return Prediction(
        runs,
        **{name: columns[name] for name in NUMBERS},
        terms={name: columns[name] for name in TERM_NAMES},
        plans={name: columns[name] for name in DECIDED},
        assumed=np.full(len(runs), "", dtype=object),
        notes=notes.array(),
        measured=times,
        measured_memory=measured_memory(runs),
        status=run_status(runs, times).array(),
        levels={name: runs.categories(name) for name in GROUPINGS},
    )


def _finished(blocks: list[dict[str, Array]], batch: RunBatch, levels: Levels, fit: Fit) -> dict[str, np.ndarray]:
    """`NUMBERS` and the cost terms of each run by name, on the host [answered row]."""
    chips, capacity = np.asarray(batch.cluster.n_chips), np.asarray(batch.cluster.chip.hbm_bytes)
    evaluated = collected(blocks, len(batch), (*EVALUATED, BESIDE, FIRST_STAGE, CACHED))
    answers = fit.with_intervals(evaluated, levels, chips, capacity)
    refuse_impossible(answers)
    return as_measured(answers, np.asarray(batch.counted))


def as_measured(answers: Mapping[str, np.ndarray], counted: np.ndarray | float = 0.0) -> dict[str, np.ndarray]:
    """Predictions with peak memory as counted in measurements; by default without driver contexts and communicators.

    Args:
        answers: columns by name, `BESIDE` among them [row].
        counted: code of the memory that a measured peak includes, as in `Memory.measured` [row].
    """
    # Contexts and communicators are left out of a program's peak.
    held = np.where(np.less(counted, 0.0), answers.get(FIRST_STAGE, answers["memory"]), answers["memory"])
    held = held - answers[BESIDE] * np.less(counted, 1.0) + answers.get(CACHED, 0.0) * np.greater(counted, 0.0)
    share = held / answers["memory"]
    return {**answers, **{name: answers[name] * share for name in ("memory", "memory_lo", "memory_hi")}}


def refuse_impossible(answers: Mapping[str, np.ndarray]) -> None:
    """Refuse impossible predictions, which are defects of the program.

    Args:
        answers: `NUMBERS` of each row by name [row].

    Raises:
        ArithmeticError: a step time or memory that is not finite, positive and inside its interval.
    """
    possible = np.ones(len(answers["step_time"]), dtype=bool)
    for low, figure, high in (("lo", "step_time", "hi"), ("memory_lo", "memory", "memory_hi")):
        least, value, most = (answers[name] for name in (low, figure, high))
        possible &= (least > 0.0) & (least <= value) & (value <= most) & np.isfinite(most)
    if not possible.all():
        row = int(np.argmin(possible))
        told = ", ".join(f"{name} = {answers[name][row]:g}" for name in NUMBERS if name in answers)
        raise ArithmeticError(f"no run has {told}: an error of jaxscale in {np.sum(~possible)} rows, please report it")


def _spread(values: np.ndarray, index: np.ndarray, n_rows: int) -> np.ndarray:
    """Column of the table from values of the answered rows, nan in the remaining rows [row]."""
    if len(index) == n_rows:
        return values
    column = np.full(n_rows, np.nan)
    column[index] = values
    return column


def _all_notes(described: Described, batch: RunBatch, fit: Fit) -> Categorical:
    """Notes on every row: assumptions, broken rules of the plan, levels new to the fit, columns worth stating [row]."""
    levels, n_chips = described.levels, np.asarray(batch.cluster.n_chips)
    told = (Categorical.of(texts.tolist()) for texts in (fit.notes(levels, n_chips), worth_stating(fit, levels)))
    misspelt = Categorical.of(levels.column("framework")).map(lambda name: _framework_meant(name, fit))
    n_rows = len(described.notes)
    remarks = (column.spread(described.index, n_rows, "") for column in (misspelt, _broken_rules(batch), *told))
    return joined([described.notes, *remarks])


def _framework_meant(name: str | None, fit: Fit) -> str:
    """Question about a framework that neither defaults nor fits know, if it resembles a known one; else empty."""
    known, place = known_frameworks(), ("framework", name or "")
    if not name or name in known or fit.seen.knows(*place) or fit.seen.ancestor_knows(*place):
        return ""
    alike = similar(name, known, lambda other, part: False, most=1, likeness=MISSPELT)
    return f"framework {name} is unknown: is {alike[0]} meant?" if alike else ""


def _broken_rules(batch: RunBatch) -> Categorical:
    """Rules that each plan breaks, as text; empty for valid plans [row]."""
    network = {"n_chips": batch.cluster.n_chips, "domain_size": np.asarray(batch.cluster.network.domain_size)[:, 0]}
    broken = broken_rules({**model_columns(batch.model), **plan_columns(batch.plan), **network}, len(batch))
    return broken.map(lambda rules: f"predicted although {' and '.join(rules)}" if rules else "")
