"""Figures and report of ranked plans: where the time of each goes, and its time against its memory."""

from typing import TYPE_CHECKING

from jaxscale.base.table import make_table
from jaxscale.plans.choice import PlanChoice, ScoredPlan
from jaxscale.report.document import Report
from jaxscale.report.figures.breakdown import step_breakdown
from jaxscale.report.figures.ranking import time_against_memory
from jaxscale.report.style import seconds
from jaxscale.report.terminal_tables import PLAN_COLUMNS, plan_cells, plan_ranking

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6
"""Plans of a figure at most [1]."""


def fastest_plans(choice: PlanChoice) -> dict[str, ScoredPlan]:
    """The first plans by their rank and the choices that differ among them."""
    shown = choice.top[:MOST]
    table = make_table(
        "", tuple(PLAN_COLUMNS.values()), [tuple(plan_cells(one.plan.words()).values()) for one in shown]
    )
    distinct, _ = table.without_equal_columns()
    labels = []
    for rank, cells in enumerate(distinct.rows, start=1):
        phrases = (column.phrase(cell) for column, cell in zip(distinct.columns, cells, strict=True))
        labels.append(f"{rank}: {' '.join(phrase for phrase in phrases if phrase)}")
    return dict(zip(labels, shown, strict=True))


def plan_breakdown(choice: PlanChoice, title: str) -> "Figure":
    """Stacked bars of the terms of the first plans.

    Args:
        choice: the ranked plans.
        title: headline.

    Returns:
        The figure.
    """
    return step_breakdown({label: scored.terms for label, scored in fastest_plans(choice).items()}, title)


def plan_report(choice: PlanChoice, title: str) -> Report:
    """Report of ranked plans: table, breakdown of the first ones, time against memory, alternatives.

    Args:
        choice: the ranked plans.
        title: headline of the document.

    Returns:
        The report; `save` writes it.
    """
    report = Report(title)
    report.add(plan_ranking(choice.to_json()))
    low, high = (seconds(end) for end in choice.step_time_interval)
    report.text(f"90 % interval of the first plan's step: {low} to {high}.")
    report.heading("Where the time goes")
    report.figure("plans", plan_breakdown(choice, title), "Terms of a step of the first plans.")
    report.heading("Time against memory")
    places = {label: (scored.memory, scored.step_time) for label, scored in fastest_plans(choice).items()}
    figure = time_against_memory(places, choice.memory_limit, title)
    caption = f"{choice.infeasible:,} of {choice.searched:,} plans are beyond the limit and not shown."
    report.figure("memory", figure, caption)
    report.heading("What binds, and what changes would cost")
    for line in (*choice.binds, *choice.reasons):
        report.text(line)
    return report
