"""What empty cells of a runs table mean: defaults by framework and source, facts about tables."""

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.resources import data_path, read_toml
from jaxscale.calibration.seen import table_of
from jaxscale.runs.table import Runs
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.words import translate, vocabularies


@cache
def framework_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Meaning of empty cells by framework, from `data/frameworks.toml`; `default` for a framework not named there.

    A framework that is the `same_as` another one has the defaults of that one, but for those that it names itself.
    """
    tables = read_toml(data_path("frameworks.toml"))["frameworks"]
    own = {name: {key: _value(entry) for key, entry in table.items()} for name, table in tables.items()}
    like = {name: own[table["same_as"]] for name, table in own.items() if "same_as" in table}
    has_own = {name: bool({*own[name]} - {"same_as", "source", "date"}) for name in like}
    return {**own, **{name: {**table, **own[name], "has_own": has_own[name]} for name, table in like.items()}}


def answered_as(framework: str | None) -> str | None:
    """Framework whose features one without own ones has; itself where it has own ones, or is not known."""
    table = framework_defaults().get((framework or "").lower(), {})
    return table["same_as"] if "same_as" in table and not table["has_own"] else framework


def answer_note(framework: str | None) -> str:
    """As which framework one is answered, in words; empty for one with all features of its own."""
    table = framework_defaults().get((framework or "").lower(), {})
    own = ", with defaults of its own" if table.get("has_own") else ""
    return f"framework {framework} is answered as {table['same_as']}{own}" if "same_as" in table else ""


def _value(entry: Any) -> Any:
    """A default that stands alone or carries the words of its source."""
    return entry["value"] if isinstance(entry, dict) and "value" in entry else entry


@cache
def table_facts() -> Mapping[str, Mapping[str, Any]]:
    """Facts about single tables by the name of their source, from the TOML file beside each.

    A file may have `defaults` of empty cells, `facts` that fill empty cells of some rows, `larger_than` and `scaling`
    for studies of the table, `parts` in which its errors are told, and `patterns` that its residuals showed.
    """
    folders = ("runs", "restricted", "restricted/runs")
    paths = [path for folder in folders for path in sorted(data_path(folder).glob("*.toml"))]
    return {path.stem: read_toml(path) for path in paths}


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
        _defaults_of(source),
        frameworks.get((framework or "").lower(), {}),
        frameworks["default"],
    )
    return next((table[name] for table in candidates if name in table), None)


def is_known_of(names: tuple[str, ...], framework: str | None, source: str | None) -> bool:
    """Whether a framework's own table, or that of a source, says any of some columns."""
    tables = (framework_defaults().get((framework or "").lower(), {}), _defaults_of(source))
    return any(name in table for table in tables for name in names)


def _defaults_of(source: str | None) -> Mapping[str, Any]:
    """Defaults of the rows of a source, from the file beside its table."""
    return table_facts().get(table_of(source or ""), {}).get("defaults", {})


def is_fused(attention_kernel: str) -> bool:
    """Whether an attention kernel keeps its scores on the chip; all do but those that the table names."""
    return attention_kernel.lower() not in vocabularies()["kernels"]["materialised"]


def attention_rate(attention_kernel: str) -> float:
    """Rate of an attention kernel over that of FlashAttention-2, 1 for one that is not in the table [1]."""
    return vocabularies()["kernels"]["rate"].get(attention_kernel.lower(), 1.0)


class Recomputation(NamedTuple):
    """What a plan recomputes.

    Attributes:
        word: `Plan.recompute`.
        dropped: share of a layer's activations, beyond its input, that is dropped [1].
        of_mixtures: the same of a layer with experts [1].
        again: share of its forward pass that is done again [1].
    """

    word: str
    dropped: float
    of_mixtures: float
    again: float


def recomputation(word: str, modules: str | None, framework: str | None) -> Recomputation:
    """What is recomputed, by a word or by a list of modules.

    Args:
        word: of the vocabulary `recompute`; what it means may depend on the framework.
        modules: names of modules joined by `+`, which count before the word; None for no list.
        framework: the row's framework.

    Returns:
        The shares of the modules added up, at most one; of modules that no table names, those of a whole layer.
    """
    meant = framework_defaults().get((framework or "").lower(), {}).get("recompute_words", {}).get(word, word)
    parts = modules.lower().split("+") if modules else [translate("recompute", meant) or "none"]
    table = vocabularies()["recompute_modules"]
    entries = [table.get(part.strip(), table["full"]) for part in parts if part.strip() not in ("none", "selective")]
    keys = ("dropped", "of_mixtures", "again")
    shares = [min(sum(entry.get(key, entry["dropped"]) for entry in entries), 1.0) for key in keys]
    if "selective" in parts or "core_attn" in parts:
        return Recomputation("selective", *shares)
    return Recomputation("full" if shares[0] == 1.0 else "none", *shares)


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
        frameworks = runs.categories("framework")
        # Facts about a table come before those about the framework, such as what an older release did.
        for column, facts_about in ((sources, _facts_about), (frameworks, _facts_about_framework)):
            for code, name in enumerate(column.values):
                own = np.flatnonzero(column.codes == code)
                self._facts += [(_meets(runs, fact["when"], own), fact["set"]) for fact in facts_about(name)]

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

    def is_told(self, name: str) -> np.ndarray:
        """Whether the cell of a column, or what is known of its source or release, says what holds in a row [row]."""
        told = self._runs.categories(name).matches(lambda cell: cell is not None)
        told |= self._stacks.matches(lambda stack: name in _defaults_of(stack[1]))
        for holds, says in self._facts:
            told |= holds & (name in says)
        return told

    def is_known(self, names: tuple[str, ...]) -> np.ndarray:
        """Whether more than the defaults of an unnamed framework says what an empty cell of any column means [row]."""
        known = self._stacks.matches(lambda stack: is_known_of(names, *stack))
        for holds, says in self._facts:
            known |= holds & any(name in says for name in names)
        return known

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
    return table_facts().get(table_of(source or ""), {}).get("facts", [])


def _facts_about_framework(framework: str | None) -> list[Mapping[str, Any]]:
    """The same about rows of a framework, whatever their source; those of every framework come last."""
    tables = framework_defaults()
    return [fact for name in ((framework or "").lower(), "default") for fact in tables.get(name, {}).get("facts", [])]
