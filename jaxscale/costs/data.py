r"""Data-parallel collectives: exposed time of gradient reduction, ZeRO gathers, FSDP and hybrid sharding.

Without ZeRO the replicas all-reduce gradients once per step, hidden in part behind the last backward pass; a framework
that reduces weight by weight pays the latency of a ring for each weight (`reduce_rings`). ZeRO 1 and 2 scatter
gradients and gather the updated parameters; ZeRO 2 scatters for every microbatch, as a rank stores only a shard of the
sum. FSDP (stage 3) gathers each layer before the forward and again before the backward pass and scatters gradients, for
every microbatch, hidden behind the compute of the neighbouring layers. With a shard group smaller than dp (HSDP) the
sharded copies all-reduce gradient shards once per step.
References: Rajbhandari et al. 2020, arXiv 1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277, section 3.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, exposed, log2_above_one, several, smaller
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.collectives import Transfer, gather_time, reduce_time, times_of
from jaxscale.costs.machine import Machine
from jaxscale.costs.model_states import gathered_width
from jaxscale.plans.local import LocalPlan


class DataParallel(NamedTuple):
    """Exposed time of the data-parallel collectives of a step.

    Attributes:
        step: time per step: gradient reduction, parameter gather, replica all-reduce [s].
        microbatch: time per microbatch: collectives of FSDP and scatters of ZeRO 2 that compute does not hide [s].
    """

    step: Array
    microbatch: Array


class Traffic(NamedTuple):
    """Time of the data-parallel collectives of a stage before overlap, and latency of collectives without data.

    Attributes:
        all_reduce: time of the gradient all-reduce over all replicas of a weight [s].
        scatter: time of the gradient reduce-scatter over the ranks of a sharded copy [s].
        gather: time of the weight all-gather over the ranks of a sharded copy [s].
        between_copies: time of the all-reduce of gradient shards between sharded copies [s].
        gather_latency: latency of a gather or scatter of dense weights [s].
        reduce_latency: latency of an all-reduce of dense gradients [s].
        ring_latency: latency of an all-reduce of dense gradients along a ring, even if a tree is faster [s].
        copies_latency: latency of an all-reduce of dense gradients between sharded copies [s].
    """

    all_reduce: Array
    scatter: Array
    gather: Array
    between_copies: Array
    gather_latency: Array
    reduce_latency: Array
    ring_latency: Array
    copies_latency: Array


class Group(NamedTuple):
    """Data-parallel group of the dense weights or of the expert weights: number of weights and placement of the ranks.

    Attributes:
        weights: weights of the busiest stage on a chip [1].
        trained: trained weights of the busiest stage on a chip [1].
        spacing: chips between replicas of a weight [1].
        replicas: ranks that hold a replica of a weight [1].
        sharers: ranks that share a sharded copy of the weights [1].
    """

    weights: ArrayLike
    trained: ArrayLike
    spacing: ArrayLike
    replicas: ArrayLike
    sharers: ArrayLike


def weight_groups(local: LocalPlan) -> tuple[Group, Group]:
    """Data-parallel groups of the dense weights and of the routed experts."""
    experts = local.trained_share * local.params.experts
    return (
        Group(
            local.params.dense,
            local.trained_params(0.0) - experts,
            local.plan.tp,
            local.replicas,
            local.shard_ranks,
        ),
        Group(
            local.params.experts,
            experts,
            local.expert_shard,
            local.expert_replicas,
            local.expert_shard_ranks,
        ),
    )


def data_traffic(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Traffic:
    """Time before overlap of each data-parallel collective of the busiest stage, for dense and expert weights [s]."""
    dense, experts = weight_groups(local)
    gradient, weight = local.plan.gradient_bytes, gathered_width(local)

    def congested(volume: ArrayLike, ranks: ArrayLike, spacing: ArrayLike) -> Transfer:
        """Transfer with a volume increased by `dp_congestion` per doubling of the nodes of the group."""
        doublings = log2_above_one(ranks * spacing / machine.node_chips, temperature)
        return Transfer(volume * (1.0 + coefficients.dp_congestion * doublings), ranks, spacing)

    def inside(group: Group, volume: ArrayLike) -> Transfer:
        """Weights or gradients of a group, between the ranks of one sharded copy."""
        return congested(volume, group.sharers, group.spacing)

    def between(group: Group) -> Transfer:
        """Gradient shard, between the holders of the shard in different sharded copies."""
        shard = gradient * group.trained / group.sharers
        return congested(shard, group.replicas / group.sharers, group.spacing * group.sharers)

    gathers = times_of(
        gather_time,
        {
            "gradients": inside(dense, gradient * dense.trained),
            "expert gradients": inside(experts, gradient * experts.trained),
            "weights": inside(dense, weight * dense.weights),
            "expert weights": inside(experts, weight * experts.weights),
            "nothing": Transfer(0.0, dense.sharers, dense.spacing),
            "nothing to replicas": Transfer(0.0, dense.replicas, dense.spacing),
        },
        machine.link,
        temperature,
    )
    copies = dense.replicas / dense.sharers
    reduces = times_of(
        reduce_time,
        {
            "gradients": congested(gradient * dense.trained, dense.replicas, dense.spacing),
            "expert gradients": congested(gradient * experts.trained, experts.replicas, experts.spacing),
            "shards": between(dense),
            "expert shards": between(experts),
            "nothing": Transfer(0.0, dense.replicas, dense.spacing),
            "nothing between copies": Transfer(0.0, copies, dense.spacing * dense.sharers),
        },
        machine.link,
        temperature,
    )
    # A dense model has no collective of experts and pays no latency for expert gradients.
    routed = several(local.model.n_experts, temperature)
    return Traffic(
        all_reduce=reduces["gradients"] + routed * reduces["expert gradients"],
        scatter=gathers["gradients"] + routed * gathers["expert gradients"],
        gather=gathers["weights"] + routed * gathers["expert weights"],
        between_copies=reduces["shards"] + routed * reduces["expert shards"],
        gather_latency=gathers["nothing"],
        reduce_latency=reduces["nothing"],
        ring_latency=2.0 * gathers["nothing to replicas"],
        copies_latency=reduces["nothing between copies"],
    )


def data_parallel(
    local: LocalPlan,
    machine: Machine,
    coefficients: Coefficients,
    forward: ArrayLike,
    backward: ArrayLike,
    temperature: Temperature = 0.0,
) -> DataParallel:
    """Exposed time of the data-parallel collectives: the time that forward and backward pass do not hide [s].

    Args:
        local: degrees, weights, ZeRO stage.
        machine: the network.
        coefficients: efficiencies and overlap.
        forward: compute time of the forward pass of one microbatch on one stage, which hides gathers [s].
        backward: compute time of the backward pass of one microbatch on one stage [s].
        temperature: smoothing [1].

    Returns:
        Times per step and per microbatch [s].
    """
    c, plan, trainable, layers = coefficients, local.plan, local.model.trainable_share, local.fullest_layers
    fsdp = local.weights_sharded
    traffic = data_traffic(local, machine, c, temperature)
    # Every bucket pays the latency of its collectives; FSDP has one bucket per layer and direction.
    buckets, rings = trainable * c.dp_buckets * layers, trainable * c.reduce_rings * layers

    # Each ZeRO stage has a different reduction; switches between whole stages blend the reductions.
    replicated = traffic.all_reduce + buckets * traffic.reduce_latency + rings * traffic.ring_latency
    # Scatter and gather: two collectives per bucket.
    split = traffic.scatter + trainable * traffic.gather + 2.0 * buckets * traffic.gather_latency
    # Gradients of FSDP are reduced between sharded copies in the units of the gathers, layer by layer.
    parts = (1.0 - fsdp) * buckets + fsdp * trainable * (layers - 1.0)
    between = traffic.between_copies + parts * traffic.copies_latency
    without_zero, below_fsdp = 1.0 - local.optimizer_sharded, local.optimizer_sharded - fsdp
    once = without_zero * replicated + below_fsdp * split + local.optimizer_sharded * between
    # Prefetching carries over from the backward to the forward pass, so the compute of either pass hides the
    # collectives of either.
    # Gathers before either pass, and a scatter: three collectives per layer.
    layered = 2.0 * traffic.gather + traffic.scatter + 3.0 * (layers - 1.0) * traffic.gather_latency
    compute = jnp.add(forward, backward)
    streamed = exposed(layered, plan.overlap_gathers * c.fsdp_overlap * compute, temperature)
    # The compute that hides collectives of FSDP cannot hide further collectives.
    taken = (layered - streamed) / jnp.where(compute > 0.0, compute, 1.0)
    free = backward * (1.0 - fsdp * taken)
    cover = plan.overlap_gradients * c.dp_overlap * (1.0 - 1.0 / local.replicas)
    step = exposed(once, cover * free, temperature)
    # Interleaved stages sum the gradients of a chunk over pp microbatches before the reduction.
    together = jnp.where(jnp.greater(plan.vpp, 1.0), smaller(plan.pp, plan.n_microbatches), 1.0)
    again = (1.0 / together - 1.0 / plan.n_microbatches) * exposed(traffic.scatter, cover * backward, temperature)
    return DataParallel(step, (local.gradients_sharded - fsdp) * again + fsdp * streamed)
