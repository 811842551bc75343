"""Figures of serving: latency against requests in flight or request rate, and the front of throughput and latency."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxscale.report.style import (
    BLUE,
    GREEN,
    INK,
    MARKERS,
    ORANGE,
    PALETTE,
    RED,
    entries_of,
    legend_below,
    new_figure,
    round_ticks,
    single_axes,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxscale.serving.best_engine import ServingChoice
    from jaxscale.serving.serving_time import ServingTime
    from jaxscale.serving.under_load import LoadTime

MANY_SECONDS = 60.0
"""Time to the first token beyond which a curve is cut [s]."""


def latency_against_load(
    concurrency: Float[np.ndarray, " load"],
    times: "ServingTime",
    throughput_per_chip: Float[np.ndarray, " load"],
    limits: Mapping[str, float] | None = None,
    chosen: float | None = None,
) -> "Figure":
    """Figure of time per token, time to the first token and throughput against the requests in flight.

    Args:
        concurrency: requests in flight over all copies [1], [load].
        times: times at each load [load].
        throughput_per_chip: answer tokens of all copies over all chips in use [token/s], [load].
        limits: largest time per token `tpot` and to the first token `ttft` [s].
        chosen: chosen number of requests in flight [1].
    """
    bounds, room = limits or {}, float(np.asarray(times.max_batch).ravel()[0])
    first = np.where(np.asarray(times.ttft) < MANY_SECONDS, times.ttft, np.nan)
    parts = (
        ("Time per token", "time per token [ms]", 1e3 * np.asarray(times.tpot), 1e3, "tpot", BLUE),
        ("Time to the first token", "time to the first token [s]", first, 1.0, "ttft", ORANGE),
        ("Throughput", "answer tokens per second and chip", throughput_per_chip, 1.0, "", GREEN),
    )
    with style():
        figure = new_figure(12.0, 4.1)
        grid: Any = figure.subplots(1, 3)
        for axes, (title, label, values, unit, bound, colour) in zip(grid, parts, strict=True):
            axes.plot(concurrency, values, color=colour, lw=2.2)
            if concurrency[0] < room < concurrency[-1]:
                axes.axvspan(
                    room, concurrency[-1], color="#EDEDED", lw=0, zorder=0, label="beyond memory: requests wait"
                )
            if chosen is not None:
                axes.axvline(chosen, color=INK, lw=1.2, ls=":", label="chosen")
            if bound in bounds:
                axes.axhline(unit * bounds[bound], color=RED, lw=1.4, ls="--", label="limit")
            axes.set(xscale="log", xlabel="requests in flight", ylabel=label, title=title)
            axes.set_xlim(concurrency[0], concurrency[-1])
            if bound == "ttft":
                axes.set_yscale("log")  # queueing raises the time from fractions of a second to minutes
                round_ticks(axes.yaxis, axes.get_ylim())
            else:
                axes.set_ylim(bottom=0.0)
            round_ticks(axes.xaxis, (concurrency[0], concurrency[-1]), most=5)
        if entries := entries_of(*grid):
            legend_below(figure, entries)
    return figure


def percentiles_against_rate(rates: Float[np.ndarray, " rate"], load: "LoadTime") -> "Figure":
    """Figure of percentiles of end-to-end time against the rate of requests, with saturation.

    Args:
        rates: arrival rates of requests [1/s], [rate].
        load: results of `serving_under_load` at each rate [rate].
    """
    saturation = float(np.asarray(load.saturation).ravel()[0])
    # Beyond saturation an endless stream has no finite time.
    kept = rates < saturation
    with single_axes(8.0, 4.2) as (figure, axes):
        for name, label, colour in (("p50", "median", BLUE), ("p90", "90 %", GREEN), ("p99", "99 %", ORANGE)):
            axes.plot(rates[kept], np.asarray(getattr(load.e2e, name))[kept], color=colour, lw=2.2, label=label)
        axes.axvline(saturation, color=RED, lw=1.4, ls="--", label="saturation")
        axes.set(xlabel="requests per second", ylabel="time of a request [s]", yscale="log")
        axes.set_title("Time that a share of the requests keeps")
        axes.set_xlim(0.0, 1.05 * saturation)
        round_ticks(axes.yaxis, axes.get_ylim())
        legend_below(figure, entries_of(axes))
    return figure


def serving_frontier(choice: "ServingChoice", tpot_limit: float | None = None) -> "Figure":
    """Figure of the Pareto front of throughput per chip and time per token, with the best engines.

    Args:
        choice: result of a search for engines.
        tpot_limit: largest time per token, if any [s].
    """
    latency, throughput = choice.frontier.T
    with single_axes(8.8, 4.6) as (figure, axes):
        axes.plot(
            # For a limit between two engines, the faster engine is the best allowed.
            1e3 * latency,
            throughput,
            "-",
            color=INK,
            lw=1.6,
            drawstyle="steps-post",
            label="frontier of all engines",
        )
        for scored, colour, marker in zip(choice.top, PALETTE, MARKERS, strict=False):
            place = (1e3 * scored.tpot, scored.throughput_per_chip)
            axes.plot(*place, marker, color=colour, mec=INK, ms=8, ls="", label=scored.label, zorder=5)
        if tpot_limit is not None:
            axes.axvline(1e3 * tpot_limit, color=RED, lw=1.4, ls="--", label="limit")
        axes.set(xscale="log", xlabel="time per token [ms]", ylabel="answer tokens per second and chip")
        axes.set_title("Throughput against latency")
        axes.set_ylim(bottom=0.0)
        round_ticks(axes.xaxis, axes.get_xlim())
        legend_below(figure, entries_of(axes))
    return figure
