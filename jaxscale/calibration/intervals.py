"""Intervals of predictions: how far a run that a fit has not seen may be from its prediction, and what widens that.

The rule is the same for records of every kind (`widest`): an interval has its usual width, or the widest that a reason
to doubt brings; each width is that of the narrowest class of runs that has one (`looked_up`). Runs that were left out
tell widths: `fitting/held_out.py` of training, `serving/serving_problem.py` of serving.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.calibration.levels import GUESSES, Levels, Place
from jaxscale.calibration.seen import SETTINGS, UNNAMED, Seen

Z90 = 1.6448536269514722
"""Standard normal quantile at 95 %: half-width of a central 90 % interval in standard deviations [1]."""


def looked_up(
    entries: Mapping[Any, Sequence[float]],
    levels: Levels,
    kinds: Sequence[str],
    places: Callable[..., Iterable[Any]],
    usual: Sequence[float],
) -> tuple[np.ndarray, ...]:
    """Numbers of each run from entries of a record: those of the first place that has an entry.

    Args:
        entries: numbers by place.
        levels: of the runs.
        kinds: of level by which places differ.
        places: places of runs of some levels, narrowest first, from the names of these levels, empty for none.
        usual: numbers where no place has an entry.

    Returns:
        Each number [row].
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
    """Widths of intervals: the usual ones, or the widest that any reason to doubt a run brings.

    Args:
        usual: widths without any reason [width][row].
        reasons: for which runs a reason holds [row], and widths where it does; nan is no reason to widen [width][row].

    Returns:
        The widths [width][row].
    """
    widths = list(usual)
    for holds, wider in reasons:
        widths = [np.where(holds, np.fmax(one, other), one) for one, other in zip(widths, wider, strict=True)]
    return tuple(widths)


@dataclass(frozen=True)
class Scatter:
    """Relative scatter of runs around the prediction, measured on runs that the fit did not see.

    Attributes:
        kind: kind of level (`source`, `framework`), `unnamed` for runs without a source, `unseen` for a new framework,
            `new_mixture` and `new_chip` for mixtures, and for chips without timed kernels, of an unknown stack,
            `eager` and `eager_mixture` for step times of an unknown stack whose host may launch each kernel,
            `unstated` for memory of runs that leave a fact of it to a guess,
            `new_source` for a new source of a framework that is known, `new_model` and `larger` for runs of a source on
            a model, or on more chips, than the fit ever saw.
        level: its name; the fact of `unstated`, the framework of `unnamed` and `new_source`, the source of `new_model`
            and `larger`, empty for any of these, or where no framework is named; empty for `unseen`.
        time: half-width of the central 90 % interval of log step time [1].
        memory: standard deviation of log peak memory [1]; nan where too few runs state one.
        above: the same of peaks above their prediction, which are what runs out of memory [1]; nan where it is not told
            apart.
    """

    kind: str
    level: str
    time: float
    memory: float
    above: float = math.nan

    def __post_init__(self) -> None:
        """One object of nan is compared as equal to itself, two are not: fits read twice must be equal."""
        for name in ("memory", "above"):
            if math.isnan(getattr(self, name)):
                object.__setattr__(self, name, math.nan)


EAGER = "eager"
"""Level of the kind `execution` of software whose host launches each kernel, as a run without one may do, too."""

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


class _Widths(NamedTuple):
    """Numbers of `Scatter` of many runs: `time`, `memory`, `above` [1], [row]."""

    time: Any
    memory: Any
    above: Any


class _Reason(NamedTuple):
    """A reason for which a run's prediction is less sure than usual, and the scatter that it brings.

    Attributes:
        holds: for which runs [row].
        kind: of the scatter, see `Scatter`.
        of: level of the run whose scatter of that kind counts, before that of any level: source or framework.
        level: the level itself, where it is the same for all runs.
    """

    holds: Bool[np.ndarray, " row"]
    kind: str
    of: str
    level: str = ""


