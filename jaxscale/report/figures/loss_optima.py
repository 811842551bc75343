"""Figures of optima under a fitted law of loss: growth with compute, time-optimal designs, what they hang on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.designs.law_designs import SAFE, LawDesign, design_figures
from jaxscale.laws.approaches import Growth, growth
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.report.figures.loss_laws import frontier_flop, mark_fitted
from jaxscale.report.style import (
    BLUE,
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
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("n_params", "parameters", "Optimal size"),
    ("n_tokens", "tokens", "Optimal tokens"),
    ("ratio", "tokens per parameter", "Tokens per parameter"),
)
"""Quantity, axis and headline of each panel of the optima."""

SHOWN = ("n_layers", "d_model", "aspect", "params", "tokens", "tokens_per_param", "global_batch_tokens")
"""Choices that the figure of what a design hangs on shows."""

COLOURS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))


def optima_against_compute(law: FittedLaw, designs: Mapping[str, LawDesign] | None = None) -> "Figure":
    """Compute-optimal parameters, tokens and their ratio against compute, with 90 % bands.

    Args:
        law: fitted; approaches 1 and 2 are drawn where its runs allow them.
        designs: time-optimal designs by label, drawn beside the compute-optimal curve.

    Returns:
        The figure.
    """
    flop = frontier_flop(law)
    for design in (designs or {}).values():
        flop = np.geomspace(flop[0], max(flop[-1], 2.0 * design.flop), len(flop))
    optima = [law.optimum(float(one)) for one in flop]
    ends = {name: np.asarray([getattr(one, name) for one in optima]) for name in ("n_params", "n_tokens")}
    size, lower, upper = ends["n_params"].T
    # At equal compute a larger size means fewer tokens: the ends of the ratio are those of the size, squared.
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
    """Optima by the envelope of the runs and by parabolas, None where the runs do not allow them."""
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
    size = design.flop / 6.0 / tokens
    return {"n_params": size, "n_tokens": tokens, "ratio": tokens / size}


def design_spread(designs: Mapping[str, LawDesign]) -> "Figure":
    """Choices of designs under other laws over those under the fitted one, each alternative a mark.

    Args:
        designs: by label, each with alternatives.

    Returns:
        The figure.
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
        round_ticks(grid[0].xaxis, (min(low, 0.8), max(high, 1.25)))
        legend_below(figure, entries_of(*grid))
    return figure


def _draw_spread(axes: Any, design: LawDesign) -> None:
    """One mark for each choice and each other law; the band is where a choice counts as safe."""
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
