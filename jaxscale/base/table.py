"""Tables of text for terminals of any width, HTML, Markdown and plain text."""

import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """Table of texts in HTML, with each text escaped.

    Args:
        columns: header.
        rows: cells.
        title: caption; an empty text gives no caption.

    Returns:
        The `table` element.
    """
    header = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"<caption>{html.escape(title)}</caption>\n" if title else ""
    return f"<table>\n{caption}<tr>{header}</tr>\n{body}\n</table>"


NOTHING = ("", "-")
"""Cells without information."""

GAP = 2
"""Blanks between columns, and between phrases of a stacked row [1]."""

READABLE = 20
"""Least width of a readable text column [character]."""

LONGEST_WORD = 24
"""Length from which a word may break, such as a web address [character]."""

WIDE = 140
"""Line length without a terminal [character]."""


@dataclass(frozen=True)
class TableColumn:
    """Column of a table.

    Attributes:
        name: head of a wide column, such as `memory`.
        head: head of a narrow column, such as `GB`; the name where empty.
        unit: unit of the numbers, such as `GB`; empty if cells include units.
        is_text: whether the cells are text, which may wrap, rather than numbers, which may not.
        stays: whether the column is shown even if all cells are equal or empty.
        says: template of a cell in a stacked row, such as `ZeRO-{}`; by default name, cell and unit, without the name
            if the unit is the head. A template without braces is shown for the cell `yes` and omitted for `no`.
    """

    name: str
    head: str = ""
    unit: str = ""
    is_text: bool = False
    stays: bool = False
    says: str = ""

    def heading(self, is_short: bool = False) -> str:
        """Head of the column: the name with the unit in brackets, or the short head."""
        if is_short and self.head:
            return self.head
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def phrase(self, cell: str) -> str:
        """Text of a cell outside the column, such as `ZeRO-1` or `59.0 GB`; empty for a cell without information."""
        if cell in NOTHING or (self.says and "{}" not in self.says and cell == "no"):
            return ""
        if self.says:
            # "1 chip", but "3 chips" and "1 s".
            says = re.sub(r"(\w{3})s$", r"\1", self.says) if cell == "1" else self.says
            return says.format(cell)
        if self.unit and self.unit == self.head:
            return f"{cell} {self.unit}"
        return f"{self.name} {cell} {self.unit}" if self.unit else f"{self.head or self.name} {cell}"


def text_column(name: str, head: str = "", says: str = "{}") -> TableColumn:
    """Column of text.

    Args:
        name: head of a wide column.
        head: head of a narrow column.
        says: template of a cell in a stacked row.
    """
    return TableColumn(name, head, is_text=True, says=says)


