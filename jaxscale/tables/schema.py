"""What makes a table one of its kind: columns, headings, what a header needs, what rows may not say."""

import abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from jaxscale.base.errors import InputError, one_like, similar
from jaxscale.tables.cells import Column, Parsed, parse_cells, show
from jaxscale.tables.names import SHAPE, Names
from jaxscale.tables.table import AbstractTable

Kind = TypeVar("Kind", bound=AbstractTable)

CellProblems = dict[str, dict[int, str]]
"""What is wrong with bad cells, by their code in their column [column]."""

_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}

_ALIKE, _WHOLE_WORD = 0.75, 4
"""Likeness of two names from which one may be meant by the other (`difflib`) [1], or letters of one inside it [1]."""


class ColumnHeading(NamedTuple):
    """What a heading of a table means.

    Attributes:
        column: of the schema; the heading itself where it means none.
        factor: of its numbers [1].
        unit: of numbers in another unit than that of the schema, empty for all else.
    """

    column: str
    factor: float = 1.0
    unit: str = ""


class Header(NamedTuple):
    """First line of a table.

    Attributes:
        written: headings as in the file.
        meant: what each means.
    """

    written: tuple[str, ...]
    meant: tuple[ColumnHeading, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Column that each heading means."""
        return tuple(heading.column for heading in self.meant)


class Check(NamedTuple):
    """A contradiction between cells that are each valid.

    Attributes:
        is_broken: whether a row contradicts itself [row].
        problem: what to say of a row by its position: column, value, what would be valid.
    """

    is_broken: np.ndarray
    problem: Callable[[int], str]


class AbstractSchema(abc.ABC, Generic[Kind]):
    """A kind of table: what its reader expects, and the table that it makes.

    Attributes:
        columns: known columns by name.
        row: what a row is, in messages.
        says_nothing: columns in which nothing is lost where they are misspelt.

    Args:
        names: of chips and models that a table may hold.
    """

    columns: ClassVar[Mapping[str, Column]]
    row: ClassVar[str] = "run"
    says_nothing: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Names):
        """Take the names that a table may hold."""
        self.names = names

    def headings(self, header: Sequence[str]) -> list[ColumnHeading]:
        """What each heading means; the case of a known column does not matter."""
        names = [name.strip() for name in header]
        return [ColumnHeading(name.lower() if name.lower() in self.columns else name) for name in names]

    @classmethod
    def misspelt(cls, columns: Sequence[str]) -> dict[str, str]:
        """Columns of a table that are not read, but look like one that it lacks, and which that is."""
        absent = [name for name in cls.columns if name not in (*columns, *cls.says_nothing)]
        unread = [name for name in columns if name not in cls.columns and not name.startswith(("predicted_", "term_"))]
        close = {name: similar(name, absent, _holds, most=1, likeness=_ALIKE) for name in unread}
        return {name: alike[0] for name, alike in close.items() if alike}

    @abc.abstractmethod
    def lacks(self, header: Header) -> str:
        """What a header lacks, and what would be valid; empty for nothing."""

    def values(self, heading: ColumnHeading, texts: Sequence[str]) -> Parsed:
        """Values of the distinct cells of a known column."""
        return parse_cells(self.columns[heading.column], texts, self.names)

    @abc.abstractmethod
    def table(self, table: AbstractTable, header: Header, problems: CellProblems) -> Kind:
        """The table of this kind, cells that others fill filled in.

        Args:
            table: as it was read.
            header: its first line.
            problems: of its cells; those that turn out to be none are taken out, further ones put in.
        """

    def checks(self, table: Kind) -> Iterable[Check]:
        """Contradictions between cells, in the order in which they are told."""
        del table
        return ()

    def row_problems(self, table: Kind, bad: Collection[int]) -> Iterator[dict[int, list[str]]]:
        """What is wrong with rows whose cells are each valid.

        Args:
            table: bad rows included.
            bad: rows whose problems are told already, those of an earlier yield among them.

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
        """Rows without a shape whose model is unknown, so that there is nothing to read.

        Where the table has shape columns, an unknown model is a problem only if no row of the table has a shape.

        Args:
            table: with models and their shapes.
            judged: which rows are of models, and not bad for another reason [row].
            hint: at a shape column that is misspelt, for the message.

        Returns:
            Problems by row.
        """
        models = table.categories("model")
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
    """Refuse a header of a table of any kind that is not separated by commas, or has a column twice.

    Args:
        path: file, for the message.
        header: first line of the table.

    Raises:
        InputError: wrong delimiter, a column twice, or two headings that mean one column.
    """
    columns = header.columns
    if len(columns) == 1:
        for mark, name in _DELIMITERS.items():
            if mark in columns[0]:
                raise InputError(f"{path}:1: the header is separated by {name}; expected commas")
    for name in dict.fromkeys(columns):
        named = [heading for heading, column in zip(header.written, columns, strict=True) if column == name]
        if len(named) > 1 and len({heading.strip().lower() for heading in named}) > 1:
            told = " and ".join(map(repr, named))
            raise InputError(f"{path}:1: {told} both mean {name!r}; expected one of them, or {name!r} beside them")
        if len(named) > 1:
            raise InputError(f"{path}:1: column {show(name)} appears twice; expected each column once")


def _holds(other: str, name: str) -> bool:
    return len(name) >= _WHOLE_WORD and name in other
