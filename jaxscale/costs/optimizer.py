"""Optimizer step: parameters, gradients and moments stream through memory once; ZeRO splits them over replicas.

Reference: Rajbhandari et al. 2020, arXiv 1910.02054, section 3 (Adam in mixed precision).
"""

from jaxtyping import Array

from jaxscale._types import Temperature
from jaxscale.coefficients import Coefficients
from jaxscale.costs.data import local_params
from jaxscale.hardware import Cluster
from jaxscale.plan import Plan, expert_shard_ranks, shard_ranks, sharding
from jaxscale.workload import Transformer


def optimizer_time(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Time of the optimizer update of one step [s]."""
    c = coefficients
    params = local_params(model, plan, temperature)
    split = 1.0 + sharding(plan, 1) * (shard_ranks(plan) - 1.0)
    expert_split = 1.0 + sharding(plan, 1) * (expert_shard_ranks(plan, temperature) - 1.0)
    updated = (params.layers + params.embedding) / split + params.experts / expert_split
    traffic = c.optimizer_bytes * model.trainable_share * updated
    return traffic / (cluster.chip.hbm_bandwidth * c.hbm_efficiency)
