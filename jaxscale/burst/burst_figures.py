"""Figures of burst parallelism, and the report of a plan, from the document `burst_report`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.burst.burst_plan import BurstPlan
from jaxscale.burst.burst_report import burst_comparison, burst_layers, burst_verdict
from jaxscale.burst.layer_graph import LayerGraph
from jaxscale.report.document import Report
from jaxscale.report.figures.panels import ranked_bars
from jaxscale.report.style import BLUE, MARKERS, PALETTE, entries_of, legend_below, new_figure, single_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_FREE = "#E8EDF2"


def _powers_of_two(axis, values: np.ndarray) -> None:
    axis.set_ticks(values, [f"{v:,.0f}".replace(",", "\N{THIN SPACE}") for v in values])
    axis.set_ticks([], minor=True)


def plot_chips(graph: LayerGraph, plans: Mapping[str, BurstPlan], title: str) -> "Figure":
    """GPUs of each layer, in order; one line per plan.

    Args:
        plans: plans of the graph by label.
    """
    return plot_layer_chips({label: np.asarray(plan.chips)[~graph.is_join] for label, plan in plans.items()}, title)


def plot_layer_chips(plans: Mapping[str, ArrayLike], title: str) -> "Figure":
    """GPUs of each layer, in order; one line per plan.

    Args:
        plans: GPUs of the layers by label [1], [layer].
    """
    with single_axes(7.2, 3.4) as (figure, axes):
        most, count = 1.0, 1
        for index, (label, counts) in enumerate(plans.items()):
            chips = np.asarray(counts, float)
            most, count = max(most, chips.max()), len(chips)
            # Lines of equal counts would hide each other, so each line is shifted up by 3 %.
            lifted = chips * 1.03**index
            axes.step(np.arange(1, len(chips) + 1), lifted, where="mid", label=label, color=PALETTE[index])
        axes.set_yscale("log", base=2)
        _powers_of_two(axes.yaxis, 2.0 ** np.arange(np.log2(most) + 1))
        axes.set(xlabel="layer", ylabel="GPUs of the layer", title=title, xlim=(0.5, count + 0.5))
        if len(plans) > 1:
            legend_below(figure, entries_of(axes))
    return figure


def plot_time_line(plans: Mapping[str, BurstPlan], n_chips: int, title: str) -> "Figure":
    """Time line of an iteration of a chain under each plan: GPUs of the foreground job, and free GPUs.

    Args:
        plans: plans of a chain by label.
        n_chips: GPUs of the cluster [1].
    """
    with style():
        figure = new_figure(7.2, 1.3 + 1.5 * len(plans))
        rows = np.atleast_1d(figure.subplots(len(plans), 1, sharex=True))
        for axes, (label, plan) in zip(rows, plans.items(), strict=True):
            _draw_time_line(axes, plan, n_chips, label)
        rows[0].set_title(title)
        rows[-1].set_xlabel("time in the iteration [ms]")
        rows[-1].set_xlim(0.0, max(1e3 * float(plan.time) for plan in plans.values()))
        legend_below(figure, entries_of(rows[-1]))
    return figure


def _draw_time_line(axes: "Axes", plan: BurstPlan, n_chips: int, label: str) -> None:
    ends = 1e3 * np.cumsum(np.asarray(plan.step_time))
    starts = np.concatenate([[0.0], ends[:-1]])
    axes.bar(0.0, n_chips, ends[-1], align="edge", color=_FREE, label="free for background jobs")
    chips = np.asarray(plan.chips)
    axes.bar(starts, chips, ends - starts, align="edge", color=BLUE, ec="white", lw=0.3, label="foreground job")
    axes.set(ylim=(0, n_chips), yticks=[0, n_chips // 2, n_chips], ylabel=f"{label}\nGPUs")
    axes.grid(False)


def plot_gain(n_chips: np.ndarray, gains: Mapping[str, np.ndarray], band: tuple[float, float], title: str) -> "Figure":
    """Cluster throughput relative to data parallelism with a single task, against cluster size.

    Args:
        n_chips: cluster sizes [1].
        gains: gain by label; labels that end in `ideal` are dashed [1].
        band: lowest and highest published gain [1].
    """
    with single_axes(7.2, 4.2) as (figure, axes):
        axes.axhspan(*band, color=_FREE, zorder=0, label="published band")
        solid = [label for label in gains if not label.endswith("ideal")]
        for label, gain in gains.items():
            index = next(i for i, name in enumerate(solid) if label.startswith(name))
            line = "--" if label not in solid else "-"
            axes.plot(n_chips, gain, line, label=label, color=PALETTE[index], marker=MARKERS[index], ms=4)
        axes.set_xscale("log", base=2)
        _powers_of_two(axes.xaxis, np.asarray(n_chips))
        axes.set(xlabel="GPUs of the cluster", ylabel="throughput over data parallelism", title=title)
        legend_below(figure, entries_of(axes))
    return figure


def burst_ranking(document: Mapping[str, Any]) -> "Figure":
    """Iteration time and cluster throughput of each mode relative to data parallelism, the best first."""
    ways = document["ways"]
    quantities = {
        "time of one iteration [ms]": {way["way"]: 1e3 * way["time_s"] for way in ways},
        "cluster throughput over data parallelism": {way["way"]: way["ratio"] for way in ways},
    }
    return ranked_bars(quantities, burst_title(document), ways[0]["way"])


def burst_title(document: Mapping[str, Any]) -> str:
    """Network, samples and GPUs of a burst plan."""
    return f"{document['network']}, {document['batch']} samples on {document['gpus']} GPUs"


def burst_summary(document: Mapping[str, Any]) -> Report:
    """Report of a burst plan: ranking of plans, GPUs of each layer, tables.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(f"Bursts: {burst_title(document)}")
    report.add(burst_comparison(document))
    report.text(burst_verdict(document))
    caption = "Time of one iteration, and samples of all jobs over those of data parallelism alone."
    report.figure("ranking", burst_ranking(document), caption)
    report.heading("GPUs of each layer")
    chips = {"in bursts": np.asarray([float(layer["gpus"]) for layer in document["plan"]])}
    report.figure("layers", plot_layer_chips(chips, "GPUs of each layer"), "The burst plan, layer by layer.")
    report.add(burst_layers(document))
    return report
