"""Figures and report of a traced workload: flop, bytes and launches by group, and terms of the step time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxscale.report.document import Report
from jaxscale.report.figures.panels import ranked_bars, step_breakdown
from jaxscale.tracing.classed_program import group_rows, workload_parts
from jaxscale.tracing.traced_workload import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 12
"""Largest number of groups in a figure, the largest by bytes [1]."""


def workload_figure(work: Workload, title: str) -> "Figure":
    """Bar chart of flop and bytes by group of kernels, summed over phases."""
    sums: dict[str, list[float]] = {}
    for group, _, flop, moved, _ in group_rows(work.tables, work.columns()):
        before = sums.get(group or "step", [0.0, 0.0])
        sums[group or "step"] = [before[0] + flop, before[1] + moved]
    kept = sorted(sums, key=lambda group: -sums[group][1])[:MOST]
    quantities = {
        "work [Gflop]": {group: sums[group][0] / 1e9 for group in kept},
        "traffic [GB]": {group: sums[group][1] / 1e9 for group in kept},
    }
    return ranked_bars(quantities, title)


def trace_figure(work: Workload, title: str, terms: Mapping[str, float] | None = None, on: str = "") -> "Figure":
    """Figure of the terms of the step time if given, else of flop and bytes by group.

    Args:
        work: the workload.
        title: title of the figure.
        terms: terms of the step time [s].
        on: description of the chips.
    """
    return step_breakdown({on: terms}, title) if terms else workload_figure(work, title)


def trace_report(work: Workload, title: str, terms: Mapping[str, float] | None = None, on: str = "") -> Report:
    """Report of a workload: table, flop and bytes by group, terms of the step time if given.

    Args:
        work: the workload.
        title: title of the report.
        terms: terms of the step time [s].
        on: description of the chips.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    for part in workload_parts(work.tables, work.columns(), work.classes()):
        report.text(part) if isinstance(part, str) else report.add(part)
    report.figure("work", workload_figure(work, "Work and traffic of a step"), "By group of kernels, largest first.")
    if terms:
        report.heading("Where the time goes")
        report.figure("step", step_breakdown({on: terms}), f"Terms of the step on {on}.")
    return report
