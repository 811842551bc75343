r"""Time of traced kernels on one chip, and step time and memory of a traced workload under a plan.

A matmul, or a convolution as its equivalent matmul, of F flop and B bytes takes

$$ t = \max\left( \frac{F}{e\,C} \left(1 + \frac{a}{m\,n}\right) + x \frac{B}{h W}, \frac{B}{h W} \right) $$

with efficiencies e and h of the peak C and of the memory bandwidth W, the half area a and the exposed share x of the
traffic; fused attention takes $F / (e_a C) + x B / (h W)$; all remaining kernels take $B / (h W)$, gathers and scatters
$g B / (h W)$. Kernels of a compiled program are separated by a constant gap. Kernels of an eager program are launched
by a host: the longer time of host and chip counts, by a norm of exponent `OVERLAP`. A constant time is added once per
step.

Sizes of split classes are divided by their degrees, which gives the kernels of one chip. Each of p stages has an equal
share of the iterations of a loop over layers, of time $T_l$; work outside the loop, of time $T_o$, lies on one stage.
With m microbatches

$$ t = m \left( \frac{T_l}{p} + T_o \right) + (p - 1) \frac{T_l}{p} $$

plus the update and the exposed time of collectives. Gradients hide behind a share of the backward pass, gathers behind
a share of compute, partial sums of tensor parallelism behind a share of the matmuls.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import Number, as_arrays, total_of
from jaxscale.base.smooth import Temperature, exposed, p_norm, smooth_max
from jaxscale.calibration.coefficients import Coefficients, checked
from jaxscale.calibration.kernel_coefficients import KernelCoefficients, kernel_coefficients
from jaxscale.costs.collectives import Collective, dispatch_time, gather_time, reduce_time, send_time
from jaxscale.costs.machine import Machine, machine_of
from jaxscale.costs.straggler import straggler_time
from jaxscale.hardware.cluster import Chip, Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.tracing.class_plan import (
    ClassExchanges,
    ClassPlan,
    Exchange,
    class_exchanges,
    is_table,
    local_sizes,
    local_weight_bytes,
    per_row,
)
from jaxscale.tracing.classed_program import ClassedProgram, KernelColumns

OVERLAP = 8.0
"""Exponent of the norm of host and chip time, a smooth maximum [1]."""

PRODUCTS = ("matmul", "conv", "grouped_conv", "conv3d", "factorisation", "fft", "custom")
"""Kernels with products, which have efficiencies relative to matmuls."""

ATTENTION, TRAFFIC, LOOK_UP, COLLECTIVE = 10, 11, 12, 13
"""Codes of kernels without products; the code of a product kernel is its index in `PRODUCTS`."""

WIDE_PEAKS = {1.0: "fp8", 2.0: "bf16", 4.0: "tf32"}
"""Peak flop rate of products by bytes per number [byte]; the 32-bit peak for wider numbers."""

COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""Kernels run by a network."""


SUMS = 0.02
"""Largest ratio of bytes written to bytes read of a pure sum [1]."""

BACKWARD_PASSES = 5.0
"""Passes of a fused batch norm over the input backward: two reads of input and of gradient, one write [1]."""


class KernelRows(NamedTuple):
    """Kernels of a workload as columns of numbers, which stack and pad.

    Attributes:
        flop: flop over all launches [flop].
        area: m n, elements of the matmul output per launch [1].
        bytes: bytes read and written, over all launches [byte].
        launches: launches per step [1].
        code: index in `PRODUCTS`, or a code of kernels without products.
        phase: 0 forward and backward, 1 recompute, 2 update.
        precision: index of the peak in `PRECISIONS`.
    """

    flop: Float[Array, " kernel"]
    area: Float[Array, " kernel"]
    bytes: Float[Array, " kernel"]
    launches: Float[Array, " kernel"]
    code: Array | np.ndarray
    phase: Array | np.ndarray
    precision: Array | np.ndarray


