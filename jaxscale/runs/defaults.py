"""What words and empty cells of a table mean: vocabularies, defaults by framework and source, facts about tables."""

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from jaxscale.runs.categorical import Categorical, together
from jaxscale.runs.table import Runs


@cache
def load_defaults() -> Mapping[str, Any]:
    """The tables of `defaults.toml`."""
    return tomllib.loads(files("jaxscale.runs").joinpath("defaults.toml").read_text(encoding="utf-8"))


def translate(vocabulary: str, word: str) -> str | None:
    """The model's word for a word of a table, or None if the vocabulary lacks it.

    Args:
        vocabulary: `precisions`, `number_formats`, `recompute` or `status`.
        word: the cell.

    Returns:
        One of `PRECISIONS`, a number format, none/selective/full or ok/oom; None for a word of no vocabulary.
    """
    known: Mapping[str, str] = load_defaults()[vocabulary]
    word = word.lower()
    if vocabulary == "precisions":
        return next((meaning for token, meaning in known.items() if token in word), None)
    return known.get(word)


def words(vocabulary: str) -> str:
    """The valid words of a vocabulary, for messages."""
    return ", ".join(load_defaults()[vocabulary])


def default_for(name: str, framework: str | None, source: str | None) -> Any:
    """What an empty cell means: by source, else by framework, else for an unnamed framework.

    Args:
        name: a column, or one of the further keys that `defaults.toml` explains.
        framework: the row's framework.
        source: the row's source.

    Returns:
        The default, None where no table has one.
    """
    tables = load_defaults()
    candidates = (
        tables["sources"].get(source or "", {}),
        tables["frameworks"].get((framework or "").lower(), {}),
        tables["frameworks"]["default"],
    )
    return next((table[name] for table in candidates if name in table), None)


def is_fused(attention_kernel: str) -> bool:
    """Whether an attention kernel keeps its scores on the chip; all do but those that the table names."""
    return attention_kernel.lower() not in load_defaults()["kernels"]["materialised"]


def known_frameworks() -> tuple[str, ...]:
    """Frameworks with defaults of their own, in alphabetical order."""
    return tuple(sorted(name for name in load_defaults()["frameworks"] if name != "default"))


def facts_about(source: str | None) -> list[Mapping[str, Any]]:
    """Facts about the rows of a source: the cells on which each depends (`when`), and what it says (`set`)."""
    return load_defaults()["sources"].get(source or "", {}).get("facts", [])


class EmptyCells:
    """Meaning of the empty cells of a table.

    Args:
        runs: the table.
    """

    def __init__(self, runs: Runs):
        """Find the facts that hold for rows of a table."""
        self._runs = runs
        self._stacks = together(runs.categories("framework"), runs.categories("source"))
        sources = runs.categories("source")
        self._facts: list[tuple[np.ndarray, Mapping[str, Any]]] = []
        for code, source in enumerate(sources.values):
            own = np.flatnonzero(sources.codes == code)
            self._facts += [(_meets(runs, fact["when"], own), fact["set"]) for fact in facts_about(source)]

    def default(self, name: str) -> Categorical:
        """What an empty cell of a column means in each row, None where nothing says so.

        Args:
            name: a column, or one of the further keys that `defaults.toml` explains.

        Returns:
            The first fact that holds for the row, else the default of its source, its framework or an unnamed one.
        """
        column = self._stacks.map(lambda stack: default_for(name, *stack))
        for holds, says in reversed(self._facts):
            if name in says:
                column = column.where(holds, says[name])
        return column

    def filled(self, name: str) -> Categorical:
        """A column whose empty cells have their default."""
        cells = self._runs.categories(name)
        if not cells.matches(lambda cell: cell is None).any():
            return cells
        return together(cells, self.default(name)).map(lambda pair: pair[1] if pair[0] is None else pair[0])

    def filled_numbers(self, name: str) -> np.ndarray:
        """A column of numbers or flags whose empty cells have their default, nan where there is none [row]."""
        cells = self._runs.numbers(name)
        return np.where(np.isnan(cells), self.default(name).numbers(), cells)


def _meets(runs: Runs, conditions: Mapping[str, Any], rows: np.ndarray) -> np.ndarray:
    """Whether a row is among the given ones and meets the conditions of a fact [row]."""
    is_met = np.zeros(len(runs), dtype=bool)
    is_met[rows] = np.all(
        [runs.categories(name).take(rows).matches(_condition(wanted)) for name, wanted in conditions.items()], axis=0
    )
    return is_met


def _condition(wanted: str | float) -> Callable[[Any], bool]:
    """Whether a cell equals a number, or matches a word, which is a regular expression."""
    if isinstance(wanted, str):
        return lambda cell: re.fullmatch(wanted, cell or "") is not None
    return lambda cell: cell == wanted
