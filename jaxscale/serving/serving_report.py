"""Tables, figures and reports of serving: predictions against measurements, and engines under limits of latency."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.base.units import GB
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.report.document import Report
from jaxscale.report.figures.accuracy import intervals, predicted_against_measured, residuals_by_column
from jaxscale.report.figures.panels import ranked_bars, step_breakdown
from jaxscale.report.style import seconds
from jaxscale.report.terminal_tables import rounded_text
from jaxscale.runs.schema import Runs
from jaxscale.serving.best_engine import ScoredEngine, ServingChoice
from jaxscale.serving.serving_coefficients import ServingCoefficients
from jaxscale.serving.serving_figures import latency_against_load, serving_frontier
from jaxscale.serving.serving_predict import ANSWERS, RATE, ServingPrediction
from jaxscale.serving.serving_time import ServingTime, load_curve, tokens_yielded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "ttft_s": "time to the first token [s]",
    "tpot_s": "time per token [s]",
    "e2e_latency_s": "latency of a request [s]",
    "output_tokens_per_s_total": "answer tokens per second [token/s]",
    **{
        f"{kind}_p{share}_s": f"{words}, {share} % [s]"
        for kind, words in (("ttft", "first token"), ("tpot", "time per token"), ("e2e", "latency"))
        for share in (50, 90, 99)
    },
}
"""Name and unit of each predicted column."""

WORDS = ("gpu", "framework", "precision", "serving")
COUNTS = ("n_gpus", "tp", "batch_size", "concurrency", "input_len", "output_len")
"""Columns by which errors are shown."""

SERVING_ERROR_COLUMNS = (
    text_column("column", says="{}:"),
    TableColumn("measured", says="{} measured", stays=True),
    TableColumn("median error", "median %", "%", stays=True),
    TableColumn("mean error", "mean %", "%", stays=True),
    TableColumn("90 % within", "90 % in", "%", stays=True),
    TableColumn("inside", "inside %", "%", stays=True),
)
ENGINE_COLUMNS = (
    text_column("engine", says="{}:"),
    TableColumn("in flight", says="{} in flight"),
    TableColumn("tokens/s per chip", "tok/s/chip", says="{} token/s/chip", stays=True),
    TableColumn("time per token", "TPOT ms", "ms", says="TPOT {} ms", stays=True),
    TableColumn("first token", "TTFT s", "s", says="TTFT {} s", stays=True),
    TableColumn("memory", "GB", "GB"),
    TableColumn("dollars per million tokens", "$/Mtok"),
)
"""Columns of the tables."""

SERVING_COLUMNS = (
    TableColumn("row"),
    text_column("model"),
    text_column("gpu"),
    TableColumn("chips", says="{} chips"),
    TableColumn("first token", "TTFT", says="TTFT {}", stays=True),
    TableColumn("90 % of TTFT", "90 %", says="90 %: {}"),
    TableColumn("time per token", "TPOT", says="TPOT {}", stays=True),
    TableColumn("90 % of TPOT", "90 %", says="90 %: {}"),
    TableColumn("tokens/s", "tok/s", says="{} token/s", stays=True),
    TableColumn("memory", "GB", "GB"),
    TableColumn("largest batch", "batch", says="batch up to {}"),
    text_column("note", says="note: {}"),
)
"""Columns of the table of predictions."""

SHOWN_ROWS = 20
"""Maximum number of rows of the table of predictions [1]."""

MOST_ROWS = 12
"""Maximum number of rows of a figure of answers [1]."""

LOADS = 60
"""Number of loads of a curve [1]."""


def serving_errors(runs: Runs, prediction: ServingPrediction, title: str) -> Report:
    """Report of predictions for a serving table: against measurements, with intervals and errors by column.

    Args:
        runs: the table.
        prediction: predictions of the rows.
        title: title of the report.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    answered = int((prediction.values["tpot_s"] > 0).sum())
    report.text(f"{answered} of {len(runs)} rows predicted.")
    errors = prediction.errors(runs)
    if not errors:
        report.text("The table measures none of the predicted columns: there is nothing to compare.")
        return report
    report.add(serving_error_table(errors))
    for name in (name for name in ANSWERS if name in errors):
        add_answer(report, runs, prediction, name)
    return report


