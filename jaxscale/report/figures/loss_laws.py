"""Figures of a fitted law of the loss: runs, extrapolations of the backtest, curves of equal compute, optima."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import InputError
from jaxscale.designs.law_designs import SAFE, LawDesign, design_figures
from jaxscale.laws.approaches import Growth, budgets_of, growth
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.loss_reader import Losses
from jaxscale.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MARKERS,
    ORANGE,
    PURPLE,
    RED,
    entries_of,
    legend_below,
    new_figure,
    round_ticks,
    single_axes,
    small_multiples,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BEYOND = 100.0
"""End of curves relative to the largest fitted compute [1]."""

MOST_BUDGETS = 6
"""Largest number of curves of equal compute in a figure [1]."""

NEAR_BUDGET = 0.15
"""Largest relative difference between the compute of a run and that of its curve [1]."""

COLOURS_OF_SIZE = "viridis"
"""Colour map of sizes and computes."""


def plain_loss(law: FittedLaw) -> Float[np.ndarray, " row"]:
    """Measured losses corrected by the terms of the law for shape, batch, data and experts [nat per token]."""
    table = runs_of(law)
    plain = law.predict(table.n_params, table.tokens).loss
    # Measured loss times the law without corrections over the law with corrections.
    return table.loss * plain / law.predict_table(table).loss


def runs_of(law: FittedLaw) -> Losses:
    """Runs to which a law was fitted."""
    assert law.table is not None, "a law from a file has no runs to draw"
    return law.table


FRONTIER_POINTS = 40
"""Computes along the frontier of a law [1]."""


def frontier_flop(law: FittedLaw) -> Float[np.ndarray, " point"]:
    """Training computes of the curves of a law, from the least run to `BEYOND` times the largest run [flop], [point].

    A law without runs starts two decades below the largest run.
    """
    largest = float(np.exp(law.span.log_flop))
    least = 1e-2 * largest if law.table is None else float(np.exp(law.table.log_flop.min()))
    return np.geomspace(least, BEYOND * largest, FRONTIER_POINTS)


def loss_against_compute(law: FittedLaw) -> "Figure":
    """Figure of measured losses against compute, coloured by size, with the law's least loss at each compute.

    Args:
        law: law fitted to a table.
    """
    table, flop = runs_of(law), frontier_flop(law)
    best = np.asarray([law.optimum(float(one)).loss for one in flop])
    with single_axes(8.2, 4.8) as (figure, axes):
        mark_fitted(axes, flop, float(np.exp(law.span.log_flop)))
        looks: Any = {"c": table.n_params, "norm": "log", "cmap": COLOURS_OF_SIZE, "s": 16, "linewidths": 0}
        dots = axes.scatter(np.exp(table.log_flop), plain_loss(law), **looks)
        axes.plot(flop, best[:, 0], color=INK, lw=2.0, label="least loss by the law")
        axes.fill_between(flop, best[:, 1], best[:, 2], color=INK, alpha=0.15, lw=0, label="90 % interval of a run")
        axes.set(xscale="log", xlabel="training compute 6ND [flop]", ylabel="loss [nat per token]")
        axes.set_title(f"{len(table)} runs and the {law.form} law")
        bar = figure.colorbar(dots, ax=axes, pad=0.02)
        bar.set_label("parameters")
        legend_below(figure, entries_of(axes))
    return figure


def mark_fitted(axes: Any, flop: Float[np.ndarray, " point"], largest: float) -> None:
    """Shade the computes beyond the fitted range in a figure."""
    axes.axvspan(largest, flop[-1], color="#F3F0E8", lw=0, zorder=0)
    axes.set_xlim(flop[0] / 1.3, flop[-1])
    axes.annotate(
        "beyond the runs", xy=(largest * 1.15, 0.02), xycoords=("data", "axes fraction"), color="#777777", size=9
    )


def rollout_errors(law: FittedLaw) -> "Figure":
    """Figure of the law's errors on runs beyond the fitted compute, one panel per rollout of the backtest.

    Args:
        law: law with a backtest of at least one rollout.
    """
    rollouts = law.backtest.rollouts
    with style():
        figure, grid = small_multiples(len(rollouts), 3.6, 3.2)
        for axes, one in zip(grid.flat, rollouts, strict=False):
            order = np.argsort(one.decades, kind="stable")
            # From logs to per cent.
            half, error = 100.0 * one.half_width[order], 100.0 * np.expm1(one.error[order])
            axes.axhline(0.0, color=INK, lw=1)
            inside = np.abs(one.error[order]) <= one.half_width[order]
            for mask, colour, label in ((inside, BLUE, "interval holds"), (~inside, RED, "interval misses")):
                places = one.decades[order][mask]
                axes.errorbar(
                    places, error[mask], half[mask], fmt="o", ms=4, color=colour, ecolor=colour, elinewidth=0.9,
                    alpha=0.6, label=label, mew=0,
                )  # fmt: skip
            axes.set(xlabel="decades beyond the fitted range")
            axes.set_title(f"{one.n_predicted} runs from {one.n_fitted} below {one.cut:.1e} flop", fontsize=9.5)
        grid[0, 0].set_ylabel("error of the loss [%]")
        legend_below(figure, entries_of(*grid.flat))
    return figure


def budgets_to_draw(table: Losses) -> Float[np.ndarray, " budget"]:
    """Training computes of the isoflop curves: budgets of the runs, or values spread over their range [flop]."""
    log_flop = table.log_flop
    # Budgets of runs of equal compute, within NEAR_BUDGET to either side.
    groups = [rows for rows in budgets_of(table) if np.ptp(log_flop[rows]) < 2.0 * NEAR_BUDGET]
    if len(groups) >= 2:
        budgets = np.asarray([log_flop[rows].mean() for rows in groups])
        # At most MOST_BUDGETS, evenly spread.
        return np.exp(budgets[np.linspace(0, len(groups) - 1, min(MOST_BUDGETS, len(groups))).round().astype(int)])
    low, high = np.quantile(log_flop, [0.1, 0.95])
    return np.exp(np.linspace(low, high, MOST_BUDGETS))


def isoflop_curves(law: FittedLaw) -> "Figure":
    """Figure of loss against size at equal compute: runs near each compute, the law's curve and its minimum.

    Each run is moved along the law to the compute of its curve.

    Args:
        law: law fitted to a table.
    """
    import matplotlib as mpl

    table, losses = runs_of(law), plain_loss(law)
    budgets, log_flop = budgets_to_draw(table), table.log_flop
    with single_axes(8.2, 4.8) as (figure, axes):
        colours = mpl.colormaps[COLOURS_OF_SIZE](np.linspace(0.0, 0.88, len(budgets)))
        for budget, colour in zip(budgets, colours, strict=True):
            rows = np.abs(log_flop - np.log(budget)) < np.log1p(NEAR_BUDGET)
            size = table.n_params[rows]
            best = law.optimum(float(budget))
            # A factor of 3 to either side of the optimum.
            ends = np.asarray([*size, best.n_params[0] / 3.0, best.n_params[0] * 3.0])
            line = np.geomspace(ends.min() / 1.2, ends.max() * 1.2, 60)
            axes.plot(line, _at(law, line, budget), color=colour, lw=1.8, label=f"{budget:.1e} flop")
            if rows.any():
                # Measured over predicted loss stays as the run moves along the law.
                moved = losses[rows] * _at(law, size, budget) / law.predict(size, table.tokens[rows]).loss
                axes.plot(size, moved, "o", color=colour, ms=4.5, mew=0, alpha=0.8)
            least = float(_at(law, np.asarray([best.n_params[0]]), budget)[0])
            axes.plot(best.n_params[0], least, "D", color=ORANGE, mec=INK, ms=7, zorder=5)
        # Legend entries without points.
        axes.plot([], [], "D", color=ORANGE, mec=INK, ls="", label="optimum by the law")
        axes.plot([], [], "o", color=FAINT, ls="", label=f"runs within {100 * NEAR_BUDGET:.0f} %")
        axes.set(xscale="log", xlabel="parameters", ylabel="loss [nat per token]")
        axes.set_title("Runs of equal compute")
        round_ticks(axes.xaxis, axes.get_xlim())
        legend_below(figure, entries_of(axes))
    return figure


def _at(law: FittedLaw, size: Float[np.ndarray, " point"], budget: float) -> Float[np.ndarray, " point"]:
    """Loss of sizes at a compute [nat per token], [point]."""
    # D = C / (6 N)
    return law.predict(size, budget / (FLOP_PER_PARAM_TOKEN * size)).loss


PANELS = (
    ("n_params", "parameters", "Optimal size"),
    ("n_tokens", "tokens", "Optimal tokens"),
    ("ratio", "tokens per parameter", "Tokens per parameter"),
)
"""Quantity, axis and headline of each panel of the optima."""

SHOWN = ("n_layers", "d_model", "aspect", "params", "tokens", "tokens_per_param", "global_batch_tokens")
"""Choices in the figure of the sensitivity of a design."""

COLOURS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))


def optima_against_compute(law: FittedLaw, designs: Mapping[str, LawDesign] | None = None) -> "Figure":
    """Figure of compute-optimal parameters, tokens and their ratio against compute, with 90 % bands.

    Args:
        law: fitted law; approaches 1 and 2 are drawn if possible with the law's runs.
        designs: time-optimal designs by label, drawn with the compute-optimal curve.
    """
    flop = frontier_flop(law)
    for design in (designs or {}).values():
        # Up to twice the compute of a design, if beyond the curve.
        flop = np.geomspace(flop[0], max(flop[-1], 2.0 * design.flop), len(flop))
    optima = [law.optimum(float(one)) for one in flop]
    ends = {name: np.asarray([getattr(one, name) for one in optima]) for name in ("n_params", "n_tokens")}
    # (points,) each: value and the ends of the interval.
    size, lower, upper = ends["n_params"].T
    # At equal compute tokens are inverse to size, so the ends of the ratio D / N are T / (6 N^2).
    ends["ratio"] = np.stack([flop / 6.0 / one**2 for one in (size, upper, lower)], axis=1)
    with style():
        figure = new_figure(12.0, 4.3)
        grid: Any = figure.subplots(1, 3)
        for axes, (name, label, title) in zip(grid, PANELS, strict=True):
            mark_fitted(axes, flop, float(np.exp(law.span.log_flop)))
            values, lo, hi = ends[name].T
            axes.plot(flop, values, color=INK, lw=2.0, label="compute-optimal by the law")
            axes.fill_between(flop, lo, hi, color=INK, alpha=0.15, lw=0, label="90 % interval")
            for found, (colour, marker), told in zip(
                approaches_of(law), COLOURS, ("envelope", "parabolas"), strict=False
            ):
                if found is not None:
                    ratio = found.n_tokens / found.n_params
                    y = {"n_params": found.n_params, "n_tokens": found.n_tokens, "ratio": ratio}[name]
                    axes.plot(found.flop, y, marker, color=colour, ms=4.5, mew=0, alpha=0.7, label=f"runs, by {told}")
            for (told, design), marker in zip((designs or {}).items(), MARKERS, strict=False):
                axes.plot(
                    design.flop,
                    _chosen(design)[name],
                    marker,
                    color=RED,
                    mec=INK,
                    ms=8,
                    zorder=6,
                    label=f"design of {told}",
                )
            axes.set(xscale="log", yscale="log", xlabel="training compute 6ND [flop]", ylabel=label, title=title)
            round_ticks(axes.yaxis, axes.get_ylim())
        legend_below(figure, entries_of(grid[0]))
    return figure


def approaches_of(law: FittedLaw) -> list[Growth | None]:
    """Compute-optimal growth by approach 1 (envelope) and 2 (parabolas); None where the runs do not suffice."""
    found: list[Growth | None] = []
    for approach in (1, 2):
        try:
            found.append(growth(law, approach))
        except InputError:  # a law from a file, or a table without budgets
            found.append(None)
    return found


def _chosen(design: LawDesign) -> dict[str, float]:
    """Size, tokens and their ratio of a design, in the count of the law."""
    tokens = design_figures(design.design)["tokens"]
    # N = C / (6 D)
    size = design.flop / 6.0 / tokens
    return {"n_params": size, "n_tokens": tokens, "ratio": tokens / size}


def design_spread(designs: Mapping[str, LawDesign]) -> "Figure":
    """Figure of designs under alternative laws relative to the design under the fitted law, one mark per alternative.

    Args:
        designs: designs by label, each with alternatives.
    """
    with style():
        figure = new_figure(3.9 * max(len(designs), 2), 4.4)
        grid: Any = np.atleast_1d(figure.subplots(1, len(designs), sharey=True, sharex=True))
        for axes, (told, design) in zip(grid, designs.items(), strict=True):
            _draw_spread(axes, design)
            axes.set_title(f"Design of {told}")
            axes.set(xscale="log", xlabel="over the design")
        grid[0].set_yticks(range(len(SHOWN)), [name.replace("_", " ") for name in SHOWN])
        grid[0].set_ylim(len(SHOWN) - 0.5, -0.5)
        low, high = grid[0].get_xlim()
        # Ticks for 0.8 to 1.25 at least.
        round_ticks(grid[0].xaxis, (min(low, 0.8), max(high, 1.25)))
        legend_below(figure, entries_of(*grid))
    return figure


def _draw_spread(axes: Any, design: LawDesign) -> None:
    """Draw marks of choices under alternative laws, with the band of safe choices."""
    own = design_figures(design.design)
    axes.axvspan(1.0 / SAFE, SAFE, color="#EDEDED", lw=0, zorder=0)
    axes.axvline(1.0, color=INK, lw=1)
    kinds: Sequence[tuple[str, str, str, float]] = (
        ("draw", BLUE, "drawn law of the loss", -0.12),
        ("shape", ORANGE, "another shape law", 0.12),
    )
    for word, colour, label, offset in kinds:
        others = [figures for name, figures in design.alternatives.items() if name.startswith(word)]
        for place, name in enumerate(SHOWN if others else ()):
            ratios = [figures[name] / own[name] for figures in others]
            looks: Any = {"color": colour, "ms": 6, "mew": 0, "alpha": 0.75, "ls": ""}
            axes.plot(ratios, np.full(len(ratios), place + offset), "o", label=label if place == 0 else None, **looks)
