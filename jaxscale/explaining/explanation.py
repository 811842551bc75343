"""Comparison of measured and predicted time of a run: components outside of the interval, and likely causes.

Without a trace only the total is measured. A component is then a possible cause if the predicted time plus the whole
difference stays within the component's interval; a blank cell is a possible cause if some value of the cell moves the
prediction towards the measurement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from jaxscale.base.errors import InputError
from jaxscale.base.lazy import loaded
from jaxscale.base.show import Printout, printed
from jaxscale.base.units import plural
from jaxscale.calibration.record import AnyFit, Fit, fit_of
from jaxscale.cli.registry import READ_RUN
from jaxscale.explaining.facts import Fact, facts_of
from jaxscale.explaining.predicted_parts import (
    COLLECTIVES,
    NAMES,
    PredictedParts,
    kernel_term_table,
    parts_of,
    predicted_parts,
)
from jaxscale.explaining.trace_files import KernelTrace, read_traces
from jaxscale.explaining.trace_steps import MeasuredSteps, measured_steps
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.report.style import seconds
from jaxscale.runs import Runs
from jaxscale.runs.measured import describe_runs
from jaxscale.runs.predict import Prediction, predict_open
from jaxscale.runs.reader import read_runs
from jaxscale.tables.reader import AnyTable

UNKNOWN = 0.02
"""Minimum share of kernel time without a matching rule for a remark [1]."""

SAME_WORK = 1.3
"""Maximum ratio of measured to predicted kernel time of a collective for equal work; only its hidden share then differs
[1]."""

LATE = 0.4
"""Minimum share of kernel time beyond the fastest kernels of equal name for a diagnosis of late ranks [1]."""

UNEQUAL = 1.05
"""Minimum ratio of the computing times of two ranks for a diagnosis of unequal ranks [1]."""

DISAGREEING = 0.05
"""Minimum relative difference between the step times of a trace and its log for a remark [1]."""

TABLES = (".csv", ".parquet", ".tsv")
"""Suffixes of runs tables; files with a different suffix are logs or launch files."""


def verdict_on(measured: float, lo: float, hi: float) -> str:
    """Position of a measured time relative to an interval, `above`, `below` or `within`; empty for nan."""
    if not np.isfinite(measured):
        return ""
    return "above" if measured > hi else "below" if measured < lo else "within"


@dataclass(frozen=True)
class PartGap:
    """Measured and predicted time of a component of the step.

    Attributes:
        name: name of the component, a key of `predicted_parts.PARTS`.
        measured: exposed time per step [s]; nan without a trace.
        steps: minimum and maximum over the measured steps [s]; nan without a trace.
        hidden: kernel time overlapped by kernels of different components [s]; nan without a trace.
        predicted: predicted time [s].
        lo: lower end of the central 90 % interval [s].
        hi: upper end of the interval [s].
        predicted_hidden: time of collectives hidden by compute, as predicted [s].
        kernels: names of the kernels with the largest total time, and time per step [s].
    """

    name: str
    measured: float
    steps: tuple[float, float]
    hidden: float
    predicted: float
    lo: float
    hi: float
    predicted_hidden: float
    kernels: tuple[tuple[str, float], ...] = ()

    @property
    def excess(self) -> float:
        """Measured minus predicted time [s]."""
        return self.measured - self.predicted

    @property
    def verdict(self) -> str:
        """Position of the measured time relative to the interval, `above`, `below` or `within`; empty if unmeasured."""
        return verdict_on(self.measured, self.lo, self.hi)

    def to_json(self) -> dict[str, Any]:
        """Component for the JSON document, in SI units."""
        return {
            "name": self.name,
            "measured_s": self.measured,
            "measured_lo_s": self.steps[0],
            "measured_hi_s": self.steps[1],
            "measured_hidden_s": self.hidden,
            "predicted_s": self.predicted,
            "predicted_lo_s": self.lo,
            "predicted_hi_s": self.hi,
            "predicted_hidden_s": self.predicted_hidden,
            "verdict": self.verdict or None,
            "kernels": [{"name": name, "time_s": time} for name, time in self.kernels],
        }


@dataclass(frozen=True)
class Cause:
    """Likely cause of a difference between measured and predicted time, in a component of the step.

    Attributes:
        part: name of the component.
        excess: measured minus predicted time [s].
        usually: text on the usual cause of the difference.
        settled_by: text on the fact or measured row that would confirm the cause.
    """

    part: str
    excess: float
    usually: str
    settled_by: str

    def to_json(self) -> dict[str, Any]:
        """Cause for the JSON document, in SI units."""
        return {
            "part": self.part,
            "excess_s": self.excess,
            "usually": self.usually,
            "settled_by": self.settled_by,
        }


@printed(lambda found: _shown(found))
@dataclass(frozen=True, repr=False)
class Explanation:
    """Comparison of measured and predicted time of a run: result of `explain`.

    Attributes:
        run: text with model, number of chips and chip.
        measured: measured step time [s].
        predicted: predicted step time [s].
        lo: lower end of the central 90 % interval [s].
        hi: upper end of the interval [s].
        parts: all components of the step, in order; the sum is the step time.
        causes: causes by component, the most likely first; without a trace all possible causes.
        facts: values of blank cells with a prediction closer to the measurement, the closest first.
        remarks: remarks on the trace and on the prediction.
    """

    run: str
    measured: float
    predicted: float
    lo: float
    hi: float
    parts: tuple[PartGap, ...]
    causes: tuple[Cause, ...]
    facts: tuple[Fact, ...]
    remarks: tuple[str, ...]

    @property
    def is_traced(self) -> bool:
        """Whether a trace measured the time of each component."""
        return bool(np.isfinite(self.parts[0].measured))

    def summary(self) -> str:
        """Sentence on measured and predicted step time."""
        ratio = self.measured / self.predicted
        inside = "inside" if verdict_on(self.measured, self.lo, self.hi) == "within" else "outside"
        return (
            f"measured {seconds(self.measured)}, predicted {seconds(self.predicted)} ({seconds(self.lo)} to"
            f" {seconds(self.hi)}): {100.0 * (ratio - 1.0):+.0f} %, {inside} the 90 % interval"
        )

    def to_json(self) -> dict[str, Any]:
        """Explanation as a JSON document, in SI units."""
        return {
            "run": self.run,
            "measured_s": self.measured,
            "predicted_s": self.predicted,
            "lo_s": self.lo,
            "hi_s": self.hi,
            "is_traced": self.is_traced,
            "parts": [part.to_json() for part in self.parts],
            "causes": [cause.to_json() for cause in self.causes],
            "facts": [fact.to_json() for fact in self.facts],
            "remarks": list(self.remarks),
        }


def _shown(found: Explanation) -> Printout:
    rows = [
        (
            part.name,
            seconds(part.measured) if found.is_traced else "-",
            seconds(part.predicted),
            f"{seconds(part.lo)} to {seconds(part.hi)}",
            part.verdict,
        )
        for part in found.parts
    ]
    first = [f"first: {cause.part}: {cause.usually}" for cause in found.causes[:1]]
    heads = ("part", "measured", "predicted", "90 % interval", "")
    return Printout(f"{found.run}: {found.summary()}", heads, rows, first)


def explain(
    run: AnyTable,
    traces: Sequence[str | Path | KernelTrace] = (),
    *,
    configs: Sequence[str | Path] = (),
    stated: Mapping[str, Any] | None = None,
    line: int | None = None,
    fit: AnyFit = "default",
    hardware: Hardware | None = None,
) -> Explanation:
    """Comparison of a measured with the predicted step: `js.explain("train.log", ["rank0.json.gz"])`.

    Args:
        run: a training log, a launch file, a runs table, or any other argument of `js.read_runs`.
        traces: kernel traces of ranks, as files or results of `read_traces`.
        configs: launch files that belong to a log.
        stated: further cells of the run by column.
        line: line of the run in a table with several rows.
        fit: a fit, or name or file of a fit.
        hardware: catalogue of chips; by default the shipped catalogue.

    Returns:
        Measured and predicted time of the step and of each component, with causes.

    Raises:
        InputError: an unreadable file, or a run without prediction or measurement.
    """
    catalogue, record = hardware or load_hardware(), fit_of(fit)
    kernels = [one for given in traces for one in ([given] if isinstance(given, KernelTrace) else read_traces(given))]
    runs = _one_run(run, configs, stated or {}, line, catalogue)
    prediction = predict_open(runs, describe_runs(runs, catalogue), record, catalogue)
    note = str(prediction.notes[0])
    if not np.isfinite(prediction.step_time[0]):
        raise InputError(f"{runs.path}: no prediction: {note}; --config FILE or --set COLUMN=VALUE may tell it")
    told = float(prediction.measured[0])
    if not kernels and not np.isfinite(told):
        raise InputError(f"{runs.path}: no step is measured; expected a log, a row with step_time_s, or --trace FILE")
    parts = predicted_parts(prediction, describe_runs(prediction.runs, catalogue), record)
    remarks = [text for text in (str(prediction.assumed[0]), *note.split("; ")) if text]
    if not kernels:
        return _of_total(prediction, parts, told, facts_of(prediction, parts, record, catalogue), remarks)
    # Without degrees all collectives run over all chips.
    plan = prediction.plan(0) or {"dp": prediction.runs.numbers("n_gpus")[0]}
    return _of_traces(prediction, parts, kernels, plan, told, record, catalogue, remarks)


def _one_run(
    run: AnyTable, configs: Sequence[str | Path], stated: Mapping[str, Any], line: int | None, hardware: Hardware
) -> Runs:
    """Run as a table of one row.

    Raises:
        InputError: a file that cannot be read, or several rows and no line.
    """
    if isinstance(run, str | Path) and Path(run).suffix.lower() not in TABLES:
        row = loaded(READ_RUN)(Path(run), [Path(config) for config in configs], stated)
        return _row_of(row.cells, str(run), hardware)
    runs = read_runs(run, hardware=hardware)
    if line is not None:
        if line not in runs.lines:
            raise InputError(
                f"{runs.path}: no run in line {line}; expected one of {', '.join(map(str, runs.lines[:10]))}"
            )
        runs = runs.take(np.flatnonzero(np.asarray(runs.lines) == line)[:1])
    if len(runs) != 1:
        raise InputError(f"{runs.path}: {len(runs):,} runs; expected one, or --line N")
    if not stated:
        return runs
    # Later keys win: stated cells replace cells of the table.
    cells = {name: column[0] for name, column in runs.texts().items()} | {k: str(v) for k, v in stated.items()}
    return _row_of(cells, str(runs.path), hardware)


def _row_of(cells: Mapping[str, Any], name: str, hardware: Hardware) -> Runs:
    """Table of one row of cells; error messages name the file of origin."""
    try:
        return read_runs(dict(cells), hardware=hardware)
    except InputError as error:
        raise InputError(str(error).replace("table:1", name).replace("table:", f"{name}:")) from None


def _label(runs: Runs) -> str:
    """Model, number of chips and chip of the run."""
    row: Any = runs.rows[0]
    chips = row["n_gpus"]
    return f"{row['model'] or row['workload'] or 'run'} on {'' if chips is None else f'{chips:g} '}{row['gpu']}"


def _of_total(
    prediction: Prediction, parts: PredictedParts, measured: float, facts: Sequence[Fact], remarks: Sequence[str]
) -> Explanation:
    """Explanation of a run with a measured total alone."""
    step = float(prediction.step_time[0])
    difference = measured - step
    nan = float("nan")
    gaps = tuple(PartGap(name, nan, (nan, nan), nan, **_predicted(parts, place)) for place, name in enumerate(NAMES))
    # With the whole difference, the component stays in the interval.
    could = [part for part in gaps if part.predicted + difference <= part.hi and part.predicted + difference >= part.lo]
    could.sort(key=lambda part: -part.predicted)
    side = "above" if difference > 0.0 else "below"
    terms = kernel_term_table()["terms"]
    causes = tuple(
        Cause(part.name, difference, terms[part.name][side], _settled(part.name, facts, terms)) for part in could
    )
    # Closer by a hundredth in the logarithm at least.
    closer = [fact for fact in facts if abs(np.log(fact.step_time / measured)) < abs(np.log(step / measured)) - 0.01]
    closer.sort(key=lambda fact: abs(np.log(fact.step_time / measured)))
    return Explanation(
        _label(prediction.runs),
        measured,
        step,
        float(prediction.lo[0]),
        float(prediction.hi[0]),
        gaps,
        causes,
        tuple(closer),
        tuple(remarks),
    )


def _predicted(parts: PredictedParts, place: int) -> dict[str, Any]:
    """Predictions of a component, by attribute of `PartGap`."""
    names = ("predicted", "lo", "hi", "predicted_hidden")
    return {name: float(values[place]) for name, values in zip(names, parts, strict=True)}


def _of_traces(
    prediction: Prediction,
    parts: PredictedParts,
    kernels: Sequence[KernelTrace],
    plan: Mapping[str, Any],
    told: float,
    fit: Fit,
    hardware: Hardware,
    remarks: list[str],
) -> Explanation:
    """Explanation of a run with traced ranks."""
    ranks, of_kinds = [], []
    for trace in kernels:
        counts = np.bincount(trace.kind, minlength=len(trace.names))
        part, known = parts_of(trace.names, trace.groups, counts, plan)
        ranks.append(measured_steps(trace, part))
        of_kinds.append(part)
        remarks += _trace_remarks(trace, ranks[-1], known)
    remarks += _rank_remarks(kernels, ranks)
    # Mean over steps, then over ranks, by component.
    exposed = np.mean([rank.exposed.mean(axis=0) for rank in ranks], axis=0)
    busy = np.mean([rank.busy.mean(axis=0) for rank in ranks], axis=0)
    late = np.mean([rank.late for rank in ranks], axis=0)
    # (steps of all ranks, components)
    every = np.concatenate([rank.exposed for rank in ranks])
    measured = float(exposed.sum())
    if np.isfinite(told) and abs(told / measured - 1.0) > DISAGREEING:
        remarks.append(
            f"steps of the trace take {seconds(measured)}, those of the log {seconds(told)}: profiling slows the host"
        )
    gaps = tuple(
        PartGap(
            name,
            float(exposed[place]),
            (float(every[:, place].min()), float(every[:, place].max())),
            # Collectives alone are hidden beside compute.
            float(max(busy[place] - exposed[place], 0.0)) if name in COLLECTIVES else 0.0,
            **_predicted(parts, place),
            kernels=_longest(kernels, ranks, of_kinds, place),
        )
        for place, name in enumerate(NAMES)
    )
    step = float(prediction.step_time[0])
    causes = _ranked(gaps, measured - step)
    facts = facts_of(prediction, parts, fit, hardware, [part.name for part in causes])
    return Explanation(
        _label(prediction.runs),
        measured,
        step,
        float(prediction.lo[0]),
        float(prediction.hi[0]),
        gaps,
        tuple(_cause(part, float(late[NAMES.index(part.name)]), facts) for part in causes),
        (),
        tuple(remarks),
    )


def _ranked(gaps: Sequence[PartGap], difference: float) -> list[PartGap]:
    """Deviating components, the most informative first.

    First the components outside their interval on the side of the difference, by size; without such a component, the
    component with the largest deviation on the side of the difference.
    """
    side = 1.0 if difference >= 0.0 else -1.0
    outside = [part for part in gaps if part.verdict in ("above", "below")]
    # False sorts first: the side of the difference.
    outside.sort(key=lambda part: (part.excess * side < 0.0, -abs(part.excess)))
    if outside and outside[0].excess * side > 0.0:
        return outside
    most = max(gaps, key=lambda part: part.excess * side)
    return [most, *(part for part in outside if part is not most)]


def _cause(part: PartGap, late: float, facts: Sequence[Fact]) -> Cause:
    """Usual cause of the deviation of a component, and the fact that would confirm the cause."""
    terms = kernel_term_table()["terms"]
    usually = terms[part.name]["above" if part.excess > 0.0 else "below"]
    work, usual = part.measured + part.hidden, part.predicted + part.predicted_hidden
    if part.name in COLLECTIVES and part.excess > 0.0:
        if part.predicted_hidden > 0.0 and work < SAME_WORK * usual:
            usually = (
                f"its kernels take {seconds(work)}, predicted {seconds(usual)}: less of them is hidden beside compute"
            )
        elif late > LATE * work:
            beyond = f"{seconds(late)} of it is beyond the fastest kernels of their kind"
            usually = f"{beyond}, as where ranks arrive late; {usually}"
    best = min(
        (fact for fact in facts if fact.part == part.name),
        key=lambda fact: abs(fact.part_time - part.measured),
        default=None,
    )
    if best is not None and abs(best.part_time - part.measured) < abs(part.excess):
        settled = f"state {best.column}: with {best.word} it is predicted as {seconds(best.part_time)}"
    else:
        settled = terms[part.name]["row"]
    return Cause(part.name, part.excess, usually, settled)


def _settled(name: str, facts: Sequence[Fact], terms: Mapping[str, Any]) -> str:
    """Blank fact of a component, or row, with further information on the component."""
    blank = dict.fromkeys(fact.column for fact in facts if fact.column in terms[name]["facts"])
    return f"state {', '.join(blank)}" if blank else terms[name]["row"]


def _longest(
    kernels: Sequence[KernelTrace], ranks: Sequence[MeasuredSteps], of_kinds: Sequence[np.ndarray], place: int
) -> tuple[tuple[str, float], ...]:
    """Longest kernels of a component by name, with their time averaged over steps and ranks [s]."""
    times: dict[str, float] = {}
    for trace, rank, part in zip(kernels, ranks, of_kinds, strict=True):
        for kind in np.flatnonzero((part == place) & (rank.kernel_time > 0.0)).tolist():
            times[trace.names[kind]] = times.get(trace.names[kind], 0.0) + float(rank.kernel_time[kind]) / len(ranks)
    return tuple(sorted(times.items(), key=lambda item: -item[1])[:3])


def _trace_remarks(trace: KernelTrace, rank: MeasuredSteps, known: Bool[np.ndarray, " kind"]) -> list[str]:
    """Remarks on the recognition of steps in a trace, and on kernels without a matching rule."""
    n_steps, mean = len(rank.exposed), rank.exposed.sum(axis=1).mean()
    found = [f"{trace.where}: {n_steps} {plural(n_steps, 'step')} of {seconds(float(mean))}, by {rank.recognised_by}"]
    unknown = np.where(known, 0.0, rank.kernel_time)
    if unknown.sum() > UNKNOWN * rank.kernel_time.sum():
        names = [trace.names[kind][:60] for kind in np.argsort(-unknown)[:3] if unknown[kind] > 0.0]
        share = 100.0 * unknown.sum() / rank.kernel_time.sum()
        found.append(f"{share:.0f} % of the time of kernels have no rule, counted as memory_bound: {', '.join(names)}")
    return found


def _rank_remarks(kernels: Sequence[KernelTrace], ranks: Sequence[MeasuredSteps]) -> list[str]:
    """Remark on the slowest of several ranks in computation: the faster ranks wait for it in their collectives."""
    computing = [
        float(sum(rank.exposed[:, NAMES.index(name)].mean() for name in ("matmul", "attention", "memory_bound")))
        for rank in ranks
    ]
    if len(ranks) < 2 or not min(computing) > 0.0 or max(computing) < UNEQUAL * min(computing):
        return []
    slowest = kernels[int(np.argmax(computing))].where
    percent = 100.0 * (max(computing) / min(computing) - 1.0)
    return [
        f"ranks are unequal: {slowest} computes {percent:.0f} % longer than the fastest, for which collectives wait"
    ]
