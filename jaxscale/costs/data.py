r"""Data-parallel collectives: gradient reduction, ZeRO gathers, FSDP and hybrid sharding, exposed part only.

Without ZeRO the replicas all-reduce their gradients once per step, partly behind the last backward pass; a framework
that reduces them weight by weight pays the latency of a ring for each (`reduce_rings`). ZeRO 1 and 2 scatter gradients
and gather the updated parameters, ZeRO 2 scatters for every microbatch, as it keeps only its share of the sum. FSDP
(stage 3) gathers each layer before its forward and again before its backward pass and scatters its gradients, for every
microbatch, hidden behind the compute of the neighbouring layers. With a shard group smaller than dp (HSDP) the copies
all-reduce their shard once per step.
References: Rajbhandari et al. 2020, arXiv 1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277, section 3.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale._smooth import Temperature, exposed, log2_above_one, several
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.collectives import Link, Transfer, gather_time, reduce_time, times_of
from jaxscale.costs.pipeline import first_stage_layers
from jaxscale.plan.plan import (
    Plan,
    copied_params,
    element_bytes,
    expert_replicas,
    expert_shard,
    expert_shard_ranks,
    pipelining,
    shard_ranks,
    sharding,
)
from jaxscale.workload import (
    Transformer,
    dense_layer_params,
    embedding_params,
    expert_params,
    moe_layers,
)


class LocalParams(NamedTuple):
    """Parameters that one chip of the busiest stage holds, before any ZeRO sharding.

    Attributes:
        layers: dense weights of the stage's layers [1].
        experts: routed experts of the stage's layers [1].
        embedding: embeddings, spread over the ends of the pipeline [1].
    """

    layers: Array
    experts: Array
    embedding: Array

    @property
    def total(self) -> Array:
        """All of them [1]."""
        return self.layers + self.experts + self.embedding


def layer_params(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> tuple[Array, Array]:
    """Dense weights of all layers on a rank of tp, as if on one stage; routed experts on one of ep * etp [1], [1]."""
    experts = moe_layers(model) * model.n_experts * expert_params(model)
    dense = dense_layer_params(model) / plan.tp + model.n_attention_layers * copied_params(model, plan, temperature)
    return dense, experts / expert_shard(plan, temperature)


def local_params(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> LocalParams:
    """Weights per chip: layers of a stage over tp, experts over ep * etp, embeddings over tp and the two end stages."""
    dense, experts = layer_params(model, plan, temperature)
    # One end stage holds one of the two matrices as soon as there is a pipeline.
    share = 1.0 - pipelining(plan) * (1.0 - 1.0 / (2.0 - model.tied_embeddings))
    embedding = share * embedding_params(model) / plan.tp
    stage = first_stage_layers(model, plan, temperature) / model.n_layers
    return LocalParams(dense * stage, experts * stage, embedding)


def held_params(params: LocalParams, plan: Plan, stage: int, temperature: Temperature = 0.0) -> Array:
    """Parameters of whose state a chip holds its share, where ZeRO splits it from a stage on [1]."""
    sharded = sharding(plan, stage)
    shards = 1.0 + sharded * (shard_ranks(plan) - 1.0)
    expert_shards = 1.0 + sharded * (expert_shard_ranks(plan, temperature) - 1.0)
    return (params.layers + params.embedding) / shards + params.experts / expert_shards


class DataParallel(NamedTuple):
    """Exposed data-parallel time of one step.

    Attributes:
        step: once per step: gradient reduction, parameter gather, replica all-reduce [s].
        microbatch: per microbatch: collectives of FSDP, and scatters of ZeRO 2, that compute does not hide [s].
    """

    step: Array
    microbatch: Array


class Traffic(NamedTuple):
    """Collectives of one copy of the gradients or weights of a stage, hidden or not, and of one bucket of no size.

    Attributes:
        all_reduce: of gradients, over all ranks that hold the same weights [s].
        scatter: of gradients, to the ranks that share one sharded copy [s].
        gather: of weights, from them [s].
        between_copies: all-reduce of gradient shards between sharded copies [s].
        one_way: latency of one gather or scatter of dense weights [s].
        both_ways: latency of one all-reduce of theirs [s].
        around: the same of one that goes round a ring, be it longer than a tree or not [s].
        copies_both_ways: latency of one all-reduce between sharded copies [s].
    """

    all_reduce: Array
    scatter: Array
    gather: Array
    between_copies: Array
    one_way: Array
    both_ways: Array
    around: Array
    copies_both_ways: Array


def data_traffic(
    model: Transformer, plan: Plan, link: Link, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Traffic:
    """Time of each collective of the weights of the busiest stage: dense ones and experts, each in its group."""
    params = local_params(model, plan, temperature)
    dense, group = params.layers + params.embedding, shard_ranks(plan)
    # Ranks of a context-parallel group hold the same weights and reduce with the replicas.
    replicas, expert_ranks = plan.dp * plan.cp, expert_replicas(plan, temperature)
    expert_group, apart = expert_shard_ranks(plan, temperature), expert_shard(plan, temperature)
    # A dense model has no collective of experts, so it pays no latency for one either.
    routed = several(model.n_experts, temperature)
    gradient, weight = plan.gradient_bytes * model.trainable_share, element_bytes(plan)

    spacings, weights = (plan.tp, apart), (dense, params.experts)

    def congested(volume: ArrayLike, ranks: ArrayLike, spacing: ArrayLike) -> Array:
        doublings = log2_above_one(ranks * spacing / link.domain_size[0], temperature)
        return volume * (1.0 + coefficients.dp_congestion * doublings)

    def both(
        element: ArrayLike, ranks: tuple[ArrayLike, ArrayLike], shards: tuple[ArrayLike, ArrayLike] = (1.0, 1.0)
    ) -> list[Transfer]:
        """Of dense weights and of experts, or of a shard of each between its copies."""
        return [
            Transfer(congested(element * held / shard, rank, space * shard), rank, space * shard)
            for held, rank, space, shard in zip(weights, ranks, spacings, shards, strict=True)
        ]

    inside, copies = (group, expert_group), (replicas / group, expert_ranks / expert_group)
    rings = [Transfer(0.0, ranks, plan.tp) for ranks in (group, replicas)]
    gathered = [*both(gradient, inside), *both(weight, inside), *rings]
    reduced = [*both(gradient, (replicas, expert_ranks)), *both(gradient, copies, inside)]
    gathers = times_of(gather_time, gathered, link, temperature)
    empty = [Transfer(0.0, replicas, plan.tp), Transfer(0.0, copies[0], plan.tp * inside[0])]
    reduces = times_of(reduce_time, [*reduced, *empty], link, temperature)
    return Traffic(
        all_reduce=reduces[0] + routed * reduces[1],
        scatter=gathers[0] + routed * gathers[1],
        gather=gathers[2] + routed * gathers[3],
        between_copies=reduces[2] + routed * reduces[3],
        one_way=gathers[4],
        both_ways=reduces[4],
        around=2.0 * gathers[5],
        copies_both_ways=reduces[5],
    )


def data_parallel(
    model: Transformer,
    plan: Plan,
    link: Link,
    coefficients: Coefficients,
    forward: ArrayLike,
    backward: ArrayLike,
    temperature: Temperature = 0.0,
) -> DataParallel:
    """Exposed data-parallel time.

    Args:
        model: the transformer.
        plan: degrees and ZeRO stage.
        link: the network.
        coefficients: efficiencies and overlap.
        forward: compute time of one microbatch's forward pass on one stage, behind which gathers hide [s].
        backward: the same of its backward pass [s].
        temperature: smoothing [1].

    Returns:
        Times per step and per microbatch [s].
    """
    c, trainable = coefficients, model.trainable_share
    sharded, split_gradients, fsdp = (sharding(plan, stage) for stage in (1, 2, 3))
    traffic = data_traffic(model, plan, link, c, temperature)
    # Every bucket pays the latency of its collectives; FSDP has one bucket per layer and direction.
    layers = first_stage_layers(model, plan, temperature)
    buckets, rings = (trainable * per_layer * layers for per_layer in (c.dp_buckets, c.reduce_rings))

    replicated = traffic.all_reduce + buckets * traffic.both_ways + rings * traffic.around
    split = traffic.scatter + trainable * traffic.gather + 2.0 * buckets * traffic.one_way
    # What FSDP shards is reduced between its copies as it was gathered, layer by layer.
    parts = (1.0 - fsdp) * buckets + fsdp * trainable * (layers - 1.0)
    between = traffic.between_copies + parts * traffic.copies_both_ways
    once = (1.0 - sharded) * replicated + (sharded - fsdp) * split + sharded * between
    # Prefetching carries over from the backward to the forward pass, so both hide behind the compute of both.
    layered = 2.0 * traffic.gather + traffic.scatter + 3.0 * (layers - 1.0) * traffic.one_way
    compute = jnp.add(forward, backward)
    streamed = exposed(layered, c.fsdp_overlap * compute, temperature)
    # The compute behind which FSDP's own collectives hide is not free to hide the rest.
    taken = (layered - streamed) / jnp.where(compute > 0.0, compute, 1.0)
    free = backward * (1.0 - fsdp * taken)
    cover = plan.overlap_gradients * c.dp_overlap * (1.0 - 1.0 / (plan.dp * plan.cp))
    step = exposed(once, cover * free, temperature)
    again = (1.0 - 1.0 / plan.n_microbatches) * exposed(traffic.scatter, cover * backward, temperature)
    return DataParallel(step, (split_gradients - fsdp) * again + fsdp * streamed)
