"""Figures of rankings: horizontal bars side by side, and plans by their time and memory."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

from jaxscale.base.units import GB
from jaxscale.report.style import (
    BLUE,
    FAINT,
    INK,
    MARKERS,
    PALETTE,
    RED,
    entries_of,
    legend_below,
    literal,
    new_figure,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = 30
"""Length at which the label of a row is broken into lines [1]."""


def ranked_bars(quantities: Mapping[str, Mapping[str, float]], title: str, best: str | None = None) -> "Figure":
    """Horizontal bars of one or several quantities, a set of axes for each, the rows in common.

    Args:
        quantities: for each axis, by its label with unit, the values by row; a row may lack one.
        title: headline.
        best: row that stands out.

    Returns:
        The figure.
    """
    rows = list(dict.fromkeys(row for values in quantities.values() for row in values))
    with style():
        figure = new_figure(4.2 + 3.2 * len(quantities), 1.3 + 0.36 * len(rows))
        grid: Any = figure.subplots(1, len(quantities), sharey=True, squeeze=False)[0]
        for axes, (label, values) in zip(grid, quantities.items(), strict=True):
            longest = max((abs(value) for value in values.values()), default=0.0) or 1.0
            for place, row in enumerate(rows):
                if row in values:
                    axes.barh(place, values[row], height=0.66, color=BLUE if best in (None, row) else FAINT)
                    text = f"{values[row]:,.3g}" if abs(values[row]) < 1e3 else f"{values[row]:,.0f}"
                    axes.text(max(values[row], 0.0) + 0.015 * longest, place, text, va="center", size=9.5)
            axes.set(xlabel=label, xlim=(0.0, 1.2 * longest), ylim=(len(rows) - 0.4, -0.6))
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.locator_params(axis="x", nbins=5)
        grid[0].set_yticks(range(len(rows)), [fill(literal(row), LETTERS, break_on_hyphens=False) for row in rows])
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    return figure


def time_against_memory(plans: Mapping[str, tuple[float, float]], limit: float, title: str) -> "Figure":
    """Step time against peak memory of plans, with the memory that they may take.

    Args:
        plans: peak memory [byte] and step time [s] by label.
        limit: largest predicted peak that is accepted [byte].
        title: headline.

    Returns:
        The figure.
    """
    with style():
        figure = new_figure(7.6, 4.0)
        axes: Any = figure.subplots()
        for index, (label, (memory, time)) in enumerate(plans.items()):
            marker, colour = MARKERS[index % len(MARKERS)], PALETTE[index % len(PALETTE)]
            axes.plot(memory / GB, time, marker, color=colour, mec=INK, ms=9, ls="", alpha=0.85, label=label)
        axes.axvline(limit / GB, color=RED, lw=1.4, ls="--", label="memory that a plan may take")
        axes.set(xlabel="peak memory of the fullest chip [GB]", ylabel="step time [s]", title=title)
        axes.set_xlim(0.0, 1.05 * max([limit, *(memory for memory, _ in plans.values())]) / GB)
        axes.margins(y=0.25)
        legend_below(figure, entries_of(axes))
    return figure
