"""Intervals of predicted serving times: quantiles of the errors of runs that were left out, by what is new of a row."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxscale.fit.statistics.group_quantiles import interval_of

NOVELTIES = ("seen", "model", "stack", "chip", "framework")
"""What is new of a row: its load or plan alone; its model; the pair of chip and framework; its chip; its framework."""

LEAST_RUNS = 25
"""Errors from which quantiles are taken at least; fewer are pooled with others [1]."""

LEAST_GROUPS = 19
"""Groups of runs from which quantiles are taken at least: the least and the largest error of G cover
(G - 1) / (G + 1) of new ones, 90 % of them from here on [1]."""

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

    def entry(self) -> dict[str, Any]:
        """Fields as values of TOML."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class ServingWidths:
    """Widths for look-up.

    Attributes:
        widths: all of a fit.
    """

    widths: tuple[ServingWidth, ...]

    @functools.cached_property
    def _by_place(self) -> dict[tuple[str, ...], ServingWidth]:
        return {(w.novelty, w.target, w.serving, w.density, w.stack): w for w in self.widths}

    def interval(self, target: str, serving: str, density: str, stack: str, novelty: str) -> tuple[float, float]:
        """Ends of the interval of log measured over predicted: of the narrowest class that has runs [1].

        Where a target was not measured in a kind of serving, another target of that kind stands in.
        """
        others = [target, *(t for t in ("tpot_s", "e2e_latency_s", "output_tokens_per_s_total") if t != target)]
        places = [(t, serving, d, s) for t in others for d, s in ((density, stack), (density, ""), ("", ""))]
        places += [(target, "", "", ""), ("", "", "", "")]
        found = (self._by_place.get((novelty, *place)) for place in places)
        width = next((width for width in found if width is not None), None)
        if width is None:
            return -WIDEST, WIDEST
        # A rate is wide where a time is narrow: the ends swap.
        is_swapped = (width.target.startswith("output")) != (target.startswith("output")) and width.target != ""
        return (-width.hi, -width.lo) if is_swapped else (width.lo, width.hi)


def widths_of(
    log_errors: Mapping[str, np.ndarray],
    targets: np.ndarray,
    levels: Mapping[str, np.ndarray],
    groups: np.ndarray,
) -> tuple[ServingWidth, ...]:
    """Widths from the errors of runs that were left out.

    Args:
        log_errors: log predicted less log measured by what was left out, nan where nothing was
            [novelty][measurement].
        targets: column of each measurement [measurement].
        levels: `serving`, `kind` and `stack` of each [kind][measurement].
        groups: group of runs of each [measurement].

    Returns:
        Widths of every class with enough errors, and of their unions.
    """
    density = np.asarray([kind.split()[-1] for kind in levels["kind"]], dtype=object)
    columns = (targets, levels["serving"], density, levels["stack"])
    classes = {tuple(key) for key in zip(*columns, strict=True)}
    unions = {key for t, s, d, k in classes for key in ((t, s, d, k), (t, s, d, ""), (t, s, "", ""), (t, "", "", ""))}
    widths = []
    for novelty, errors in log_errors.items():
        for place in sorted({*unions, ("", "", "", "")}):
            if place[3] and novelty != "seen":
                continue
            mask = np.isfinite(errors)
            for column, word in zip(columns, place, strict=True):
                mask &= (column == word) | (word == "")
            if mask.sum() >= LEAST_RUNS and len(np.unique(groups[mask])) >= LEAST_GROUPS:
                widths.append(_width(place, novelty, -errors[mask], groups[mask]))
    return tuple(widths)


def _width(place: Sequence[str], novelty: str, ratios: np.ndarray, groups: np.ndarray) -> ServingWidth:
    lo, hi = interval_of(ratios, groups)
    target, serving, density, stack = place
    return ServingWidth(target, serving, density, stack, novelty, lo, hi, len(ratios))
