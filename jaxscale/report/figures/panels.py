"""Several quantities against one axis each, side by side: model as lines with bands, published figures as marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.report.style import INK, MARKERS, PALETTE, new_figure, round_ticks, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")


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
        figure = new_figure(4.0 * n_columns, 3.0 * n_rows)
        grid: Any = figure.subplots(n_rows, n_columns, squeeze=False)
        for axes, part in zip(grid.ravel(), parts, strict=False):
            _draw(axes, part)
        for axes in grid.ravel()[len(parts) :]:
            axes.set_axis_off()
    return figure


def power_of_two_ticks(axis: Any, low: float, high: float, most: int = 6) -> None:
    """A few powers of two on a logarithmic axis: numbers of chips double."""
    exponents = np.arange(np.ceil(np.log2(low)), np.floor(np.log2(high)) + 1)
    ticks = 2.0 ** exponents[:: -(-len(exponents) // most)]
    axis.set_ticks(ticks, [f"{tick:,.6g}".replace(",", "\N{THIN SPACE}") for tick in ticks])
    axis.set_ticks([], minor=True)


def _draw(axes: Any, part: Panel) -> None:
    for index, (name, values) in enumerate(part.lines.items()):
        colour, dash = PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)]
        axes.plot(part.x, values, dash, color=colour, lw=2.0, label=name)
        if name in part.bands:
            axes.fill_between(part.x, *part.bands[name], color=colour, alpha=0.18, lw=0)
    for index, (name, (x, y, half)) in enumerate(part.marks.items()):
        axes.errorbar(x, y, half, fmt=MARKERS[index % len(MARKERS)], color=INK, ms=6, capsize=3, label=name, zorder=5)
    axes.set(xlabel=part.xlabel, ylabel=part.ylabel, title=part.title)
    axes.set(xscale="log" if part.logarithmic[0] else "linear", yscale="log" if part.logarithmic[1] else "linear")
    if part.from_zero and not part.logarithmic[1]:
        axes.set_ylim(bottom=0.0)
    if part.logarithmic[0]:
        power_of_two_ticks(axes.xaxis, float(np.min(part.x)), float(np.max(part.x)))
    if part.logarithmic[1]:
        round_ticks(axes.yaxis, axes.get_ylim())
    axes.legend(loc="best", fontsize=7.5)
