"""Figures of quantities along an axis: rooflines, curves, panels with bands and marks, measured scaling series."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.hardware.cluster import Chip
from jaxscale.report.style import (
    FAINT,
    INK,
    MARKERS,
    PALETTE,
    ROW,
    entries_of,
    fitting_columns,
    legend_below,
    new_figure,
    round_ticks,
    single_axes,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def roofline(
    chips: Mapping[str, Chip],
    precision: str = "bf16",
    title: str = "Rooflines",
    attained: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
) -> "Figure":
    """Roofline: attainable flop/s against arithmetic intensity, with the ridge point of each chip.

    Args:
        chips: chips by label.
        precision: one of `PRECISIONS`.
        attained: intensity [flop/byte] and rate [flop/s] of single kernels by label, drawn as points [point].
    """
    intensity = np.geomspace(1.0, 1e4, 200)
    with single_axes(7.8, 4.4) as (figure, axes):
        for (name, chip), colour, marker in zip(chips.items(), PALETTE, MARKERS, strict=False):
            peak, bandwidth = float(chip.peak(precision)), float(np.asarray(chip.hbm_bandwidth))
            label = f"{name}: ridge at {peak / bandwidth:.0f} flop/byte"
            # min(peak, bandwidth times intensity) [Tflop/s]
            axes.plot(intensity, np.minimum(peak, bandwidth * intensity) / 1e12, color=colour, lw=2.2, label=label)
            # Ridge point: memory and matrix units take equal time.
            axes.plot(peak / bandwidth, peak / 1e12, marker, color=colour, ms=8)
        looks = zip((attained or {}).items(), PALETTE[len(chips) :], MARKERS[len(chips) :], strict=False)
        for (name, (x, rates)), colour, marker in looks:
            axes.plot(x, np.asarray(rates) / 1e12, marker, color=colour, ms=5, mew=0.0, alpha=0.8, label=name)
        axes.set(
            xscale="log", yscale="log", xlabel="arithmetic intensity [flop/byte]", ylabel="attainable rate [Tflop/s]"
        )
        axes.set_title(f"{title} ({precision}, dense)")
        legend_below(figure, entries_of(axes))
    return figure


def curves(
    x: ArrayLike,
    lines: Mapping[str, ArrayLike],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    logarithmic: tuple[bool, bool] = (True, False),
) -> "Figure":
    """Lines of a quantity against an abscissa.

    Args:
        x: common abscissae [point].
        lines: ordinates by label [point].
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        logarithmic: whether each axis is logarithmic.
    """
    with single_axes(7.6, 4.4) as (figure, axes):
        for (name, values), colour, dash in zip(lines.items(), PALETTE, ("-", "--", "-.", ":") * 3, strict=False):
            axes.plot(x, values, dash, color=colour, lw=2.2, label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axes.set(xscale="log" if logarithmic[0] else "linear", yscale="log" if logarithmic[1] else "linear")
        for axis, is_log in zip((axes.xaxis, axes.yaxis), logarithmic, strict=True):
            if is_log:
                round_ticks(axis, axis.get_view_interval())
        if not logarithmic[1]:
            axes.set_ylim(bottom=0.0)
        if len(lines) > 1:
            legend_below(figure, entries_of(axes))
    return figure


MOST_CHIPS = 1e7
"""Value beyond which ticks of an axis are not powers of two [1]."""

DASHES = ("-", "--", "-.", ":")

WIDTH, HEIGHT = 4.2, 2.8
"""Width and height of a panel, without the legend [inch]."""

MARGIN = 0.9
"""Margin of a panel to the left and right of the axes [inch]."""

LETTERS = 8.0
"""Font size of legends [point]."""


@dataclass(frozen=True)
class Panel:
    """Axes with lines, bands and marks.

    Attributes:
        title: headline.
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        x: common abscissae [point].
        lines: ordinates by label [point].
        bands: lower and upper ordinates by label of a line [point].
        marks: abscissa, ordinate and half-width of the accepted range by label.
        logarithmic: whether each axis is logarithmic.
        from_zero: whether the ordinate starts at zero.
        whole: whether the ordinates are powers of two, drawn as steps.
    """

    title: str
    xlabel: str
    ylabel: str
    x: ArrayLike
    lines: Mapping[str, ArrayLike]
    bands: Mapping[str, tuple[ArrayLike, ArrayLike]] = field(default_factory=dict)
    marks: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    logarithmic: tuple[bool, bool] = (True, False)
    from_zero: bool = True
    whole: bool = False


def panels(parts: Sequence[Panel], n_columns: int = 2) -> "Figure":
    """Draw panels in rows.

    Args:
        parts: the panels, row by row.
        n_columns: panels in a row [1].
    """
    # Rounded up.
    n_rows = -(-len(parts) // n_columns)
    with style():
        figure = new_figure(WIDTH * n_columns, HEIGHT * n_rows)
        grid: Any = figure.subplots(n_rows, n_columns, squeeze=False)
        for axes, part in zip(grid.ravel(), parts, strict=False):
            _draw(axes, part)
        for axes in grid.ravel()[len(parts) :]:
            axes.set_axis_off()
        _legends(figure, grid[:, 0].size, grid.ravel()[: len(parts)])
    return figure


def _legends(figure: "Figure", n_rows: int, shown: np.ndarray) -> None:
    """Add a legend below each panel of several curves; the figure grows by the tallest legend of each row."""
    tallest = 0
    for axes in shown:
        entries = entries_of(axes)
        if len(entries) > 1:
            n_columns = fitting_columns(list(entries), WIDTH - MARGIN, LETTERS)
            legend_below(figure, entries, axes, fontsize=LETTERS, ncols=n_columns)
            tallest = max(tallest, -(-len(entries) // n_columns))
    figure.set_figheight(figure.get_figheight() + n_rows * ROW * LETTERS * tallest)


def power_of_two_ticks(axis: Any, low: float, high: float, most: int = 6) -> None:
    """Use a few powers of two as ticks of a logarithmic axis of counts; axes of further quantities are unchanged."""
    if high > MOST_CHIPS:
        return
    exponents = np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1)
    # Every k-th power: at most `most` ticks.
    ticks = 2.0 ** exponents[:: -(-len(exponents) // most)]
    axis.set_ticks(ticks, [f"{tick:,.6g}".replace(",", "\N{THIN SPACE}") for tick in ticks])
    axis.set_ticks([], minor=True)


def _draw(axes: Any, part: Panel) -> None:
    looks, steps = ({"drawstyle": "steps-mid"}, "mid") if part.whole else ({}, None)
    for index, (name, values) in enumerate(part.lines.items()):
        colour, dash = PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)]
        axes.plot(part.x, values, dash, color=colour, lw=2.0, label=name, **looks)
        if name in part.bands:
            axes.fill_between(part.x, *part.bands[name], color=colour, alpha=0.18, lw=0, step=steps)
    for index, (name, (x, y, half)) in enumerate(part.marks.items()):
        axes.errorbar(x, y, half, fmt=MARKERS[index % len(MARKERS)], color=INK, ms=6, capsize=3, label=name, zorder=5)
    axes.set(xlabel=part.xlabel, ylabel=part.ylabel, title=part.title)
    axes.set(xscale="log" if part.logarithmic[0] else "linear", yscale="log" if part.logarithmic[1] else "linear")
    if part.from_zero and not part.logarithmic[1]:
        # Room above the highest line.
        axes.set_ylim(0.0, 1.05 * axes.get_ylim()[1])
    if part.logarithmic[0]:
        power_of_two_ticks(axes.xaxis, float(np.min(part.x)), float(np.max(part.x)))
    if part.whole:
        _whole(axes, part)
    elif part.logarithmic[1]:
        round_ticks(axes.yaxis, axes.get_ylim())


def _whole(axes: Any, part: Panel) -> None:
    """Use powers of two, from 1 to the largest value, as ticks of the ordinate."""
    drawn = [
        np.asarray(values) for values in (*part.lines.values(), *(end for band in part.bands.values() for end in band))
    ]
    most = max(float(values.max()) for values in drawn)
    axes.set_yscale("log", base=2)
    # A quarter of an octave of room at either end.
    axes.set_ylim(0.84, 1.19 * max(most, 2.0))
    power_of_two_ticks(axes.yaxis, 1.0, max(most, 2.0), most=8)


@dataclass(frozen=True)
class ScalingSeries:
    """Measured scaling series with predictions.

    Attributes:
        group: axes of the series.
        n_chips: chips [point].
        measured: throughput per chip [token/s], [point].
        predicted: throughput per chip by the model [token/s], [point].
        half_width: half-width of the central 90 % interval of the log throughput [1], [point].
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
        # The half-width is of the log throughput.
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
