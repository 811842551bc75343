"""Maps: a quantity over two others by colour."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.report.style import FAINT, new_figure, round_ticks, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def quantity_map(
    x: ArrayLike, y: ArrayLike, values: ArrayLike, *, xlabel: str, ylabel: str, label: str, title: str
) -> "Figure":
    """A quantity over two logarithmic axes, each value a cell around its point; cells without one are grey.

    Args:
        x: abscissae, ascending and positive [column].
        y: ordinates, likewise [row].
        values: the quantity; nan where there is none [row, column].
        xlabel: name and unit of the abscissa.
        ylabel: name and unit of the ordinate.
        label: name and unit of the quantity.
        title: headline.

    Returns:
        The figure.
    """
    cells = np.ma.masked_invalid(np.asarray(values, float))
    with style():
        figure = new_figure(7.6, 4.8)
        axes: Any = figure.subplots()
        axes.set_facecolor(FAINT)
        image = axes.pcolormesh(edges(x), edges(y), cells, cmap="cividis", rasterized=True)
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel, title=title)
        for axis, ends in ((axes.xaxis, edges(x)), (axes.yaxis, edges(y))):
            round_ticks(axis, (float(ends[0]), float(ends[-1])), most=7)
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, pad=0.02, label=label)
    return figure


def edges(points: ArrayLike) -> np.ndarray:
    """Edges of cells around points on a logarithmic scale [edge]."""
    logs = np.log(np.asarray(points, float))
    if len(logs) == 1:
        return np.exp(logs[0] + np.asarray([-0.5, 0.5]))
    middles = 0.5 * (logs[1:] + logs[:-1])
    return np.exp(np.concatenate([[2.0 * logs[0] - middles[0]], middles, [2.0 * logs[-1] - middles[-1]]]))
