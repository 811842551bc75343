r"""Time of traced kernels on one chip.

A matmul, or a convolution that is like one, of F flop and B bytes takes

$$ t = \max\left( \frac{F}{e\,C} \left(1 + \frac{a}{m\,n}\right) + x \frac{B}{h W}, \frac{B}{h W} \right) $$

with the half area a and the exposed share x of its traffic; fused attention $F / (e_a C) + x B / (h W)$; all other
kernels $B / (h W)$, gathers and scatters g times that. Between kernels of a compiled program there is a gap each.
Kernels of an eager
program are launched by a host: the longer one of host and chip counts, by a norm of exponent `OVERLAP`. Once per step
there is a fixed time.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import Number
from jaxscale.base.smooth import Temperature, p_norm, smooth_max
from jaxscale.calibration.kernel_coefficients import KernelCoefficients
from jaxscale.hardware.cluster import Chip
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.tracing.classed_program import ClassedProgram
from jaxscale.tracing.workload_tables import KernelColumns

OVERLAP = 8.0
"""Exponent of the norm of host and chip time, which neither exceeds [1]."""

PRODUCTS = ("matmul", "conv", "grouped_conv", "conv3d", "factorisation", "fft", "custom")
"""Kinds of kernels that multiply: each with an efficiency relative to matmuls."""

ATTENTION, TRAFFIC, LOOK_UP, COLLECTIVE = 10, 11, 12, 13
"""Codes of the other kinds of kernels; a product has its place in `PRODUCTS`."""

WIDE_PEAKS = {1.0: "fp8", 2.0: "bf16", 4.0: "tf32"}
"""Peak that products of numbers of a width reach, by bytes; wider ones that of 32 bits."""

COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""Kinds of kernels that a network runs."""


SUMS = 0.02
"""Bytes written over those read below which a reduction makes nothing but sums [1]."""

BACKWARD_PASSES = 5.0
"""Passes of a fused batch norm over its input backward: two reads of input and gradient each, one write [1]."""


class KernelRows(NamedTuple):
    """Kernels of one workload as columns of numbers, to stack and pad.

    Attributes:
        flop: over all launches [flop].
        area: of the output of one launch [1].
        bytes: read and written, over all launches [byte].
        launches: per step [1].
        code: kind of kernel: place in `PRODUCTS`, or one of the codes.
        phase: 0 forward and backward, 1 recompute, 2 update.
        precision: place of the peak among `PRECISIONS`.
    """

    flop: Float[Array, " kernel"]
    area: Float[Array, " kernel"]
    bytes: Float[Array, " kernel"]
    launches: Float[Array, " kernel"]
    code: np.ndarray
    phase: np.ndarray
    precision: np.ndarray


