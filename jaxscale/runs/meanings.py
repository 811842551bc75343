"""Blank cells with several meanings: words in recipes of the framework, and their effect on the step time."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxscale.runs.completion import filled
from jaxscale.runs.defaults import EmptyCells, framework_defaults
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical, joined, together

StepTimes = Callable[[Runs], np.ndarray]


class Meanings:
    """Effect of the possible meanings of blank cells on the step times of a table.

    Attributes:
        fastest: step time of the fastest meaning over the predicted step time [1], [row].
        slowest: step time of the slowest meaning over the predicted step time [1], [row].
        notes: columns that would decide between the meanings, empty where none is open [row].
    """

    def __init__(self, runs: Runs, degrees: Mapping[str, np.ndarray], times: np.ndarray, predicted: StepTimes):
        """Predict the rows under each of the sets of words in `may_mean` of their framework.

        Args:
            runs: the table.
            degrees: by name, for `when`; nan where a row is not answered [1], [row].
            times: as predicted [s], [row].
            predicted: step time of a table [s], [row].
        """
        self.fastest, self.slowest = np.ones(len(runs)), np.ones(len(runs))
        self.notes = Categorical.constant("", len(runs))
        frameworks, empty = runs.categories("framework"), EmptyCells(runs)
        for name in [name for name in frameworks.values if name]:
            for meaning in framework_defaults().get(str(name).lower(), {}).get("may_mean", ()):
                is_own = frameworks.matches(lambda other, name=name: other == name)
                is_open = {column: ~empty.is_told(column) for column in meaning["set"]}
                # The words matter with several ranks of the degree alone.
                concerned = is_own & (degrees[meaning["when"]] > 1.0) & np.any([*is_open.values()], axis=0)
                self._take(runs, np.flatnonzero(concerned), is_open, meaning["set"], times, predicted)

    def _take(
        self,
        runs: Runs,
        rows: np.ndarray,
        is_open: Mapping[str, np.ndarray],
        words: Mapping[str, str],
        times: np.ndarray,
        predicted: StepTimes,
    ) -> None:
        """Widen the range of rows by a set of words, and note the columns that would decide."""
        if not len(rows):
            return
        some = runs.take(rows)
        said = {column: _where(some.categories(column), is_open[column][rows], word) for column, word in words.items()}
        ratio = predicted(filled(some, said)) / times[rows]
        # nan of rows without an answer counts for nothing.
        self.fastest[rows] = np.fmin(self.fastest[rows], ratio)
        self.slowest[rows] = np.fmax(self.slowest[rows], ratio)
        flags = [Categorical(is_open[column][rows].astype(int), (False, True)) for column in words]

        def told(row: tuple[Any, ...]) -> str:
            factor, *opened = row
            named = [
                f"{column} = {word}" for (column, word), is_one in zip(words.items(), opened, strict=True) if is_one
            ]
            return f"blank cells: {' and '.join(named)} would take {factor:g} times as long, which the interval covers"

        # Rows of nearly equal effect share a note.
        texts = together(Categorical.of_numbers(np.round(ratio, 2)), *flags).map(told)
        self.notes = joined([self.notes, texts.spread(rows, len(runs), "")])


def _where(column: Categorical, is_open: np.ndarray, word: Any) -> Categorical:
    """A column with a word in its open cells."""
    flags = Categorical(is_open.astype(int), (False, True))
    return together(column, flags).map(lambda pair: word if pair[1] else pair[0])
