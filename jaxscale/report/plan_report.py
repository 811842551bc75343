"""Figures and reports of ranked plans, and of a design as documented by `jaxscale.designs.shape_report`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.table import make_table
from jaxscale.designs.whole_run import RunChoice
from jaxscale.laws.law_report import law_choice_table
from jaxscale.plans.choice import PlanChoice, ScoredPlan
from jaxscale.report.document import Report
from jaxscale.report.figures.design import sensitivity_bars
from jaxscale.report.figures.panels import Panel, panels, step_breakdown, time_against_memory
from jaxscale.report.style import seconds
from jaxscale.report.terminal_tables import PLAN_COLUMNS, plan_cells, plan_ranking, price_list, run_table, shape_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST = 6
"""Largest number of plans in a figure [1]."""


def fastest_plans(choice: PlanChoice) -> dict[str, ScoredPlan]:
    """First plans of the ranking, labelled by rank and by the choices that differ among the plans."""
    shown = choice.top[:MOST]
    table = make_table(
        "", tuple(PLAN_COLUMNS.values()), [tuple(plan_cells(one.plan.words()).values()) for one in shown]
    )
    # Columns equal in all plans do not tell the plans apart.
    distinct, _ = table.without_equal_columns()
    labels = []
    for rank, cells in enumerate(distinct.rows, start=1):
        phrases = (column.phrase(cell) for column, cell in zip(distinct.columns, cells, strict=True))
        labels.append(f"{rank}: {' '.join(phrase for phrase in phrases if phrase)}")
    return dict(zip(labels, shown, strict=True))


def plan_breakdown(choice: PlanChoice, title: str) -> "Figure":
    """Stacked bars of the step-time terms of the first plans."""
    return step_breakdown({label: scored.terms for label, scored in fastest_plans(choice).items()}, title)


def run_figure(run: Mapping[str, Any]) -> "Figure":
    """Duration, energy and price, or chip-hours, of a run by chips and batch, in the form of `RunChoice.to_json`."""
    every = run["candidates"]
    axes = {"n_chips": "chips", "global_batch_size_seqs": "batch"}
    values = {name: sorted({one[name] for one in every}) for name in axes}
    # With a single number of chips, the abscissa is the batch.
    along, across = axes if len(values["n_chips"]) > 1 else tuple(axes)[::-1]
    paid = ("price", "price") if run["step"]["price"] is not None else ("chip_hours", "chip hours")
    parts = []
    for key, label in (("days", "days"), ("energy_mwh", "energy [MWh]"), paid):
        at = {(one[along], one[across]): one[key] for one in every}
        lines = {
            # A gap for chips and batch without a candidate.
            f"{axes[across]} {other:g}": np.asarray([at.get((x, other), np.nan) for x in values[along]])
            for other in values[across]
        }
        is_days = key == "days"
        x = np.asarray(values[along])
        parts.append(Panel(label.split(" [")[0], axes[along], label, x, lines, logarithmic=(True, is_days)))
    return panels(parts, 3)


def plan_report(choice: PlanChoice, title: str, run: RunChoice | None = None) -> Report:
    """Report of ranked plans: table, breakdown of the first plans, time against memory, alternatives.

    Args:
        choice: the ranked plans.
        title: title of the report.
        run: whole run of the plans.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    if run is not None:
        document = run.to_json()
        report.add(run_table(document))
        for line in run.sentences():
            report.text(line)
        if len(run.candidates) > 1:
            report.figure("run", run_figure(document), "The whole run by chips and batch.")
    report.add(plan_ranking(choice.to_json(), "step" if run is None else run.objective))
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


def price_figure(document: Mapping[str, Any], title: str) -> "Figure":
    """Bars of the shadow prices: change of the objective in per cent for one per cent more of each quantity."""
    objective = " and ".join(document["objective"]).replace("_", " ")
    return sensitivity_bars(document["shadow_prices"], title=title, answer=objective, words=("less", "more"))


def design_report(document: Mapping[str, Any], title: str) -> Report:
    """Report of a design: sizes and plan beside the continuous optimum, terms of the step time, shadow prices.

    Args:
        document: document of the design; the terms of the step `terms_s` [s] are drawn if present.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(title)
    report.add(shape_choice(document))
    report.text(f"{document['certificate']}.")
    if "law" in document:
        report.heading("What the design hangs on")
        report.add(law_choice_table(document["law"]))
    if "terms_s" in document:
        report.heading("Where the time goes")
        label = f"{document['n_layers']} layers of {document['d_model']}"
        report.figure("step", step_breakdown({label: document["terms_s"]}), "Terms of a step of the design.")
    report.heading("Prices")
    report.add(price_list(document["shadow_prices"], document["objective"]))
    caption = "Change of the objective for 1 % more of each quantity, everything else chosen anew."
    report.figure("prices", price_figure(document, "What one per cent more buys"), caption)
    return report