def serving_rows_table(runs: Runs, prediction: ServingPrediction) -> Table:
    """Table of the first rows with their predictions."""
    lines = []
    for index, row in enumerate(runs.rows[:SHOWN_ROWS]):
        ends = {name: tuple(part[name][index] for part in (prediction.lo, prediction.hi)) for name in ANSWERS}
        times = []
        for name in ("ttft_s", "tpot_s"):
            is_answered = np.isfinite(prediction.values[name][index])
            interval = f"{seconds(ends[name][0])} to {seconds(ends[name][1])}"
            times += [seconds(prediction.values[name][index]), interval] if is_answered else ["-", "-"]
        figures = (prediction.values[RATE][index], prediction.memory[index] / GB)
        chips, batch = rounded_text(row["n_gpus"], 6), rounded_text(prediction.max_batch[index], 6)
        name = row["model"] or "-"
        cells = (row.line, name, row["gpu"] or "-", chips, *times, *map(rounded_text, figures), batch)
        lines.append((*cells, prediction.notes[index]))
    first = f", first {len(lines)} of {len(runs)} rows" if len(lines) < len(runs) else ""
    return make_table(f"Predicted serving{first}", SERVING_COLUMNS, lines)


def serving_error_table(errors: Mapping[str, Mapping[str, float | int]], when: str = "") -> Table:
    """Table of the errors by measured column.

    Args:
        errors: result of `ServingPrediction.errors`.
        when: addition to the title.
    """
    rows = []
    for name, one in errors.items():
        figures = (one["median_ape"], one["mape"], one["p90_ape"], 100.0 * one["coverage_90"])
        rows.append((NAMES[name], f"{one['n']:.0f}", *(f"{value:.1f}" for value in figures)))
    return make_table(f"Errors where serving was measured{when}", SERVING_ERROR_COLUMNS, rows)


def serving_figure(runs: Runs, prediction: ServingPrediction, title: str) -> "Figure":
    """Figure of predicted against measured values of the first measured column; else of predictions of few rows."""
    errors = prediction.errors(runs)
    for name in (name for name in ANSWERS if name in errors):
        return _answer_figure(runs, prediction, name, title)
    rows = np.flatnonzero(prediction.values["tpot_s"] > 0.0)[:MOST_ROWS]
    labels = [f"{place + 1}: {runs.rows[place]['model'] or 'model'}" for place in rows.tolist()]
    values = {name: prediction.values[name][rows].tolist() for name in ("ttft_s", "tpot_s")}
    quantities = {
        "time to the first token [s]": dict(zip(labels, values["ttft_s"], strict=True)),
        "time per token [ms]": {label: 1e3 * value for label, value in zip(labels, values["tpot_s"], strict=True)},
    }
    return ranked_bars(quantities, title)


def _answer_figure(runs: Runs, prediction: ServingPrediction, name: str, title: str) -> "Figure":
    """Predicted against measured values of an answer; colours are chips."""
    measured, told = runs.numbers(name), prediction.values[name]
    rows = np.flatnonzero(np.isfinite(measured) & np.isfinite(told))
    groups = [str(word or "not named") for word in np.asarray(_words(runs, "gpu"), dtype=object)[rows]]
    return predicted_against_measured(measured[rows], told[rows], groups, title, quantity=NAMES[name])


def add_answer(report: Report, runs: Runs, prediction: ServingPrediction, name: str) -> None:
    """Add the figures of a predicted column to a report: against measurements, intervals, errors by column."""
    measured, told = runs.numbers(name), prediction.values[name]
    rows = np.flatnonzero(np.isfinite(measured) & np.isfinite(told))
    measured, told = measured[rows], told[rows]
    label = NAMES[name]
    report.heading(label[0].upper() + label[1 : label.index("[") - 1])
    figure = _answer_figure(runs, prediction, name, "Predicted against measured")
    report.figure(f"{name}_measured", figure, "Predicted against measured; colours are chips.")
    figure = intervals(measured, prediction.lo[name][rows], prediction.hi[name][rows])
    report.figure(f"{name}_intervals", figure, "90 % intervals over the measurement.")
    columns: dict[str, Sequence[object]] = {}
    for column in COUNTS:
        values = runs.numbers(column)[rows]
        # A constant column explains no error.
        if np.isfinite(values).all() and np.ptp(values) > 0.0:
            columns[column] = values.tolist()
    for column in WORDS:
        words = [str(word or "") for word in np.asarray(_words(runs, column), dtype=object)[rows]]
        if len(set(words)) > 1:
            columns[column] = words
    if columns:
        caption = "Errors by column: a slope or a step is a cause that is missed."
        report.figure(f"{name}_residuals", residuals_by_column(np.log(told / measured), columns), caption)


def _words(runs: Runs, column: str) -> Sequence[str]:
    """Cells of a column, empty where the table lacks it [row]."""
    return runs.texts().get(column, [""] * len(runs))


