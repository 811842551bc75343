"""Reports of `jaxscale limits`: tables and the figure of a study, or of transformers on real chips."""

from collections.abc import Mapping

import numpy as np

from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.limits_report import (
    curve_figure,
    elasticity_table,
    law_line,
    threshold_table,
    transformer_figure,
    transformer_table,
)
from jaxscale.limits.study import Study
from jaxscale.limits.transformer_curve import TransformerCurve
from jaxscale.report.document import Report


def study_report(
    study: Study, descriptions: Mapping[str, str], bands: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Report:
    """Report of scenarios: curves with bands, thresholds, elasticities.

    Args:
        study: the scenarios.
        descriptions: of each, by name.
        bands: lower and upper utilisation by name [1], [size].

    Returns:
        The report; `save` writes it.
    """
    report = Report("How far training scales")
    report.add(threshold_table(study, descriptions))
    curves = dict(zip(study.names, study.utilisation, strict=True))
    caption = "Bands: 90 % of the curves for assumptions drawn from their uncertainties."
    report.figure("utilisation", curve_figure(study.training_flop, curves, bands), caption)
    report.heading("What moves the ends")
    for row in range(len(study.names)):
        report.add(elasticity_table(study, row))
    return report


def transformers_report(
    curves: Mapping[str, TransformerCurve], laws: Mapping[str, FrontierScenario], gpu: str
) -> Report:
    """Report of transformers on real chips: curves, thresholds, and the laws that make the wall.

    Args:
        curves: by name of their scenario.
        laws: the scenarios.
        gpu: catalogue id of the chip.

    Returns:
        The report; `save` writes it.
    """
    report = Report(f"How far training scales on {gpu}")
    report.add(transformer_table(curves))
    for name in curves:
        report.text(f"{name}, the wall: the largest run that {law_line(laws[name])}.")
    caption = "Utilisation of the best plan at each training compute; zero where none ends in time."
    report.figure("utilisation", transformer_figure(curves, laws, gpu), caption)
    return report
