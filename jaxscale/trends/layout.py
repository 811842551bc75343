r"""Model, chips, layout and price of a training run, with the number of chips left open.

Fully sharded training gathers and scatters by one ring through all n chips of a group (NCCL). A chunk makes n - 1 hops,
k - 1 of them between the k domains that the group spans, as in `costs.collectives`:

$$ t_\alpha = (n - k)\,\alpha_\mathrm{in} + (k - 1)\,\alpha_\mathrm{out} . $$

Both latencies are the catalogue's times the fitted `link_latency_scale` and `network_latency_scale`.

Reference: NCCL, src/graph/tuning.cc (all-gather and reduce-scatter); Fernandez et al., arXiv 2411.13055, section 2.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float, with_fields
from jaxscale.base.smooth import smooth_min
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.collectives import gather_time
from jaxscale.costs.machine import effective_link
from jaxscale.costs.memory import Memory, memory
from jaxscale.costs.power import ChipPower, throttle
from jaxscale.costs.step import StepTime, step_time
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, total_layers
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan


class LayerGather(NamedTuple):
    """Time of the all-gather of the parameters of one layer, and of the computation that hides it.

    Attributes:
        latency: time of the hops of the ring and of the launch [s].
        transfer: time to transfer the bytes over links and network [s].
        forward: time of the forward pass of a layer, which hides the prefetched gather [s].
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
    """Latency and transfer time of the all-gather of the parameters of one layer.

    Args:
        model: the transformer.
        plan: degrees and sharding group.
        cluster: chips and network.
        coefficients: fitted parameters.
        forward: time of the forward pass of one microbatch on one stage [s].
        temperature: smoothing of maxima [1].

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
    """Chips that share one copy of the parameters: the requested number, at most all replicas (plain FSDP) [1].

    Args:
        chips: requested number [1].
        replicas: number of replicas [1].
        temperature: smoothing of the minimum [1].
    """
    return smooth_min(jnp.asarray(chips), jnp.asarray(replicas), temperature)


class Price(eqx.Module):
    """Price of a chip and of its electricity.

    Attributes:
        capital: purchase price of a chip with a share of server and network [dollar].
        lifetime: period of depreciation of the capital [s].
        electricity: price of energy [dollar/J].
        overhead: power of the facility over that of its computers (PUE) [1].
    """

    capital: Number = eqx.field(converter=as_float)
    lifetime: Number = eqx.field(converter=as_float)
    electricity: Number = eqx.field(converter=as_float)
    overhead: Number = eqx.field(converter=as_float)

    def rate(self, watts: ArrayLike) -> Array:
        """Cost of a chip and its electricity per time, capital / lifetime + electricity * overhead * P [dollar/s].

        Args:
            watts: power P of the chip and its share of the server [W].
        """
        return jnp.asarray(self.capital / self.lifetime + self.electricity * self.overhead * watts)


UNLIMITED = 1e9
"""Above every power and number of chips: no power cap [W], a copy shared by all replicas [1]."""


class Deployment(eqx.Module):
    """Model, chips, software, power and price of a training run, without the number of chips.

    Attributes:
        model: the transformer.
        cluster: chips and network; its `n_chips` is ignored.
        coefficients: fitted parameters of the run's framework and chip, `fit.coefficients(levels)`.
        software: default plan of the framework; a `ParallelLayout` replaces its degrees and batch.
        power: power of a chip that computes, streams from memory, communicates or waits.
        price: price of a chip with a share of server and network, and of electricity.
        power_cap: power cap of each chip, at most the limit of the board [W].
    """

    model: Transformer
    cluster: Cluster
    coefficients: Coefficients
    software: Plan
    power: ChipPower
    price: Price
    power_cap: Number = eqx.field(converter=as_float, default=UNLIMITED)


class ParallelLayout(eqx.Module):
    """Degrees of parallelism of a deployment; the data-parallel degree follows from the number of chips.

    Attributes:
        tp: tensor-parallel degree [1].
        pp: pipeline stages [1].
        cp: context-parallel degree [1].
        ep: expert-parallel degree [1].
        shard_group: data-parallel ranks that share a copy of the parameters (HSDP), at most all [1].
        n_microbatches: microbatches per step and replica [1].
        zero_stage: ZeRO stage: 3 for FSDP; 1 for a pipeline, to avoid a gather per microbatch [1].
    """

    tp: Number = eqx.field(converter=as_float, default=1.0)
    pp: Number = eqx.field(converter=as_float, default=1.0)
    cp: Number = eqx.field(converter=as_float, default=1.0)
    ep: Number = eqx.field(converter=as_float, default=1.0)
    shard_group: Number = eqx.field(converter=as_float, default=UNLIMITED)
    n_microbatches: Number = eqx.field(converter=as_float, default=1.0)
    zero_stage: Number = eqx.field(converter=as_float, default=3.0)


def plan_at(
    software: Plan, layout: ParallelLayout, n_chips: Any, global_batch_size_seqs: Any, temperature: float = 0.0
) -> Plan:
    """Plan of a layout on n chips: dp = n / (tp pp cp), b = B / (m dp).

    Args:
        software: default plan of the framework, whose degrees and batch are replaced.
        layout: degrees other than dp.
        n_chips: n [1].
        global_batch_size_seqs: B [sequence].
        temperature: smoothing of the sharding group [1].

    Returns:
        The plan, with real-valued degrees.
    """
    dp = jnp.asarray(n_chips / (layout.tp * layout.pp * layout.cp))
    degrees = {
        "dp": dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "ep": layout.ep,
        "zero_stage": layout.zero_stage,
        # b = B / (m dp)
        "micro_batch_size": global_batch_size_seqs / (layout.n_microbatches * dp),
        "n_microbatches": layout.n_microbatches,
        "shard_group": sharding_group(layout.shard_group, dp, temperature),
    }
    return with_fields(software, degrees)


def step_at(
    deployment: Deployment, layout: ParallelLayout, n_chips: Any, global_batch_size_seqs: Any, temperature: float = 0.0
) -> StepTime:
    """Step time on n chips by term, with clocks throttled to the power cap.

    Args:
        deployment: model, chips, coefficients.
        layout: degrees.
        n_chips: n [1].
        global_batch_size_seqs: B [sequence].
        temperature: smoothing of maxima; 0 for exact maxima [1].

    Returns:
        The terms [s].
    """
    plan = plan_at(deployment.software, layout, n_chips, global_batch_size_seqs, temperature)
    cluster = cluster_at(deployment, plan)
    return step_time(deployment.model, plan, cluster, deployment.coefficients, temperature)


def cluster_at(deployment: Deployment, plan: Plan) -> Cluster:
    """Cluster with as many chips as a plan uses, with clocks throttled to the power cap."""
    cluster = eqx.tree_at(lambda c: c.n_chips, deployment.cluster, plan.n_chips)
    return eqx.tree_at(lambda c: c.chip, cluster, throttle(cluster.chip, deployment.power, deployment.power_cap))


def memory_at(deployment: Deployment, layout: ParallelLayout, n_chips: Any, global_batch_size_seqs: Any) -> Memory:
    """Peak memory of the fullest chip by term, on n chips [byte]."""
    plan = plan_at(deployment.software, layout, n_chips, global_batch_size_seqs)
    return memory(deployment.model, plan, cluster_at(deployment, plan), deployment.coefficients)
