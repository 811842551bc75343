"""Intervals of predicted serving times: how wide they are by what is new of a row, its stack and kind of serving.

`serving_held_out` measures the widths on runs that were left out; `calibration.intervals` has the rule of the widest.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.calibration.intervals import looked_up, widest
from jaxscale.calibration.levels import Levels

NOVELTIES = ("seen", "model", "stack", "chip", "framework")
"""What is new of a row: its load or plan alone; its model; the pair of chip and framework; its chip; its framework."""

STAND_INS = ("tpot_s", "e2e_latency_s", "output_tokens_per_s_total")
"""Targets that stand in for another one, in this order."""

WIDEST = math.log(4.0)
"""Interval where no errors say more: within a factor of four [1]."""


@dataclass(frozen=True)
class ServingWidth:
    """Interval of the logarithm of measured over predicted.

    Attributes:
        target: column that was measured; empty for any.
        serving: kind of serving; empty for any.
        density: `dense` or `mixture`; empty for both.
        stack: framework and chip; empty for any.
        novelty: what was left out, one of `NOVELTIES`.
        lo: 5 % quantile [1].
        hi: 95 % quantile [1].
        n: errors behind it [1].
    """

    target: str
    serving: str
    density: str
    stack: str
    novelty: str
    lo: float
    hi: float
    n: int


@dataclass(frozen=True)
class ServingWidths:
    """Widths for look-up.

    Attributes:
        widths: all of a fit.
    """

    widths: tuple[ServingWidth, ...]

    def ends(
        self, target: str, levels: Levels, new: Mapping[str, Bool[np.ndarray, " row"]]
    ) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
        """Ends of the intervals of rows: the widest that anything new brings, about the prediction at least.

        Args:
            target: column that is predicted.
            levels: of the rows.
            new: what is new of them, by the kinds of `NOVELTIES`.

        Returns:
            Lower and upper ends of log measured over predicted [1], [row].
        """
        # Widths differ by these kinds of level alone: looked up once for each combination.
        classed, index = with_density(levels).only(dict.fromkeys(("serving", "density", "stack"), bool)).distinct()
        usual = (np.zeros(len(levels)), np.zeros(len(levels)))
        # A row of which less is new is known better; quantiles alone may say otherwise, as their classes differ.
        sides, below, above = {}, np.zeros(len(classed)), np.zeros(len(classed))
        for kind in NOVELTIES:
            lower, upper = self.sides(target, classed, kind)
            below, above = np.maximum(below, lower), np.maximum(above, upper)
            sides[kind] = (below[index], above[index])
        below, above = widest(usual, ((holds, sides[kind]) for kind, holds in new.items()))
        return -below, above

    def interval(self, target: str, serving: str, density: str, stack: str, novelty: str) -> tuple[float, float]:
        """Ends of the interval of log measured over predicted: of the narrowest class that has runs [1]."""
        one = Levels.of_rows([{"serving": serving, "density": density, "stack": stack}])
        below, above = self.sides(target, one, novelty)
        return -float(below[0]), float(above[0])

    def sides(self, target: str, levels: Levels, novelty: str) -> tuple[np.ndarray, ...]:
        """How far intervals reach below and above the prediction, of rows of which something is new.

        Where a target was not measured in a kind of serving, another target of that kind stands in.

        Args:
            target: column that is predicted.
            levels: of the rows: `serving`, `density` and `stack`.
            novelty: what is new of them, one of `NOVELTIES`.

        Returns:
            Lower end of log measured over predicted with its sign turned, and upper end [1], [row].
        """
        others = [target, *(name for name in STAND_INS if name != target)]

        def places(serving: str, density: str, stack: str) -> list[tuple[str, ...]]:
            classes = ((density, stack), (density, ""), ("", ""))
            of_serving = [(name, serving, *place) for name in others for place in classes]
            return [*of_serving, (target, "", "", ""), ("", "", "", "")]

        entries = {}
        for width in self.widths:
            # A rate is wide where a time is narrow: the sides swap.
            is_swapped = width.target != "" and sign_of(width.target) != sign_of(target)
            sides = (width.hi, -width.lo) if is_swapped else (-width.lo, width.hi)
            if width.novelty == novelty:
                entries[(width.target, width.serving, width.density, width.stack)] = sides
        return looked_up(entries, levels, ("serving", "density", "stack"), places, (WIDEST, WIDEST))


def with_density(levels: Levels) -> Levels:
    """Levels with `density`, the last word of the kind of model: `dense` or `mixture`."""
    return levels.renamed("kind", lambda words: words.split()[-1], to="density")


def sign_of(target: str) -> float:
    """1 for times and -1 for rates, which are high where a time is short [1]."""
    return -1.0 if target.startswith("output") else 1.0
