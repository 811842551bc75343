"""Widths of prediction intervals for runs outside the fit, and conditions of doubt that widen an interval.

A single rule serves all fits (`widest`): an interval has the default width, or the largest width of any condition of
doubt that holds for the run. A width comes from the narrowest class of runs with an entry (`looked_up`), measured on
held-out runs: `fitting/held_out.py` for training, `serving/serving_problem.py` for serving.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.base.arrays import stated_or
from jaxscale.calibration.levels import GUESSES, SETTINGS, UNNAMED, Levels, Place, Seen

Z90 = 1.6448536269514722
"""Standard normal quantile at 95 %: half-width of a central 90 % interval in standard deviations [1]."""


def looked_up(
    entries: Mapping[Any, Sequence[float]],
    levels: Levels,
    kinds: Sequence[str],
    places: Callable[..., Iterable[Any]],
    usual: Sequence[float],
) -> tuple[np.ndarray, ...]:
    """Numbers of each run from a table by class of runs: the entry of the narrowest class with the run.

    Args:
        entries: numbers by class of runs.
        levels: levels of the runs.
        kinds: factors for the definition of the classes.
        places: function from the level names of `kinds` (empty for no level) to the classes of a run, narrowest first.
        usual: numbers for runs without an entry.

    Returns:
        An array of each of the numbers [row].
    """
    combinations, index = levels.only(dict.fromkeys(kinds, bool)).distinct()
    columns = [combinations.column(kind) for kind in kinds]
    found = []
    for row in range(len(combinations)):
        where = places(*(column[row] for column in columns))
        found.append(next((entries[place] for place in where if place in entries), usual))
    return tuple(np.asarray(found, float).reshape(-1, len(usual))[index].T)


def widest(
    usual: Sequence[np.ndarray], reasons: Iterable[tuple[Bool[np.ndarray, " row"], Sequence[np.ndarray]]]
) -> tuple[np.ndarray, ...]:
    """Widths of intervals: the default width of each run, or the largest width of any condition of doubt that holds.

    Args:
        usual: default widths [width][row].
        reasons: pairs of a condition [row] and the widths under the condition; nan does not widen [width][row].

    Returns:
        The widths [width][row].
    """
    widths = list(usual)
    for holds, wider in reasons:
        widths = [np.where(holds, np.fmax(one, other), one) for one, other in zip(widths, wider, strict=True)]
    return tuple(widths)


@dataclass(frozen=True)
class Scatter:
    """Relative deviation of held-out runs from the prediction, for the runs of a level or under a condition of doubt.

    Attributes:
        kind: factor of the level (`source`, `framework`), or a condition of doubt: `unnamed` for runs without a source;
            `unseen` for a new framework; `new_mixture` and `new_chip` for mixtures, and for chips without timed
            kernels, of an unknown stack; `eager` and `eager_mixture` for step times of an unknown stack whose host may
            launch each kernel; `unstated` for memory of runs with a guessed fact; `new_source` for a new source of a
            known framework; `new_model` and `larger` for runs of a source on a model, or on more chips, new to the fit.
        level: name of the level: the fact of `unstated`, the framework of `unnamed` and `new_source`, the source of
            `new_model` and `larger`; empty for any level, without a named framework, and for `unseen`.
        time: half-width of the central 90 % interval of log step time [1].
        memory: standard deviation of log peak memory [1]; nan where too few runs state a peak.
        above: standard deviation of log peak memory over peaks above the prediction, which decide about running out
            of memory [1]; nan where not distinguished.
    """

    kind: str
    level: str
    time: float
    memory: float
    above: float = math.nan

    def __post_init__(self) -> None:
        """Replace every nan by the object `math.nan`, so that two fits read from one file compare equal."""
        for name in ("memory", "above"):
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, math.nan)


EAGER = "eager"
"""Level of the factor `execution`: the host launches each kernel. A run without a level may do so too."""

NO_RUNS = Scatter("unseen", "", math.log(2.0), 0.3)
"""Default scatter without measured runs: a factor of two in time."""


class Interval(NamedTuple):
    """Widths of prediction intervals, numbers or arrays.

    Attributes:
        time: half-width of the central 90 % interval of log step time [1], [row].
        memory: standard deviation of log peak memory [1], [row].
    """

    time: Any
    memory: Any


class _Widths(NamedTuple):
    """Columns of `Scatter`: `time`, `memory`, `above` [1], [row]."""

    time: Any
    memory: Any
    above: Any


class _Reason(NamedTuple):
    """Condition of doubt about predictions, and the scatter under the condition.

    Attributes:
        holds: whether the condition holds for a run [row].
        kind: `Scatter.kind` of the condition.
        of: factor, source or framework, whose level selects the scatter before that of any level.
        level: level of the scatter where common to all runs.
    """

    holds: Bool[np.ndarray, " row"]
    kind: str
    of: str
    level: str = ""


@dataclass(frozen=True)
class Scatters:
    """Scatters of a fit with lookup by factor and level; of several entries for a level the first counts.

    Attributes:
        entries: scatters of the fit, then those of the parent.
        largest: largest number of chips of a run of each source [1].
        seen: levels of the fitted runs.
        timed: chips with timed kernels.
    """

    entries: tuple[Scatter, ...]
    largest: Mapping[str, float]
    seen: Seen
    timed: frozenset[str]

    @functools.cached_property
    def by_level(self) -> dict[Place, Scatter]:
        """Scatters by factor and name of the level."""
        return {(entry.kind, entry.level): entry for entry in reversed(self.entries)}

    def most_chips(self, levels: Levels) -> Float[np.ndarray, " row"]:
        """Largest number of chips in fitted runs of a run's source; of all sources if unknown [1], [row]."""
        most = max(self.largest.values(), default=math.inf)
        return levels.numbers(lambda source: self.largest.get(source, most), "source", of_none=most)

    @functools.cached_property
    def _numbers(self) -> dict[Place, _Widths]:
        """Widths by factor and level, with `NO_RUNS` as default for a new framework."""
        entries = {(NO_RUNS.kind, NO_RUNS.level): NO_RUNS, **self.by_level}
        return {place: _Widths(entry.time, entry.memory, entry.above) for place, entry in entries.items()}

    def interval(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> Interval:
        """Widths of prediction intervals of runs: those of the source, or the largest of any condition of doubt [row].

        Args:
            levels: levels of the runs, with the common source and framework of the fit filled in.
            n_chips: number of chips of each run [1].

        Returns:
            The widths.
        """
        return Interval(*self._widths(levels, n_chips)[:2])

    def above(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
        """Standard deviation of log peak memory for peaks above the prediction [1], [row].

        Args:
            levels: levels of the runs, with the common source and framework of the fit filled in.
            n_chips: number of chips of each run [1].

        Returns:
            The deviations; `Scatter.memory` where `Scatter.above` is not known.
        """
        widths = self._widths(levels, n_chips)
        return stated_or(widths.above, widths.memory)

    def _widths(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> _Widths:
        reasons = self._reasons(levels, n_chips)
        wider = ((reason.holds, self._scatter_of(reason.kind, reason.of, levels, reason.level)) for reason in reasons)
        return _Widths(*widest(self._usual(levels), wider))

    def _usual(self, levels: Levels) -> _Widths:
        """Scatter of the source, else of the framework, else of a new framework; memory falls back separately."""
        time, memory, above = self._own(levels)
        for scatter in (
            self._lookup(levels, ("framework",), lambda framework: [("framework", framework)]),
            self._scatter_of("unseen", "", levels),
            _Widths(NO_RUNS.time, NO_RUNS.memory, NO_RUNS.above),
        ):
            time = stated_or(time, scatter.time)
            # The deviation above belongs to the entry of the memory scatter, so `memory` must be filled after `above`.
            above = np.where(np.isnan(memory), scatter.above, above)
            memory = stated_or(memory, scatter.memory)
        return _Widths(time, memory, above)

    def _own(self, levels: Levels) -> _Widths:
        """Scatter of a run's source; for a run without a source, of unnamed runs of its framework."""

        def places(source: str, framework: str) -> list[Place]:
            return [("source", source) if source else (UNNAMED, framework)]

        return self._lookup(levels, ("source", "framework"), places)

    def _reasons(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> tuple[_Reason, ...]:
        """Conditions that widen the intervals of runs: levels new to the fit, guessed facts, more chips."""
        seen = self.seen

        def is_new(kind: str) -> np.ndarray:
            return levels.has(lambda name: seen.is_new(kind, name), kind)

        def is_new_to_all(kind: str) -> np.ndarray:
            return levels.has(lambda name: seen.is_new(kind, name) and not seen.ancestor_knows(kind, name), kind)

        knows_framework = levels.has(
            lambda name: seen.knows("framework", name), "framework", of_none=seen.knows("framework", "")
        )
        is_eager = levels.has(lambda name: name == EAGER, "execution", of_none=True)
        is_unknown = np.isnan(self._own(levels).time)
        is_dense = levels.missing("mixture")
        is_untimed = ~levels.has(lambda name: name in self.timed, "gpu", of_none=True)
        systems = ("gpu", "precision")
        return (
            # Chips or precisions new to the fit and its ancestors: as wide as a new framework.
            *(_Reason(is_new_to_all(kind), "unseen", "") for kind in systems),
            # Chips without timed kernels, and mixtures, have larger errors in stacks fitted without them.
            _Reason(is_untimed & (is_unknown | is_new("gpu")), "new_chip", ""),
            _Reason(~is_dense & (is_unknown | is_new("mixture")), "new_mixture", ""),
            # Launch times of hosts differ between stacks, unless kernels are known to be compiled or recorded.
            _Reason(is_eager & is_dense & (is_unknown | is_new("execution")), "eager", ""),
            _Reason(is_eager & ~is_dense & (is_unknown | is_new("execution") | is_new("mixture")), "eager_mixture", ""),
            # Retained memory is guessed where neither a row nor its framework states the fact.
            *(_Reason(levels.has(guesses, "unstated"), "unstated", "", fact) for fact, guesses in self._guessed()),
            # Chips or precisions known to an ancestor alone: as wide as a new source.
            *(_Reason(is_new(kind) & ~is_new_to_all(kind), "new_source", "framework") for kind in systems),
            # Sources of a known framework with too few held-out runs for a scatter.
            _Reason(is_unknown & knows_framework, "new_source", "framework"),
            # An attention kernel without timings shifts a run about as much as a different system does.
            _Reason(is_new("attention_kernel"), "new_source", "framework"),
            # Sequence lengths, recomputation or parallelism absent from a small table shift a run about as much.
            *(_Reason(is_new(kind), "new_source", "framework") for kind in SETTINGS),
            _Reason(is_new("architecture"), "new_model", "source"),
            _Reason(n_chips > self.most_chips(levels), "larger", "source"),
        )

    def _guessed(self) -> list[tuple[str, Callable[[str], bool]]]:
        """Facts of memory with a known scatter, each with a test whether a level of `unstated` lacks the fact."""
        facts = [level for kind, level in self.by_level if kind == "unstated"]
        return [(fact, lambda guesses, fact=fact: fact in guesses.split(GUESSES)) for fact in facts]

    def _scatter_of(self, kind: str, of: str, levels: Levels, level: str = "") -> _Widths:
        """Scatter of `kind` at each run's level of factor `of`, or at `level`, else at any; nan if unknown [row]."""
        return self._lookup(levels, (of,) if of else (), lambda name=level: [(kind, name), (kind, "")])

    def _lookup(self, levels: Levels, kinds: Sequence[str], places: Callable[..., Iterable[Place]]) -> _Widths:
        """Scatter of the first class of each run with an entry; nan without an entry [row]."""
        return _Widths(*looked_up(self._numbers, levels, kinds, places, (math.nan,) * 3))


def interval_ends(middle: Any, half: Any) -> tuple[Any, Any]:
    """Ends of intervals, `middle exp(-h)` and `middle exp(h)`, from the half-width h of the logarithm."""
    return middle * np.exp(-half), middle * np.exp(half)