class KernelTimes(NamedTuple):
    """Time of the kernels of a step on a chip, by cause; the sum of the attributes is the step time [s].

    Attributes:
        matmul: matmuls and convolutions, forward and backward.
        attention: fused attention.
        memory_bound: all kernels without products, forward and backward.
        recompute: recomputation of forward work.
        optimizer: update after the gradients, except embedding tables.
        table_update: update of the rows of embedding tables that were read.
        launch_gaps: gaps between kernels.
        host: waiting for the host.
        host_per_step: constant time per step.
    """

    matmul: Array
    attention: Array
    memory_bound: Array
    recompute: Array
    optimizer: Array
    table_update: Array
    launch_gaps: Array
    host: Array
    host_per_step: Array


def code_of(kind: str) -> int:
    """Code of a kernel, for `KernelRows`, from its kind."""
    if kind in PRODUCTS:
        return PRODUCTS.index(kind)
    if kind in COLLECTIVE_KINDS:
        return COLLECTIVE
    return {"attention": ATTENTION, "gather": LOOK_UP, "scatter": LOOK_UP}.get(kind, TRAFFIC)


def kernel_rows(work: ClassedProgram, eager: bool = False, fused_norms: Number = 0.0) -> KernelRows:
    """Kernels of a workload as columns of numbers, at the class sizes of the workload.

    Args:
        work: the workload.
        eager: whether the program is eager, without copies of inputs of rematerialised blocks.
        fused_norms: 1 where batch norms of convolutional networks are fused kernels, forward and backward [1].
    """
    columns = work.columns()
    tables = work.tables
    phases = [{"recompute": 1, "update": 2}.get(phase, 0) for phase in tables.phases]
    precisions = [PRECISIONS.index(WIDE_PEAKS.get(float(width), "fp32")) for width in tables.widths]
    # An eager program copies no inputs of rematerialised blocks.
    kept = np.array([not (eager and name.endswith("barrier")) for name in tables.names], float)
    fused = fused_norm_shares(work, columns)
    return KernelRows(
        flop=columns.flop,
        area=columns.m * columns.n,
        bytes=columns.bytes * kept * (1.0 - fused_norms * (1.0 - fused.traffic)),
        launches=columns.launches * kept * (1.0 - fused_norms * (1.0 - fused.launches)),
        code=np.array([code_of(kind) for kind in tables.kinds]),
        phase=np.array(phases),
        precision=np.array(precisions),
    )


class FusedShares(NamedTuple):
    """Remaining shares of the work of each kernel after fusion of batch norms with activation and addition.

    Attributes:
        traffic: remaining share of the bytes [1].
        launches: remaining share of the launches [1].
    """

    traffic: Array
    launches: Array


def fused_norm_shares(work: ClassedProgram, columns: KernelColumns) -> FusedShares:
    r"""Remaining traffic and launches of each kernel where batch norms are fused with activation and addition.

    A fused norm is one kernel forward and one backward. The traced kernel that writes the result remains; the kernels
    of its sums and of vectors over channels are absorbed. A fused backward pass reads input and gradient once for the
    sums and again for the result, and writes the result and the gradient of an added residual: $5 s + r$ bytes instead
    of those of the traced kernels, with s bytes read by the forward statistics and r bytes of added residuals. Forward
    norms are fused in the trace already.
    Reference: cuDNN, batch norm with activation and addition (modes `FUSED_OPS_BN_ADD_ACTIVATION`).

    Args:
        work: the workload; without convolutions no norm is fused.

    Returns:
        Shares of each kernel [1].
    """
    kinds, phases = np.array(work.tables.kinds), np.array(work.tables.phases)
    ones = jnp.ones(len(kinds))
    if not np.isin(kinds, ("conv", "grouped_conv", "conv3d")).any():
        return FusedShares(ones, ones)
    is_forward = phases == "forward"
    # A pure sum writes far less than the input: statistics of a norm.
    sums = is_forward & (kinds == "reduction") & (columns.written < SUMS * columns.read)
    statistics = jnp.sum(jnp.where(sums, columns.read, 0.0))
    # Bytes read beyond the bytes written: added residuals.
    added = jnp.maximum(columns.read - columns.written, 0.0) * (is_forward & (kinds == "elementwise"))
    is_backward = (phases == "backward") & np.isin(kinds, ("elementwise", "reduction"))
    traced = jnp.sum(jnp.where(is_backward, columns.bytes, 0.0))
    # The lower bound of 1 byte avoids 0 / 0 in workloads without a backward pass.
    share = (BACKWARD_PASSES * statistics + jnp.sum(added)) / jnp.maximum(traced, 1.0)
    has_norms = statistics > 0.0
    # Kernels absorbed by the fused norms: sums, and vectors over channels.
    inside = sums | (is_backward & (kinds == "reduction")) | (_has_vectors_alone(work) & (is_forward | is_backward))
    return FusedShares(
        traffic=jnp.where(is_backward & has_norms, jnp.minimum(share, 1.0), ones),
        launches=jnp.where(inside & has_norms, 0.0, ones),
    )


