"""Steps of a kernel trace, and the time of each part of a step: exposed, hidden, and gaps between kernels.

At each moment the kernels that compute share the time among their parts; where none computes, the collectives that run
share it, and are exposed; where nothing runs, the device waits for its host. The exposed times add up to the step.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.errors import InputError
from jaxscale.explaining.kernel_terms import HOST, IS_COLLECTIVE, NAMES
from jaxscale.explaining.trace_files import KernelTrace

AGREEING, AS_GOOD = 0.98, 0.002
"""Share of the kernels whose names are those of kernels a period later, from which on the period may be a step, and how
much more of them another period may have [1]: those of layers and microbatches break at the ends of a step."""

LEAST_KERNELS = 4
"""Kernels of a step at least [1]."""

COVERED = 0.5
"""Share of the time of kernels within the ranges of steps, from which on the ranges are those of the kernels [1]."""


class MeasuredSteps(NamedTuple):
    """Times of the steps of one device.

    Attributes:
        exposed: time of each part of each step; adds up to the step [s], [step, part].
        busy: time of the kernels of each part, side by side ones counted each [s], [step, part].
        kernel_time: of each kind of kernel, of a step on average [s], [kind].
        late: of the kernels of each part, what they take beyond the fastest of their kind [s], [part].
        recognised_by: how steps were told apart.
    """

    exposed: Float[np.ndarray, "step part"]
    busy: Float[np.ndarray, "step part"]
    kernel_time: Float[np.ndarray, " kind"]
    late: Float[np.ndarray, " part"]
    recognised_by: str


def measured_steps(trace: KernelTrace, part: Int[np.ndarray, " kind"]) -> MeasuredSteps:
    """Times of the steps of a trace.

    Args:
        trace: kernels of one device.
        part: of each kind of kernel, by its place in `NAMES`.
    """
    of_kernel, latest = part[trace.kind], np.maximum.accumulate(trace.end)
    edges, recognised_by = step_edges(trace, of_kernel == NAMES.index("optimizer"))
    spans = zip(edges[:-1], edges[1:], strict=True)
    exposed, busy = zip(*(_accounted(trace, of_kernel, latest, *span) for span in spans), strict=True)
    length = np.clip(trace.end, edges[0], edges[-1]) - np.clip(trace.start, edges[0], edges[-1])
    n_kinds, n_steps = len(trace.names), len(edges) - 1
    kernel_time = np.bincount(trace.kind, weights=length, minlength=n_kinds) / n_steps
    late = np.bincount(part, weights=_beyond_fastest(trace, length) / n_steps, minlength=len(NAMES))
    return MeasuredSteps(np.asarray(exposed), np.asarray(busy), kernel_time, late, recognised_by)


def _beyond_fastest(trace: KernelTrace, length: Float[np.ndarray, " kernel"]) -> Float[np.ndarray, " kind"]:
    """Time of the kernels of each kind beyond that of as many of the fastest tenth of them [s]."""
    inside = length >= (1.0 - 1e-6) * (trace.end - trace.start)
    kind, own = trace.kind[inside], length[inside]
    order = np.lexsort((own, kind))
    kind, own = kind[order], own[order]
    first = np.searchsorted(kind, np.arange(len(trace.names)))
    count = np.bincount(kind, minlength=len(trace.names))
    if not len(own):
        return np.zeros(len(trace.names))
    fastest = own[np.minimum(first + count // 10, len(own) - 1)]
    total = np.bincount(kind, weights=own, minlength=len(trace.names))
    return np.where(count > 0, np.maximum(total - count * fastest, 0.0), 0.0)


def step_edges(trace: KernelTrace, is_update: Bool[np.ndarray, " kernel"]) -> tuple[Float[np.ndarray, " edge"], str]:
    """Edges of the steps [s], and how they were recognised.

    By the ranges that the program put around its steps; else by the period of the names of the kernels; else the whole
    trace is one step. Of several steps all but the last one count, whose end nothing marks.

    Args:
        trace: kernels of one device.
        is_update: whether a kernel updates weights, as one does at least in each step if any does.

    Raises:
        InputError: no time passes in the trace.
    """
    first, last = float(trace.start.min()), float(trace.end.max())
    if not last > first:
        raise InputError(f"{trace.where}: its kernels take no time; expected a trace of a step")
    for edges, text in (
        (_merged(trace.marks), "ranges on the device"),
        (_launch_edges(trace), "ranges of the host that launched the kernels"),
        (_merged(trace.host_marks), "ranges on the host"),
    ):
        if len(edges) > 1 and _covered(trace, edges) > COVERED * (len(edges) - 1) / len(edges):
            return edges, text
    if period := _period(trace.kind, is_update):
        return trace.start[::period], f"a pattern of {period} kernels that repeats"
    return np.asarray([first, last]), "none: the whole trace is taken as one step"


def _merged(marks: Float[np.ndarray, "step 2"]) -> Float[np.ndarray, " edge"]:
    """Edges of ranges, those that overlap for more than half of the shorter one taken as one step.

    Starts of several steps, so that what passes between steps is counted; begin and end of a single one.
    """
    merged: list[list[float]] = []
    for begin, end in marks.tolist():
        if merged and merged[-1][1] - begin > 0.5 * min(end - begin, merged[-1][1] - merged[-1][0]):
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    if len(merged) < 2:
        return np.asarray(merged).reshape(-1)
    return np.asarray([begin for begin, _ in merged])


def _launch_edges(trace: KernelTrace) -> Float[np.ndarray, " edge"]:
    """Start of the first kernel that the host launched in each of its steps; of a single step also its end."""
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
    """Share of the time of all kernels that lies between the first and the last edge [1]."""
    inside = np.clip(trace.end, edges[0], edges[-1]) - np.clip(trace.start, edges[0], edges[-1])
    return float(inside.sum() / (trace.end - trace.start).sum())


def _period(kind: Int[np.ndarray, " kernel"], is_update: Bool[np.ndarray, " kernel"]) -> int:
    """Least number of kernels after which the names of nearly all repeat; 0 where there is none.

    Layers and microbatches repeat within a step, but not across its ends.
    """
    n = len(kind)
    if n < 2 * LEAST_KERNELS:
        return 0
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(int(kind.max()) + 1))[kind]
    spectrum = np.fft.fft(phases, 2 * n)
    agreeing = np.fft.ifft(np.abs(spectrum) ** 2).real[: n // 2 + 1] / (n - np.arange(n // 2 + 1))
    agreeing[:LEAST_KERNELS] = 0.0
    best = float(agreeing.max())
    # Random phases agree by chance alone; the names decide.
    for lag in np.flatnonzero(agreeing > max(AGREEING, best - AS_GOOD) - 1e-6)[:50].tolist():
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
    """Exposed time of each part between two moments, gaps as the host's, and time of its kernels [s]."""
    # No kernel before the first whose end, or that of one before it, is later has any time left.
    inside = np.arange(np.searchsorted(latest, begin, "right"), np.searchsorted(trace.start, end))
    inside = inside[trace.end[inside] > begin]
    starts, ends, part = np.maximum(trace.start[inside], begin), np.minimum(trace.end[inside], end), part[inside]
    busy = np.bincount(part, weights=ends - starts, minlength=len(NAMES))
    times, which = np.concatenate([starts, ends]), np.concatenate([part, part])
    order = np.argsort(times, kind="stable")
    running = np.zeros((len(times), len(NAMES)), np.int32)
    running[np.arange(len(times)), which[order]] = np.where(order < len(inside), 1, -1)
    running = np.cumsum(running, axis=0)[:-1]
    passed = np.diff(times[order])
    computes = np.where(IS_COLLECTIVE, 0, running)
    shared = np.where(computes.any(axis=1, keepdims=True), computes, running)
    total = shared.sum(axis=1)
    exposed = (passed / np.maximum(total, 1)) @ shared
    exposed[HOST] += max((end - begin) - float(passed[total > 0].sum()), 0.0)
    return exposed, busy
