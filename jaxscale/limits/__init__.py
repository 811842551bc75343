"""Limits of scaling of training runs: utilisation against training compute, its thresholds and the latency wall.

The analytic data-movement model of arXiv 2411.01137 gives the time of a batch: stacks of MLP blocks whose size, batch
and depth follow scaling laws, on existing or assumed chips. Nothing is fitted to measured runs, because no run lies
near the limits. The model is smooth and cheap, so that the best plan of each of thousands of scenarios is searched
for. `transformer_curve` gives the same curve with the calibrated step time of whole transformers on catalogue chips.
"""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.limits.frontier_scenario import FrontierScenario as FrontierScenario
    from jaxscale.limits.frontier_scenario import checked_number as checked_number
    from jaxscale.limits.frontier_scenario import load_scenarios as load_scenarios
    from jaxscale.limits.frontier_scenario import log_latency_wall as log_latency_wall
    from jaxscale.limits.frontier_scenario import on_chip as on_chip
    from jaxscale.limits.frontier_scenario import scenario as scenario
    from jaxscale.limits.frontier_scenario import scenario_named as scenario_named
    from jaxscale.limits.frontier_scenario import stack_scenarios as stack_scenarios
    from jaxscale.limits.frontier_scenario import wall_exponent as wall_exponent
    from jaxscale.limits.joint_optimum import joint_optimum as joint_optimum
    from jaxscale.limits.limits_report import curve_figure as curve_figure
    from jaxscale.limits.limits_report import published_curve as published_curve
    from jaxscale.limits.relaxed_plan import PLAN_DEGREES as PLAN_DEGREES
    from jaxscale.limits.relaxed_plan import PlanResult as PlanResult
    from jaxscale.limits.relaxed_plan import survey as survey
    from jaxscale.limits.relaxed_plan import utilisation_of_best_plans as utilisation_of_best_plans
    from jaxscale.limits.relaxed_plan import utilisation_of_plans as utilisation_of_plans
    from jaxscale.limits.study import Study as Study
    from jaxscale.limits.study import band as band
    from jaxscale.limits.study import curve_sizes as curve_sizes
    from jaxscale.limits.study import study as study
    from jaxscale.limits.thresholds import Thresholds as Thresholds
    from jaxscale.limits.thresholds import thresholds as thresholds
    from jaxscale.limits.thresholds import utilisation as utilisation
    from jaxscale.limits.transformer_curve import TransformerCurve as TransformerCurve
    from jaxscale.limits.transformer_curve import transformer_curve as transformer_curve

public_face(__name__)
