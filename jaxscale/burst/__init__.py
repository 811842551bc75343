"""Burst parallelism: training of a network with a different number of GPUs for each layer.

Planner, multiplexing and batch limit follow arXiv 2112.10065, spatial parallelism arXiv 2007.12856. The time of a layer
is measured (profiles of one A100) or a roofline with launch latency; transfers and all-reduces follow the papers. The
calibrated step time of transformers does not apply, because all layers of a transformer run on the same chips, and no
measured runs of convolutional networks in bursts exist for a fit. `network_step` supplies the networks to `js.trace`.
"""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.burst.batch_limit import BatchSurvey as BatchSurvey
    from jaxscale.burst.batch_limit import Convergence as Convergence
    from jaxscale.burst.batch_limit import best_chips as best_chips
    from jaxscale.burst.batch_limit import survey_batches as survey_batches
    from jaxscale.burst.batch_limit import time_to_accuracy as time_to_accuracy
    from jaxscale.burst.burst_plan import BurstPlan as BurstPlan
    from jaxscale.burst.burst_plan import plan_burst as plan_burst
    from jaxscale.burst.burst_plan import plan_data_parallel as plan_data_parallel
    from jaxscale.burst.burst_plan import plan_released as plan_released
    from jaxscale.burst.burst_report import burst_report as burst_report
    from jaxscale.burst.burst_report import plot_chips as plot_chips
    from jaxscale.burst.burst_report import plot_gain as plot_gain
    from jaxscale.burst.burst_report import plot_time_line as plot_time_line
    from jaxscale.burst.layer_graph import LayerGraph as LayerGraph
    from jaxscale.burst.layer_graph import load_network as load_network
    from jaxscale.burst.layer_time import AbstractLayerTime as AbstractLayerTime
    from jaxscale.burst.layer_time import AnalyticalLayerTime as AnalyticalLayerTime
    from jaxscale.burst.layer_time import Device as Device
    from jaxscale.burst.layer_time import MeasuredLayerTime as MeasuredLayerTime
    from jaxscale.burst.layer_time import analytical_layer_time as analytical_layer_time
    from jaxscale.burst.layer_time import measured_layer_time as measured_layer_time
    from jaxscale.burst.multiplexing import ClusterStudy as ClusterStudy
    from jaxscale.burst.multiplexing import Interference as Interference
    from jaxscale.burst.multiplexing import multiplex as multiplex
    from jaxscale.burst.multiplexing import multiplexing_table as multiplexing_table
    from jaxscale.burst.multiplexing import stated_interference as stated_interference
    from jaxscale.burst.multiplexing import static_partition as static_partition
    from jaxscale.burst.multiplexing import study_clusters as study_clusters
    from jaxscale.burst.soft_planner import SoftPlan as SoftPlan
    from jaxscale.burst.soft_planner import plan_soft as plan_soft
    from jaxscale.burst.soft_planner import prices as prices
    from jaxscale.burst.soft_planner import soft_plan_time as soft_plan_time
    from jaxscale.burst.spatial import spatial_network as spatial_network
    from jaxscale.burst.spatial import spatial_step as spatial_step
    from jaxscale.burst.spatial import spatial_table as spatial_table
    from jaxscale.burst.step_costs import BurstJob as BurstJob
    from jaxscale.burst.traced_network import network_step as network_step

public_face(__name__)
