"""Figures of the best design, its neighbourhood and its elasticities, and maps of a quantity over two variables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.report.style import BLUE, FAINT, INK, RED, entries_of, legend_below, round_ticks, seconds, single_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CURVE = "same number of parameters"
"""Label of the curve in a map of shapes."""


def shape_map(
    widths: ArrayLike,
    depths: ArrayLike,
    step_times: ArrayLike,
    *,
    curve: ArrayLike | None = None,
    path: ArrayLike | None = None,
    marks: Mapping[str, tuple[float, float]] | None = None,
    path_label: str = "search path",
    title: str = "Step time over width and depth",
) -> "Figure":
    """Contour map of step time over width and depth, with a path of points, for example of a search.

    Args:
        widths: d [1], [width].
        depths: L [1], [depth].
        step_times: step times [s], [depth, width]; nan without a plan.
        curve: (width, depth) along a constraint, for example a number of parameters [point, 2].
        path: (width, depth) of each point of the path [point, 2].
        marks: named points (width, depth), such as the published shape and the optimum.
        path_label: name of the path in the legend.
        title: title of the figure.
    """
    # Shapes without a plan stay blank.
    times = np.ma.masked_invalid(np.asarray(step_times, dtype=float))
    with single_axes(7.8, 5.0) as (figure, axes):
        # Levels of equal ratios.
        levels = np.geomspace(times.min(), times.max(), 15)
        filled = axes.contourf(widths, depths, times, levels=levels, cmap="cividis_r")
        bar = figure.colorbar(filled, ax=axes, pad=0.02)
        bar.set_label("step time [s]")
        chosen = levels[::2]
        bar.set_ticks(list(chosen), labels=[f"{level:.3g}" for level in chosen])
        axes.set(xscale="log", yscale="log", xlabel="width d_model", ylabel="depth n_layers", title=title)
        for axis, values in ((axes.xaxis, widths), (axes.yaxis, depths)):
            round_ticks(axis, (float(np.min(values)), float(np.max(values))))
        if curve is not None:
            line = np.asarray(curve, dtype=float)
            axes.plot(line[:, 0], line[:, 1], "--", color="white", lw=1.8, path_effects=_outline(), label=CURVE)
            # A curve of constant size may leave the map.
            axes.set(xlim=(np.min(widths), np.max(widths)), ylim=(np.min(depths), np.max(depths)))
        if path is not None:
            steps = np.asarray(path, dtype=float)
            axes.plot(steps[:, 0], steps[:, 1], ".-", color=INK, lw=1.6, ms=7, mfc="white", mew=0.8, label=path_label)
        _marks(axes, marks or {})
        axes.grid(visible=False)
        if entries := entries_of(axes):
            legend_below(figure, entries)
    return figure


def _outline() -> list[Any]:
    """Dark outline, which makes a white line visible in the legend."""
    from matplotlib import patheffects

    return [patheffects.Stroke(linewidth=3.2, foreground=INK), patheffects.Normal()]


def shape_profile(
    widths: ArrayLike,
    times: Mapping[str, ArrayLike],
    *,
    marks: Mapping[str, float] | None = None,
) -> "Figure":
    """Figure of time against width at a constant number of parameters, relative to the minimum of each curve.

    Args:
        widths: d [1], [width].
        times: quantities by name, in any unit; the marks lie on the last quantity [width].
        marks: named widths, such as published and optimum [1].
    """
    with single_axes(7.8, 4.2) as (figure, axes):
        for (name, values), colour, dash in zip(times.items(), (BLUE, RED, INK), ("-", "--", ":"), strict=False):
            curve = np.asarray(values, dtype=float)
            axes.plot(widths, 100.0 * (curve / np.nanmin(curve) - 1.0), dash, color=colour, lw=2.2, label=name)
        last = np.asarray(list(times.values())[-1], dtype=float)
        for (name, width), marker in zip((marks or {}).items(), "o*D", strict=False):
            height = 100.0 * (np.interp(width, np.asarray(widths, dtype=float), last) / np.nanmin(last) - 1.0)
            looks: dict[str, Any] = {"color": "white", "ms": 10} if marker == "o" else {"color": RED, "ms": 16}
            axes.plot(width, height, marker, mec=INK, ls="", label=name, zorder=4, **looks)
        axes.set(xscale="log", xlabel="width d_model", ylabel="above the minimum [%]")
        axes.set_title("Shapes of the same number of parameters")
        axes.set_ylim(-2.0, 60.0)
        round_ticks(axes.xaxis, (float(np.min(widths)), float(np.max(widths))))
        legend_below(figure, entries_of(axes))
    return figure


def _marks(axes: "Axes", marks: Mapping[str, tuple[float, float]]) -> None:
    for (name, (width, depth)), marker, colour in zip(marks.items(), "o*DP", ("white", RED, BLUE, INK), strict=False):
        axes.plot(width, depth, marker, color=colour, ms=16 if marker == "*" else 10, mec=INK, mew=1, ls="", label=name)


MOST_BARS = 14
"""Largest number of bars of elasticities [1]."""


def sensitivity_bars(
    elasticities: Mapping[str, float],
    *,
    step_time: float | None = None,
    title: str = "What the step time is sensitive to",
    answer: str = "step time",
    words: tuple[str, str] = ("faster", "slower"),
) -> "Figure":
    """Bar chart of elasticities, strongest first: relative change of an output by that of each quantity.

    Args:
        elasticities: d ln(answer) / d ln(quantity) by name [1].
        step_time: step time of the elasticities, for the headline [s].
        answer: name of the output.
        words: words for a smaller and a larger output.
    """
    ranked: Sequence[tuple[str, float]] = sorted(elasticities.items(), key=lambda item: -abs(item[1]))[:MOST_BARS]
    values = np.asarray([value for _, value in ranked])
    names = [name.replace("_", " ") for name, _ in ranked]
    headline = title if step_time is None else f"{title} ({seconds(step_time)})"
    with single_axes(7.8, 1.3 + 0.33 * len(ranked)) as (figure, axes):
        axes.barh(range(len(ranked)), values, color=[RED if v > 0 else BLUE for v in values], height=0.66)
        # Room for the numbers; the floor is for elasticities of zero.
        reach = 1.22 * max(float(np.max(np.abs(values), initial=0.0)), 1e-3)
        for row, value in enumerate(values):
            side = "left" if value >= 0 else "right"
            axes.text(value + np.copysign(0.012 * reach, value), row, f"{value:+.2f}", va="center", ha=side, size=9.5)
        axes.axvline(0.0, color=INK, lw=1)
        axes.set_yticks(range(len(ranked)), names)
        # Strongest quantity on top.
        axes.set_ylim(len(ranked) - 0.4, -0.6)
        # No empty half where all values have the sign of the opposite half.
        axes.set_xlim(-reach if (values < 0).any() else 0.0, reach if (values > 0).any() else 0.0)
        axes.set(xlabel=f"change of {answer} for +1 % [%]: blue {words[0]}, red {words[1]}", title=headline)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    return figure


def quantity_map(
    x: ArrayLike,
    y: ArrayLike,
    values: ArrayLike,
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    title: str,
    logarithmic: tuple[bool, bool] = (True, True),
) -> "Figure":
    """Map of a quantity over two axes; cells without a value are grey.

    Args:
        x: abscissae, ascending, and positive on a logarithmic axis [column].
        y: ordinates, ascending, and positive on a logarithmic axis [row].
        values: values of the quantity; nan without a value [row, column].
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        label: name and unit of the quantity.
        logarithmic: whether each axis is logarithmic.
    """
    cells = np.ma.masked_invalid(np.asarray(values, float))
    ends = [edges(points, is_log) for points, is_log in zip((x, y), logarithmic, strict=True)]
    xscale, yscale = ("log" if is_log else "linear" for is_log in logarithmic)
    with single_axes(7.6, 4.8) as (figure, axes):
        # Colour of cells without a value.
        axes.set_facecolor(FAINT)
        image = axes.pcolormesh(*ends, cells, cmap="cividis", rasterized=True)
        axes.set(xscale=xscale, yscale=yscale, xlabel=xlabel, ylabel=ylabel, title=title)
        for axis, own, is_log in zip((axes.xaxis, axes.yaxis), ends, logarithmic, strict=True):
            if is_log:
                round_ticks(axis, (float(own[0]), float(own[-1])), most=7)
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, pad=0.02, label=label)
    return figure


def edges(points: ArrayLike, logarithmic: bool = True) -> np.ndarray:
    """Edges of cells around points, at the middle of neighbours on a logarithmic or linear scale [edge]."""
    values = np.asarray(points, float)
    if logarithmic:
        # The middle in the logarithm is the geometric mean.
        return np.exp(edges(np.log(values), False))
    if len(values) == 1:
        # A single cell has width 1.
        return values[0] + np.asarray([-0.5, 0.5])
    middles = 0.5 * (values[1:] + values[:-1])
    # Outermost cells are symmetric about the points.
    return np.concatenate([[2.0 * values[0] - middles[0]], middles, [2.0 * values[-1] - middles[-1]]])
