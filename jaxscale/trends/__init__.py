"""Trends of hardware scaling by the calibrated step time: returns of more chips, watts and dollars, and crossovers.

Step times equal the predictions of `jaxscale.runs.predict` for rows of equal framework, chip, degrees and batch.
"""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.trends.crossover import LAYOUTS as LAYOUTS
    from jaxscale.trends.crossover import BestDegree as BestDegree
    from jaxscale.trends.crossover import Returns as Returns
    from jaxscale.trends.crossover import best_degrees as best_degrees
    from jaxscale.trends.crossover import best_whole_degrees as best_whole_degrees
    from jaxscale.trends.crossover import last_worthwhile_chip as last_worthwhile_chip
    from jaxscale.trends.crossover import layout_speeds as layout_speeds
    from jaxscale.trends.crossover import marginal_returns as marginal_returns
    from jaxscale.trends.crossover import overtaking as overtaking
    from jaxscale.trends.deployment_library import CHANGES as CHANGES
    from jaxscale.trends.deployment_library import deployment as deployment
    from jaxscale.trends.deployment_library import fitted_power as fitted_power
    from jaxscale.trends.deployment_library import generations as generations
    from jaxscale.trends.deployment_library import price_of as price_of
    from jaxscale.trends.deployment_library import sample_deployments as sample_deployments
    from jaxscale.trends.deployment_library import side_by_side as side_by_side
    from jaxscale.trends.deployment_library import system_of as system_of
    from jaxscale.trends.deployment_library import systems as systems
    from jaxscale.trends.deployment_library import unfitted_power as unfitted_power
    from jaxscale.trends.deployment_library import what_if as what_if
    from jaxscale.trends.layout import Deployment as Deployment
    from jaxscale.trends.layout import ParallelLayout as ParallelLayout
    from jaxscale.trends.layout import cluster_at as cluster_at
    from jaxscale.trends.layout import layer_gather as layer_gather
    from jaxscale.trends.layout import plan_at as plan_at
    from jaxscale.trends.measured_series import SCALING_TABLES as SCALING_TABLES
    from jaxscale.trends.measured_series import held_out_series as held_out_series
    from jaxscale.trends.measured_series import published_values as published_values
    from jaxscale.trends.measured_series import reproduce as reproduce
    from jaxscale.trends.measured_series import shipped_series as shipped_series
    from jaxscale.trends.measured_series import summarise as summarise
    from jaxscale.trends.outcome import Batch as Batch
    from jaxscale.trends.outcome import Outcome as Outcome
    from jaxscale.trends.outcome import best_tensor_degree as best_tensor_degree
    from jaxscale.trends.outcome import weak_scaling as weak_scaling

public_face(__name__)
