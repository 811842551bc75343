"""Figures of terms and of quantities along an axis: bars, rooflines, panels with bands and marks, scaling series."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.base.units import GB
from jaxscale.costs.step import TERMS
from jaxscale.hardware.cluster import Chip
from jaxscale.report.style import (
    BLUE,
    COLOUR_NAMES,
    FAINT,
    GREEN,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    PALETTE,
    RED,
    ROW,
    entries_of,
    fitting_columns,
    legend_below,
    literal,
    new_figure,
    round_ticks,
    single_axes,
    style,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Mapping[str, tuple[str, str]] = {term.name: (COLOUR_NAMES[term.colour], term.hatch) for term in TERMS}
"""Colour of each family (compute, memory, communication, pipeline, overhead), with hatches for its members."""

PASS_COLOURS = {"weights": (BLUE, ""), "collectives": (ORANGE, ""), "floors": (GREY, ""), "prompts": (GREEN, "")}
"""Colours of the terms of a forward pass in serving."""

LETTERS = 32
"""Largest line length of a bar's label [character]."""

SMALLEST = 0.01
"""Terms below this share of every step are pooled [1]."""


def step_breakdown(
    steps: Mapping[str, Mapping[str, float]],
    title: str = "Where the time of a step goes",
    xlabel: str = "time of one step",
    intervals: Mapping[str, tuple[float, float]] | None = None,
) -> "Figure":
    """Figure of step times as stacked horizontal bars of cost terms, in a common unit.

    Args:
        steps: terms of each bar by name, by label of the bar [s].
        title: title of the figure.
        xlabel: label of the time axis.
        intervals: ends of the time interval by label of the bar, if any [s].
    """
    totals = {label: sum(terms.values()) for label, terms in steps.items()}
    reaches = {label: max([total, *(intervals or {}).get(label, ())]) for label, total in totals.items()}
    longest = max(reaches.values())
    unit, word = time_unit(longest)
    names = list(next(iter(steps.values())))
    # A term large in a single bar is shown in all bars.
    large = [n for n in names if any(t[n] >= SMALLEST * totals[label] for label, t in steps.items())]
    small = [n for n in names if n not in large]
    with single_axes(8.8, 1.1 + 0.62 * len(steps)) as (figure, axes):
        for row, (label, terms) in enumerate(steps.items()):
            shown = {name: terms[name] for name in large}
            if small:
                shown["other"] = sum(terms[name] for name in small)
            _bar(axes, row, {name: value / unit for name, value in shown.items()}, longest / unit)
            end, total = (reaches[label] + 0.01 * longest) / unit, f"{totals[label] / unit:.3g} {word}"
            axes.text(end, row, total, va="center", weight="bold")
            if intervals and label in intervals:
                low, high = (end / unit for end in intervals[label])
                # Below the bar, with half-height 0.31.
                axes.errorbar(0.5 * (low + high), row + 0.4, xerr=0.5 * (high - low), color=INK, capsize=3, lw=1.2)
        axes.set_yticks(range(len(steps)), [fill(literal(label), LETTERS, break_on_hyphens=False) for label in steps])
        # First bar on top.
        axes.set_ylim(len(steps) - 0.45, -0.55)
        # Room for the total beside the longest bar.
        axes.set_xlim(0, 1.14 * longest / unit)
        axes.set(xlabel=f"{xlabel} [{word}]", title=title)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        stacks = {handle.get_label(): handle for handle in axes.containers}
        stacks = {name: handle for name, handle in stacks.items() if not str(name).startswith("_")}
        legend_below(figure, stacks, handlelength=1.3)
    return figure


def _bar(axes: "Axes", row: int, terms: Mapping[str, float], longest: float) -> None:
    left = 0.0
    for name, value in terms.items():
        colour, hatch = COLOURS.get(name) or PASS_COLOURS.get(name, ("#D0D0D0", ""))
        label = name.replace("_", " ")
        axes.barh(row, value, left=left, height=0.62, color=colour, hatch=hatch, edgecolor="white", lw=0.6, label=label)
        # A share is legible inside a bar above 13 % of the longest.
        if value > 0.13 * longest:
            share = f"{100 * value / sum(terms.values()):.0f} %"
            # White text on dark colours, ink on light colours.
            dark = colour in (BLUE, GREY, INK, RED, GREEN)
            background = {"facecolor": colour, "edgecolor": "none", "pad": 1.0}
            axes.text(
                left + value / 2, row, share, ha="center", va="center", color="white" if dark else INK, bbox=background
            )
        left += value


ROW_LETTERS = 30
"""Largest line length of a row's label [character]."""


