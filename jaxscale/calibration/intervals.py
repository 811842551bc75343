"""Intervals of predictions: how far a run that a fit has not seen may be from its prediction, and what widens that."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.calibration.anchors import timed_chips
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.seen import SETTINGS, UNNAMED, Place, Seen

Z90 = 1.6448536269514722
"""Standard normal quantile at 95 %: half-width of a central 90 % interval in standard deviations [1]."""


@dataclass(frozen=True)
class Scatter:
    """Relative scatter of runs around the prediction, measured on runs that the fit did not see.

    Attributes:
        kind: kind of level (`source`, `framework`), `unnamed` for runs without a source, `unseen` for a new framework,
            `new_mixture` and `new_chip` for mixtures, and for chips without timed kernels, of an unknown stack,
            `unstated` for memory of runs that leave to a guess what they keep,
            `new_source` for a new source of a framework that is known, `new_model` and `larger` for runs of a source on
            a model, or on more chips, than the fit ever saw.
        level: its name; the framework of `unnamed` and `new_source`, the source of `new_model` and `larger`, empty for
            any of these, or where no framework is named; empty for `unseen`.
        time: half-width of the central 90 % interval of log step time [1].
        memory: standard deviation of log peak memory [1]; nan where too few runs state one.
    """

    kind: str
    level: str
    time: float
    memory: float

    def __post_init__(self) -> None:
        """One object of nan is compared as equal to itself, two are not: fits read twice must be equal."""
        if math.isnan(self.memory):
            object.__setattr__(self, "memory", math.nan)


NO_RUNS = Scatter("unseen", "", math.log(2.0), 0.3)
"""Scatter where no run says more: within a factor of two."""


class Interval(NamedTuple):
    """Widths of the intervals of predictions, one number or one of each run.

    Attributes:
        time: half-width of the central 90 % interval of log step time [1], [row].
        memory: standard deviation of log peak memory [1], [row].
    """

    time: Any
    memory: Any


class _Reason(NamedTuple):
    """A reason for which a run's prediction is less sure than usual, and the scatter that it brings.

    Attributes:
        holds: for which runs [row].
        kind: of the scatter, see `Scatter`.
        of: level of the run whose scatter of that kind counts, before that of any level: source or framework.
    """

    holds: Bool[np.ndarray, " row"]
    kind: str
    of: str


@dataclass(frozen=True)
class Scatters:
    """Scatters that a fit knows, by kind and name of their level; the first of equal levels counts.

    Attributes:
        entries: the fit's own before those of its parent.
        largest: most chips of any run of each source [1].
        seen: levels of the fit's runs.
    """

    entries: tuple[Scatter, ...]
    largest: Mapping[str, float]
    seen: Seen

    @functools.cached_property
    def by_level(self) -> dict[Place, Scatter]:
        """Scatters by kind and name of their level."""
        return {(entry.kind, entry.level): entry for entry in reversed(self.entries)}

    def most_chips(self, levels: Levels) -> Float[np.ndarray, " row"]:
        """Most chips of any run of a run's source, or of any run where the source is not known [1], [row]."""
        most = max(self.largest.values(), default=math.inf)
        return levels.numbers(lambda source: self.largest.get(source, most), "source", of_none=most)

    def interval(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> Interval:
        """Widths of intervals: the usual ones of the source, or the widest that a reason to doubt brings [row].

        Args:
            levels: of the runs, with the fit's own source and framework filled in.
            n_chips: of each run [1].

        Returns:
            The widths.
        """
        time, memory = self._usual(levels)
        for reason in self._reasons(levels, n_chips):
            wider = self._scatter_of(reason.kind, reason.of, levels)
            # A kind of which no left-out runs told has nan, which is no reason to widen.
            time = np.where(reason.holds, np.fmax(time, wider.time), time)
            memory = np.where(reason.holds, np.fmax(memory, wider.memory), memory)
        return Interval(time, memory)

    def _usual(self, levels: Levels) -> Interval:
        """Scatter of the source, else the framework, else a new framework; of memory, the first of these with one."""
        any_new = self.by_level.get(("unseen", ""), NO_RUNS)
        time, memory = (np.full(len(levels), np.nan) for _ in range(2))
        for scatter in (
            self._own(levels),
            self._lookup("framework", "framework", levels),
            Interval(any_new.time, any_new.memory),
            Interval(NO_RUNS.time, NO_RUNS.memory),
        ):
            time = np.where(np.isnan(time), scatter.time, time)
            memory = np.where(np.isnan(memory), scatter.memory, memory)
        return Interval(time, memory)

    def _own(self, levels: Levels) -> Interval:
        """Scatter of a run's source; where it names none, of the runs of its framework without a source."""
        named, unnamed = self._lookup("source", "source", levels), self._lookup(UNNAMED, "framework", levels)
        has_none = levels.missing("source")
        return Interval(np.where(has_none, unnamed.time, named.time), np.where(has_none, unnamed.memory, named.memory))

    def _reasons(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> tuple[_Reason, ...]:
        """Every reason to widen the interval of a run: what of it is new to the fit."""
        seen = self.seen

        def is_new(kind: str) -> np.ndarray:
            return levels.has(lambda name: seen.is_new(kind, name), kind)

        def is_new_to_all(kind: str) -> np.ndarray:
            return levels.has(lambda name: seen.is_new(kind, name) and not seen.ancestor_knows(kind, name), kind)

        knows_framework = levels.has(
            lambda name: seen.knows("framework", name), "framework", of_none=seen.knows("framework", "")
        )
        systems = ("gpu", "precision")
        return (
            # A chip or a precision of which neither the fit nor an ancestor had a run: as wide as a new framework.
            *(_Reason(is_new_to_all(kind), "unseen", "") for kind in systems),
            # Chips without timed kernels, and mixtures, miss further in stacks that were never fitted.
            _Reason(~levels.has(lambda name: name in timed_chips(), "gpu", of_none=True), "new_chip", ""),
            _Reason(~levels.missing("mixture"), "new_mixture", ""),
            # What a program keeps is guessed where a row says neither what is recomputed nor whose habits it has.
            _Reason(~levels.missing("unstated"), "unstated", ""),
            # A chip or a precision that an ancestor had: as wide as a new source.
            *(_Reason(is_new(kind) & ~is_new_to_all(kind), "new_source", "framework") for kind in systems),
            # A source of which too few runs were left out to tell its scatter, of a framework that is known.
            _Reason(np.isnan(self._own(levels).time) & knows_framework, "new_source", "framework"),
            # A kernel that was never timed sets a run apart about as much as another system does.
            _Reason(is_new("attention_kernel"), "new_source", "framework"),
            # Sequences, recomputation or kinds of parallelism that no run of a small table had tell as little.
            *(_Reason(is_new(kind), "new_source", "framework") for kind in SETTINGS),
            _Reason(is_new("architecture"), "new_model", "source"),
            _Reason(n_chips > self.most_chips(levels), "larger", "source"),
        )

    def _scatter_of(self, kind: str, of: str, levels: Levels) -> Interval:
        """Scatter of a kind for each run's level, else for any level; nan where no left-out runs told [row]."""
        if kind == "unseen":
            entry = self.by_level.get(("unseen", ""), NO_RUNS)
            return Interval(np.full(len(levels), entry.time), np.full(len(levels), entry.memory))
        usual = self.by_level.get((kind, ""), Scatter(kind, "", math.nan, math.nan))
        return self._lookup(kind, of, levels, usual)

    def _lookup(
        self, kind: str, of: str, levels: Levels, other: Scatter = Scatter("", "", math.nan, math.nan)
    ) -> Interval:
        """Scatter of a kind by the run's level of another; `other` for levels that have none [row]."""
        of_none = self.by_level.get((kind, ""), other)
        time = levels.numbers(lambda name: self.by_level.get((kind, name), other).time, of, of_none=of_none.time)
        memory = levels.numbers(lambda name: self.by_level.get((kind, name), other).memory, of, of_none=of_none.memory)
        return Interval(time, memory)


def interval_ends(middle: Any, half: Any) -> tuple[Any, Any]:
    """Ends of intervals of given half-widths of the logarithm, in the unit of their middles."""
    return middle * np.exp(-half), middle * np.exp(half)
