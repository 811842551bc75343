"""Figure and report of a finished sweep: utilisation along its axis, or over the two axes of most values."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxscale.limits.sweep import SIZE, SweepSpec, load_sweep
from jaxscale.report.document import Report
from jaxscale.report.figures.design import quantity_map
from jaxscale.report.figures.panels import curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = {
    "_flop": "flop", "_flops": "flop/s", "_bandwidth": "byte/s", "_bytes": "byte", "_latency": "s", "_time": "s",
    "_batch": "token",
}  # fmt: skip
"""Unit of an axis by the end of its name; else a pure number."""


def axis_label(name: str) -> str:
    """Name of an axis with its unit."""
    words, unit = "training compute" if name == SIZE else name.replace("_", " "), unit_of(name)
    return f"{words} [{unit}]" if unit else words


def unit_of(name: str) -> str:
    """Unit of an axis; empty for a pure number."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def sweep_figure(spec: SweepSpec, folder: str | Path) -> "Figure":
    """Utilisation of a sweep, a curve along one axis or a map over two; points without a plan in time are left out.

    Of more than two axes those of most values are drawn, each other one at its middle value, which the headline names.
    """
    found = load_sweep(folder)
    in_time = np.where(found["feasible"], 100.0 * found["utilisation"], np.nan)
    shape = [len(values) for values in spec.axes.values()]
    drawn, others = drawn_axes(spec.axes)
    place = tuple(slice(None) if name in drawn else len(values) // 2 for name, values in spec.axes.items())
    values = in_time.reshape(shape)[place]
    title = "Utilisation of plans that end in time"
    if others:
        title += "; " + ", ".join(
            f"{name.replace('_', ' ')} {value:g} {unit_of(name)}".strip() for name, value in others.items()
        )
    if len(drawn) == 1:
        (axis,) = drawn
        order = np.argsort(spec.axes[axis])
        x, line = spec.axes[axis][order], {"utilisation": values[order]}
        return curves(x, line, xlabel=axis_label(axis), ylabel="utilisation [%]", title=title)
    down, across = drawn  # the last axis runs fastest
    rows, columns = (np.argsort(spec.axes[name]) for name in drawn)
    return quantity_map(
        spec.axes[across][columns],
        spec.axes[down][rows],
        values[np.ix_(rows, columns)],
        xlabel=axis_label(across),
        ylabel=axis_label(down),
        label="utilisation [%]",
        title=title,
    )


def drawn_axes(axes: Mapping[str, np.ndarray]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Up to two axes of most values in the order of the sweep, and the middle value of each further axis."""
    longest = sorted(axes, key=lambda name: -len(axes[name]))[:2]
    several = tuple(name for name in axes if name in longest and len(axes[name]) > 1) or (longest[0],)
    return several, {name: float(values[len(values) // 2]) for name, values in axes.items() if name not in several}


def sweep_report(spec: SweepSpec, folder: str | Path) -> Report:
    """Report of a finished sweep: its axes and its figure.

    Returns:
        The report; `save` writes it.
    """
    report = Report("Sweep of the limits")
    rows = [(name, len(values), f"{values.min():.4g}", f"{values.max():.4g}") for name, values in spec.axes.items()]
    report.table(("axis", "values", "from", "to"), rows)
    caption = "Best plan of each point." if spec.plan is None else "The stated plan at each point."
    report.figure("utilisation", sweep_figure(spec, folder), f"{caption} Grey: no plan ends in time.")
    return report
