"""Figures, one family per module. Each function takes plain numbers, or a fit, and returns a matplotlib figure."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.report.figures.accuracy import coefficient_intervals as coefficient_intervals
    from jaxscale.report.figures.accuracy import correlation_matrix as correlation_matrix
    from jaxscale.report.figures.accuracy import intervals as intervals
    from jaxscale.report.figures.accuracy import predicted_against_measured as predicted_against_measured
    from jaxscale.report.figures.accuracy import profile_curves as profile_curves
    from jaxscale.report.figures.accuracy import residuals_by_column as residuals_by_column
    from jaxscale.report.figures.design import sensitivity_bars as sensitivity_bars
    from jaxscale.report.figures.design import shape_map as shape_map
    from jaxscale.report.figures.design import shape_profile as shape_profile
    from jaxscale.report.figures.loss_laws import design_spread as design_spread
    from jaxscale.report.figures.loss_laws import isoflop_curves as isoflop_curves
    from jaxscale.report.figures.loss_laws import loss_against_compute as loss_against_compute
    from jaxscale.report.figures.loss_laws import optima_against_compute as optima_against_compute
    from jaxscale.report.figures.loss_laws import rollout_errors as rollout_errors
    from jaxscale.report.figures.panels import Panel as Panel
    from jaxscale.report.figures.panels import ScalingSeries as ScalingSeries
    from jaxscale.report.figures.panels import curves as curves
    from jaxscale.report.figures.panels import panels as panels
    from jaxscale.report.figures.panels import roofline as roofline
    from jaxscale.report.figures.panels import scaling_series as scaling_series
    from jaxscale.report.figures.panels import step_breakdown as step_breakdown

public_face(__name__)
