"""Figures of step-time terms and rankings: bars side by side, plans by time and memory."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

from jaxscale.base.units import GB
from jaxscale.costs.step import TERMS
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
    entries_of,
    legend_below,
    literal,
    new_figure,
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
    """Stacked horizontal bars of steps by term, in a common unit.

    Args:
        steps: terms of each bar by name, by label of the bar [s].
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
    """Horizontal bars of quantities: axes side by side with common rows.

    Args:
        quantities: values by row, by label and unit of the axis; a row may be absent.
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
    """Step time against peak memory of plans, with the memory limit.

    Args:
        plans: peak memory [byte] and step time [s] by label.
        limit: largest accepted predicted peak [byte].
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
