"""Meaning of empty cells of a runs table: defaults by framework and source, and facts about tables.

Also the recomputation words of a framework, possible meanings of blank cells, and changes by which a run would fit.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.units import GB
from jaxscale.calibration.levels import table_of
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical, joined, together
from jaxscale.tables.cells import translate, vocabularies


@cache
def framework_defaults() -> Mapping[str, Mapping[str, Any]]:
    """Default values of empty cells by framework, from `data/frameworks.toml`; `default` for any other framework.

    A framework with `same_as` inherits the defaults of the named framework and overrides single defaults.
    """
    tables = read_toml(data_path("frameworks.toml"))["frameworks"]
    own = {name: {key: _value(entry) for key, entry in table.items()} for name, table in tables.items()}
    like = {name: own[table["same_as"]] for name, table in own.items() if "same_as" in table}
    # A framework with features beside `same_as` is no mere alias.
    has_own = {name: bool({*own[name]} - {"same_as", "source", "date"}) for name in like}
    return {**own, **{name: {**table, **own[name], "has_own": has_own[name]} for name, table in like.items()}}


def answered_as(framework: str | None) -> str | None:
    """Framework whose defaults are used for a framework: the `same_as` of a mere alias, else the framework itself."""
    table = framework_defaults().get((framework or "").lower(), {})
    return table["same_as"] if "same_as" in table and not table["has_own"] else framework


def answer_note(framework: str | None) -> str:
    """Note on the framework whose defaults are used for another framework; empty for a framework without `same_as`."""
    table = framework_defaults().get((framework or "").lower(), {})
    own = ", with defaults of its own" if table.get("has_own") else ""
    return f"framework {framework} is answered as {table['same_as']}{own}" if "same_as" in table else ""


def _value(entry: Any) -> Any:
    """Default without the quote of its source."""
    return entry["value"] if isinstance(entry, dict) and "value" in entry else entry


@cache
def table_facts() -> Mapping[str, Mapping[str, Any]]:
    """Facts about tables by the name of the source, from the TOML file beside each table.

    A file may have `defaults` of empty cells, `facts` for empty cells of selected rows, `larger_than` and `scaling`
    for studies of the table, `parts` by which errors are reported, and `patterns` in the residuals.
    """
    folders = ("runs", "restricted", "restricted/runs")
    paths = [path for folder in folders for path in sorted(data_path(folder).glob("*.toml"))]
    return {path.stem: read_toml(path) for path in paths}


def default_for(name: str, framework: str | None, source: str | None) -> Any:
    """Default value of an empty cell: by source, else by framework, else for an unnamed framework.

    Args:
        name: a column, or one of the further keys that `data/frameworks.toml` explains.
        framework: the row's framework.
        source: the row's source.

    Returns:
        The default, None where no table states a default.
    """
    frameworks = framework_defaults()
    candidates = (
        _defaults_of(source),
        frameworks.get((framework or "").lower(), {}),
        frameworks["default"],
    )
    # Facts about a source come before facts about a framework.
    return next((table[name] for table in candidates if name in table), None)


def is_known_of(names: tuple[str, ...], framework: str | None, source: str | None) -> bool:
    """Whether a framework or source has a default of its own for any of the given columns."""
    tables = (framework_defaults().get((framework or "").lower(), {}), _defaults_of(source))
    return any(name in table for table in tables for name in names)


def _defaults_of(source: str | None) -> Mapping[str, Any]:
    """Defaults of the rows of a source, from the file beside its table."""
    return table_facts().get(table_of(source or ""), {}).get("defaults", {})


def is_fused(attention_kernel: str) -> bool:
    """Whether an attention kernel is fused, without scores in memory; true for any kernel not listed as unfused."""
    return attention_kernel.lower() not in vocabularies()["kernels"]["materialised"]


def attention_rate(attention_kernel: str) -> float:
    """Rate of an attention kernel relative to FlashAttention-2; 1 for unlisted kernels [1]."""
    return vocabularies()["kernels"]["rate"].get(attention_kernel.lower(), 1.0)


class Recomputation(NamedTuple):
    """Recomputation of activations of a plan.

    Attributes:
        word: `Plan.recompute`.
        dropped: share of a layer's activations, beyond its input, that is not saved [1].
        of_mixtures: the same share for a layer with experts [1].
        again: share of a layer's forward pass that is computed twice [1].
    """

    word: str
    dropped: float
    of_mixtures: float
    again: float


def recomputation(word: str, modules: str | None, framework: str | None) -> Recomputation:
    """Recomputation of activations from a word or from a list of modules.

    Args:
        word: word of the vocabulary `recompute`, whose meaning may depend on the framework.
        modules: names of modules joined by `+`, which override the word; None for no list.
        framework: the row's framework.

    Returns:
        Sum of the shares of the modules, at most 1; unknown modules count as a whole layer, and modules inside a
        further module of the list count with the outer module.
    """
    # The modules of "selective" depend on the framework.
    meant = framework_defaults().get((framework or "").lower(), {}).get("recompute_words", {}).get(word, word)
    words = modules.lower().split("+") if modules else [translate("recompute", meant) or "none"]
    parts = [word.strip() for word in words]
    table = vocabularies()["recompute_modules"]
    # Unknown modules count as a whole layer.
    entries = [table.get(part, table["full"]) for part in parts if part not in ("none", "selective")]
    entries = [entry for entry in entries if not {*entry.get("inside", ())} & {*parts}]
    keys = ("dropped", "of_mixtures", "again")
    # Modules may overlap.
    shares = [min(sum(entry.get(key, entry["dropped"]) for entry in entries), 1.0) for key in keys]
    if "selective" in parts or "core_attn" in parts:
        return Recomputation("selective", *shares)
    return Recomputation("full" if shares[0] == 1.0 else "none", *shares)


def known_frameworks() -> tuple[str, ...]:
    """Frameworks with defaults, in alphabetical order."""
    return tuple(sorted(name for name in framework_defaults() if name != "default"))


def meets(value: Any, wanted: str | float) -> bool:
    """Whether a cell equals a number or matches a regular expression; an empty cell matches none."""
    # A pattern must match the whole cell.
    return re.fullmatch(wanted, value or "") is not None if isinstance(wanted, str) else value == wanted


class EmptyCells:
    """Default values of the empty cells of a table.

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
        """Default value of an empty cell of a column in each row, None where unknown.

        Args:
            name: a column, or one of the further keys that `data/frameworks.toml` explains.

        Returns:
            The first fact that holds for the row, else the default of source, framework or unnamed framework.
        """
        column = self._stacks.map(lambda stack: default_for(name, *stack))
        # The first fact wins: later facts are overwritten.
        for holds, says in reversed(self._facts):
            if name in says:
                column = column.where(holds, says[name])
        return column

    def is_told(self, name: str) -> np.ndarray:
        """Whether a row's value of a column is known, from the cell, its source or its release [row]."""
        told = self._runs.categories(name).matches(lambda cell: cell is not None)
        told |= self._stacks.matches(lambda stack: name in _defaults_of(stack[1]))
        for holds, says in self._facts:
            told |= holds & (name in says)
        return told

    def is_known(self, names: tuple[str, ...]) -> np.ndarray:
        """Whether framework or source of a row have a default of their own for any of the given columns [row]."""
        known = self._stacks.matches(lambda stack: is_known_of(names, *stack))
        for holds, says in self._facts:
            known |= holds & any(name in says for name in names)
        return known

    def filled(self, name: str) -> Categorical:
        """Column with empty cells filled by default values."""
        cells = self._runs.categories(name)
        if not cells.matches(lambda cell: cell is None).any():
            return cells
        return together(cells, self.default(name)).map(lambda pair: pair[1] if pair[0] is None else pair[0])

    def filled_numbers(self, name: str) -> np.ndarray:
        """Column of numbers or flags with empty cells filled by default values, nan without a default [row]."""
        cells = self._runs.numbers(name)
        return np.where(np.isnan(cells), self.default(name).numbers(), cells)


