r"""Weights and gradients stream through memory for every microbatch, whatever its size: casts, gradient accumulation.

A chip that holds P weights takes $b P / (e W)$ for each microbatch, b bytes per weight. A 32-bit weight is read and
written as a 16-bit one for each pass, and a gradient accumulated in 32 bits is read and written; copies into and out of
buckets come on top. Kernels that accumulate while they multiply need less. FSDP needs more: it gathers a layer into a
buffer and copies it out for each pass, and copies its gradients into another buffer. Frozen weights have no gradients
and no 32-bit copy; under FSDP they are gathered all the same.
Microbatches of few tokens feel it most.
References: Micikevicius et al. 2017, arXiv 1710.03740, section 3.1; Zhao et al. 2023, arXiv 2304.11277, section 3.2.1.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale._smooth import Temperature
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.data import layer_params
from jaxscale.hardware.cluster import Cluster
from jaxscale.plan.plan import Plan, expert_shard_ranks, shard_ranks, sharding
from jaxscale.workload import Transformer, head_params, logits_per_token

COPIED_WEIGHTS = 12.0 / 22.0
"""Share of FSDP's copies that are of weights, those of gradients being the rest: 16-bit weights written to a buffer,
read and written for each of two passes, against 16-bit gradients read, written in 32 bits and read again (Zhao et al.
2023, section 3.2.1) [1]."""


def seconds_per_weight(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, sharers: ArrayLike
) -> Array:
    """Time per weight and microbatch [s]; of frozen weights only that of gathering them from their sharers."""
    c, trainable = coefficients, model.trainable_share
    gathered = sharding(plan, 3) * (1.0 - 1.0 / jnp.asarray(sharers))
    copied = COPIED_WEIGHTS + (1.0 - COPIED_WEIGHTS) * trainable
    traffic = c.accumulation_bytes * trainable + gathered * c.fsdp_bytes * copied
    return traffic / (cluster.chip.hbm_bandwidth * c.hbm_efficiency)


def accumulation_time(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Time for the weights of all layers, for one microbatch, as if on one stage [s]."""
    dense, experts = layer_params(model, plan, temperature)
    per_weight, per_expert_weight = (
        seconds_per_weight(model, plan, cluster, coefficients, sharers)
        for sharers in (shard_ranks(plan), expert_shard_ranks(plan, temperature))
    )
    return dense * per_weight + experts * per_expert_weight


def head_accumulation_time(model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients) -> Array:
    """The same for the logits head on the last stage [s]."""
    weights = logits_per_token(model) * head_params(model) / plan.tp
    return weights * seconds_per_weight(model, plan, cluster, coefficients, shard_ranks(plan))