@dataclass(frozen=True)
class Scatters:
    """Scatters that a fit knows, by kind and name of their level; the first of equal levels counts.

    Attributes:
        entries: the fit's own before those of its parent.
        largest: most chips of any run of each source [1].
        seen: levels of the fit's runs.
        timed: chips some of whose kernels were timed.
    """

    entries: tuple[Scatter, ...]
    largest: Mapping[str, float]
    seen: Seen
    timed: frozenset[str]

    @functools.cached_property
    def by_level(self) -> dict[Place, Scatter]:
        """Scatters by kind and name of their level."""
        return {(entry.kind, entry.level): entry for entry in reversed(self.entries)}

    def most_chips(self, levels: Levels) -> Float[np.ndarray, " row"]:
        """Most chips of any run of a run's source, or of any run where the source is not known [1], [row]."""
        most = max(self.largest.values(), default=math.inf)
        return levels.numbers(lambda source: self.largest.get(source, most), "source", of_none=most)

    @functools.cached_property
    def _numbers(self) -> dict[Place, _Widths]:
        """Widths by place, those of `NO_RUNS` for a new framework of which no run tells."""
        entries = {(NO_RUNS.kind, NO_RUNS.level): NO_RUNS, **self.by_level}
        return {place: _Widths(entry.time, entry.memory, entry.above) for place, entry in entries.items()}

    def interval(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> Interval:
        """Widths of intervals: the usual ones of the source, or the widest that a reason to doubt brings [row].

        Args:
            levels: of the runs, with the fit's own source and framework filled in.
            n_chips: of each run [1].

        Returns:
            The widths.
        """
        return Interval(*self._widths(levels, n_chips)[:2])

    def above(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
        """Standard deviation of the log of peaks above their prediction [1], [row].

        Args:
            levels: of the runs, with the fit's own source and framework filled in.
            n_chips: of each run [1].

        Returns:
            The deviations; those of all peaks where nothing tells them apart.
        """
        widths = self._widths(levels, n_chips)
        return np.where(np.isnan(widths.above), widths.memory, widths.above)

    def _widths(self, levels: Levels, n_chips: Float[np.ndarray, " row"]) -> _Widths:
        reasons = self._reasons(levels, n_chips)
        wider = ((reason.holds, self._scatter_of(reason.kind, reason.of, levels, reason.level)) for reason in reasons)
        return _Widths(*widest(self._usual(levels), wider))

    def _usual(self, levels: Levels) -> _Widths:
        """Scatter of the source, else the framework, else a new framework; of memory, the first of these with one."""
        time, memory, above = self._own(levels)
        for scatter in (
            self._lookup(levels, ("framework",), lambda framework: [("framework", framework)]),
            self._scatter_of("unseen", "", levels),
            _Widths(NO_RUNS.time, NO_RUNS.memory, NO_RUNS.above),
        ):
            time = np.where(np.isnan(time), scatter.time, time)
            above = np.where(np.isnan(memory), scatter.above, above)
            memory = np.where(np.isnan(memory), scatter.memory, memory)
        return _Widths(time, memory, above)

    def _own(self, levels: Levels) -> _Widths:
        """Scatter of a run's source; where it names none, of the runs of its framework without a source."""

        def places(source: str, framework: str) -> list[Place]:
            return [("source", source) if source else (UNNAMED, framework)]

        return self._lookup(levels, ("source", "framework"), places)

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
        is_eager = levels.has(lambda name: name == EAGER, "execution", of_none=True)
        is_unknown = np.isnan(self._own(levels).time)
        is_dense = levels.missing("mixture")
        is_untimed = ~levels.has(lambda name: name in self.timed, "gpu", of_none=True)
        systems = ("gpu", "precision")
        return (
            # A chip or a precision of which neither the fit nor an ancestor had a run: as wide as a new framework.
            *(_Reason(is_new_to_all(kind), "unseen", "") for kind in systems),
            # Chips without timed kernels, and mixtures, miss further in stacks that were not fitted with them.
            _Reason(is_untimed & (is_unknown | is_new("gpu")), "new_chip", ""),
            _Reason(~is_dense & (is_unknown | is_new("mixture")), "new_mixture", ""),
            # Hosts of stacks differ, where nothing is known to record or compile what they launch.
            _Reason(is_eager & is_dense & (is_unknown | is_new("execution")), "eager", ""),
            _Reason(is_eager & ~is_dense & (is_unknown | is_new("execution") | is_new("mixture")), "eager_mixture", ""),
            # What a program keeps is guessed where neither a row nor its framework says it.
            *(_Reason(levels.has(guesses, "unstated"), "unstated", "", fact) for fact, guesses in self._guessed()),
            # A chip or a precision that an ancestor had: as wide as a new source.
            *(_Reason(is_new(kind) & ~is_new_to_all(kind), "new_source", "framework") for kind in systems),
            # A source of which too few runs were left out to tell its scatter, of a framework that is known.
            _Reason(is_unknown & knows_framework, "new_source", "framework"),
            # A kernel that was never timed sets a run apart about as much as another system does.
            _Reason(is_new("attention_kernel"), "new_source", "framework"),
            # Sequences, recomputation or kinds of parallelism that no run of a small table had tell as little.
            *(_Reason(is_new(kind), "new_source", "framework") for kind in SETTINGS),
            _Reason(is_new("architecture"), "new_model", "source"),
            _Reason(n_chips > self.most_chips(levels), "larger", "source"),
        )

    def _guessed(self) -> list[tuple[str, Callable[[str], bool]]]:
        """Facts of memory whose scatter is known, each with whether a level of `unstated` is without it."""
        facts = [level for kind, level in self.by_level if kind == "unstated"]
        return [(fact, lambda guesses, fact=fact: fact in guesses.split(GUESSES)) for fact in facts]

    def _scatter_of(self, kind: str, of: str, levels: Levels, level: str = "") -> _Widths:
        """Scatter of a kind for each run's level of another, or a given level, else any; nan if unknown [row]."""
        return self._lookup(levels, (of,) if of else (), lambda name=level: [(kind, name), (kind, "")])

    def _lookup(self, levels: Levels, kinds: Sequence[str], places: Callable[..., Iterable[Place]]) -> _Widths:
        """Scatter of the first of the places of each run that has one, nan where none has [row]."""
        return _Widths(*looked_up(self._numbers, levels, kinds, places, (math.nan,) * 3))


def interval_ends(middle: Any, half: Any) -> tuple[Any, Any]:
    """Ends of intervals of given half-widths of the logarithm, in the unit of their middles."""
    return middle * np.exp(-half), middle * np.exp(half)
