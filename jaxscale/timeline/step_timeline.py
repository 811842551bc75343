"""Timeline of a predicted step in the trace format of Chrome, readable by Perfetto and `chrome://tracing`; a figure.

Each pipeline rank has three rows: passes in sequence, collectives concurrent with the passes, and the gradient
reduction concurrent with the last passes. The remaining time of the step (exposed transfers and gradient collectives,
optimizer, host, stragglers) follows the last pass.

Reference: Trace Event Format, Google, 2016 (complete events `X`, metadata events `M`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
from jaxtyping import Array

from jaxscale.base.arrays import as_arrays
from jaxscale.base.errors import InputError
from jaxscale.base.files import write_whole
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import AnyFit
from jaxscale.costs.machine import machine_of
from jaxscale.costs.microbatch import microbatch_times
from jaxscale.costs.named_arguments import Arguments, refuse_broken, resolved
from jaxscale.costs.step import StepTime, microbatch_pace, times_of_step
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, total_layers
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan
from jaxscale.report.style import BLUE, GREEN, GREY, SKY, entries_of, legend_below, single_axes, time_unit
from jaxscale.timeline.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Event,
    makespan,
    operation_orders,
    simulated,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_OPERATIONS = 200_000
"""Largest number of passes over microbatches and ranks that trace viewers open without delay [1]."""

MICROBATCH_COLLECTIVES = ("tensor_parallel", "context_parallel", "expert_parallel")
"""Cost terms of collectives within each pass."""

AFTER_THE_PASSES = ("pipeline_transfer", "data_parallel", "optimizer", "host_per_step", "straggler")
"""Cost terms after the last pass, in order."""

WITHOUT_OVERLAP = ("tp_overlap", "cp_overlap", "ep_overlap", "dp_overlap", "fsdp_overlap")
"""Coefficients of the hidden share of collectives."""

MICROSECOND = 1e-6
"""Unit of the trace format [s]."""


@dataclass(frozen=True)
class StepTimeline:
    """Events of one predicted step.

    Attributes:
        passes: passes of each pipeline rank with start and end [s].
        step: cost terms of the step, whose sum is the end of the last event [s].
        hidden: time of the collectives concurrent with compute, by cost term, per step and rank [s].
        stretch: factor on event times: closed-form time of all passes over that of the simulated schedule; 1 for equal
            stages, except that the last stage also has the logits head [1].
        plan: fields of the plan by name.
    """

    passes: tuple[Event, ...]
    step: dict[str, float]
    hidden: dict[str, float]
    stretch: float
    plan: dict[str, Any]

    @property
    def makespan(self) -> float:
        """Time from the start of the first event to the end of the last event [s]."""
        return makespan(self.passes) + sum(self.step[name] for name in AFTER_THE_PASSES)

    def to_json(self) -> dict[str, Any]:
        """Timeline as a document in the trace format of Chrome, with times in microseconds."""
        told = {"step_time_s": sum(self.step.values()), "stretch": self.stretch, "plan": self.plan}
        events = [*self._names(), *self._of_passes(), *self._after()]
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": told}

    def save(self, path: str | Path) -> None:
        """Write the timeline as a JSON file in the trace format of Chrome.

        Raises:
            InputError: the file cannot be written.
        """
        write_whole(path, json.dumps(self.to_json()))

    @property
    def n_ranks(self) -> int:
        """Number of pipeline ranks [1]."""
        return 1 + max(event.rank for event in self.passes)

    def _names(self) -> Iterator[dict[str, Any]]:
        """Metadata events with the row names of each pipeline rank."""
        for rank in range(self.n_ranks):
            yield _metadata("process_name", rank, 0, f"pipeline rank {rank}")
            yield _metadata("thread_name", rank, 0, "passes")
            yield _metadata("thread_name", rank, 1, "collectives")
            yield _metadata("thread_name", rank, 2, "gradients of the step")

    def _of_passes(self) -> Iterator[dict[str, Any]]:
        """Passes and their collectives, in proportion to the pass length: the exposed time first, then the hidden."""
        work = sum(event.end - event.start for event in self.passes if event.rank == 0)
        work = max(work, sum(event.end - event.start for event in self.passes) / self.n_ranks)
        for event in self.passes:
            length = event.end - event.start
            operation = event.operation
            told = {"microbatch": operation.microbatch, "virtual_stage": operation.stage}
            if self.plan["schedule"] == "dualpipe":
                told["direction"] = operation.direction
            yield _complete(operation.kind, event.rank, 0, event.start, length, told)
            start = event.start
            # Gradients of weights need no collective of their own.
            names = MICROBATCH_COLLECTIVES if operation.kind != WEIGHT_GRADIENT else ()
            for name in names:
                exposed = self.step[name] / work * length
                whole = min(exposed + self.hidden[name] / work * length, event.end - start)
                if whole > 0.0:
                    yield _complete(name, event.rank, 1, start, whole, {"exposed_s": exposed})
                    start += whole

    def _after(self) -> Iterator[dict[str, Any]]:
        """Events after the passes, and the gradient reduction concurrent with the last passes."""
        end = makespan(self.passes)
        for rank in range(self.n_ranks):
            if (hidden := min(self.hidden["data_parallel"], end)) > 0.0:
                yield _complete("data_parallel", rank, 2, end - hidden, hidden, {"exposed_s": 0.0})
            start = end
            for name in AFTER_THE_PASSES:
                if self.step[name] > 0.0:
                    yield _complete(name, rank, 0, start, self.step[name], {})
                start += self.step[name]


def _metadata(name: str, rank: int, row: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": row, "args": {"name": text}}


def _complete(name: str, rank: int, row: int, start: float, length: float, told: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": start / MICROSECOND, "dur": length / MICROSECOND}
    return {"ph": "X", "name": name, "cat": "collective" if row else "pass", "pid": rank, "tid": row, **times} | (
        {"args": told} if told else {}
    )


class _Stages(NamedTuple):
    """Step time, and times of one microbatch on the pipeline stages.

    Attributes:
        step: cost terms of the step [s].
        first: time of the first stage [s].
        last: time of the last stage, with the logits head [s].
        head: time of the logits head [s].
        total: time of all stages [s].
        forward: share of the forward pass [1].
        weights: share of the weight gradients [1].
    """

    step: StepTime
    first: Array
    last: Array
    head: Array
    total: Array
    forward: Array
    weights: Array


def step_timeline(
    model: Transformer | str | Path,
    plan: Plan,
    cluster: Cluster | str,
    coefficients: Coefficients | AnyFit = "default",
) -> StepTimeline:
    """Timeline of one optimizer step, with makespan `step_time(...).total`.

    One rank of each pipeline stage represents all tensor-, context- and data-parallel ranks of the stage.

    Args:
        model: transformer, or the name or file of a transformer.
        plan: parallel plan: degrees, batch, schedule.
        cluster: chips and network, or the name of a chip.
        coefficients: fitted parameters, or a fit, or the name or file of a fit.

    Raises:
        InputError: an unknown name, a workload other than a transformer, a plan that breaks a rule, or too many passes.
    """
    given = resolved(model, plan, cluster, coefficients)
    if not isinstance(given.model, Transformer):
        raise InputError("a traced workload has no pipeline; expected a transformer")
    refuse_broken(given.model, given.plan, given.cluster)
    words = given.plan.words()
    pp, vpp, n = (int(words[name]) for name in ("pp", "vpp", "n_microbatches"))
    if pp * vpp * n > MOST_OPERATIONS:
        raise InputError(
            f"pp * vpp * n_microbatches = {pp * vpp * n:,} passes are too many for a timeline;"
            f" expected at most {MOST_OPERATIONS:,}"
        )
    stages = _evaluated(given)
    times, forward, weights = _stage_times(stages, pp, vpp), float(stages.forward), float(stages.weights)
    shares = {FORWARD: forward, BACKWARD: 1.0 - forward, WEIGHT_GRADIENT: weights}
    shares[INPUT_GRADIENT] = shares[BACKWARD] - weights
    orders = operation_orders(words["schedule"], pp, vpp, n)
    events = simulated(orders, pp * vpp, lambda operation: times[operation.stage] * shares[operation.kind])
    step = {name: float(value) for name, value in stages.step.terms().items()}
    passes = sum(step.values()) - sum(step[name] for name in AFTER_THE_PASSES)
    stretch = passes / makespan(events)
    stretched = tuple(event._replace(start=event.start * stretch, end=event.end * stretch) for event in events)
    return StepTimeline(stretched, step, _hidden(given, step), stretch, words)


@eqx.filter_jit
def _evaluated(given: Arguments) -> _Stages:
    """Times of a step and its stages, computed by the functions of `step_time`."""
    model, plan, cluster, coefficients = as_arrays(given)
    local, machine = local_plan(model, plan), machine_of(cluster, coefficients)
    compute = (local, machine, coefficients)
    layers = microbatch_times(*compute)
    pace = microbatch_pace(*compute, layers)
    layer = (pace.stages.total - pace.head) / total_layers(model)
    return _Stages(
        step=times_of_step(*compute, layers),
        first=local.layers.first * layer,
        last=local.layers.last * layer + pace.head,
        head=pace.head,
        total=pace.stages.total,
        forward=pace.passes.forward,
        weights=pace.passes.weights,
    )


def _hidden(given: Arguments, step: dict[str, float]) -> dict[str, float]:
    """Time of collectives hidden by compute: the step time without overlap minus the step time, by term [s]."""
    nothing = {name: 0.0 for name in WITHOUT_OVERLAP}
    whole = _evaluated(given._replace(coefficients=replace(given.coefficients, **nothing))).step.terms()
    names = (*MICROBATCH_COLLECTIVES, "data_parallel")
    return {name: max(float(whole[name]) - step[name], 0.0) for name in names}


def _stage_times(stages: _Stages, pp: int, vpp: int) -> list[float]:
    """Time of one microbatch on each virtual stage, forward and backward [s]."""
    first, last, head, total = (float(getattr(stages, name)) for name in ("first", "last", "head", "total"))
    if pp == 1:
        return [total]
    between = (total - first - last) / max(pp - 2, 1)
    ranks = [first, *[between] * (pp - 2), last - head]
    times = [ranks[stage % pp] / vpp for stage in range(pp * vpp)]
    times[-1] += head
    return times


COLOURS = {
    FORWARD: SKY,
    BACKWARD: BLUE,
    INPUT_GRADIENT: BLUE,
    WEIGHT_GRADIENT: GREEN,
    "rest of the step": GREY,
}
"""Colour of each class of passes, and of the remainder of the step after the passes."""


def timeline_figure(timeline: "StepTimeline", title: str) -> "Figure":
    """Figure of a timeline; gaps in a row are the pipeline bubble.

    Args:
        timeline: events of a step.
        title: title of the figure.
    """
    unit, word = time_unit(timeline.makespan)
    end = makespan(timeline.passes)
    bars = [(event.operation.kind, event.rank, event.start, event.end) for event in timeline.passes]
    bars += [("rest of the step", rank, end, timeline.makespan) for rank in range(timeline.n_ranks)]
    with single_axes(9.0, 1.4 + 0.34 * timeline.n_ranks) as (figure, axes):
        for kind in dict.fromkeys(bar[0] for bar in bars):
            own = [bar for bar in bars if bar[0] == kind]
            ranks, left = [bar[1] for bar in own], [bar[2] / unit for bar in own]
            width = [(bar[3] - bar[2]) / unit for bar in own]
            axes.barh(ranks, width, left=left, height=0.84, color=COLOURS[kind], edgecolor="white", lw=0.4, label=kind)
        axes.set(xlabel=f"time [{word}]", ylabel="pipeline rank", title=title, yticks=range(timeline.n_ranks))
        axes.set_ylim(timeline.n_ranks - 0.4, -0.6)
        axes.grid(visible=False)
        legend_below(figure, entries_of(axes))
    return figure
