"""HTML tables."""

import html
from collections.abc import Iterable, Sequence


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """Table of texts in HTML, with each text escaped.

    Args:
        columns: header.
        rows: cells.
        title: caption; none where empty.

    Returns:
        The `table` element.
    """
    header = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"<caption>{html.escape(title)}</caption>\n" if title else ""
    return f"<table>\n{caption}<tr>{header}</tr>\n{body}\n</table>"
