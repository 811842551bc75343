"""Figures of accuracy and of a fit: predictions against measurements, errors by column, coefficients, profiles."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.intervals import Z90
from jaxscale.report.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    PALETTE,
    entries_of,
    legend_below,
    literal,
    new_figure,
    round_ticks,
    single_axes,
    small_multiples,
    style,
)

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
    """Rise of the deviance along each of the best identified coefficients, with the parabola of the standard error.

    A gap between curve and parabola shows an asymmetric interval, or a coefficient with a larger uncertainty.

    Args:
        result: a fit.
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


BAND = 0.10
"""Half-width of the shaded band: ten per cent [1]."""

WIDEST_RATIO = 4.0
"""Largest ratio of predicted to measured time, or the inverse, drawn to scale [1]."""

SHOWN = 0.98
"""Share of the errors drawn to scale in panels by column [1]."""

MANY_LEVELS, LONG_NAME = 5, 24
"""Number of levels from which names are vertical [1], and largest number of characters of a name [1]."""

MANY_PLACES, LONG_NUMBER = 20, 1e6
"""Number of distinct values above which medians pool neighbours [1], and least number not written out [1]."""


def ranked_groups(groups: Sequence[str]) -> dict[str, np.ndarray]:
    """Masks of the rows of each group, the largest group first; groups beyond the palette are pooled.

    Args:
        groups: group of each row.

    Returns:
        A boolean mask [row] for each name.
    """
    labels = np.asarray([str(group) for group in groups])
    names, counts = np.unique(labels, return_counts=True)
    ranked = [str(name) for name in names[np.argsort(-counts, kind="stable")]]
    # The last place is for the pooled rest.
    kept = ranked if len(ranked) <= len(PALETTE) else ranked[: len(PALETTE) - 1]
    masks = {name: labels == name for name in kept}
    if len(kept) < len(ranked):
        masks[f"{len(ranked) - len(kept)} others"] = ~np.isin(labels, kept)
    return masks


def predicted_against_measured(
    measured: ArrayLike,
    predicted: ArrayLike,
    groups: Sequence[str],
    title: str = "Predicted against measured",
    quantity: str = "step time [s]",
) -> "Figure":
    """Scatter plot of predicted against measured step times, and of their ratio, with a band of ten per cent.

    Args:
        measured: step times [s], [row]; rows of nan are omitted.
        predicted: step times [s], [row].
        groups: group of each row, such as the source, shown by colour.
        title: title of the figure.
        quantity: name and unit of the plotted quantity.
    """
    times, predictions = np.asarray(measured, dtype=float), np.asarray(predicted, dtype=float)
    shown = np.isfinite(times) & np.isfinite(predictions)
    times, predictions = times[shown], predictions[shown]
    masks = ranked_groups(np.asarray(groups, dtype=str)[shown].tolist())
    with style():
        figure = new_figure(9.6, 4.5)
        left, right = figure.subplots(1, 2)
        for (name, mask), colour, marker in zip(masks.items(), PALETTE, MARKERS, strict=False):
            x, y = times[mask], predictions[mask]
            label = f"{literal(name)} ({mask.sum()}): {100 * np.mean(np.abs(y / x - 1)):.1f} %"
            looks: Any = {
                "ms": 4.5,
                "color": colour,
                # Fainter points where many overlap.
                "alpha": float(np.clip(12.0 / np.sqrt(mask.sum()), 0.25, 0.75)),
                "mew": 0,
            }
            left.plot(x, y, marker, label=label, **looks)
            right.plot(x, y / x, marker, **looks)
        both = np.concatenate([times, predictions])
        _diagonal(left, (both.min() / 1.2, both.max() * 1.2) if both.size else (0.1, 10.0), quantity)
        _ratio(right, left.get_xlim(), times, predictions / times, quantity)
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
        if masks:
            legend_below(figure, entries_of(left), markerscale=1.6, title="(runs): mean error")
    return figure


