"""Figures of a fit: coefficients against the priors, profile likelihoods, correlations."""

from typing import TYPE_CHECKING

import numpy as np

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.intervals import Z90
from jaxscale.report.style import BLUE, GREY, ORANGE, entries_of, legend_below, single_axes, small_multiples, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from jaxscale.fitting.result import FitResult


FEW = 6
"""Number of best identified coefficients in a figure [1]."""


def coefficient_intervals(result: "FitResult") -> "Figure":
    """90 % intervals of identified coefficients over the intervals of the priors, in prior standard deviations.

    Unidentified coefficients have the intervals of their priors and are counted in the headline. If no coefficient is
    identified, the `FEW` nearest to identification are drawn.
    """
    count = int(result.identified.sum())
    rows = np.flatnonzero(result.identified) if count else _best_identified(result, FEW)
    colour, label = (BLUE, "fit, 90 %") if count else (GREY, "rests on its prior, 90 %")
    ends, centre = result.intervals[rows], np.asarray(result.solution.parameters)[rows]
    # First coefficient on top.
    places = np.arange(len(rows))[::-1]
    with single_axes(7.2, 0.3 * len(rows) + 1.3) as (figure, axes):
        # In standard deviations of the prior, the prior is standard normal.
        axes.axvspan(-Z90, Z90, color="#E8EDF2", label="prior, 90 %")
        axes.hlines(places, *ends.T, color=colour, lw=2.2)
        axes.plot(centre, places, "o", color=colour, ms=5, label=label)
        axes.set_yticks(places, [names()[row] for row in rows])
        axes.set(xlabel="distance from the start [standard deviations of the prior]", ylim=(-0.8, len(rows) - 0.2))
        axes.grid(axis="y", visible=False)
        axes.set_title(f"{count} of {len(names())} coefficients are identified by the runs")
        legend_below(figure, entries_of(axes))
    return figure


def profile_curves(result: "FitResult", most: int = FEW) -> "Figure":
    """Rise of the deviance along the best identified coefficients, with the parabola of the standard errors.

    A gap between curve and parabola shows an asymmetric interval, or a coefficient with a larger uncertainty.

    Args:
        most: largest number of coefficients [1].
    """
    chosen = _best_identified(result, most)
    with style():
        figure, grid = small_multiples(len(chosen), 3.3, 2.6)
        for axes, index in zip(grid.flat, chosen, strict=False):
            _draw_profile(axes, result, names()[index])
        for axes in grid[:, 0]:
            axes.set_ylabel("rise of the deviance")
        # The interval ends at Z90^2; the room above shows the further rise.
        grid[0, 0].set_ylim(0.0, 2.5 * Z90**2)
        legend_below(figure, entries_of(grid[0, 0]))
    return figure


def _draw_profile(axes: "Axes", result: "FitResult", name: str) -> None:
    profile, entry = result.profile(name), result.parameters[name]
    axes.axvspan(entry["lo"], entry["hi"], color="#E8EDF2", label="90 % interval")
    # Rise at the ends of a 90 % interval.
    axes.axhline(Z90**2, color=GREY, lw=1.0)
    axes.plot(profile.values, profile.parabola, "--", color=ORANGE, label="parabola of the standard error")
    axes.plot(profile.values, profile.rises, color=BLUE, lw=2.0, label="profile likelihood")
    axes.set_xlabel(name if entry["unit"] == "1" else f"{name} [{entry['unit']}]")
    axes.locator_params(nbins=4)


def _best_identified(result: "FitResult", most: int) -> np.ndarray:
    """Coefficients with the smallest errors relative to the prior spreads, in table order."""
    # The effects behind the coefficients are left out.
    error = np.sqrt(np.diag(result.diagnostics.covariance))[: len(names())]
    return np.sort(np.argsort(error)[:most])


def correlation_matrix(result: "FitResult", most: int = 16) -> "Figure":
    """Posterior correlations of the best identified coefficients.

    Args:
        most: largest number of coefficients [1].
    """
    chosen = _best_identified(result, most)
    labels = [names()[index] for index in chosen]
    with single_axes(7.2, 6.2) as (figure, axes):
        image = axes.imshow(result.correlation[np.ix_(chosen, chosen)], cmap="RdBu_r", vmin=-1.0, vmax=1.0)
        axes.set_xticks(range(len(chosen)), labels, rotation=60, ha="right", fontsize=8.5)
        axes.set_yticks(range(len(chosen)), labels, fontsize=8.5)
        axes.grid(False)
        axes.set_title("Correlation of the best identified coefficients")
        figure.colorbar(image, ax=axes, shrink=0.8, label="posterior correlation")
    return figure
