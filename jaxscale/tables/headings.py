"""Headings of tables as people and tools write them: the column, and the unit of the numbers below."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxscale.tables.schema import ColumnHeading
from jaxscale.tables.words import without_separators

_BRACKETS = re.compile(r"(.*?)\s*[(\[]([^)\]]*)[)\]]\s*")


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
            one = self._meaning(heading, columns)
            is_own = heading.strip().lower() in columns
            is_taken = one.column in stated or any(one.column == other.column for other in found)
            found.append(one if is_own or not is_taken else ColumnHeading(heading.strip()))
        return found

    def _meaning(self, heading: str, columns: Collection[str]) -> ColumnHeading:
        """Column, factor and unit of a heading; the heading itself where unknown."""
        text = heading.strip().lower()
        if text in columns:
            return ColumnHeading(text)
        bracket = _BRACKETS.fullmatch(text)
        words, unit = _joined(bracket[1] if bracket else text), bracket[2].strip() if bracket else ""
        if not bracket and self._column(words, columns) is None:
            words, _, unit = words.rpartition("_")
        column = self._column(words, columns)
        if column is None:
            return ColumnHeading(heading.strip())
        if column in self.in_tokens and unit in ("tokens", "token"):
            return ColumnHeading(column, unit="tokens")
        factor = self.units.get(column, {}).get(unit) if unit else 1.0
        return ColumnHeading(heading.strip()) if factor is None else ColumnHeading(column, factor, unit)

    def _column(self, words: str, columns: Collection[str]) -> str | None:
        """Column of a heading without unit."""
        return words if words in columns else self.column_of.get(words)


def _joined(text: str) -> str:
    """Words of a heading joined by underscores."""
    return re.sub(r"[^a-z0-9%]+", "_", text).strip("_")


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
