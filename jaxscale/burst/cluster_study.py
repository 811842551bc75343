"""Gain of bursts with multiplexing over data parallelism, against cluster size."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.jit import filter_jit
from jaxscale.burst.multiplexing import (
    Throughput,
    loss_at_ratio,
    multiplex,
    multiplexing_table,
    no_interference,
    stated_interference,
)
from jaxscale.burst.networks.layer_graph import load_network, network_entry
from jaxscale.burst.networks.measured_layers import measured_layer_time
from jaxscale.burst.planners.burst_plan import plan_burst, plan_data_parallel
from jaxscale.burst.planners.step_costs import BurstJob


class ClusterStudy(eqx.Module):
    """Cluster throughput of bursts with multiplexing, by cluster size; the batch grows with the cluster.

    Attributes:
        n_chips: cluster sizes [1].
        stated: with the stated interference.
        ideal: without interference.
        speed: foreground iteration by data parallelism over that in bursts [1].
        loss_low: background loss at which the gain falls to the lower end of the published band [1].
        loss_high: background loss at which the gain falls to its upper end; negative where it is below anyway [1].
    """

    n_chips: Float[Array, " size"]
    stated: Throughput
    ideal: Throughput
    speed: Float[Array, " size"]
    loss_low: Float[Array, " size"]
    loss_high: Float[Array, " size"]


def study_clusters(
    network: str,
    n_chips: ArrayLike,
    bandwidth: ArrayLike = 266e9,
    latency: ArrayLike = 240e-6,
    amplification_limit: ArrayLike = 2.0,
    samples_per_chip: float | None = None,
    background_batch: float | None = None,
) -> ClusterStudy:
    """Gain over data parallelism with a single task for one network on clusters of several sizes.

    Foreground batch per GPU, background batch and interference are those of `data/burst/multiplexing.toml` unless
    given; layer times are measured, one curve per layer.

    Args:
        network: a measured network with job sizes in the table.
        n_chips: cluster sizes, powers of two up to 1,024 [1].
        bandwidth: per GPU and direction [byte/s].
        latency: of one redistribution [s].
        amplification_limit: see `BurstJob` [1].
        samples_per_chip: foreground batch over GPUs [sample].
        background_batch: samples of a background job [sample].

    Returns:
        The study.
    """
    name = network_entry(network).name
    table = multiplexing_table()
    entry, band = table["jobs"][name], table["published"]
    graph, layer_time = load_network(name), measured_layer_time(name, per_shape=False)
    sizes = jnp.asarray(n_chips, jnp.result_type(float))
    per_chip = entry["samples_per_gpu"] if samples_per_chip is None else samples_per_chip
    side = jnp.asarray(entry["background_batch"] if background_batch is None else background_batch, sizes.dtype)
    link = jax.tree.map(jnp.asarray, (bandwidth, latency, amplification_limit))
    return _study(graph, layer_time, sizes, per_chip, side, link, (band["ratio_low"], band["ratio_high"]))


@filter_jit
def _study(graph, layer_time, sizes, samples_per_chip, side, link, band) -> ClusterStudy:
    rate = side / layer_time(side).sum()

    def one(size: Array) -> tuple:
        job = BurstJob(samples_per_chip * size, size, *link)
        plan = plan_burst(graph, layer_time, job, 11)
        alone = plan_data_parallel(graph, layer_time, job, 11)
        shared = (plan, alone.time, job.batch, size, rate)
        losses = [loss_at_ratio(*shared, stated_interference(), ratio) for ratio in band]
        both = [multiplex(*shared, interference) for interference in (stated_interference(), no_interference())]
        return (*both, alone.time / plan.time, *losses)

    return ClusterStudy(sizes, *jax.vmap(one)(sizes))
