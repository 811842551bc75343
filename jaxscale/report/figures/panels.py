"""Several quantities against one axis each, side by side: model as lines with bands, published figures as marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.report.style import (
    INK,
    MARKERS,
    PALETTE,
    ROW,
    entries_of,
    fitting_columns,
    legend_below,
    new_figure,
    round_ticks,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CHIPS = 1e7
"""Values beyond which an axis is not one of counts that double [1]."""

DASHES = ("-", "--", "-.", ":")

WIDTH, HEIGHT = 4.2, 2.8
"""Of a panel, without its legend [inch]."""

MARGIN = 0.9
"""Of a panel, left of its axes and right of them [inch]."""

LETTERS = 8.0
"""Font size of legends [point]."""


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: headline.
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        x: common abscissae [point].
        lines: ordinates by label [point].
        bands: lower and upper ordinates by label of a line [point].
        marks: abscissa, ordinate and half-width of the accepted range by label.
        logarithmic: whether each of the axes is.
        from_zero: whether the ordinate starts at zero.
        whole: whether the ordinates are powers of two, such as degrees: they are drawn as steps.
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

    Returns:
        The figure.
    """
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
    """A legend below each panel of several curves; the figure grows by the tallest of each row."""
    tallest = 0
    for axes in shown:
        entries = entries_of(axes)
        if len(entries) > 1:
            n_columns = fitting_columns(list(entries), WIDTH - MARGIN, LETTERS)
            legend_below(figure, entries, axes, fontsize=LETTERS, ncols=n_columns)
            tallest = max(tallest, -(-len(entries) // n_columns))
    figure.set_figheight(figure.get_figheight() + n_rows * ROW * LETTERS * tallest)


def power_of_two_ticks(axis: Any, low: float, high: float, most: int = 6) -> None:
    """A few powers of two on a logarithmic axis: numbers of chips double. Quantities that are no counts keep theirs."""
    if high > MOST_CHIPS:
        return
    exponents = np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1)
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
        axes.set_ylim(0.0, 1.05 * axes.get_ylim()[1])
    if part.logarithmic[0]:
        power_of_two_ticks(axes.xaxis, float(np.min(part.x)), float(np.max(part.x)))
    if part.whole:
        _whole(axes, part)
    elif part.logarithmic[1]:
        round_ticks(axes.yaxis, axes.get_ylim())


def _whole(axes: Any, part: Panel) -> None:
    """An ordinate of powers of two, from one to the largest that occurs."""
    drawn = [
        np.asarray(values) for values in (*part.lines.values(), *(end for band in part.bands.values() for end in band))
    ]
    most = max(float(values.max()) for values in drawn)
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.84, 1.19 * max(most, 2.0))
    power_of_two_ticks(axes.yaxis, 1.0, max(most, 2.0), most=8)
