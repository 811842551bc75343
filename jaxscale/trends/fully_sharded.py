r"""Fully sharded training at scale: a ring whose latency grows with every chip, and what of it compute hides.

NCCL gathers and scatters by one ring through all n chips of a group. A chunk makes n - 1 hops, k - 1 of them between
the k domains that the group spans, as in `costs.collectives`:

$$ t_\alpha = (n - k)\,\alpha_\mathrm{in} + (k - 1)\,\alpha_\mathrm{out} . $$

Both latencies are the catalogue's times the fitted `link_latency_scale` and `network_latency_scale`.

Reference: NCCL, src/graph/tuning.cc (all-gather and reduce-scatter); Fernandez et al., arXiv 2411.13055, section 2.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import smooth_min
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.collectives import gather_time
from jaxscale.costs.machine import effective_link
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, total_layers
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan


class LayerGather(NamedTuple):
    """One all-gather of one layer's parameters.

    Attributes:
        latency: hops of the ring and launch [s].
        transfer: bytes over links and network [s].
        forward: compute of the layer's forward pass, which prefetching hides it behind [s].
    """

    latency: Array
    transfer: Array
    forward: Array


def layer_gather(
    model: Transformer,
    plan: Plan,
    cluster: Cluster,
    coefficients: Coefficients,
    forward: ArrayLike,
    temperature: float = 0.0,
) -> LayerGather:
    """Latency and transfer of the all-gather of one layer.

    Args:
        plan: degrees and sharding group.
        forward: compute of one microbatch's forward pass on one stage [s].

    Returns:
        Times of one layer [s].
    """
    link = effective_link(cluster.network, coefficients)
    local = local_plan(model, plan, temperature)
    # Parameters of a layer of the fullest stage [byte].
    volume = local.element_bytes * local.params.layers / local.fullest_layers
    # Without bytes, the latency alone.
    latency = gather_time(0.0, local.shard_ranks, plan.tp, link, temperature)
    # A stage has 1 / pp of the layers.
    compute = forward * plan.pp / total_layers(model)
    return LayerGather(latency, gather_time(volume, local.shard_ranks, plan.tp, link, temperature) - latency, compute)


def sharding_group(chips: ArrayLike, replicas: ArrayLike, temperature: float = 0.0) -> Array:
    """Chips that share one copy of the parameters: as many as asked for, at most all replicas (plain FSDP) [1]."""
    return smooth_min(jnp.asarray(chips), jnp.asarray(replicas), temperature)
