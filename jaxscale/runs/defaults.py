"""What words and empty cells of a table mean: vocabularies, defaults by framework and source, facts about tables."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np

from jaxscale._resources import data_path, read_toml
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.runs.categorical import Categorical, together
from jaxscale.runs.table import Runs


@cache
def vocabularies() -> Mapping[str, Any]:
    """The tables of `vocabularies.toml`: words of a runs table and what they mean to the model.

    Number formats come by their own names, the narrowest first, and then by the other names in the file.
    """
    tables = tomllib.loads(files("jaxscale.runs").joinpath("vocabularies.toml").read_text(encoding="utf-8"))
    own_names = {name: name for name in reversed(PRECISIONS)}
    return {**tables, "precisions": {**own_names, **tables["precisions"]}}


@cache
def framework_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Meaning of empty cells by framework, from `data/frameworks.toml`; `default` for a framework not named there."""
    tables = read_toml(data_path("frameworks.toml"))["frameworks"]
    return {
        name: {key: entry["value"] if isinstance(entry, dict) else entry for key, entry in table.items()}
        for name, table in tables.items()
    }


@cache
def table_facts() -> Mapping[str, Mapping[str, Any]]:
    """Facts about single tables by the name of their source, from the TOML file beside each.

    A file may have `defaults` of empty cells, `facts` that fill empty cells of some rows, `larger_than` and `scaling`
    for studies of the table, `parts` in which its errors are told, and `patterns` that its residuals showed.
    """
    paths = [path for folder in ("runs", "restricted") for path in sorted(data_path(folder).glob("*.toml"))]
    return {path.stem: read_toml(path) for path in paths}


def translate(vocabulary: str, word: str) -> str | None:
    """The model's word for a word of a table, or None if the vocabulary lacks it.

    Args:
        vocabulary: `precisions`, `number_formats`, `recompute` or `status`.
        word: the cell.

    Returns:
        One of `PRECISIONS`, a number format, none/selective/full or ok/oom; None for a word of no vocabulary.
    """
    known: Mapping[str, str] = vocabularies()[vocabulary]
    word = word.lower()
    if vocabulary == "precisions":
        return next((meaning for token, meaning in known.items() if token in word), None)
    return known.get(word)


def words(vocabulary: str) -> str:
    """The valid words of a vocabulary, for messages."""
    return ", ".join(vocabularies()[vocabulary])


def default_for(name: str, framework: str | None, source: str | None) -> Any:
    """What an empty cell means: by source, else by framework, else for an unnamed framework.

    Args:
        name: a column, or one of the further keys that `data/frameworks.toml` explains.
        framework: the row's framework.
        source: the row's source.

    Returns:
        The default, None where no table has one.
    """
    frameworks = framework_defaults()
    candidates = (
        table_facts().get(source or "", {}).get("defaults", {}),
        frameworks.get((framework or "").lower(), {}),
        frameworks["default"],
    )
    return next((table[name] for table in candidates if name in table), None)


def is_fused(attention_kernel: str) -> bool:
    """Whether an attention kernel keeps its scores on the chip; all do but those that the table names."""
    return attention_kernel.lower() not in vocabularies()["kernels"]["materialised"]


def known_frameworks() -> tuple[str, ...]:
    """Frameworks with defaults of their own, in alphabetical order."""
    return tuple(sorted(name for name in framework_defaults() if name != "default"))


def meets(value: Any, wanted: str | float) -> bool:
    """Whether a cell equals a number, or matches a word, which is a regular expression; an empty one is no word."""
    return re.fullmatch(wanted, value or "") is not None if isinstance(wanted, str) else value == wanted


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
            self._facts += [(_meets(runs, fact["when"], own), fact["set"]) for fact in _facts_about(source)]

    def default(self, name: str) -> Categorical:
        """What an empty cell of a column means in each row, None where nothing says so.

        Args:
            name: a column, or one of the further keys that `data/frameworks.toml` explains.

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
    columns = {name: runs.categories(name).take(rows) for name in conditions}
    answers = [columns[name].matches(partial(meets, wanted=wanted)) for name, wanted in conditions.items()]
    is_met[rows] = np.all(answers, axis=0)
    return is_met


def _facts_about(source: str | None) -> list[Mapping[str, Any]]:
    """Facts about rows of a source: the cells on which each depends (`when`), and what it says (`set`)."""
    return table_facts().get(source or "", {}).get("facts", [])
