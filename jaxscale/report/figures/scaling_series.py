"""Measured scaling series against predictions with intervals, one set of axes for each table, and their slopes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.report.figures.panels import power_of_two_ticks
from jaxscale.report.style import FAINT, INK, MARKERS, PALETTE, entries_of, legend_below, new_figure, round_ticks, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ScalingSeries:
    """One series to draw.

    Attributes:
        group: set of axes that it belongs to.
        n_chips: chips [point].
        measured: throughput per chip [token/s], [point].
        predicted: the same by the model [token/s], [point].
        half_width: of the central 90 % interval of its logarithm [1], [point].
        slopes: measured and predicted slope of log throughput per chip against log chips [1].
    """

    group: str
    n_chips: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    half_width: np.ndarray
    slopes: tuple[float, float]


def scaling_series(series: Sequence[ScalingSeries], tolerance: float = 0.02) -> "Figure":
    """Measured and predicted throughput per chip of every series, and predicted against measured slopes.

    Args:
        series: the series, in the order of their groups.
        tolerance: half-width of the accepted range of slopes [1].

    Returns:
        The figure.
    """
    groups = list(dict.fromkeys(one.group for one in series))
    n_columns = 3
    n_rows = -(-(len(groups) + 1) // n_columns)
    with style():
        figure = new_figure(3.5 * n_columns, 2.8 * n_rows)
        grid = list(np.ravel(np.asarray(figure.subplots(n_rows, n_columns, squeeze=False))))
        for axes, group in zip(grid, groups, strict=False):
            _draw_group(axes, group, [one for one in series if one.group == group])
        _draw_slopes(grid[len(groups)], groups, series, tolerance)
        for axes in grid[len(groups) + 1 :]:
            axes.set_axis_off()
        grid[0].plot([], [], "o", color=INK, ms=4, label="measured")
        grid[0].plot([], [], color=INK, lw=1.4, label="predicted, 90 % interval")
        legend_below(figure, entries_of(grid[0], grid[len(groups)]))
    return figure


def _draw_group(axes: Any, group: str, series: Sequence[ScalingSeries]) -> None:
    for index, one in enumerate(series):
        colour = PALETTE[index % len(PALETTE)]
        order = np.argsort(one.n_chips, kind="stable")
        n, predicted, half = one.n_chips[order], one.predicted[order], one.half_width[order]
        axes.fill_between(n, predicted * np.exp(-half), predicted * np.exp(half), color=colour, alpha=0.15, lw=0)
        axes.plot(n, predicted, color=colour, lw=1.4)
        axes.plot(n, one.measured[order], "o", color=colour, ms=4)
    axes.set(xscale="log", yscale="log", xlabel="chips", ylabel="tokens/s per chip", title=group)
    everything = np.concatenate([one.n_chips for one in series])
    power_of_two_ticks(axes.xaxis, everything.min(), everything.max(), most=5)
    round_ticks(axes.yaxis, axes.get_ylim())


def _draw_slopes(axes: Any, groups: Sequence[str], series: Sequence[ScalingSeries], tolerance: float) -> None:
    slopes = np.asarray([one.slopes for one in series])
    ends = np.asarray([slopes.min() - 0.02, slopes.max() + 0.02])
    axes.fill_between(
        ends, ends - tolerance, ends + tolerance, color=FAINT, alpha=0.4, lw=0, label=f"slopes within {tolerance:g}"
    )
    for group, colour, marker in zip(groups, PALETTE, MARKERS, strict=False):
        inside = np.asarray([one.group == group for one in series])
        axes.plot(*slopes[inside].T, marker, color=colour, ms=5, ls="", label=f"slope: {group}")
    within = float(np.mean(np.abs(slopes[:, 1] - slopes[:, 0]) <= tolerance))
    axes.set(xlabel="measured slope", ylabel="predicted slope")
    axes.set_title(f"Slopes: {100 * within:.0f} % within {tolerance:g}")
