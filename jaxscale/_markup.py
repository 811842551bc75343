"""Tables in HTML."""

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
