"""Figures of a fit: coefficients against their priors, their profile likelihoods, their correlations."""

from typing import TYPE_CHECKING

import numpy as np

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.intervals import Z90
from jaxscale.report.style import BLUE, GREY, ORANGE, new_figure, small_multiples, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from jaxscale.fit.result import FitResult


def coefficient_intervals(result: "FitResult") -> "Figure":
    """90 % interval of every coefficient, in standard deviations of its prior, on the prior's own interval.

    A bar as wide as the band says that the runs do not identify the coefficient.

    Args:
        result: the fit.

    Returns:
        The figure.
    """
    ends, centre = result.intervals, np.asarray(result.solution.parameters)[: len(names())]
    places = np.arange(len(names()))[::-1]
    with style():
        figure = new_figure(7.2, 0.22 * len(places) + 1.4)
        axes = figure.subplots()
        axes.axvspan(-Z90, Z90, color="#E8EDF2", label="prior, 90 %")
        identified = np.asarray([entry["identified"] for entry in result.parameters.values()])
        for mask, colour, label in (
            (identified, BLUE, "identified by the runs"),
            (~identified, GREY, "rests on its prior"),
        ):
            axes.hlines(places[mask], *ends[mask].T, color=colour, lw=2.2)
            axes.plot(centre[mask], places[mask], "o", color=colour, ms=4, label=label)
        axes.set_yticks(places, names(), fontsize=8.5)
        axes.set(
            xlabel="distance from what the fit starts from [standard deviations of its priors]", ylim=(-1, len(places))
        )
        axes.set_title("Coefficients and their 90 % intervals")
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def profile_curves(result: "FitResult", most: int = 6) -> "Figure":
    """Rise of the deviance along the best identified coefficients, beside the parabola that standard errors assume.

    Where the two part, the interval is lopsided or the coefficient is less certain than its standard error says.

    Args:
        result: the fit.
        most: coefficients to show [1].

    Returns:
        The figure.
    """
    chosen = _best_identified(result, most)
    with style():
        figure, grid = small_multiples(len(chosen), 3.3, 2.6, below=0.5)
        for axes, index in zip(grid.flat, chosen, strict=False):
            _draw_profile(axes, result, names()[index])
        for axes in grid[:, 0]:
            axes.set_ylabel("rise of the deviance [1]")
        grid[0, 0].set_ylim(0.0, 2.5 * Z90**2)
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_profile(axes: "Axes", result: "FitResult", name: str) -> None:
    profile, entry = result.profile(name), result.parameters[name]
    axes.axvspan(entry["lo"], entry["hi"], color="#E8EDF2", label="90 % interval")
    axes.axhline(Z90**2, color=GREY, lw=1.0)
    axes.plot(profile.values, profile.parabola, "--", color=ORANGE, label="parabola of the standard error")
    axes.plot(profile.values, profile.rises, color=BLUE, lw=2.0, label="profile likelihood")
    axes.set_xlabel(f"{name} [{entry['unit']}]")
    axes.locator_params(nbins=4)


def _best_identified(result: "FitResult", most: int) -> np.ndarray:
    """Coefficients with the smallest errors beside their priors', in their usual order."""
    error = np.sqrt(np.diag(result.diagnostics.covariance))[: len(names())]
    return np.sort(np.argsort(error)[:most])


def correlation_matrix(result: "FitResult", most: int = 16) -> "Figure":
    """Posterior correlations of the best identified coefficients.

    Args:
        result: the fit.
        most: coefficients to show [1].

    Returns:
        The figure.
    """
    chosen = _best_identified(result, most)
    labels = [names()[index] for index in chosen]
    with style():
        figure = new_figure(7.2, 6.2)
        axes = figure.subplots()
        image = axes.imshow(result.correlation[np.ix_(chosen, chosen)], cmap="RdBu_r", vmin=-1.0, vmax=1.0)
        axes.set_xticks(range(len(chosen)), labels, rotation=60, ha="right", fontsize=8.5)
        axes.set_yticks(range(len(chosen)), labels, fontsize=8.5)
        axes.grid(False)
        axes.set_title("Correlation of the best identified coefficients")
        figure.colorbar(image, ax=axes, shrink=0.8, label="posterior correlation [1]")
    return figure
