r"""Data-parallel collectives: gradient reduction, ZeRO gathers, FSDP and hybrid sharding, exposed part only.

ZeRO 0 to 2 move gradients once per step (scatter) and parameters once (gather), partly behind the last backward pass.
FSDP (stage 3) gathers each layer before its forward and again before its backward pass and scatters its gradients, for
every microbatch, hidden behind the compute of the neighbouring layers. With a shard group smaller than dp (HSDP) the
copies all-reduce their shard once per step.
References: Rajbhandari et al. 2020, arXiv 1910.02054, section 7; Zhao et al. 2023, arXiv 2304.11277, section 3.
"""

from typing import NamedTuple

from jaxtyping import Array, ArrayLike

from jaxscale._types import exposed, log2_above_one, smooth_min
from jaxscale.coefficients import Coefficients
from jaxscale.costs.collectives import Link, gather_time
from jaxscale.costs.pipeline import first_stage_layers
from jaxscale.plan import Plan, element_bytes, expert_replicas, expert_shard, pipelining, sharding
from jaxscale.workload import (
    Transformer,
    attention_params,
    embedding_params,
    expert_params,
    mlp_params,
    moe_layers,
    shared_expert_params,
    ssm_params,
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


def layer_params(model: Transformer, plan: Plan, temperature: float = 0.0) -> tuple[Array, Array]:
    """Dense weights of all layers per chip, as if on one stage, over tp; routed experts over ep * etp [1], [1]."""
    dense = (
        model.n_attention_layers * attention_params(model)
        + model.n_dense_layers * mlp_params(model, model.d_ff)
        + model.n_ssm_layers * ssm_params(model)
        + moe_layers(model) * shared_expert_params(model)
    )
    experts = moe_layers(model) * model.n_experts * expert_params(model)
    return dense / plan.tp, experts / expert_shard(plan, temperature)


def local_params(model: Transformer, plan: Plan, temperature: float = 0.0) -> LocalParams:
    """Weights per chip: layers of a stage over tp, experts over ep * etp, embeddings over tp and the two end stages."""
    dense, experts = layer_params(model, plan, temperature)
    # One end stage holds one of the two matrices as soon as there is a pipeline.
    share = 1.0 - pipelining(plan) * (1.0 - 1.0 / (2.0 - model.tied_embeddings))
    embedding = share * embedding_params(model) / plan.tp
    stage = first_stage_layers(model, plan, temperature) / model.n_layers
    return LocalParams(dense * stage, experts * stage, embedding)


class DataParallel(NamedTuple):
    """Exposed data-parallel time of one step.

    Attributes:
        step: once per step: gradient reduction, parameter gather, replica all-reduce [s].
        microbatch: per microbatch: FSDP gathers and scatters that compute does not hide [s].
    """

    step: Array
    microbatch: Array


def data_parallel(
    model: Transformer,
    plan: Plan,
    link: Link,
    coefficients: Coefficients,
    forward: ArrayLike,
    backward: ArrayLike,
    temperature: float = 0.0,
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
    c = coefficients
    stride = plan.tp * plan.cp
    fsdp = sharding(plan, 3)
    # Ranks of a context-parallel group hold the same weights and reduce with the replicas.
    replicas = plan.dp * plan.cp
    group = plan.shard_group * plan.cp
    doublings = log2_above_one(replicas * plan.tp / link.domain_size[0], temperature)
    congestion = 1.0 + c.dp_congestion * doublings
    trainable = model.trainable_share

    def gather(volume: ArrayLike, ranks: ArrayLike, spacing: ArrayLike) -> Array:
        return gather_time(volume * congestion, ranks, spacing, link, temperature)

    params = local_params(model, plan, temperature)
    dense = params.layers + params.embedding
    apart = expert_shard(plan, temperature)
    expert_ranks = expert_replicas(plan, temperature)
    # A dense model has no collective of experts, so it pays no latency for one either.
    routed = smooth_min(model.n_experts - 1.0, 1.0, temperature)
    reduce_bytes = plan.gradient_bytes * trainable
    scatter = gather(reduce_bytes * dense, group, plan.tp)
    scatter = scatter + routed * gather(reduce_bytes * params.experts, expert_ranks, apart)
    collect = gather(element_bytes(plan) * dense, group, plan.tp)
    collect = collect + routed * gather(element_bytes(plan) * params.experts, expert_ranks, apart)
    between_copies = 2.0 * gather(reduce_bytes * dense / group, plan.dp / plan.shard_group, stride * plan.shard_group)
    # Every bucket pays the latency of its ring; FSDP has one bucket per layer and direction.
    latency = gather_time(0.0, group, plan.tp, link, temperature)
    layers = first_stage_layers(model, plan, temperature)
    per_layer = (layers - 1.0) * latency
    buckets = 2.0 * trainable * c.dp_buckets * layers * latency

    once = (1.0 - fsdp) * (scatter + trainable * collect + buckets) + between_copies
    # What FSDP's own collectives hide behind is not free to hide the rest.
    free = backward * (1.0 - fsdp * c.fsdp_overlap)
    hidden = plan.overlap_gradients * c.dp_overlap * free * (1.0 - 1.0 / replicas)
    step = exposed(once, hidden, temperature)
    # Prefetching carries over from the backward to the forward pass, so both hide behind the compute of both.
    traffic = 2.0 * collect + scatter + 3.0 * per_layer
    return DataParallel(step, fsdp * exposed(traffic, c.fsdp_overlap * (forward + backward), temperature))
