"""Figure of a step's timeline: a row for each pipeline rank, a bar for each pass."""

from typing import TYPE_CHECKING

from jaxscale.report.style import BLUE, GREEN, GREY, SKY, entries_of, legend_below, single_axes, time_unit
from jaxscale.timeline.schedules import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, makespan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxscale.timeline.step_timeline import StepTimeline

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