def _meets(runs: Runs, conditions: Mapping[str, Any], rows: np.ndarray) -> np.ndarray:
    """Whether a row is selected and meets the conditions of a fact [row]."""
    is_met = np.zeros(len(runs), dtype=bool)
    columns = {name: runs.categories(name).take(rows) for name in conditions}
    answers = [columns[name].matches(partial(meets, wanted=wanted)) for name, wanted in conditions.items()]
    is_met[rows] = np.all(answers, axis=0)
    return is_met


def _facts_about(source: str | None) -> list[Mapping[str, Any]]:
    """Facts about rows of a source: conditions on cells (`when`) and values (`set`)."""
    return table_facts().get(table_of(source or ""), {}).get("facts", [])


def _facts_about_framework(framework: str | None) -> list[Mapping[str, Any]]:
    """Facts about rows of a framework, then facts about all frameworks."""
    tables = framework_defaults()
    return [fact for name in ((framework or "").lower(), "default") for fact in tables.get(name, {}).get("facts", [])]


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
    """Fields of a `Prediction` that the search for meanings and remedies reads."""

    @property
    def runs(self) -> Runs:
        """Predicted table."""
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
    """Range of step times of a table over the possible meanings of blank cells.

    Attributes:
        fastest: step time of the fastest meaning over the predicted step time [1], [row].
        slowest: step time of the slowest meaning over the predicted step time [1], [row].
        notes: columns that would decide between the meanings, empty if the meaning is clear [row].
    """

    def __init__(self, found: Answers, predicted: Predict):
        """Predict the rows with each of the possible words, `may_mean` of the row's framework, in blank cells.

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
            return f"blank cells: {_cells(named)} would take {_times_as_long(factor)}, which the interval covers"

        # Rows of nearly equal effect share a note.
        texts = together(Categorical.of_numbers(np.round(ratio, 2)), *flags).map(told)
        self.notes = joined([self.notes, texts.spread(rows, len(runs), "")])


def _times_as_long(factor: float) -> str:
    """Words for a ratio of times: `0.9 times as long`, `as long` for 1."""
    return "as long" if factor == 1.0 else f"{factor:g} times as long"


def remedies(found: Answers, predicted: Predict) -> Categorical:
    """Notes on rows that do not fit in memory but would with sharding or recomputation in blank cells [row].

    Args:
        found: the prediction with the default of each blank cell.
        predicted: prediction of a table.

    Returns:
        Notes with the fastest of `REMEDIES` that fits; empty for rows that fit, that state these cells, or that no
        remedy makes fit.
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
                f"blank cells: {_cells(cells)} would fit, in {row[0]:g} GB, and take {_times_as_long(row[1])}"
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