def engine_report(
    choice: ServingChoice,
    model: Transformer,
    cluster: Cluster,
    coefficients: ServingCoefficients,
    title: str,
    limits: Mapping[str, float] | None = None,
) -> Report:
    """Report of engines chosen under limits of latency: the Pareto front, latency against load, and times by cause.

    Args:
        choice: result of a search for engines.
        model: the transformer.
        cluster: chips and network.
        coefficients: coefficients of the serving software.
        title: title of the report.
        limits: largest time per token `tpot` and to the first token `ttft` [s].

    Returns:
        The report; `save` writes the report to a file.
    """
    bounds, best = dict(limits or {}), choice.best
    report = Report(title)
    told = ", ".join(f"{name.upper()} at most {value:g} s" for name, value in bounds.items()) or "no limit of latency"
    report.text(f"{choice.searched:,} engines scored; {told}. The best: {best.label}.")
    report.add(serving_engine_table(choice))
    report.heading("Throughput against latency")
    caption = "Engines that no other beats in both, and the best of each kind that keeps the limits."
    report.figure("frontier", serving_frontier(choice, bounds.get("tpot")), caption)
    report.text(f"{choice.price_line}.")
    load = number(best.requests.concurrency)
    # From a single request to four times the chosen load.
    loads = np.unique(np.concatenate([np.geomspace(1.0, 4.0 * load, LOADS), [load]]))
    times = load_curve(model, best.engine, cluster, best.requests, coefficients, loads)
    report.heading("Latency against load")
    throughput, pace = np.asarray(times.throughput), number(coefficients.pace)
    if best.n_prefill:
        # Prefill copies process prompts one by one; the slower of prefill and decode sets the rate.
        work = pace * np.asarray(times.prefill.total)
        throughput = np.minimum(throughput, best.n_prefill * number(best.engine.attention_dp) / work * times.output_len)
    per_chip = throughput * best.throughput_per_chip / best.throughput
    figure = latency_against_load(loads, times, per_chip, bounds, load)
    report.figure("load", figure, "The best engine at other loads.")
    report.heading("Where the time goes")
    few = np.unique(np.asarray([1.0, max(1.0, load / 8.0), load]).round())
    rows = [int(np.argmin(np.abs(loads - one))) for one in few]
    yielded = number(tokens_yielded(best.requests))
    caption = (
        "By requests in flight. Prompts: the work on those that arrive, which join the step of the running batch. "
        "Weights: reading weights and multiplying by them, which overlap."
    )
    figure = step_breakdown(token_terms(times, rows, loads, pace, yielded), "Time per token (TPOT)", "time per token")
    report.figure("decode", figure, caption)
    prompt = {"one prompt": _terms(times, rows[-1], "prefill", pace)}
    caption = "Without waiting, which the time to the first token counts too."
    report.figure("prefill", step_breakdown(prompt, "Work on a prompt", "time of one prompt"), caption)
    return report


def token_terms(
    times: ServingTime, rows: Sequence[int], loads: np.ndarray, pace: float, yielded: float = 1.0
) -> dict[str, dict[str, float]]:
    """Terms of the time per token at given loads, by label of the load [s].

    A step consists of its decode pass and the prefill of joining prompts.

    Args:
        times: times at each load.
        rows: indices of the loads to show.
        loads: requests in flight [1], [load].
        pace: factor of the software on every time [1].
        yielded: tokens per sequence and step [token].
    """
    terms = {}
    for row in rows:
        decode = {name: term / yielded for name, term in _terms(times, row, "decode", pace).items()}
        # A step is decode and joining prompts: the rest is prompts.
        joined = float(np.asarray(times.tpot)[row]) - sum(decode.values())
        terms[f"{loads[row]:.0f} in flight"] = {**decode, "prompts": max(joined, 0.0)}
    return terms


def _terms(times: ServingTime, row: int, kind: str, pace: float) -> dict[str, float]:
    leaves = jax.tree.map(lambda leaf: float(np.asarray(leaf)[row]), getattr(times, kind))
    return {name: pace * getattr(leaves, name) for name in ("weights", "attention", "collectives", "floors")}


def serving_engine_table(choice: ServingChoice) -> Table:
    """Table of the best engines with load, throughput, latency, memory and price."""
    title = f"{choice.searched:,} engines scored; the best of each kind, by answer tokens per second and chip"
    return make_table(title, ENGINE_COLUMNS, [engine_row(scored) for scored in choice.top])


def engine_row(scored: ScoredEngine) -> tuple[str, ...]:
    """Texts of an engine in the table of engines, in the order of `ENGINE_COLUMNS`."""
    entry = scored.to_json()
    figures = (
        entry["concurrency"],
        scored.throughput_per_chip,
        1e3 * scored.tpot,
        scored.ttft,
        entry["memory_gb"],
        scored.dollars_per_million_tokens,
    )
    return (scored.label, *map(rounded_text, figures))
