"""Figures and report of a design, from the document of `jaxscale.designs.shape_report`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxscale.laws.law_tables import law_choice_table
from jaxscale.report.document import Report
from jaxscale.report.figures.breakdown import step_breakdown
from jaxscale.report.figures.design import sensitivity_bars
from jaxscale.report.terminal_tables import price_list, shape_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def price_figure(document: Mapping[str, Any], title: str) -> "Figure":
    """Bars of the shadow prices: per cent of the objective for one per cent of each quantity.

    Args:
        document: of the design.
        title: headline.

    Returns:
        The figure.
    """
    objective = " and ".join(document["objective"]).replace("_", " ")
    return sensitivity_bars(document["shadow_prices"], title=title, answer=objective, words=("less", "more"))


def design_report(document: Mapping[str, Any], title: str) -> Report:
    """Report of a design: sizes and plan beside the continuous optimum, where its step's time goes, prices.

    Args:
        document: of the design; with `terms_s`, the terms of its step [s], they are drawn.
        title: headline of the document.

    Returns:
        The report; `save` writes it.
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
