"""Intervals of predicted serving times: quantiles of the errors of runs that were left out, by what is new of a row."""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.calibration.levels import Levels
from jaxscale.fitting.statistics.group_quantiles import interval_of

NOVELTIES = ("seen", "model", "stack", "chip", "framework")
"""What is new of a row: its load or plan alone; its model; the pair of chip and framework; its chip; its framework."""

LEAST_RUNS = 25
"""Errors from which quantiles are taken at least; fewer are pooled with others [1]."""

LEAST_GROUPS = 19
"""Groups of runs from which quantiles are taken at least: the least and the largest error of G cover
(G - 1) / (G + 1) of new ones, 90 % of them from here on [1]."""

FEW_GROUPS = 5
"""Groups of runs of a stack in a kind of serving below which its runs are pooled with those of other such stacks: what
the fit knows of them rests on few [1]."""

LEAST_SPARSE_GROUPS = 9
"""Groups of runs of such stacks from which quantiles are taken at least [1]."""

LEAST_UNITS = 4
"""Models, stacks, chips or frameworks left out from which quantiles are taken at least [1]."""

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
        ends = self._ends(target, levels)
        low, high = np.zeros(len(levels)), np.zeros(len(levels))
        for novelty, holds in new.items():
            least, most = ends[novelty]
            low = np.where(holds, np.minimum(low, least), low)
            high = np.where(holds, np.maximum(high, most), high)
        return low, high

    def _ends(self, target: str, levels: Levels) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ends of the intervals of rows by what is new of them, each within those of what is newer [row].

        A row of which less is new is known better; quantiles alone may say otherwise, as their classes differ.
        """
        combinations, index = with_density(levels).only(dict.fromkeys(("serving", "density", "stack"), bool)).distinct()
        places = list(zip(*map(combinations.column, ("serving", "density", "stack")), strict=True))
        own = {}
        for novelty in NOVELTIES:
            found = [self.interval(target, serving, density, stack, novelty) for serving, density, stack in places]
            own[novelty] = np.asarray(found).reshape(-1, 2)[index].T
        ends, (low, high) = {}, own["seen"]
        for novelty in NOVELTIES:
            low, high = np.minimum(low, own[novelty][0]), np.maximum(high, own[novelty][1])
            ends[novelty] = (low, high)
        return ends


def widths_of(
    log_errors: Mapping[str, np.ndarray],
    targets: np.ndarray,
    levels: Levels,
    groups: np.ndarray,
) -> tuple[ServingWidth, ...]:
    """Widths from the errors of runs that were left out.

    What was left out together counts as one: groups of runs, or models, stacks, chips and frameworks.

    Args:
        log_errors: log predicted less log measured by what was left out, nan where nothing was
            [novelty][measurement].
        targets: column of each measurement [measurement].
        levels: `serving`, `kind`, `stack` and the novelties of each [measurement].
        groups: group of runs of each [measurement].

    Returns:
        Widths of every class with enough errors, and of their unions.
    """
    levels = with_density(levels)
    columns = (targets, *(levels.column(kind) for kind in ("serving", "density", "stack")))
    classes = {tuple(key) for key in zip(*columns, strict=True)}
    unions = {key for t, s, d, k in classes for key in ((t, s, d, k), (t, s, d, ""), (t, s, "", ""), (t, "", "", ""))}
    widths = []
    for novelty, errors in log_errors.items():
        units = groups if novelty == "seen" else levels.column(novelty).astype(str)
        for place in sorted({*unions, ("", "", "", "")}):
            if place[3] and novelty != "seen":
                continue
            mask = np.isfinite(errors) & _is_in(place, columns)
            if mask.sum() >= LEAST_RUNS and _count(groups[mask]) >= LEAST_GROUPS and _count(units[mask]) >= LEAST_UNITS:
                widths.append(_width(place, novelty, -errors[mask], units[mask]))
    if "seen" in log_errors:
        widths += _sparse_widths(log_errors["seen"], columns, classes, groups)
    return tuple(widths)


def _sparse_widths(
    errors: np.ndarray, columns: Sequence[np.ndarray], classes: Collection[tuple[str, ...]], groups: np.ndarray
) -> list[ServingWidth]:
    """Widths of stacks that few groups of runs tell of: from all such stacks, of one kind of serving where they do."""
    served = np.asarray([" ".join(names) for names in zip(columns[1], columns[3], strict=True)])
    pairs, codes = np.unique(served, return_inverse=True)
    is_few = np.asarray([_count(groups[codes == code]) < FEW_GROUPS for code in range(len(pairs))])
    is_sparse = is_few[codes] & np.isfinite(errors)
    signs = np.asarray([_sign(target) for target in columns[0]])
    widths = []
    for target, serving, density, stack in sorted(classes):
        if not is_few[np.searchsorted(pairs, f"{serving} {stack}")]:
            continue
        # Errors of other targets tell nothing: first tokens scatter ten times as far as throughputs.
        for place in ((target, serving, density, ""), (target, serving, "", ""), (target, "", "", "")):
            mask = is_sparse & _is_in(place, columns)
            if mask.sum() >= LEAST_RUNS and _count(groups[mask]) >= LEAST_SPARSE_GROUPS:
                ratios = -_sign(target) * signs[mask] * errors[mask]
                widths.append(_width((target, serving, density, stack), "seen", ratios, groups[mask]))
                break
    return widths


def with_density(levels: Levels) -> Levels:
    """Levels with `density`, the last word of the kind of model: `dense` or `mixture`."""
    return levels.renamed("kind", lambda words: words.split()[-1], to="density")


def _sign(target: str) -> float:
    """1 for times and -1 for rates, which are high where a time is short [1]."""
    return -1.0 if target.startswith("output") else 1.0


def _is_in(place: Sequence[str], columns: Sequence[np.ndarray]) -> np.ndarray:
    """Whether each measurement belongs to a class, whose empty words stand for any [measurement]."""
    mask = np.ones(len(columns[0]), dtype=bool)
    for column, word in zip(columns, place, strict=True):
        mask &= (column == word) | (word == "")
    return mask


def _count(names: np.ndarray) -> int:
    return len(np.unique(names))


def _width(place: Sequence[str], novelty: str, ratios: np.ndarray, units: np.ndarray) -> ServingWidth:
    lo, hi = interval_of(ratios, units)
    target, serving, density, stack = place
    return ServingWidth(target, serving, density, stack, novelty, lo, hi, len(ratios))
