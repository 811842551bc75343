"""Trends of hardware scaling by the calibrated step time, with hop latencies, power and prices of their own.

Returns of more chips, watts and dollars, and layouts that overtake each other: `step_time` with the fit of the workload
of arXiv 2411.13055. In place of the catalogue's latencies a `Deployment` carries those of single ring hops, fitted to
that paper (`fits/hardware_trends.py`), since the runs behind the default fit do not reach the numbers of chips at which
hops decide; so step times differ from those of `jaxscale.predict` with the default fit.
"""

from jaxscale.trends.deployment_library import deployment as deployment
from jaxscale.trends.layout import Deployment as Deployment
from jaxscale.trends.layout import ParallelLayout as ParallelLayout
from jaxscale.trends.outcome import Outcome as Outcome
from jaxscale.trends.scaling_curves import best_tensor_degree as best_tensor_degree
from jaxscale.trends.scaling_curves import strong_scaling as strong_scaling
from jaxscale.trends.scaling_curves import weak_scaling as weak_scaling
