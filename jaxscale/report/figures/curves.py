"""Curves: rooflines, and any quantity against another."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.hardware.cluster import Chip
from jaxscale.report.style import MARKERS, PALETTE, entries_of, legend_below, new_figure, round_ticks, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def roofline(chips: Mapping[str, Chip], precision: str = "bf16", title: str = "Rooflines") -> "Figure":
    """Attainable flop/s against arithmetic intensity, and where memory stops being the limit.

    Args:
        chips: chips by label.
        precision: one of `PRECISIONS`.
        title: headline.

    Returns:
        The figure.
    """
    intensity = np.geomspace(1.0, 1e4, 200)
    with style():
        figure = new_figure(7.8, 4.4)
        axes: Any = figure.subplots()
        for (name, chip), colour, marker in zip(chips.items(), PALETTE, MARKERS, strict=False):
            peak, bandwidth = float(chip.peak(precision)), float(np.asarray(chip.hbm_bandwidth))
            label = f"{name}: ridge at {peak / bandwidth:.0f} flop/byte"
            axes.plot(intensity, np.minimum(peak, bandwidth * intensity) / 1e12, color=colour, lw=2.2, label=label)
            axes.plot(peak / bandwidth, peak / 1e12, marker, color=colour, ms=8)
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
    """Lines of one quantity against another.

    Args:
        x: common abscissae [point].
        lines: ordinates by label [point].
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        title: headline.
        logarithmic: whether each of the axes is.

    Returns:
        The figure.
    """
    with style():
        figure = new_figure(7.6, 4.4)
        axes: Any = figure.subplots()
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
