"""Advice on the unstated fact of a run (for example the bytes per element of the loss) that widens intervals most."""

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float

from jaxscale.base.units import GB
from jaxscale.calibration.intervals import Z90
from jaxscale.calibration.levels import GUESSES, NOTED_KINDS, Levels
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.record import Fit

NARROWER = 0.9
"""Largest ratio of interval widths with and without a stated fact at which a note is given [1]."""

OF_INTERVALS = (*NOTED_KINDS, "mixture", "unstated", "execution")
"""Factors on which interval widths depend."""

Width = Callable[[Levels], Float[np.ndarray, " row"]]
"""Function from levels of runs to interval widths [row]."""


def worth_stating(fit: Fit, levels: Levels) -> np.ndarray:
    """Note for each run on the unstated facts that widen the intervals most; possibly empty [row].

    Args:
        fit: fit that predicts the runs.
        levels: levels of the runs.

    Returns:
        Notes such as `state loss_bytes: ends of the memory interval 2.0x -> 1.6x apart`.
    """
    runs, index = levels.only(dict.fromkeys(OF_INTERVALS, bool)).distinct()
    facts, now, then = most_telling(runs, lambda some: Z90 * fit.interval(some).memory)
    of_memory = _notes(facts, "memory", now, then, "")
    is_blank = runs.missing("execution")
    compiled = runs.replace(is_blank, {"execution": "compiled"})
    as_it_is, if_compiled = fit.interval(runs).time, fit.interval(compiled).time
    of_time = _notes(np.where(is_blank, "execution", ""), "time", as_it_is, if_compiled, " if compiled")
    texts = ["; ".join(filter(None, both)) for both in zip(of_memory, of_time, strict=True)]
    return np.asarray([*texts, ""], dtype=object)[index]


def most_telling(levels: Levels, width: Width) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unstated fact that widens the memory interval of each run most; all unstated facts if single facts matter little.

    Args:
        levels: levels of the runs.
        width: function from levels to the interval width of each run [1], [row].

    Returns:
        Facts, empty for a run that states all facts; widths without and with the statement [1], [row].
    """
    now, guesses = width(levels), levels.column("unstated")
    facts, least = np.full(len(levels), "", dtype=object), now.copy()
    single = dict.fromkeys(fact for name in levels.names.get("unstated", ()) for fact in name.split(GUESSES))
    for fact in single:
        then = width(levels.renamed("unstated", lambda name, fact=fact: _without(name, [fact])))
        facts, least = np.where(then < least, fact, facts), np.fmin(then, least)
    everything = width(levels.renamed("unstated", lambda name: ""))
    together = (least > NARROWER * now) & (everything < least)
    return np.where(together, guesses, facts), now, np.where(together, everything, least)


def usable_if_stated(fit: Fit, levels: Levels, n_chips: float, capacity: float, probability: float) -> tuple[str, ...]:
    """Note on the unstated fact of a planned run that reduces the usable memory most.

    Args:
        fit: fit that predicts the run.
        levels: levels of the run.
        n_chips: number of chips [1].
        capacity: memory per chip [byte].
        probability: accepted probability of running out of memory [1].

    Returns:
        At most one sentence, such as `state loss_bytes: 64 -> 77 GB usable`; empty if all facts are stated.
    """

    def beyond(some: Levels) -> np.ndarray:
        # The sign is reversed, because `most_telling` looks for the smallest width.
        limit = fit.memory_limit(some.row(0), n_chips)
        return np.asarray([-memory_limit(capacity, limit, probability)])

    (fact,), (now,), (then,) = most_telling(levels, beyond)
    return (f"state {fact}: {-now / GB:.0f} -> {-then / GB:.0f} GB usable",) if fact else ()


def _without(name: str, facts: Iterable[str]) -> str:
    """Level of `unstated` with given facts removed."""
    return GUESSES.join(fact for fact in name.split(GUESSES) if fact not in facts)


def _notes(facts: np.ndarray, what: str, now: np.ndarray, then: np.ndarray, where: str) -> list[str]:
    """Note on each run whose interval narrows enough, else empty; `now` and `then` are half-widths of logarithms."""
    is_worth = (facts != "") & (then < NARROWER * now)
    ends = np.exp(2.0 * np.stack([now, then], axis=1))
    return [
        f"state {fact}: ends of the {what} interval {wide:.1f}x -> {narrow:.1f}x apart{where}" if worth else ""
        for fact, worth, (wide, narrow) in zip(facts, is_worth, ends, strict=True)
    ]