def ranked_bars(quantities: Mapping[str, Mapping[str, float]], title: str, best: str | None = None) -> "Figure":
    """Figure of several quantities as horizontal bars: one axes per quantity, side by side with common rows.

    Args:
        quantities: values by row, by label and unit of the axis; a row may be absent.
        title: title of the figure.
        best: highlighted row.
    """
    rows = list(dict.fromkeys(row for values in quantities.values() for row in values))
    with style():
        figure = new_figure(4.2 + 3.2 * len(quantities), 1.3 + 0.36 * len(rows))
        grid: Any = figure.subplots(1, len(quantities), sharey=True, squeeze=False)[0]
        for axes, (label, values) in zip(grid, quantities.items(), strict=True):
            # A row of zeros leaves the axis a positive length.
            longest = max((abs(value) for value in values.values()), default=0.0) or 1.0
            for place, row in enumerate(rows):
                if row in values:
                    axes.barh(place, values[row], height=0.66, color=BLUE if best in (None, row) else FAINT)
                    text = f"{values[row]:,.3g}" if abs(values[row]) < 1e3 else f"{values[row]:,.0f}"
                    axes.text(max(values[row], 0.0) + 0.015 * longest, place, text, va="center", size=9.5)
            # Room for the number beside the longest bar; first row on top.
            axes.set(xlabel=label, xlim=(0.0, 1.2 * longest), ylim=(len(rows) - 0.4, -0.6))
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.locator_params(axis="x", nbins=5)
        grid[0].set_yticks(range(len(rows)), [fill(literal(row), ROW_LETTERS, break_on_hyphens=False) for row in rows])
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    return figure


def time_against_memory(plans: Mapping[str, tuple[float, float]], limit: float, title: str) -> "Figure":
    """Figure of step time against peak memory of plans, with the memory limit.

    Args:
        plans: peak memory [byte] and step time [s] by label.
        limit: largest accepted predicted peak [byte].
        title: title of the figure.
    """
    with single_axes(7.6, 4.0) as (figure, axes):
        for index, (label, (memory, time)) in enumerate(plans.items()):
            marker, colour = MARKERS[index % len(MARKERS)], PALETTE[index % len(PALETTE)]
            axes.plot(memory / GB, time, marker, color=colour, mec=INK, ms=9, ls="", alpha=0.85, label=label)
        axes.axvline(limit / GB, color=RED, lw=1.4, ls="--", label="memory that a plan may take")
        axes.set(xlabel="peak memory of the fullest chip [GB]", ylabel="step time [s]", title=title)
        axes.set_xlim(0.0, 1.05 * max([limit, *(memory for memory, _ in plans.values())]) / GB)
        axes.margins(y=0.25)
        legend_below(figure, entries_of(axes))
    return figure


def roofline(
    chips: Mapping[str, Chip],
    precision: str = "bf16",
    title: str = "Rooflines",
    attained: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
) -> "Figure":
    """Roofline figure: attainable flop/s against arithmetic intensity, with the ridge point of each chip.

    Args:
        chips: chips by label.
        precision: one of `PRECISIONS`.
        title: title of the figure.
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
    """Figure of lines of a quantity against an abscissa.

    Args:
        x: common abscissae [point].
        lines: ordinates by label [point].
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        title: title of the figure.
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

LETTER_SIZE = 8.0
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
    """Figure of panels in rows.

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
            n_columns = fitting_columns(list(entries), WIDTH - MARGIN, LETTER_SIZE)
            legend_below(figure, entries, axes, fontsize=LETTER_SIZE, ncols=n_columns)
            tallest = max(tallest, -(-len(entries) // n_columns))
    figure.set_figheight(figure.get_figheight() + n_rows * ROW * LETTER_SIZE * tallest)


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


TOLERANCE = 0.02
"""Half-width of the accepted range of slopes [1]."""


def scaling_series(series: Sequence[ScalingSeries]) -> "Figure":
    """Figure of measured and predicted throughput per chip of each series, and of predicted against measured slopes.

    Args:
        series: the series, in the order of their groups.
    """
    groups = list(dict.fromkeys(one.group for one in series))
    n_columns = 3
    n_rows = -(-(len(groups) + 1) // n_columns)
    with style():
        figure = new_figure(3.5 * n_columns, 2.8 * n_rows)
        grid = list(np.ravel(np.asarray(figure.subplots(n_rows, n_columns, squeeze=False))))
        for axes, group in zip(grid, groups, strict=False):
            _draw_group(axes, group, [one for one in series if one.group == group])
        _draw_slopes(grid[len(groups)], groups, series)
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


def _draw_slopes(axes: Any, groups: Sequence[str], series: Sequence[ScalingSeries]) -> None:
    slopes = np.asarray([one.slopes for one in series])
    ends = np.asarray([slopes.min() - 0.02, slopes.max() + 0.02])
    axes.fill_between(
        ends, ends - TOLERANCE, ends + TOLERANCE, color=FAINT, alpha=0.4, lw=0, label=f"slopes within {TOLERANCE:g}"
    )
    for group, colour, marker in zip(groups, PALETTE, MARKERS, strict=False):
        inside = np.asarray([one.group == group for one in series])
        axes.plot(*slopes[inside].T, marker, color=colour, ms=5, ls="", label=f"slope: {group}")
    within = float(np.mean(np.abs(slopes[:, 1] - slopes[:, 0]) <= TOLERANCE))
    axes.set(xlabel="measured slope", ylabel="predicted slope")
    axes.set_title(f"Slopes: {100 * within:.0f} % within {TOLERANCE:g}")
