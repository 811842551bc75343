"""Headings of tables as people and tools write them: the column, and the unit of the numbers below."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxscale.tables.schema import ColumnHeading
from jaxscale.tables.words import without_separators


@dataclass(frozen=True)
class Headings:
    """Further names of columns, and units.

    Attributes:
        column_of: column by heading, in lower case with words joined by underscores.
        units: factor to the unit of the column, by unit, by column [1].
        in_tokens: columns that count tokens where a heading says tokens.
    """

    column_of: Mapping[str, str]
    units: Mapping[str, Mapping[str, float]]
    in_tokens: Collection[str] = ()

    def meanings(self, header: Sequence[str], columns: Collection[str]) -> list[ColumnHeading]:
        """Meanings of all headings; a column is taken from its own name, else from the first further name.

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
        """Column and factor of a heading, whose last word may be a unit; the heading itself where unknown."""
        text = heading.strip().lower()
        words = text if text in columns else joined_words(text.replace("%", " percent"))
        name, _, unit = words.rpartition("_")
        if column := self._column(words, columns):
            return ColumnHeading(column)
        if (column := self._column(name, columns)) is None:
            return ColumnHeading(heading.strip())
        if column in self.in_tokens and unit in ("tokens", "token"):
            return ColumnHeading(column, unit="tokens")
        factor = self.units.get(column, {}).get(unit)
        return ColumnHeading(heading.strip()) if factor is None else ColumnHeading(column, factor)

    def _column(self, words: str, columns: Collection[str]) -> str | None:
        """Column of a heading without unit."""
        return words if words in columns else self.column_of.get(words)


def joined_words(text: str) -> str:
    """Words of a heading in lower case, joined by underscores; brackets are blanks."""
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
