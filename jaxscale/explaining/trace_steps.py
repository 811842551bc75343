"""Steps in a kernel trace, and exposed and hidden time of each component in each step.

At each moment the running compute kernels share the time among their components; without compute kernels, the running
collectives share the time and are exposed; without any kernel, the device waits for its host. The sum of the exposed
times is the step time.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.errors import InputError
from jaxscale.explaining.predicted_parts import HOST, IS_COLLECTIVE, NAMES
from jaxscale.explaining.trace_files import KernelTrace

AGREEING, AS_GOOD = 0.98, 0.002
"""Minimum share of kernels with names equal to the kernels a period later, for the period to be a step, and
tolerance on the share in the choice between periods [1]. Periods of layers and microbatches break at the ends of a
step."""

LEAST_KERNELS = 4
"""Minimum number of kernels of a step [1]."""

COVERED = 0.5
"""Minimum share of kernel time within the ranges of steps, for the ranges to belong to the kernels [1]."""


class MeasuredSteps(NamedTuple):
    """Measured time of each component in the steps of a device.

    Attributes:
        exposed: exposed time of each component; the sum over components is the step time [s], [step, part].
        busy: kernel time of each component, with the full time of concurrent kernels [s], [step, part].
        kernel_time: time of each type of kernel, mean over steps [s], [kind].
        late: kernel time of each component in excess of the fastest kernels of equal type [s], [part].
        recognised_by: method by which steps were recognised.
    """

    exposed: Float[np.ndarray, "step part"]
    busy: Float[np.ndarray, "step part"]
    kernel_time: Float[np.ndarray, " kind"]
    late: Float[np.ndarray, " part"]
    recognised_by: str


def measured_steps(trace: KernelTrace, part: Int[np.ndarray, " kind"]) -> MeasuredSteps:
    """Measured time of each component in the steps of a trace.

    Args:
        trace: kernels of a device.
        part: component of each type of kernel, as an index in `NAMES`.
    """
    of_kernel, latest = part[trace.kind], np.maximum.accumulate(trace.end)
    edges, recognised_by = step_edges(trace, of_kernel == NAMES.index("optimizer"))
    spans = zip(edges[:-1], edges[1:], strict=True)
    exposed, busy = zip(*(_accounted(trace, of_kernel, latest, *span) for span in spans), strict=True)
    # Kernels count within the steps alone.
    length = np.clip(trace.end, edges[0], edges[-1]) - np.clip(trace.start, edges[0], edges[-1])
    n_kinds, n_steps = len(trace.names), len(edges) - 1
    kernel_time = np.bincount(trace.kind, weights=length, minlength=n_kinds) / n_steps
    late = np.bincount(part, weights=_beyond_fastest(trace, length) / n_steps, minlength=len(NAMES))
    return MeasuredSteps(np.asarray(exposed), np.asarray(busy), kernel_time, late, recognised_by)


def _beyond_fastest(trace: KernelTrace, length: Float[np.ndarray, " kernel"]) -> Float[np.ndarray, " kind"]:
    """Kernel time of each type minus the number of its kernels times the 10 % quantile of their time [s]."""
    # Kernels cut at an edge do not count; the tolerance is for rounding.
    inside = length >= (1.0 - 1e-6) * (trace.end - trace.start)
    kind, own = trace.kind[inside], length[inside]
    order = np.lexsort((own, kind))
    kind, own = kind[order], own[order]
    first = np.searchsorted(kind, np.arange(len(trace.names)))
    count = np.bincount(kind, minlength=len(trace.names))
    if not len(own):
        return np.zeros(len(trace.names))
    # 10 % quantile of each type.
    fastest = own[np.minimum(first + count // 10, len(own) - 1)]
    total = np.bincount(kind, weights=own, minlength=len(trace.names))
    return np.where(count > 0, np.maximum(total - count * fastest, 0.0), 0.0)


def step_edges(trace: KernelTrace, is_update: Bool[np.ndarray, " kernel"]) -> tuple[Float[np.ndarray, " edge"], str]:
    """Times of the boundaries between steps [s], and the method of recognition.

    The boundaries come from ranges recorded by the program around the steps, else from the period of the kernel names;
    else the whole trace is a single step.

    Args:
        trace: kernels of a device.
        is_update: whether a kernel updates weights; if any does, each step has at least one update.

    Raises:
        InputError: all kernels have zero duration.
    """
    first, last = float(trace.start.min()), float(trace.end.max())
    if not last > first:
        raise InputError(f"{trace.where}: its kernels take no time; expected a trace of a step")
    for edges, text in (
        (_merged(trace.marks), "ranges on the device"),
        (_launch_edges(trace), "ranges of the host that launched the kernels"),
        (_merged(trace.host_marks), "ranges on the host"),
    ):
        # No mark shows the end of the last of several steps: the step is not counted.
        if len(edges) > 1 and _covered(trace, edges) > COVERED * (len(edges) - 1) / len(edges):
            return edges, text
    if period := _period(trace.kind, is_update):
        return trace.start[::period], f"a pattern of {period} kernels that repeats"
    return np.asarray([first, last]), "none: the whole trace is taken as one step"


def _merged(marks: Float[np.ndarray, "step 2"]) -> Float[np.ndarray, " edge"]:
    """Edges of ranges; ranges that overlap by more than half of the shorter range count as one step.

    For several steps the edges are the starts; for a single step, begin and end.
    """
    merged: list[list[float]] = []
    for begin, end in marks.tolist():
        # More than half of the shorter range.
        if merged and merged[-1][1] - begin > 0.5 * min(end - begin, merged[-1][1] - merged[-1][0]):
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    if len(merged) < 2:
        return np.asarray(merged).reshape(-1)
    # Starts alone: the time between steps counts.
    return np.asarray([begin for begin, _ in merged])


def _launch_edges(trace: KernelTrace) -> Float[np.ndarray, " edge"]:
    """Start of the first kernel that the host launched in each of its steps; for a single step also its end."""
    edges = _merged(trace.host_marks)
    if len(edges) < 2 or np.isnan(trace.launched).mean() > 0.5:
        return np.zeros(0)
    if len(trace.host_marks) == 1:
        own = (trace.launched >= edges[0]) & (trace.launched < edges[1])
        return np.asarray([trace.start[own].min(), trace.end[own].max()]) if own.any() else np.zeros(0)
    later = [trace.start[trace.launched >= begin] for begin in edges]
    starts = np.asarray([starts.min() for starts in later if len(starts)])
    return starts if (np.diff(starts) > 0.0).all() else np.zeros(0)


def _covered(trace: KernelTrace, edges: Float[np.ndarray, " edge"]) -> float:
    """Share of the time of all kernels between the first and the last edge [1]."""
    inside = np.clip(trace.end, edges[0], edges[-1]) - np.clip(trace.start, edges[0], edges[-1])
    return float(inside.sum() / (trace.end - trace.start).sum())


def _period(kind: Int[np.ndarray, " kernel"], is_update: Bool[np.ndarray, " kernel"]) -> int:
    """Smallest number of kernels after which nearly all names repeat; 0 without a period."""
    n = len(kind)
    if n < 2 * LEAST_KERNELS:
        return 0
    # Autocorrelation of random phases by FFT: all lags in n log n.
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(int(kind.max()) + 1))[kind]
    # Padding to 2 n avoids wrap-around.
    spectrum = np.fft.fft(phases, 2 * n)
    # Mean over the n - lag overlapping kernels.
    agreeing = np.fft.ifft(np.abs(spectrum) ** 2).real[: n // 2 + 1] / (n - np.arange(n // 2 + 1))
    agreeing[:LEAST_KERNELS] = 0.0
    best = float(agreeing.max())
    # Random phases agree by chance alone; the names decide.
    for lag in np.flatnonzero(agreeing > max(AGREEING, best - AS_GOOD) - 1e-6)[:50].tolist():
        # Every step updates weights, or none.
        updates = np.add.reduceat(is_update, np.arange(0, n - lag + 1, lag), dtype=int)
        if (kind[lag:] == kind[:-lag]).mean() >= AGREEING and (updates.all() or not updates.any()):
            return lag
    return 0


def _accounted(
    trace: KernelTrace,
    part: Int[np.ndarray, " kernel"],
    latest: Float[np.ndarray, " kernel"],
    begin: float,
    end: float,
) -> tuple[Float[np.ndarray, " part"], Float[np.ndarray, " part"]]:
    """Exposed time of each component between two moments, with gaps counted as the host's, and kernel time [s]."""
    # `latest` is the running maximum of ends: no kernel before the first with a later `latest` overlaps the span.
    inside = np.arange(np.searchsorted(latest, begin, "right"), np.searchsorted(trace.start, end))
    inside = inside[trace.end[inside] > begin]
    starts, ends, part = np.maximum(trace.start[inside], begin), np.minimum(trace.end[inside], end), part[inside]
    busy = np.bincount(part, weights=ends - starts, minlength=len(NAMES))
    times, which = np.concatenate([starts, ends]), np.concatenate([part, part])
    # Stable: at equal times, starts come before ends.
    order = np.argsort(times, kind="stable")
    running = np.zeros((len(times), len(NAMES)), np.int32)
    # +1 at a start, -1 at an end.
    running[np.arange(len(times)), which[order]] = np.where(order < len(inside), 1, -1)
    running = np.cumsum(running, axis=0)[:-1]
    passed = np.diff(times[order])
    # (moments, components)
    computes = np.where(IS_COLLECTIVE, 0, running)
    # Collectives are exposed without compute kernels alone.
    shared = np.where(computes.any(axis=1, keepdims=True), computes, running)
    total = shared.sum(axis=1)
    # Concurrent kernels share the time.
    exposed = (passed / np.maximum(total, 1)) @ shared
    # Without any kernel the device waits for the host; the floor is for rounding.
    exposed[HOST] += max((end - begin) - float(passed[total > 0].sum()), 0.0)
    return exposed, busy