@dataclass(frozen=True)
class Table:
    """Table of texts, laid out for the width of a terminal.

    The layout depends on the width. First, columns equal in all rows move to a line below the title; then
    heads become short; then each row becomes a line of phrases. Text wraps; numbers and heads never break.

    Attributes:
        title: headline, possibly empty.
        columns: columns in order.
        rows: cells of each row.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[str, ...], ...]

    def html(self) -> str:
        """HTML of the table, with all columns."""
        return f'<div class="wide">{html_table([one.heading() for one in self.columns], self.rows, self.title)}</div>'

    def markdown(self) -> str:
        """Markdown of the table, with all columns."""
        heads = [column.heading() for column in self.columns]
        sides = ["---" if column.is_text or not place else "---:" for place, column in enumerate(self.columns)]
        lines = [f"| {' | '.join(_plain_cell(cell) for cell in row)} |" for row in (heads, sides, *self.rows)]
        return "\n".join([*((self.title, "") if self.title else ()), *lines])

    def text(self, width: int = WIDE) -> str:
        """Text of the table for a terminal of the given width.

        Args:
            width: characters per line [1].

        Returns:
            Lines of at most `width` characters.
        """
        from rich.console import Console

        screen = io.StringIO()
        Console(file=screen, width=width, color_system=None, force_terminal=False, legacy_windows=False).print(self)
        return "\n".join(line.rstrip() for line in screen.getvalue().splitlines())

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        """Rendering by rich at the available width."""
        from rich.text import Text

        shown, shared = self.without_equal_columns()
        if self.title:
            yield Text(self.title, style="bold")
        if shared:
            yield Text(f"all: {', '.join(shared)}", style="dim")
        room = options.max_width - GAP * (len(shown.columns) - 1)
        for is_short in (False, True):
            if sum(shown._least_widths(is_short)) <= room:
                yield shown._in_columns(shown._widths(is_short, room), is_short)
                return
        for row in shown.rows:
            phrases = [column.phrase(cell) for column, cell in zip(shown.columns, row, strict=True)]
            line = Text("\n".join(flowed(phrases, options.max_width)))
            line.stylize("bold", 0, len(phrases[0]) if len(phrases) > 1 else 0)
            yield line

    def without_equal_columns(self) -> "tuple[Table, list[str]]":
        """Copy of the table without empty columns and columns of equal cells, and the dropped cells as phrases."""
        kept, shared = [], []
        for place, column in enumerate(self.columns):
            cells = {row[place] for row in self.rows}
            if cells <= set(NOTHING) and self.rows and not column.stays:
                continue
            if len(self.rows) > 1 and len(cells) == 1 and not column.stays:
                shared.append(column.phrase(cells.pop()))
            else:
                kept.append(place)
        if not kept:
            return self, []
        columns = tuple(self.columns[place] for place in kept)
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return replace(self, columns=columns, rows=rows), [phrase for phrase in shared if phrase]

    def _least_widths(self, is_short: bool = False) -> list[int]:
        """Least width of each column: numbers and heads do not break, and text stays readable [1], [column].

        Args:
            is_short: whether heads are short.
        """
        widths = []
        for column, cells in zip(self.columns, self._cells(), strict=True):
            longest = max(map(len, cells), default=0)
            if column.is_text:
                words = max((len(word) for cell in cells for word in cell.split()), default=0)
                # With short heads, no further room can be gained except by breaking words.
                longest = max(min(words, LONGEST_WORD) if is_short else words, min(longest, READABLE))
            widths.append(max(len(column.heading(is_short)), longest))
        return widths

    def _cells(self) -> list[list[str]]:
        """Cells of each column [column]."""
        return [[row[place] for row in self.rows] for place in range(len(self.columns))]

    def _widths(self, is_short: bool, room: int) -> list[int]:
        """Width of each column, with spare width assigned to long texts [1], [column]."""
        least = self._least_widths(is_short)
        wished = [max([width, *map(len, cells)]) for width, cells in zip(least, self._cells(), strict=True)]
        lacking = sum(wished) - sum(least)
        left = min(lacking, room - sum(least))
        return [
            width + (wish - width) * left // lacking if lacking else width
            for width, wish in zip(least, wished, strict=True)
        ]

    def _in_columns(self, widths: Sequence[int], is_short: bool) -> "RenderableType":
        """Rendering of the table with a line of heads above the columns."""
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for column, width in zip(self.columns, widths, strict=True):
            side = "left" if column.is_text else "right"
            grid.add_column(Text(column.heading(is_short)), justify=side, width=width, overflow="fold")
        for row in self.rows:
            grid.add_row(*(Text(_folded(cell, width)) for cell, width in zip(row, widths, strict=True)))
        return grid


def make_table(title: str, columns: Sequence[TableColumn | str], rows: Iterable[Sequence[Any]]) -> Table:
    """Table from cells of any type.

    Args:
        title: headline.
        columns: columns, or names of columns of numbers.
        rows: cells, converted to text.

    Returns:
        The table.
    """
    made = tuple(TableColumn(column) if isinstance(column, str) else column for column in columns)
    return Table(title, made, tuple(tuple(str(cell) for cell in row) for row in rows))


def text_of(parts: Iterable[str | Table], width: int = WIDE) -> str:
    """Plain text of lines and tables, with an empty line around each table.

    Args:
        parts: lines and tables in order.
        width: characters per line of a table [1].
    """
    blocks: list[str] = []
    for part in parts:
        text = part if isinstance(part, str) else f"\n{part.text(width)}\n"
        blocks.append(text)
    return "\n".join(blocks).replace("\n\n\n", "\n\n").strip("\n")


def html_of(parts: Iterable[str | Table]) -> str:
    """Lines and tables in HTML."""
    return "\n".join(f"<div>{html.escape(part)}</div>" if isinstance(part, str) else part.html() for part in parts)


def flowed(phrases: Iterable[str], width: int) -> list[str]:
    """Fill lines with phrases from left to right.

    Args:
        phrases: texts, broken only if longer than a line.
        width: characters per line [1].

    Returns:
        Lines; all but the first are indented.
    """
    lines = [""]
    for phrase in phrases:
        parts = [phrase] if len(phrase) <= width - GAP else phrase.split()
        for place, part in enumerate(parts):
            blanks = " " * (1 if place else GAP)
            if not lines[-1].strip():
                lines[-1] += part
            elif part and len(lines[-1]) + len(blanks) + len(part) > width:
                lines.append(" " * GAP + part)
            elif part:
                lines[-1] += blanks + part
    return lines


def _folded(cell: str, width: int) -> str:
    """Cell whose phrases, which two blanks part, stay whole in a narrow column; other text is left to wrap at words."""
    phrases = cell.split(" " * GAP)
    return cell if len(cell) <= width or len(phrases) == 1 else "\n".join(flowed(phrases, width))


def _plain_cell(cell: str) -> str:
    """Escaped cell of a Markdown table."""
    return cell.replace("|", "\\|")
