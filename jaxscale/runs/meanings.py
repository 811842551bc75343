"""Meanings of blank cells: words that recipes of a framework state, and cells that would let a run fit."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxscale.base.units import GB
from jaxscale.runs.defaults import EmptyCells, default_for, framework_defaults
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical, joined, together

REMEDIES: tuple[Mapping[str, str | float], ...] = (
    {"zero_stage": 1.0},
    {"zero_stage": 3.0},
    {"activation_recompute": "full"},
    {"zero_stage": 1.0, "activation_recompute": "full"},
    {"zero_stage": 3.0, "activation_recompute": "full"},
)
"""Cells that make a run smaller."""


@runtime_checkable
class Answers(Protocol):
    """What is read of a `Prediction`."""

    @property
    def runs(self) -> Runs:
        """The table."""
        ...

    @property
    def step_time(self) -> np.ndarray:
        """Predicted step time [s], [row]."""
        ...

    @property
    def memory(self) -> np.ndarray:
        """Predicted peak memory [byte], [row]."""
        ...

    @property
    def fits(self) -> np.ndarray:
        """Whether the peak stays within memory [row]."""
        ...

    @property
    def plans(self) -> Mapping[str, np.ndarray]:
        """Plans of the rows [field][row]."""
        ...


Predict = Callable[[Runs], Answers]
"""Prediction of a table."""


class Meanings:
    """Effect of the possible meanings of blank cells on the step times of a table.

    Attributes:
        fastest: step time of the fastest meaning over the predicted step time [1], [row].
        slowest: step time of the slowest meaning over the predicted step time [1], [row].
        notes: columns that would decide between the meanings, empty where none is open [row].
    """

    def __init__(self, found: Answers, predicted: Predict):
        """Predict the rows under each of the sets of words in `may_mean` of their framework.

        Args:
            found: the prediction with the default of each blank cell.
            predicted: prediction of a table.
        """
        self.fastest, self.slowest = np.ones(len(found.runs)), np.ones(len(found.runs))
        self.notes = Categorical.constant("", len(found.runs))
        self._found, self._predicted = found, predicted
        frameworks, empty = found.runs.categories("framework"), EmptyCells(found.runs)
        for name in [name for name in frameworks.values if name]:
            for meaning in framework_defaults().get(str(name).lower(), {}).get("may_mean", ()):
                is_own = frameworks.matches(lambda other, name=name: other == name)
                is_open = {column: ~empty.is_told(column) for column in meaning["set"]}
                # The words matter with several ranks of the degree alone.
                concerned = is_own & (found.plans[meaning["when"]] > 1.0) & np.any([*is_open.values()], axis=0)
                self._take(np.flatnonzero(concerned), is_open, meaning["set"])

    def _take(self, rows: np.ndarray, is_open: Mapping[str, np.ndarray], words: Mapping[str, str]) -> None:
        """Widen the range of rows by a set of words, and note the columns that would decide."""
        if not len(rows):
            return
        runs = self._found.runs
        some = runs.take(rows)
        said = {column: _where(some.categories(column), is_open[column][rows], word) for column, word in words.items()}
        ratio = self._predicted(some.with_values(said)).step_time / self._found.step_time[rows]
        # nan of rows without an answer counts for nothing.
        self.fastest[rows] = np.fmin(self.fastest[rows], ratio)
        self.slowest[rows] = np.fmax(self.slowest[rows], ratio)
        flags = [Categorical(is_open[column][rows].astype(int), (False, True)) for column in words]

        def told(row: tuple[Any, ...]) -> str:
            factor, *opened = row
            named = {column: word for (column, word), is_one in zip(words.items(), opened, strict=True) if is_one}
            return f"blank cells: {_cells(named)} would take {factor:g} times as long, which the interval covers"

        # Rows of nearly equal effect share a note.
        texts = together(Categorical.of_numbers(np.round(ratio, 2)), *flags).map(told)
        self.notes = joined([self.notes, texts.spread(rows, len(runs), "")])


def remedies(found: Answers, predicted: Predict) -> Categorical:
    """Notes on rows that do not fit but would with sharding or recomputation in place of blank cells [row].

    Args:
        found: the prediction with the default of each blank cell.
        predicted: prediction of a table.

    Returns:
        Notes with the fastest of `REMEDIES`, empty for rows that fit, that state these cells, or that would not fit
        either.
    """
    # Tables whose rows all fit are not looked at any further.
    left = np.flatnonzero(~found.fits & np.isfinite(found.step_time))
    notes = Categorical.constant("", len(left))
    if not len(left):
        return notes.spread(left, len(found.runs), "")
    runs, times = found.runs.take(left), found.step_time[left]
    plans, empty = {name: column[left] for name, column in found.plans.items()}, EmptyCells(runs)
    ratios, peaks = np.full((2, len(REMEDIES), len(left)), np.inf)
    for place, cells in enumerate(REMEDIES):
        rows = np.flatnonzero(_shrinks(runs, empty, plans, cells))
        if not len(rows):
            continue
        said = {name: Categorical.constant(value, len(rows)) for name, value in cells.items()}
        then = predicted(runs.take(rows).with_values(said))
        ratios[place, rows] = np.where(then.fits, then.step_time / times[rows], np.inf)
        peaks[place, rows] = then.memory
    fastest = np.argmin(ratios, axis=0)
    for place, cells in enumerate(REMEDIES):
        rows = np.flatnonzero((fastest == place) & np.isfinite(ratios[place]))
        figures = np.round(peaks[place, rows] / GB), np.round(ratios[place, rows], 2)
        texts = together(*map(Categorical.of_numbers, figures)).map(
            lambda row, cells=cells: (
                f"blank cells: {_cells(cells)} would fit, in {row[0]:g} GB and {row[1]:g} times the time"
            )
        )
        notes = joined([notes, texts.spread(rows, len(left), "")])
    return notes.spread(left, len(found.runs), "")


def _shrinks(
    runs: Runs, empty: EmptyCells, plans: Mapping[str, np.ndarray], cells: Mapping[str, str | float]
) -> np.ndarray:
    """Whether cells are blank in a row, are what its framework can run, and make the run smaller [row]."""
    is_open = np.ones(len(runs), dtype=bool)
    if "zero_stage" in cells:
        stage = cells["zero_stage"]
        runs_it = runs.categories("framework").matches(lambda name: stage in default_for("zero_stages", name, None))
        is_open &= ~empty.is_told("zero_stage") & runs_it & (plans["dp"] > 1.0) & (plans["zero_stage"] < stage)
    if "activation_recompute" in cells:
        is_told = empty.is_told("activation_recompute") | empty.is_told("recompute_modules")
        is_open &= ~is_told & (plans["recompute_full"] < 1.0)
    return is_open


def _cells(cells: Mapping[str, str | float]) -> str:
    """Cells in words, as `zero_stage = 3 and activation_recompute = full`."""
    return " and ".join(
        f"{name} = {value if isinstance(value, str) else f'{value:g}'}" for name, value in cells.items()
    )


def _where(column: Categorical, is_open: np.ndarray, word: Any) -> Categorical:
    """A column with a word in its open cells."""
    flags = Categorical(is_open.astype(int), (False, True))
    return together(column, flags).map(lambda pair: word if pair[1] else pair[0])
