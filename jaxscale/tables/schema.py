"""Schemas of tables: known columns, meaning of headings, required columns, contradictions between cells."""

import abc
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, one_like, similar
from jaxscale.tables.cells import SHAPE, Column, Names, Parsed, parse_cells, show, without_separators
from jaxscale.tables.table import AbstractTable

Kind = TypeVar("Kind", bound=AbstractTable)

CellProblems = dict[str, dict[int, str]]
"""Problem of each bad cell, by code of the cell [column]."""

_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}

_ALIKE, _WHOLE_WORD = 0.75, 4
"""Likeness of two names (`difflib`) from which a heading may be a misspelt column [1], and letters of a heading inside
a column from which the likeness is taken for granted [1]."""


class ColumnHeading(NamedTuple):
    """Column and unit of a heading of a table.

    Attributes:
        column: column of the schema; the heading itself if unknown to the schema.
        factor: factor of the numbers below the heading [1].
        unit: unit of the numbers if different from the schema's, else empty.
    """

    column: str
    factor: float = 1.0
    unit: str = ""


class Header(NamedTuple):
    """First line of a table.

    Attributes:
        written: headings as in the file.
        meant: column and unit of each heading.
    """

    written: tuple[str, ...]
    meant: tuple[ColumnHeading, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Column of the schema for each heading."""
        return tuple(heading.column for heading in self.meant)


class Check(NamedTuple):
    """A contradiction between valid cells.

    Attributes:
        is_broken: whether the cells of a row contradict each other [row].
        problem: message about a row by position: column, value, valid values.
    """

    is_broken: np.ndarray
    problem: Callable[[int], str]


class AbstractSchema(abc.ABC, Generic[Kind]):
    """Schema of tables, from which the reader takes all rules and the class of the result.

    Attributes:
        columns: known columns by name.
        row: noun for a row, in messages.
        says_nothing: columns without influence on predictions, harmless where misspelt.

    Args:
        names: valid names of chips and models.
    """

    columns: ClassVar[Mapping[str, Column]]
    row: ClassVar[str] = "run"
    says_nothing: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Names):
        """Take the valid names."""
        self.names = names

    @classmethod
    def further_headings(cls) -> "Headings":
        """Alternative names of columns, and units; none for tables with columns by their own names."""
        return Headings({}, {})

    def headings(self, header: Sequence[str]) -> list[ColumnHeading]:
        """Column and unit of each heading, with alternative names; known columns match in any case."""
        names = [name.strip() for name in header]
        own = [ColumnHeading(name.lower() if name.lower() in self.columns else name) for name in names]
        # Tables with columns by their names need no further names.
        is_plain = all(one.column in self.columns for one in own)
        return own if is_plain else self.further_headings().meanings(header, self.columns)

    def in_units(self, cells: AbstractTable, header: Header) -> AbstractTable:
        """Cells as texts in the units of the columns, converted from the units of the headings."""
        del header
        return cells

    @classmethod
    def unread(cls, columns: Sequence[str]) -> list[str]:
        """Columns of a table that are unknown to the schema, without predictions of earlier runs."""
        return [name for name in columns if name not in cls.columns and not name.startswith(("predicted_", "term_"))]

    @classmethod
    def misspelt(cls, columns: Sequence[str]) -> dict[str, str]:
        """Unknown columns that resemble an absent known column, with the name of the known column."""
        absent = [name for name in cls.columns if name not in (*columns, *cls.says_nothing)]
        close = {name: similar(name, absent, _holds, most=1, likeness=_ALIKE) for name in cls.unread(columns)}
        return {name: alike[0] for name, alike in close.items() if alike}

    @classmethod
    def doubts(cls, columns: Sequence[str]) -> tuple[str, ...]:
        """A line for each column that may be misspelt, and a line for all others that are not read."""
        misspelt = cls.misspelt(columns)
        lines = [f"column {name!r} is not read (is {meant!r} meant?)" for name, meant in misspelt.items()]
        others = [repr(name) for name in cls.unread(columns) if name not in misspelt]
        return (*lines, *([f"not read: {', '.join(others)}"] if others else []))

    def missing(self, header: Header, needed: Iterable[str], filled_by: Mapping[str, Collection[str]]) -> str:
        """Message about absent required columns, with a question about a misspelt column; empty where none is absent.

        Args:
            header: first line of the table.
            needed: required columns.
            filled_by: columns of which any fills a required column [required column].
        """
        columns = header.columns
        absent = [name for name in needed if not {name, *filled_by.get(name, ())}.intersection(columns)]
        names = f"{', '.join(map(repr, absent))}{self.hint(absent, columns)}"
        return f"missing column{'s' * (len(absent) > 1)} {names}" if absent else ""

    def told_elsewhere(self, header: Header, names: Sequence[str], others: Collection[str], reader: str) -> str:
        """Words on the reader of another kind of table; empty without one of its columns.

        Args:
            header: first line of the table.
            names: tables of names in `data/headings.toml` of the other kind.
            others: columns of the other kind alone.
            reader: what reads it.
        """
        column_of = headings_in(names, ()).column_of
        words = {joined_words(heading) for heading in header.written}
        return f"; {reader}" if {*words, *map(column_of.get, words)} & set(others) else ""

    def hint(self, missing: Collection[str], columns: Sequence[str]) -> str:
        """Question about the first column that resembles a missing column; empty if none does."""
        meant = ((column, name) for column, name in self.misspelt(columns).items() if name in missing)
        return next((f" (is {show(column)} meant for {name!r}?)" for column, name in meant), "")

    @abc.abstractmethod
    def lacks(self, header: Header) -> str:
        """Message about missing required columns, with the valid columns; empty for a complete header."""

    def values(self, heading: ColumnHeading, texts: Sequence[str]) -> Parsed:
        """Values of the distinct cells of a known column, and problems of cells."""
        return parse_cells(self.columns[heading.column], texts, self.names)

    @abc.abstractmethod
    def table(self, table: AbstractTable, header: Header, problems: CellProblems) -> Kind:
        """Table of the class of the schema, with empty cells filled in from related cells.

        Args:
            table: cells and values as read.
            header: first line.
            problems: problems of cells, changed in place: solved problems go, new problems are added.
        """

    def checks(self, table: Kind) -> Iterable[Check]:
        """Contradictions between cells, in the order of the messages."""
        del table
        return ()

    def row_problems(self, table: Kind, bad: Collection[int]) -> Iterator[dict[int, list[str]]]:
        """Problems of rows with valid cells, such as contradictions between cells.

        Args:
            table: all rows, bad rows included.
            bad: rows with a problem so far, earlier yields included.

        Yields:
            Problems by row.
        """
        problems: dict[int, list[str]] = {}
        for check in self.checks(table):
            for row in np.flatnonzero(check.is_broken).tolist():
                if row not in bad:
                    problems.setdefault(row, []).append(check.problem(row))
        yield problems

    def unknown_models(self, table: AbstractTable, judged: np.ndarray, hint: str = "") -> dict[int, list[str]]:
        """Problems of the rows with an unknown model and without a shape.

        In a table with shape columns, an unknown model is a problem only if no row has a shape.

        Args:
            table: models and shapes.
            judged: whether a row has a model and no problem so far [row].
            hint: question about a misspelt shape column, for the message.

        Returns:
            Problems by row.
        """
        models = table.categories("model")
        # A shape in the row makes the name of the model irrelevant.
        is_known = models.matches(self.names.is_model)
        n_given = np.sum([~np.isnan(table.numbers(name)) for name in SHAPE], axis=0)
        is_known |= n_given == len(SHAPE)
        has_columns = all(name in table.columns for name in SHAPE)
        if has_columns and np.any(judged & is_known):
            return {}
        is_problem = judged & ~is_known & (((n_given == 0) & models.matches(bool)) if has_columns else True)
        told: dict[str, str] = {}
        for name in {models[row] or "" for row in np.flatnonzero(is_problem).tolist()}:
            known = one_like(name, self.names.known_models) if self.names.known_models else "expected a catalogue model"
            told[name] = (
                f"column 'model' = {show(name)}: unknown model and no shape{hint}; {known}, or {', '.join(SHAPE)}"
            )
        return {row: [told[models[row] or ""]] for row in np.flatnonzero(is_problem).tolist()}


def check_names(path: Path, header: Header) -> None:
    """Refuse a header without commas, or with a repeated column.

    Args:
        path: file, for the message.
        header: first line of the table.

    Raises:
        InputError: wrong delimiter, a repeated column, or two headings with the same meaning.
    """
    columns = header.columns
    if len(columns) == 1:
        for mark, name in _DELIMITERS.items():
            if mark in columns[0]:
                raise InputError(f"{path}:1: the header is separated by {name}; expected commas")
    for name in dict.fromkeys(columns):
        # Headings that differ in case alone are a repetition; different words need an explanation.
        named = [heading for heading, column in zip(header.written, columns, strict=True) if column == name]
        if len(named) > 1 and len({heading.strip().lower() for heading in named}) > 1:
            told = " and ".join(map(repr, named))
            raise InputError(f"{path}:1: {told} both mean {name!r}; expected one of them, or {name!r} beside them")
        if len(named) > 1:
            raise InputError(f"{path}:1: column {show(name)} appears twice; expected each column once")


def _holds(other: str, name: str) -> bool:
    return len(name) >= _WHOLE_WORD and name in other


@dataclass(frozen=True)
class Headings:
    """Alternative names of columns, and units.

    Attributes:
        column_of: column by heading, in lower case with words joined by underscores.
        units: factor to the unit of the column, by unit, by column [1].
        in_tokens: columns that count tokens if the heading ends in `tokens`.
    """

    column_of: Mapping[str, str]
    units: Mapping[str, Mapping[str, float]]
    in_tokens: Collection[str] = ()

    def meanings(self, header: Sequence[str], columns: Collection[str]) -> list[ColumnHeading]:
        """Column and unit of each heading; for a column with several headings its own name counts, else the first.

        Args:
            header: headings as written.
            columns: known columns.
        """
        stated = {name for heading in header if (name := heading.strip().lower()) in columns}
        found: list[ColumnHeading] = []
        for heading in header:
            one = self.meaning(heading, columns)
            is_own = heading.strip().lower() in columns
            is_taken = one.column in stated or any(one.column == other.column for other in found)
            found.append(one if is_own or not is_taken else ColumnHeading(heading.strip()))
        return found

    def meaning(self, heading: str, columns: Collection[str]) -> ColumnHeading:
        """Column and unit factor of a heading, whose last words may be a unit; the heading itself if unknown."""
        text = heading.strip().lower()
        words = [text] if text in columns else joined_words(text.replace("%", " percent")).split("_")
        for place in range(len(words), 0, -1):
            column, unit = self.column("_".join(words[:place]), columns), "_".join(words[place:])
            if column is None:
                continue
            if column in self.in_tokens and unit in ("tokens", "token"):
                return ColumnHeading(column, unit="tokens")
            factor = self.units.get(column, {}).get(unit) if unit else 1.0
            return ColumnHeading(heading.strip()) if factor is None else ColumnHeading(column, factor)
        return ColumnHeading(heading.strip())

    def column(self, words: str, columns: Collection[str]) -> str | None:
        """Column of the words of a heading without unit; None if unknown."""
        named = words if words in columns else self.column_of.get(words)
        return named if named in columns else None


@functools.cache
def _heading_tables() -> Mapping[str, Mapping[str, Any]]:
    """Tables of `data/headings.toml`."""
    return read_toml(data_path("headings.toml"))


def headings_in(names: Sequence[str], columns: Iterable[Column], in_tokens: Collection[str] = ()) -> Headings:
    """Alternative names of columns, and units, from `data/headings.toml`.

    Args:
        names: tables of names in the file; the last one decides.
        columns: columns that may be named.
        in_tokens: columns that count tokens where a heading says tokens.
    """
    tables = _heading_tables()
    column_of = {name: column for table in names for column, several in tables[table].items() for name in several}
    units = {
        # Units of a column itself, else of what has its unit, else of its kind.
        one.name: next((tables["units"][key] for key in (one.name, one.unit, one.kind) if key in tables["units"]), {})
        for one in columns
    }
    return Headings(column_of, units, in_tokens)


def in_units_of_columns(cells: AbstractTable, header: Header) -> AbstractTable:
    """Cells converted to the units of the columns, batches below a heading in tokens to texts such as `4M tokens`."""
    written = {
        heading.column: cells.cells[heading.column].map(functools.partial(in_unit_of_column, heading))
        for heading in header.meant
        if heading.unit or heading.factor != 1.0
    }
    return replace(cells, cells={**cells.cells, **written})


def joined_words(text: str) -> str:
    """Words of a heading in lower case, joined by underscores; other characters separate words."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def in_unit_of_column(heading: ColumnHeading, text: str) -> str:
    """Cell below a heading with a unit, in the unit of the column; a cell without a number is unchanged."""
    plain = without_separators(text.strip())
    if heading.unit == "tokens" and plain:
        return f"{plain} tokens"
    if heading.factor == 1.0:
        return text
    try:
        return f"{float(plain) * heading.factor:.10g}"
    except ValueError:
        return text
