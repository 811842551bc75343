"""Background jobs in GPU time left free by bursts, and the gain in cluster throughput by cluster size."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.jit import filter_jit
from jaxscale.base.smooth import larger
from jaxscale.burst.burst_plan import BurstPlan, plan_burst, plan_data_parallel
from jaxscale.burst.layer_graph import load_network, network_entry
from jaxscale.burst.layer_time import measured_layer_time
from jaxscale.burst.step_costs import BurstJob, StepCosts


@functools.cache
def multiplexing_table() -> dict[str, Any]:
    """Contents of `data/burst/multiplexing.toml`: published range of gains, stated interference and job sizes."""
    return read_toml(data_path("burst/multiplexing.toml"))


class Interference(eqx.Module):
    """Losses of foreground and background jobs on shared GPUs; every field is a float leaf.

    Attributes:
        foreground_slowdown: sigma, relative growth of every foreground step under background work [1].
        background_loss: lambda, relative loss of speed of a background job on a freed GPU [1].
        colocated_share: kappa, relative speed of a background job while a foreground step runs on the same GPU [1].
        preemption_time: tau, wait for the end of a background kernel when a GPU is handed back [s].
    """

    foreground_slowdown: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    background_loss: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    colocated_share: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    preemption_time: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)


def stated_interference() -> Interference:
    """Interference assumed in quoted results (`data/burst/multiplexing.toml`)."""
    table = multiplexing_table()["interference"]
    return Interference(**{name: table[name] for name in Interference.__dataclass_fields__})


def no_interference() -> Interference:
    """Zero interference, the upper bound of the gain."""
    return Interference(0.0, 0.0, 0.0, 0.0)


class Throughput(eqx.Module):
    """Throughput of a cluster with one foreground job in bursts and background jobs in the free GPU time.

    Attributes:
        foreground: samples per second of the foreground job [1/s].
        background: samples per second of all background jobs together [1/s].
        iteration_time: iteration time of the foreground job, with interference [s].
        slowdown: iteration time over the iteration time of the plan without background jobs [1].
        free_share: share of the GPU time left by the foreground job [1].
        ratio: samples per second of all jobs over samples per second of data parallelism without background jobs [1].
        fairness: Jain's index of the progress of foreground (relative to data parallelism) and background (relative to
            one dedicated GPU per job); 1 is equal progress [1].
    """

    foreground: Float[Array, "*batch"]
    background: Float[Array, "*batch"]
    iteration_time: Float[Array, "*batch"]
    slowdown: Float[Array, "*batch"]
    free_share: Float[Array, "*batch"]
    ratio: Float[Array, "*batch"]
    fairness: Float[Array, "*batch"]


def hand_backs(plan: BurstPlan) -> tuple[Array, Array]:
    """Number of times per iteration that GPUs return to the foreground job [1], and sum of the GPUs returned [1]."""
    # The first step of the next iteration follows the last step.
    grown = larger(plan.chips - jnp.roll(plan.chips, 1), 0.0)
    return (grown > 0).sum().astype(grown.dtype), grown.sum()


def multiplex(
    plan: BurstPlan,
    data_parallel_time: ArrayLike,
    batch: ArrayLike,
    n_chips: ArrayLike,
    background_rate: ArrayLike,
    interference: Interference,
) -> Throughput:
    r"""Throughput of a cluster with a foreground job under a burst plan and background jobs on the free GPUs.

    $T' = (1 + \sigma) T + h \tau$ for the iteration time T, $U' = (1 + \sigma) U$ for the GPU-time U; background jobs
    get
    $r\,\big[(1 - \lambda)(G T' - U') + \kappa U' - \Delta g\,\tau\big] / T'$ samples per second, with h hand-backs of
    $\Delta g$ GPUs in total and r samples per second of a background job on a dedicated GPU. The ratio is
    $(B / T' + R_{bg}) / (B / T_{DP})$, where samples of each job count equally.

    Args:
        data_parallel_time: iteration of the foreground job alone, on all GPUs [s].
        batch: B, global batch of the foreground job [sample].
        n_chips: G, GPUs of the cluster [1].
        background_rate: r, samples per second; in units of foreground samples if the networks differ [1/s].
        interference: losses by sharing.

    Returns:
        Throughput, slowdown and fairness.

    Reference:
        Park et al., arXiv 2112.10065, section 5 (mechanism); the closed form is ours.
    """
    i = interference
    times, chips_back = hand_backs(plan)
    stretch = 1.0 + jnp.asarray(i.foreground_slowdown)
    # T' = (1 + sigma) T + h tau
    iteration = stretch * plan.time + times * i.preemption_time
    # U' = (1 + sigma) U
    busy = stretch * plan.chip_seconds
    # G T' - U'
    free = larger(n_chips * iteration - busy, 0.0)
    useful = (1.0 - jnp.asarray(i.background_loss)) * free + i.colocated_share * busy - chips_back * i.preemption_time
    foreground = jnp.asarray(batch) / iteration
    # Hand-backs may cost more than the free time yields.
    background = jnp.asarray(background_rate) * larger(useful, 0.0) / iteration
    alone = jnp.asarray(batch) / data_parallel_time
    progress = jnp.stack([foreground / alone, background / (n_chips * jnp.asarray(background_rate))])
    # Jain's index (sum x)^2 / (n sum x^2) for n = 2.
    fairness = progress.sum(0) ** 2 / (2.0 * (progress**2).sum(0))
    share = free / (n_chips * iteration)
    ratio = (foreground + background) / alone
    return Throughput(foreground, background, iteration, iteration / plan.time, share, ratio, fairness)


def data_parallel_times(costs: StepCosts) -> Float[Array, " option"]:
    """Iteration time of data parallelism on 1, 2, 4, ... GPUs; infinite for fewer samples than GPUs [s]."""
    # (options,)
    times = jnp.diagonal(costs.edge[:, 0], axis1=1, axis2=2).sum(0)
    return jnp.where(jnp.diagonal(costs.legal[0]), times, jnp.inf)


def static_partition(
    costs: StepCosts, batch: ArrayLike, n_chips: ArrayLike, background_rate: ArrayLike
) -> tuple[Float[Array, " option"], Float[Array, " option"]]:
    r"""Throughput of static partitions: foreground job by data parallelism on g GPUs, background jobs on G - g GPUs.

    $R(g) = B / T_{DP}(g) + (G - g)\,r$, without interference.

    Args:
        costs: cost tensors of the foreground job.
        batch: B, global batch of the foreground job [sample].
        n_chips: G, GPUs of the cluster [1].
        background_rate: r, samples per second of a background job on a GPU [1/s].

    Returns:
        Cluster throughput by g = 1, 2, 4, ... [1/s], 0 for g > G; and the foreground iteration time [s].
    """
    times = data_parallel_times(costs)
    # B / T_DP(g) + (G - g) r
    total = batch / times + (n_chips - costs.chips) * background_rate
    return jnp.where(jnp.isfinite(times), total, 0.0), times


def loss_at_ratio(
    plan: BurstPlan,
    data_parallel_time: ArrayLike,
    batch: ArrayLike,
    n_chips: ArrayLike,
    background_rate: ArrayLike,
    interference: Interference,
    ratio: ArrayLike,
) -> Array:
    """Background loss at which the throughput ratio of `multiplex`, linear in the loss, falls to `ratio` [1].

    Above 1, the foreground job alone exceeds `ratio`; below 0, the throughput ratio is less than `ratio` at any loss.
    """

    def gain(loss: float) -> Array:
        changed = eqx.tree_at(lambda i: i.background_loss, interference, loss)
        return multiplex(plan, data_parallel_time, batch, n_chips, background_rate, changed).ratio

    # Two points fix a linear function.
    at_none, at_half = gain(0.0), gain(0.5)
    return (at_none - ratio) / (2.0 * (at_none - at_half))


class ClusterStudy(eqx.Module):
    """Cluster throughput of bursts with background jobs by cluster size, with a batch proportional to the cluster.

    Attributes:
        n_chips: cluster sizes [1].
        stated: throughput with the stated interference.
        ideal: throughput without interference.
        speed: foreground iteration time by data parallelism over the iteration time in bursts [1].
        loss_low: background loss at which the gain falls to the lower end of the published range [1].
        loss_high: background loss at which the gain falls to the upper end of the range; negative if always below [1].
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
    """Throughput gain over data parallelism with a single task, for a network on clusters of several sizes.

    Foreground batch per GPU, background batch and interference are by default those of `data/burst/multiplexing.toml`;
    layer times are measured, one curve per layer.

    Args:
        network: measured network with job sizes in the table.
        n_chips: cluster sizes, powers of two up to 1,024 [1].
        bandwidth: bandwidth per GPU and direction [byte/s].
        latency: latency of a redistribution [s].
        amplification_limit: see `BurstJob` [1].
        samples_per_chip: foreground batch per GPU [sample].
        background_batch: samples of a background job [sample].
    """
    name = network_entry(network).name
    table = multiplexing_table()
    entry, band = table["jobs"][name], table["published"]
    # Curves per layer sum to the profile; curves per shape omit backward passes.
    graph, layer_time = load_network(name), measured_layer_time(name, per_shape=False)
    sizes = jnp.asarray(n_chips, jnp.result_type(float))
    per_chip = entry["samples_per_gpu"] if samples_per_chip is None else samples_per_chip
    side = jnp.asarray(entry["background_batch"] if background_batch is None else background_batch, sizes.dtype)
    link = jax.tree.map(jnp.asarray, (bandwidth, latency, amplification_limit))
    return _study(graph, layer_time, sizes, per_chip, side, link, (band["ratio_low"], band["ratio_high"]))


@filter_jit
def _study(graph, layer_time, sizes, samples_per_chip, side, link, band) -> ClusterStudy:
    # Samples per second of a background job on a dedicated GPU.
    rate = side / layer_time(side).sum()

    def one(size: Array) -> tuple:
        job = BurstJob(samples_per_chip * size, size, *link)
        # 11 options: up to 1,024 GPUs.
        plan = plan_burst(graph, layer_time, job, 11)
        alone = plan_data_parallel(graph, layer_time, job, 11)
        shared = (plan, alone.time, job.batch, size, rate)
        losses = [loss_at_ratio(*shared, stated_interference(), ratio) for ratio in band]
        both = [multiplex(*shared, interference) for interference in (stated_interference(), no_interference())]
        return (*both, alone.time / plan.time, *losses)

    return ClusterStudy(sizes, *jax.vmap(one)(sizes))
