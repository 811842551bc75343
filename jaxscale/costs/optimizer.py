"""Optimizer step: parameters, gradients and moments stream through memory once; ZeRO splits them over replicas.

Reference: Rajbhandari et al. 2020, arXiv 1910.02054, section 3 (Adam in mixed precision).
"""

from jaxtyping import Array

from jaxscale._smooth import Temperature
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.data import held_params, local_params
from jaxscale.hardware.cluster import Cluster
from jaxscale.plan.plan import Plan
from jaxscale.workload import Transformer


def optimizer_time(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Time of the optimizer update of one step [s]."""
    c = coefficients
    params = local_params(model, plan, temperature)
    traffic = c.optimizer_bytes * model.trainable_share * held_params(params, plan, 1, temperature)
    return traffic / (cluster.chip.hbm_bandwidth * c.hbm_efficiency)
