"""Output of `jaxscale explain`: tables, sentences, a figure and a report."""

from typing import TYPE_CHECKING

import numpy as np

from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.explaining.explanation import Explanation, verdict_on
from jaxscale.report.document import Report
from jaxscale.report.style import BLUE, INK, ORANGE, entries_of, legend_below, seconds, single_axes, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CAUSES = 3
"""Maximum number of causes on the screen [1]."""

MOST_FACTS = 5
"""Maximum number of values of blank cells on the screen [1]."""

COLUMNS = (
    text_column("part"),
    TableColumn("measured", stays=True),
    TableColumn("hidden"),
    TableColumn("predicted", stays=True),
    TableColumn("90 % interval", "90 %", says="90 %: {}", stays=True),
    TableColumn("to account for it", "needed"),
    text_column("", says="{}"),
)
"""Columns of the table of step components."""


def parts_shown(found: Explanation) -> list[str | Table]:
    """Text of an explanation: total time, table of step components, and sentences on causes."""
    return [f"{found.run}: {found.summary()}", parts_table(found), *sentences(found)]


def parts_table(found: Explanation) -> Table:
    """Table of measured and predicted time of the non-zero components of the step."""
    could = {cause.part for cause in found.causes}
    rows = []
    for part in found.parts:
        # nan > 0 is false: unmeasured components count by the prediction.
        if not (part.predicted > 0.0 or part.measured > 0.0):
            continue
        interval = f"{seconds(part.lo)} to {seconds(part.hi)}"
        if found.is_traced:
            hidden = seconds(part.hidden) if part.hidden > 1e-6 * found.measured else "-"
            verdict = part.verdict.replace("within", "")
            cells = (seconds(part.measured), hidden, seconds(part.predicted), interval, "-", verdict)
        else:
            # The component takes the whole difference.
            needed = part.predicted + found.measured - found.predicted
            text = seconds(needed) if needed > 0.0 else "-"
            cells = ("-", "-", seconds(part.predicted), interval, text, "could" if part.name in could else "")
        rows.append((part.name.replace("_", " "), *cells))
    rows.append(_total(found))
    shown = [place for place, column in enumerate(COLUMNS) if found.is_traced or column.name != "hidden"]
    columns = tuple(COLUMNS[place] for place in shown)
    return make_table("Time of one step, part by part", columns, [[row[place] for place in shown] for row in rows])


def _total(found: Explanation) -> tuple[str, ...]:
    """Row of the whole step."""
    verdict = verdict_on(found.measured, found.lo, found.hi).replace("within", "")
    interval = f"{seconds(found.lo)} to {seconds(found.hi)}"
    return ("step", seconds(found.measured), "-", seconds(found.predicted), interval, "-", verdict)


def sentences(found: Explanation) -> list[str]:
    """Sentences on the deviating components, their usual causes, and facts that would confirm a cause."""
    lines = []
    for place, cause in enumerate(found.causes[:MOST_CAUSES]):
        name = cause.part.replace("_", " ")
        sign = "+" if cause.excess > 0.0 else "-"
        head = f"{place + 1}. {name}, {sign}{seconds(abs(cause.excess))}" if found.is_traced else f"{name} could be it"
        lines += [f"{head}: {cause.usually}.", f"   To settle it: {cause.settled_by}."]
    if not found.is_traced:
        if not lines:
            lines.append("No part alone could account for it within its interval.")
        lines += [
            f"{fact.column} = {fact.word} would predict {seconds(fact.step_time)}" for fact in found.facts[:MOST_FACTS]
        ]
        lines.append("A kernel trace of one rank tells the parts apart: --trace FILE.")
    return lines


def explanation_figure(found: Explanation) -> "Figure":
    """Bar chart of the step components: measured exposed and hidden time, beside predicted time with interval."""
    parts = [part for part in found.parts if max(part.predicted, np.nan_to_num(part.measured)) > 1e-3 * found.predicted]
    longest = max(max(part.hi, np.nan_to_num(part.measured) + np.nan_to_num(part.hidden)) for part in parts)
    unit, word = time_unit(longest)
    with single_axes(8.8, 1.2 + 0.55 * len(parts)) as (figure, axes):
        rows = np.arange(len(parts))

        def times(name: str) -> np.ndarray:
            return np.asarray([getattr(part, name) for part in parts]) / unit

        if found.is_traced:
            axes.barh(rows - 0.2, times("measured"), height=0.36, color=ORANGE, label="measured")
            hidden = {"left": times("measured"), "height": 0.36, "color": "none", "edgecolor": ORANGE, "hatch": "///"}
            axes.barh(rows - 0.2, times("hidden"), label="measured, hidden beside compute", **hidden)
        axes.barh(rows + 0.2, times("predicted"), height=0.36, color=BLUE, label="predicted")
        lo, hi = times("lo"), times("hi")
        axes.errorbar(
            0.5 * (lo + hi), rows + 0.2, xerr=0.5 * (hi - lo), fmt="none", color=INK, capsize=3, label="90 % interval"
        )
        for row, part in enumerate(parts):
            if part.verdict in ("above", "below"):
                end = max(part.hi, part.measured + part.hidden) / unit
                axes.text(end + 0.015 * longest / unit, row, part.verdict, va="center", weight="bold")
        axes.set_yticks(rows, [part.name.replace("_", " ") for part in parts])
        # First component on top.
        axes.set_ylim(len(parts) - 0.4, -0.6)
        axes.set_xlim(0.0, 1.12 * longest / unit)
        axes.set(xlabel=f"time of a step [{word}]", title=found.run)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        legend_below(figure, entries_of(axes))
    return figure


def explanation_report(found: Explanation) -> Report:
    """Report of an explanation: total time, components, causes, longest kernels, remarks."""
    report = Report(f"{found.run}: measured beside predicted")
    report.text(found.summary())
    report.add(parts_table(found))
    report.figure("parts", explanation_figure(found), "Parts of a step, measured and predicted.")
    report.heading("What the difference is in")
    for line in sentences(found):
        report.text(line.strip())
    rows = [(part.name, name, seconds(time)) for part in found.parts for name, time in part.kernels]
    if rows:
        report.heading("Kernels that take most of the time")
        report.table((text_column("part"), text_column("kernel"), TableColumn("time in a step")), rows)
    if found.remarks:
        report.heading("Remarks")
        for remark in found.remarks:
            report.text(remark)
    return report