class KernelTimes(NamedTuple):
    """Time of the kernels of one step on one chip, by what they do; the attributes add up to the step [s].

    Attributes:
        matmul: matmuls and convolutions, forward and backward.
        attention: fused attention.
        memory_bound: all kernels that multiply nothing, forward and backward.
        recompute: forward work done again.
        optimizer: what follows from the gradients, but for tables.
        table_update: rows of tables updated where they were read.
        launch_gaps: gaps between kernels.
        host: waiting for the host.
        host_per_step: once per step.
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
    """Code of a kind of kernel."""
    if kind in PRODUCTS:
        return PRODUCTS.index(kind)
    if kind in COLLECTIVE_KINDS:
        return COLLECTIVE
    return {"attention": ATTENTION, "gather": LOOK_UP, "scatter": LOOK_UP}.get(kind, TRAFFIC)


def kernel_rows(
    work: ClassedProgram, columns: KernelColumns | None = None, eager: bool = False, fused_norms: Number = 0.0
) -> KernelRows:
    """Kernels of a workload.

    Args:
        work: the workload.
        columns: quantities of its kernels, where they are not those of its sizes.
        eager: whether no compiler copies what rematerialised blocks read.
        fused_norms: 1 where batch norms of convolutional networks are fused kernels, forward and backward [1].

    Returns:
        One row for each kernel.
    """
    columns = work.columns() if columns is None else columns
    tables = work.tables
    phases = [{"recompute": 1, "update": 2}.get(phase, 0) for phase in tables.phases]
    precisions = [PRECISIONS.index(WIDE_PEAKS.get(float(width), "fp32")) for width in tables.widths]
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
    """What is left of each kernel where batch norms are fused with activation and addition.

    Attributes:
        traffic: share of the bytes [1].
        launches: share of the launches [1].
    """

    traffic: Array
    launches: Array


def fused_norm_shares(work: ClassedProgram, columns: KernelColumns) -> FusedShares:
    r"""Traffic and launches of each kernel that are left where batch norms are fused with activation and addition.

    A fused norm is one kernel forward and one backward: that of the traced kernels that writes the result stays, those
    of its sums and of vectors over channels are parts of it.
    A fused backward pass reads input and gradient once for the sums, once again for the result, and writes it; the
    gradient of a residual that was added is written as well: $5 s + r$ bytes instead of those of the traced kernels,
    with the bytes s that the statistics read forward and the bytes r of added residuals. Forward the trace has fused
    norms.
    Reference: cuDNN, batch norm with activation and addition (modes `FUSED_OPS_BN_ADD_ACTIVATION`).

    Args:
        work: the workload; one without convolutions has no such norms.
        columns: quantities of its kernels.

    Returns:
        Shares of each kernel [1].
    """
    kinds, phases = np.array(work.tables.kinds), np.array(work.tables.phases)
    ones = jnp.ones(len(kinds))
    if not np.isin(kinds, ("conv", "grouped_conv", "conv3d")).any():
        return FusedShares(ones, ones)
    is_forward = phases == "forward"
    sums = is_forward & (kinds == "reduction") & (columns.written < SUMS * columns.read)
    statistics = jnp.sum(jnp.where(sums, columns.read, 0.0))
    added = jnp.maximum(columns.read - columns.written, 0.0) * (is_forward & (kinds == "elementwise"))
    is_backward = (phases == "backward") & np.isin(kinds, ("elementwise", "reduction"))
    traced = jnp.sum(jnp.where(is_backward, columns.bytes, 0.0))
    share = (BACKWARD_PASSES * statistics + jnp.sum(added)) / jnp.maximum(traced, 1.0)
    has_norms = statistics > 0.0
    inside = sums | (is_backward & (kinds == "reduction")) | (_has_vectors_alone(work) & (is_forward | is_backward))
    return FusedShares(
        traffic=jnp.where(is_backward & has_norms, jnp.minimum(share, 1.0), ones),
        launches=jnp.where(inside & has_norms, 0.0, ones),
    )


def _has_vectors_alone(work: ClassedProgram) -> np.ndarray:
    """Which elementwise kernels and reductions touch nothing of more than one dimension [kernel]."""
    widest = np.zeros(len(work.tables.kinds), int)
    for quantity in ("read", "read_weights", "written"):
        terms = work.tables.terms[quantity]
        np.maximum.at(widest, terms.row, (terms.classes > 0).sum(axis=1))
    return (widest <= 1) & np.isin(work.tables.kinds, ("elementwise", "reduction"))


def device_times(rows: KernelRows, chip: Chip, c: KernelCoefficients, temperature: Temperature = 0.0) -> Array:
    """Time of each kernel on the chip, over all its launches [s].

    Args:
        rows: the kernels.
        chip: peaks and memory bandwidth.
        c: efficiencies.
        temperature: smoothing of the maximum [1].

    Returns:
        Times [s]; those of collectives are nothing here.
    """
    peak = jnp.asarray(chip.peak_flops)[rows.precision]
    memory = rows.bytes / (c.traffic_efficiency * chip.hbm_bandwidth)
    relative = [1.0, c.conv_efficiency, c.grouped_conv_efficiency, c.conv3d_efficiency, 1.0, 1.0, 1.0]
    is_product, is_attention = rows.code < len(PRODUCTS), rows.code == ATTENTION
    share = jnp.stack([jnp.asarray(one, float) for one in relative])[jnp.where(is_product, rows.code, 0)]
    loss = 1.0 + c.half_area / jnp.where(is_product, rows.area, 1.0)
    product = rows.flop * loss / (share * c.matmul_efficiency * peak) + c.exposed_share * memory
    attention = rows.flop / (c.attention_efficiency * peak) + c.exposed_share * memory
    other = memory * jnp.where(rows.code == LOOK_UP, c.gather_passes, 1.0) * (rows.code != COLLECTIVE)
    busy = jnp.where(is_product, smooth_max(product, memory, temperature), other)
    return jnp.where(is_attention, attention, busy)


def traced_kernel_times(
    rows: KernelRows, chip: Chip, c: KernelCoefficients, temperature: Temperature = 0.0
) -> KernelTimes:
    """Time of the kernels of one step on one chip.

    Args:
        rows: the kernels.
        chip: peaks and memory bandwidth.
        c: coefficients of the stack.
        temperature: smoothing of maxima [1].

    Returns:
        Times by what kernels do [s].
    """
    times = device_times(rows, chip, c, temperature)
    passes, again, update = (rows.phase == phase for phase in (0, 1, 2))
    is_product, is_attention = rows.code < len(PRODUCTS), rows.code == ATTENTION

    def total(mask: np.ndarray, values: Array = times) -> Array:
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
    """Time that the longer one of host and chip takes beyond the chip's [s]."""
    return p_norm(jnp.stack([jnp.asarray(device), jnp.asarray(host)]), OVERLAP) - device