def _has_vectors_alone(work: ClassedProgram) -> np.ndarray:
    """Mask of elementwise kernels and reductions that touch vectors alone [kernel]."""
    widest = np.zeros(len(work.tables.kinds), int)
    for quantity in ("read", "read_weights", "written"):
        terms = work.tables.terms[quantity]
        np.maximum.at(widest, terms.row, (terms.classes > 0).sum(axis=1))
    return (widest <= 1) & np.isin(work.tables.kinds, ("elementwise", "reduction"))


def device_times(rows: KernelRows, chip: Chip, c: KernelCoefficients, temperature: Temperature = 0.0) -> Array:
    """Time of each kernel on the chip, over all launches [s].

    Args:
        rows: kernels.
        chip: peak flop rates and memory bandwidth.
        c: fitted parameters of kernels.
        temperature: smoothing of the maximum [1].

    Returns:
        Times [s]; zero for collectives.
    """
    peak = jnp.asarray(chip.peak_flops)[rows.precision]
    # B / (h W)
    memory = rows.bytes / (c.traffic_efficiency * chip.hbm_bandwidth)
    relative = [1.0, c.conv_efficiency, c.grouped_conv_efficiency, c.conv3d_efficiency, 1.0, 1.0, 1.0]
    is_product, is_attention = rows.code < len(PRODUCTS), rows.code == ATTENTION
    share = jnp.stack([jnp.asarray(one, float) for one in relative])[jnp.where(is_product, rows.code, 0)]
    # Kernels without products have no area; the 1 keeps the unused quotient finite.
    loss = 1.0 + c.half_area / jnp.where(is_product, rows.area, 1.0)
    # F / (e C) (1 + a / (m n)) + x B / (h W)
    product = rows.flop * loss / (share * c.matmul_efficiency * peak) + c.exposed_share * memory
    attention = rows.flop / (c.attention_efficiency * peak) + c.exposed_share * memory
    # Gathers and scatters pass over the bytes several times.
    other = memory * jnp.where(rows.code == LOOK_UP, c.gather_passes, 1.0) * (rows.code != COLLECTIVE)
    busy = jnp.where(is_product, smooth_max(product, memory, temperature), other)
    return jnp.where(is_attention, attention, busy)


def traced_kernel_times(
    rows: KernelRows, chip: Chip, c: KernelCoefficients, temperature: Temperature = 0.0
) -> KernelTimes:
    """Time of the kernels of a step on a chip, by cause [s].

    Args:
        rows: kernels.
        chip: peak flop rates and memory bandwidth.
        c: fitted parameters of kernels.
        temperature: smoothing of the maximum [1].
    """
    times = device_times(rows, chip, c, temperature)
    passes, again, update = (rows.phase == phase for phase in (0, 1, 2))
    is_product, is_attention = rows.code < len(PRODUCTS), rows.code == ATTENTION

    def total(mask: Array | np.ndarray, values: Array = times) -> Array:
        return jnp.sum(jnp.where(mask, values, 0.0))

    device = total(passes | again)
    host = c.host_launch * total(passes | again, rows.launches)
    return KernelTimes(
        matmul=total(passes & is_product),
        attention=total(passes & is_attention),
        memory_bound=total(passes & ~(is_product | is_attention)),
        recompute=total(again),
        optimizer=total(update & (rows.code != LOOK_UP)),
        table_update=total(update & (rows.code == LOOK_UP)),
        launch_gaps=c.kernel_launch * jnp.sum(rows.launches),
        host=waiting_time(device, host),
        host_per_step=jnp.asarray(c.step_launch, float),
    )


