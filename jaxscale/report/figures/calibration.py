"""What a fit found: coefficients against their priors, and their correlations."""

from typing import TYPE_CHECKING

import numpy as np

from jaxscale.calibration import Z90
from jaxscale.coefficients import names
from jaxscale.report.style import BLUE, GREY, new_figure, style

if TYPE_CHECKING:
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
        known = np.asarray([entry["identified"] for entry in result.parameters.values()])
        for mask, colour, label in ((known, BLUE, "identified by the runs"), (~known, GREY, "rests on its prior")):
            axes.hlines(places[mask], *ends[mask].T, color=colour, lw=2.2)
            axes.plot(centre[mask], places[mask], "o", color=colour, ms=4, label=label)
        axes.set_yticks(places, names(), fontsize=8.5)
        axes.set(xlabel="distance from the prior median [prior standard deviations]", ylim=(-1, len(places)))
        axes.set_title("Coefficients and their 90 % intervals")
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def correlation_matrix(result: "FitResult", most: int = 16) -> "Figure":
    """Posterior correlations of the best identified coefficients.

    Args:
        result: the fit.
        most: coefficients to show [1].

    Returns:
        The figure.
    """
    error = np.sqrt(np.diag(result.diagnostics.covariance))[: len(names())]
    chosen = np.sort(np.argsort(error)[:most])
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
