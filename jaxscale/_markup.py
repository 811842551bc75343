"""Tables in HTML and in plain text."""

import html
from collections.abc import Iterable, Sequence


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, each escaped.

    Args:
        columns: header.
        rows: cells.

    Returns:
        The `table` element.
    """
    header = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>\n<tr>{header}</tr>\n{body}\n</table>"


def aligned_table(columns: Sequence[str], rows: Iterable[Sequence[str]], n_left: int = 1) -> list[str]:
    """Lines of a table in plain text.

    Args:
        columns: header.
        rows: cells.
        n_left: columns that are set to the left, the others to the right [1].

    Returns:
        One line for each row, header first.
    """
    cells = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.ljust if place < n_left else str.rjust for place in range(len(widths))]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    ]
