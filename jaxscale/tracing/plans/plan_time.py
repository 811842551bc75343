r"""Step time and memory of a traced workload under a plan.

Sizes of split classes are divided by their degrees; the kernels of one chip follow. Of a loop over layers each of p
stages
has a part of the turns, what is outside lies on one stage: with m microbatches

$$ t = m \left( \frac{T_l}{p} + T_o \right) + (p - 1) \frac{T_l}{p} $$

plus the update and the collectives that compute does not hide. Gradients hide behind a share of the backward pass,
gathers behind a share of compute, partial sums of tensor parallelism behind a share of the matmuls.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import Number, as_arrays
from jaxscale.base.smooth import Temperature, exposed
from jaxscale.calibration.coefficients import Coefficients, checked
from jaxscale.calibration.kernel_coefficients import KernelCoefficients, kernel_coefficients
from jaxscale.costs.collectives import Collective, dispatch_time, gather_time, reduce_time, send_time
from jaxscale.costs.machine import Machine, machine_of
from jaxscale.costs.straggler import straggler_time
from jaxscale.hardware.cluster import Cluster
from jaxscale.tracing.classed_program import ClassedProgram
from jaxscale.tracing.plans.class_collectives import (
    ClassExchanges,
    Exchange,
    class_exchanges,
    is_table,
    local_weight_bytes,
    per_row,
)
from jaxscale.tracing.plans.class_plan import ClassPlan, local_sizes
from jaxscale.tracing.plans.kernel_time import KernelTimes, device_times, kernel_rows, traced_kernel_times

COMBINED = 31457280.0
"""Bucket in which gradients are reduced and weights gathered (XLA, all-reduce combiner of GPUs, 30 MiB) [byte]."""


class StageShares(NamedTuple):
    """How the kernels of one microbatch fall on stages.

    Attributes:
        layers: time of the kernels inside loops over layers [s].
        outside: time of the others, which lie on one stage [s].
    """

    layers: Array
    outside: Array


def in_layers(work: ClassedProgram) -> np.ndarray:
    """Which kernels run in a loop over layers, one that takes a part of the weights in each turn."""
    turned = np.unique(work.tables.weight_turns.classes)
    launches = work.tables.terms["launches"]
    mask = np.zeros(len(work.tables.kinds), bool)
    mask[launches.row] = np.isin(launches.classes, turned[turned > 0]).any(axis=1)
    return mask


def traced_terms(
    work: ClassedProgram,
    plan: ClassPlan,
    cluster: Cluster,
    coefficients: Coefficients,
    kernels: KernelCoefficients | None = None,
    temperature: Temperature = 0.0,
    fused_norms: Number = 0.0,
) -> dict[str, Array]:
    """Terms of the step time of a traced workload, by their names in `StepTime`.

    Args:
        work: the workload, of the whole batch.
        plan: degrees over its classes.
        cluster: chips and network.
        coefficients: fitted parameters of the network, what hides it, stragglers.
        kernels: fitted parameters of kernels; those of JAX where None.
        temperature: smoothing of maxima [1].
        fused_norms: 1 where batch norms of convolutional networks are fused kernels [1].

    Returns:
        Terms [s]; those that a traced workload lacks are nothing.
    """
    kernels = kernel_coefficients() if kernels is None else kernels
    work, plan, cluster, coefficients, kernels = as_arrays((work, plan, cluster, checked(coefficients), kernels))
    machine = machine_of(cluster, coefficients)
    local = ClassedProgram(local_sizes(work, plan), work.tables)
    rows = kernel_rows(local, fused_norms=fused_norms)
    times = traced_kernel_times(rows, cluster.chip, kernels, temperature)
    each = device_times(rows, cluster.chip, kernels, temperature)
    passes = rows.phase < 2
    layers = jnp.sum(jnp.where(in_layers(work) & passes, each, 0.0))
    shares = StageShares(layers, jnp.sum(jnp.where(passes, each, 0.0)) - layers)
    return _terms(work, plan, machine, coefficients, times, shares, temperature)


def _terms(
    work: ClassedProgram,
    plan: ClassPlan,
    machine: Machine,
    c: Coefficients,
    times: KernelTimes,
    shares: StageShares,
    temperature: Temperature,
) -> dict[str, Array]:
    """Terms from the times of one microbatch on one chip."""
    m, p = plan.n_microbatches, plan.pipeline
    busiest = (shares.layers / p + shares.outside) / (shares.layers + shares.outside)
    compute = m * busiest
    traffic = class_exchanges(work, plan)
    pass_time = (times.matmul + times.attention + times.memory_bound + times.recompute) * compute
    backward = pass_time * 2.0 / 3.0
    terms = {
        "matmul": times.matmul * compute,
        "attention": times.attention * compute,
        "memory_bound": times.memory_bound * compute,
        "recompute": times.recompute * compute,
        "launch_gaps": times.launch_gaps * compute,
        "host": times.host * compute,
        "tensor_parallel": _tensor_time(traffic, plan, machine, c, times.matmul * compute, temperature) / p,
        "expert_parallel": _look_up_time(traffic, plan, machine, temperature),
        "data_parallel": _data_time(traffic, plan, machine, c, pass_time, backward, temperature),
        "pipeline_bubble": (p - 1.0) * shares.layers / p,
        "pipeline_transfer": _transfer_time(work, plan, machine, c, temperature),
        "optimizer": times.optimizer / (plan.shard * p) + times.table_update,
        "host_per_step": times.host_per_step,
    }
    undisturbed = sum(list(terms.values())[1:], start=terms["matmul"])
    return {**terms, "straggler": straggler_time(machine, c, undisturbed, temperature)}


def exchange_time(
    exchange: Exchange, collective: Collective, n: Number, stride: Number, machine: Machine, temperature: Temperature
) -> Array:
    """Time of all collectives of an exchange, each of an equal part of its volume [s]."""
    count = jnp.maximum(exchange.count, 1e-9)
    return exchange.count * collective(exchange.volume / count, n, stride, machine.link, temperature)


def combined(exchange: Exchange) -> Exchange:
    """The exchange in buckets of `COMBINED`, at least one and no more than it has collectives."""
    buckets = jnp.minimum(exchange.count, jnp.maximum(exchange.volume / COMBINED, 1.0))
    return Exchange(exchange.volume, buckets)


def _data_time(
    traffic: ClassExchanges,
    plan: ClassPlan,
    machine: Machine,
    c: Coefficients,
    compute: Array,
    backward: Array,
    temperature: Temperature,
) -> Array:
    """Exposed time of gradients, gathers, scatters and statistics [s]."""
    parts = plan.tensor * plan.shard
    whole = plan.shard <= 1.0
    ranks, stride = jnp.where(whole, plan.data, plan.data / plan.shard), jnp.where(whole, plan.tensor, parts)
    reduced = exchange_time(combined(traffic.gradients), reduce_time, ranks, stride, machine, temperature)
    moved = sum(
        exchange_time(combined(one), gather_time, plan.shard, plan.tensor, machine, temperature)
        for one in (traffic.scatters, traffic.gathers)
    )
    statistics = exchange_time(traffic.statistics, reduce_time, plan.data, plan.tensor, machine, temperature)
    hidden = c.dp_overlap * backward * (1.0 - 1.0 / plan.data)
    once = exposed(reduced / plan.pipeline, hidden, temperature)
    streamed = exposed(moved / plan.pipeline, c.fsdp_overlap * compute, temperature)
    return once + streamed + statistics / plan.pipeline


def _tensor_time(
    traffic: ClassExchanges,
    plan: ClassPlan,
    machine: Machine,
    c: Coefficients,
    matmul: Array,
    temperature: Temperature,
) -> Array:
    """Exposed time of partial sums of tensor parallelism [s]."""
    time = sum(
        exchange_time(one, reduce_time, plan.tensor, 1.0, machine, temperature)
        for one in (traffic.tensor_forward, traffic.tensor_backward)
    )
    several = plan.tensor > 1.0
    return jnp.where(several, exposed(time, c.tp_overlap * matmul, temperature), 0.0)


def _look_up_time(traffic: ClassExchanges, plan: ClassPlan, machine: Machine, temperature: Temperature) -> Array:
    """Time of the exchange of look-ups between chips that hold different tables, or rows of them [s]."""

    def all_to_all(volume: Array, n: Number, stride: Number, link: Any, temperature: Temperature) -> Array:
        return dispatch_time(volume, 1.0, jnp.maximum(n, 1.0), n, stride, link, temperature)

    whole = exchange_time(traffic.look_ups, all_to_all, plan.data, plan.tensor, machine, temperature)
    partial = exchange_time(
        combined(traffic.partial_look_ups), gather_time, plan.data, plan.tensor, machine, temperature
    )
    return jnp.where(plan.data > 1.0, whole + partial, 0.0)


def _transfer_time(
    work: ClassedProgram, plan: ClassPlan, machine: Machine, c: Coefficients, temperature: Temperature
) -> Array:
    """Exposed time of sends between stages, forward and backward [s]."""
    volume = jnp.sum(work.tables.handed.values(local_sizes(work, plan)))
    one = send_time(volume, plan.tensor * plan.data, plan.pipeline, machine.link, temperature)
    sends = 2.0 * plan.n_microbatches * jnp.minimum(plan.pipeline - 1.0, 1.0)
    return c.pp_exposed * sends * one


def traced_memory_terms(
    work: ClassedProgram, plan: ClassPlan, cluster: Cluster, coefficients: Coefficients
) -> dict[str, Array]:
    """Terms of the peak memory of a traced workload, by their names in `Memory`.

    Args:
        work: the workload, of the whole batch.
        plan: degrees over its classes.
        cluster: memory of a chip.
        coefficients: `framework_bytes`.

    Returns:
        Terms and capacity [byte].
    """
    work, plan, cluster, coefficients = as_arrays((work, plan, cluster, checked(coefficients)))
    sizes, tables = local_sizes(work, plan), work.tables
    spread = (plan.tables_by_table + plan.tables_by_row) * (plan.data - 1.0) + 1.0
    parts = jnp.where(is_table(work), spread, plan.shard)
    weights = local_weight_bytes(work, sizes)
    held, rows = tables.points.values(sizes), tables.points.row

    def at_points(origin: str) -> Array:
        chosen = np.array([one == origin for one in tables.point_origins], float)
        return jnp.zeros(len(tables.point_phases)).at[rows].add(held * chosen)

    state = at_points("state")
    in_flight = jnp.minimum(plan.n_microbatches, plan.pipeline) / plan.pipeline
    read = local_weight_bytes(work, sizes, read=True) / jnp.maximum(
        per_row(tables.weight_turns, sizes, len(weights)), 1.0
    )
    several = jnp.where(plan.n_microbatches > 1.0, 1.0, 0.0)
    return {
        "weights": jnp.sum(weights / parts) / plan.pipeline,
        "gradients": several * jnp.sum(weights * ~is_table(work) / parts) / plan.pipeline,
        "optimizer": jnp.max(state, initial=0.0) / (plan.shard * plan.pipeline),
        "activations": jnp.max(at_points("made") + at_points("data") + at_points("constant"), initial=0.0) * in_flight,
        "logits": jnp.zeros(()),
        "buffers": jnp.where(plan.shard > 1.0, 2.0 * jnp.max(jnp.where(is_table(work), 0.0, read), initial=0.0), 0.0),
        "framework": jnp.asarray(coefficients.framework_bytes),
    }