def _diagonal(axes: "Axes", limits: tuple[float, float], quantity: str) -> None:
    line = np.asarray(limits)
    axes.fill_between(line, line * (1 - BAND), line * (1 + BAND), color="#D9D9D9", lw=0, zorder=0)
    axes.plot(line, line, color=INK, lw=1, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    axes.set(xlabel=f"measured {quantity}", ylabel=f"predicted {quantity}")
    for axis in (axes.xaxis, axes.yaxis):
        round_ticks(axis, limits)


def _ratio(axes: "Axes", limits: tuple[float, float], times: np.ndarray, ratio: np.ndarray, quantity: str) -> None:
    """Draw the ratio of predicted to measured time against measured time, with triangles for outliers."""
    axes.axhspan(1 - BAND, 1 + BAND, color="#D9D9D9", lw=0, zorder=0)
    axes.axhline(1.0, color=INK, lw=1, zorder=1)
    # At most 0.2 % of the ratios lie beyond either edge, as triangles.
    low = np.quantile(ratio, 0.002, method="lower") if ratio.size else 0.8
    high = np.quantile(ratio, 0.998, method="higher") if ratio.size else 1.25
    bottom, top = max(min(low / 1.05, 0.8), 1.0 / WIDEST_RATIO), min(max(high * 1.05, 1.25), WIDEST_RATIO)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=(bottom, top))
    for beyond, edge, marker in ((ratio < bottom, bottom, "v"), (ratio > top, top, "^")):
        if beyond.any():  # an empty set of points would upset the layout
            axes.plot(times[beyond], np.full(beyond.sum(), edge), marker, ms=6, color=INK, mew=0, clip_on=False)
    axes.set(xlabel=f"measured {quantity}", ylabel="predicted / measured")
    round_ticks(axes.xaxis, limits)
    _plain_ratio_ticks(axes)
    note = f"band: \N{PLUS-MINUS SIGN}{100 * BAND:.0f} %"
    axes.annotate(note, xy=(0.98, 0.02), xycoords="axes fraction", ha="right", color="#555555")