def waiting_time(device: Number, host: Number) -> Array:
    """Time for which the chip waits for kernel launches by the host [s].

    $(t_{device}^q + t_{host}^q)^{1/q} - t_{device}$ with q of `OVERLAP`.
    """
    return p_norm(jnp.stack([jnp.asarray(device), jnp.asarray(host)]), OVERLAP) - device


COMBINED = 31457280.0
"""Bucket size of gradient reductions and weight gathers (XLA, all-reduce combiner of GPUs, 30 MiB) [byte]."""


class StageShares(NamedTuple):
    """Kernel times of a microbatch inside and outside the loops over layers.

    Attributes:
        layers: time of kernels inside loops over layers [s].
        outside: time of kernels outside loops, on a single stage [s].
    """

    layers: Array
    outside: Array


def in_layers(work: ClassedProgram) -> np.ndarray:
    """Mask of kernels in a loop over layers, whose iterations read slices of the weights."""
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
    """Terms of the step time of a traced workload, by name in `StepTime`.

    Args:
        work: workload of the whole batch.
        plan: degrees over the classes.
        cluster: chips and network.
        coefficients: fitted parameters of network, overlap and stragglers.
        kernels: fitted parameters of kernels; those of JAX where None.
        temperature: smoothing of maxima [1].
        fused_norms: 1 where batch norms of convolutional networks are fused kernels [1].

    Returns:
        Terms [s]; zero for terms absent from a traced workload.
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
    """Terms of the step time from the kernel times of a microbatch on one chip."""
    m, p = plan.n_microbatches, plan.pipeline
    # The slowest stage has an equal share of the layers and all work outside of loops.
    busiest = (shares.layers / p + shares.outside) / (shares.layers + shares.outside)
    compute = m * busiest
    traffic = class_exchanges(work, plan)
    pass_time = (times.matmul + times.attention + times.memory_bound + times.recompute) * compute
    # Two of the three multiply-adds of a pass are backward.
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
        # (p - 1) T_l / p
        "pipeline_bubble": (p - 1.0) * shares.layers / p,
        "pipeline_transfer": _transfer_time(work, plan, machine, c, temperature),
        # Each chip updates a shard of the weights; tables are updated where rows lie.
        "optimizer": times.optimizer / (plan.shard * p) + times.table_update,
        "host_per_step": times.host_per_step,
    }
    undisturbed = total_of(terms.values())
    return {**terms, "straggler": straggler_time(machine, c, undisturbed, temperature)}


def exchange_time(
    exchange: Exchange, collective: Collective, n: Number, stride: Number, machine: Machine, temperature: Temperature
) -> Array:
    """Time of all collectives with a common cause, at equal volumes [s].

    Args:
        exchange: volume and count.
        collective: time of one collective.
        n: chips of a group [1].
        stride: distance between the chips of a group [1].
        machine: chips and links.
        temperature: smoothing of maxima [1].
    """
    # The lower bound avoids 0 / 0 without collectives; the product below is then zero.
    count = jnp.maximum(exchange.count, 1e-9)
    return exchange.count * collective(exchange.volume / count, n, stride, machine.link, temperature)


def combined(exchange: Exchange) -> Exchange:
    """Collectives joined to buckets of `COMBINED` bytes; at least one collective, at most the original number."""
    # Buckets of a size, at least 1, at most a collective per value.
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
    """Exposed time of gradient reductions, gathers, scatters and statistics [s]."""
    parts = plan.tensor * plan.shard
    whole = plan.shard <= 1.0
    # Whole copies reduce over all replicas, sharded copies over replicas / shard.
    ranks, stride = jnp.where(whole, plan.data, plan.data / plan.shard), jnp.where(whole, plan.tensor, parts)
    reduced = exchange_time(combined(traffic.gradients), reduce_time, ranks, stride, machine, temperature)
    moved = sum(
        exchange_time(combined(one), gather_time, plan.shard, plan.tensor, machine, temperature)
        for one in (traffic.scatters, traffic.gathers)
    )
    statistics = exchange_time(traffic.statistics, reduce_time, plan.data, plan.tensor, machine, temperature)
    # A single replica reduces nothing.
    hidden = c.dp_overlap * backward * (1.0 - 1.0 / plan.data)
    # Each stage reduces the weights of the stage.
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
    """Exposed time of partial-sum reductions of tensor parallelism [s]."""
    time = sum(
        exchange_time(one, reduce_time, plan.tensor, 1.0, machine, temperature)
        for one in (traffic.tensor_forward, traffic.tensor_backward)
    )
    several = plan.tensor > 1.0
    return jnp.where(several, exposed(time, c.tp_overlap * matmul, temperature), 0.0)


def _look_up_time(traffic: ClassExchanges, plan: ClassPlan, machine: Machine, temperature: Temperature) -> Array:
    """Time to exchange look-ups between chips with different tables or table rows [s]."""

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
    # Activations forward, gradients backward; no sends without a second stage.
    sends = 2.0 * plan.n_microbatches * jnp.minimum(plan.pipeline - 1.0, 1.0)
    return c.pp_exposed * sends * one


def traced_memory_terms(
    work: ClassedProgram, plan: ClassPlan, cluster: Cluster, coefficients: Coefficients
) -> dict[str, Array]:
    """Terms of the peak memory of a traced workload, by name in `Memory`.

    Args:
        work: workload of the whole batch.
        plan: degrees over the classes.
        cluster: chips and network.
        coefficients: fitted parameters, of which `framework_bytes` is used.

    Returns:
        Terms and capacity [byte].
    """
    work, plan, cluster, coefficients = as_arrays((work, plan, cluster, checked(coefficients)))
    sizes, tables = local_sizes(work, plan), work.tables
    spread = (plan.tables_by_table + plan.tables_by_row) * (plan.data - 1.0) + 1.0
    # Tables are spread over the data group, weights over the shard group.
    parts = jnp.where(is_table(work), spread, plan.shard)
    weights = local_weight_bytes(work, sizes)
    held, rows = tables.points.values(sizes), tables.points.row

    def at_points(origin: str) -> Array:
        chosen = np.array([one == origin for one in tables.point_origins], float)
        return jnp.zeros(len(tables.point_phases)).at[rows].add(held * chosen)

    state = at_points("state")
    # 1F1B: as many microbatches as stages, each with 1 / p of the layers.
    in_flight = jnp.minimum(plan.n_microbatches, plan.pipeline) / plan.pipeline
    # A gather in a loop takes the weights of a turn.
    read = local_weight_bytes(work, sizes, read=True) / jnp.maximum(
        per_row(tables.weight_turns, sizes, len(weights)), 1.0
    )
    several = jnp.where(plan.n_microbatches > 1.0, 1.0, 0.0)
    return {
        "weights": jnp.sum(weights / parts) / plan.pipeline,
        # With a single microbatch, no gradient exists while the loss is taken.
        "gradients": several * jnp.sum(weights * ~is_table(work) / parts) / plan.pipeline,
        "optimizer": jnp.max(state, initial=0.0) / (plan.shard * plan.pipeline),
        "activations": jnp.max(at_points("made") + at_points("data") + at_points("constant"), initial=0.0) * in_flight,
        "logits": jnp.zeros(()),
        # Prefetch: the layer in use and the next layer.
        "buffers": jnp.where(plan.shard > 1.0, 2.0 * jnp.max(jnp.where(is_table(work), 0.0, read), initial=0.0), 0.0),
        "framework": jnp.asarray(coefficients.framework_bytes),
    }