def intervals(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> "Figure":
    """Figure of the 90 % intervals over the measured times, rows in order of the interval's middle.

    Args:
        measured: step times [s], [row].
        low: lower ends [s], [row].
        high: upper ends [s], [row].
    """
    times, lower, upper = (np.asarray(values, dtype=float) for values in (measured, low, high))
    shown = np.isfinite(times) & np.isfinite(lower) & np.isfinite(upper)
    lower, upper = lower[shown] / times[shown], upper[shown] / times[shown]
    # Geometric middles, as the ordinate is logarithmic.
    order = np.argsort(np.sqrt(lower * upper))
    lower, upper = lower[order], upper[order]
    covers = (lower <= 1) & (upper >= 1)
    share = covers.mean() if covers.size else float("nan")
    rows = np.arange(lower.size)
    with single_axes(8.4, 3.8) as (figure, axes):
        for inside, colour, word in ((covers, PALETTE[0], "covers"), (~covers, PALETTE[5], "misses")):
            # Thinner bars where many stand side by side.
            width = float(np.clip(500.0 / max(lower.size, 1), 0.6, 4.0))
            label = f"{word} the measurement: {inside.sum()}"
            axes.vlines(rows[inside], lower[inside], upper[inside], color=colour, lw=width, alpha=0.7, label=label)
        axes.axhline(1.0, color=INK, lw=1)
        axes.set(xlabel="runs, in order of predicted / measured", ylabel="predicted / measured", yscale="log")
        _plain_ratio_ticks(axes)
        axes.set_title(f"{100 * share:.0f} % of the 90 % intervals cover the measurement")
        legend_below(figure, entries_of(axes))
    return figure


def _plain_ratio_ticks(axes: "Axes") -> None:
    """Use ticks such as 0.8 and 1.25 instead of powers of ten."""
    low, high = axes.get_ylim()
    low, high = min(low, 0.85), max(high, 1.2)
    candidates = [0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0]
    # On a wide range the labels of close ticks would overlap.
    too_close = {4.0: (0.9, 1.1), 8.0: (0.67, 0.8, 1.25, 1.5)}
    left_out = {tick for widest, close in too_close.items() if high / low > widest for tick in close}
    ticks = [tick for tick in candidates if low <= tick <= high and tick not in left_out]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(low, high)


def residuals_by_column(residuals: ArrayLike, columns: Mapping[str, Sequence[Any]], band: float = BAND) -> "Figure":
    """Figure of prediction errors against several columns; an effect absent from the model shows as a slope or a step.

    Args:
        residuals: log of predicted over measured quantity, such as the step time [1], [row].
        columns: values by column [row]; numbers on a logarithmic axis, words as levels.
        band: half-width of the shaded band [1].

    Returns:
        The figure; outliers are drawn at the edges.
    """
    # From the log of a ratio to per cent.
    errors = 100.0 * np.expm1(np.asarray(residuals, dtype=float))
    # Outliers beyond the share SHOWN do not set the scale.
    limit = max(1.1 * float(np.quantile(np.abs(errors), SHOWN)), 150.0 * band)
    beyond = int((np.abs(errors) > limit).sum())
    with style():
        figure, panels = small_multiples(len(columns), 3.3, 2.9)
        for axes, (name, values) in zip(panels.flat, columns.items(), strict=False):
            _residual_panel(axes, errors, limit, name, values, band)
        edge = f"; triangles: {beyond} beyond \N{PLUS-MINUS SIGN}{limit:.2g} %" if beyond else ""
        title = f"Predicted over measured, less one, by column (bars: medians{edge})"
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
        for axes in panels[:, 0]:
            axes.set_ylabel("error [%]")
    return figure


def _residual_panel(
    axes: "Axes", errors: np.ndarray, limit: float, name: str, values: Sequence[Any], band: float
) -> None:
    # A bool is an int in Python, yet a level here.
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    levels = sorted({str(value) for value in values})
    x = np.asarray(values, dtype=float) if numeric else np.asarray([levels.index(str(value)) for value in values])
    axes.axhline(0.0, color=INK, lw=1)
    axes.axhspan(-100 * band, 100 * band, color="#EDEDED", lw=0, zorder=0)
    looks: Any = {"color": PALETTE[0], "alpha": 0.5, "mew": 0, "ls": ""}
    for marker, size, part in ((".", 7, np.abs(errors) <= limit), ("^", 6, errors > limit), ("v", 6, errors < -limit)):
        axes.plot(x[part], np.clip(errors[part], -limit, limit), marker=marker, ms=size, **looks)
    for place, median in _medians(x, errors):
        axes.plot(place, median, "_", color=PALETTE[5], ms=16, mew=2.5)
    axes.set_ylim(-1.1 * limit, 1.1 * limit)
    axes.set_xlabel(name)
    if not numeric:
        is_many = len(levels) > MANY_LEVELS
        turned: Any = {"rotation": 90, "size": 7} if is_many else {"rotation": 20, "ha": "right", "size": 8}
        axes.set_xticks(range(len(levels)), _short(levels), **turned)
        axes.set_xlim(-0.6, len(levels) - 0.4)
    elif np.min(x) > 0:
        axes.set_xscale("log", base=2)
        _whole_ticks(axes, x)
    axes.grid(axis="x", color=FAINT, alpha=0.25)


def _medians(x: np.ndarray, errors: np.ndarray) -> list[tuple[float, float]]:
    """Median error at each abscissa, or of a few neighbours for many abscissae."""
    places = np.unique(x)
    if len(places) <= MANY_PLACES:
        return [(float(place), float(np.median(errors[x == place]))) for place in places]
    # Equal numbers of neighbours in each median.
    parts = np.array_split(np.argsort(x, kind="stable"), MANY_PLACES // 2)
    return [(float(np.median(x[rows])), float(np.median(errors[rows]))) for rows in parts]


def _short(levels: Sequence[str]) -> list[str]:
    """Names of levels without a common folder, truncated if long."""
    shared = os.path.commonprefix(list(levels)) if len(levels) > 1 else ""
    # After the last common slash, no name of a file or folder is cut in two.
    names = [level[shared.rfind("/") + 1 :] or level for level in levels]
    cut = [name if len(name) <= LONG_NAME else f"{name[: LONG_NAME - 1]}\N{HORIZONTAL ELLIPSIS}" for name in names]
    return [literal(name) for name in cut]


def _whole_ticks(axes: "Axes", x: np.ndarray) -> None:
    """Use the values as ticks, as many as fit."""
    places = np.unique(x)
    # About six ticks over the range; the floor is for a single value.
    gap = max(np.log(places[-1] / places[0]) / 6.0, 1e-9)
    apart: list[float] = []
    for place in places:
        if not apart or np.log(place / apart[-1]) > gap:
            apart.append(float(place))
    if len(places) > MANY_PLACES or places[-1] >= LONG_NUMBER:
        axes.set_xscale("log")  # powers of ten, where the values themselves are too many or too long
        axes.tick_params(axis="x", labelsize=9)
        round_ticks(axes.xaxis, (places[0], places[-1]), most=4)
    else:
        axes.set_xticks(apart, [f"{tick:g}" for tick in apart])
        axes.set_xticks([], minor=True)
    if places.size > 1:
        axes.margins(x=0.12)
