"""Tables in Markdown, and tables of contents."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, its header first."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(columns)}", *lines[1:]])


def anchor(heading: str) -> str:
    """Link target of a heading, as GitHub makes it: small letters, spaces as hyphens, punctuation left out."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def contents(text: str) -> str:
    """List of links to the headings of the second level of a page."""
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    return "\n".join(f"- [{heading}](#{anchor(heading)})" for heading in headings)


def with_contents(text: str) -> str:
    """A page with the list of its sections below its title, in place of an earlier list there."""
    title, body = text.split("\n", 1)
    body = re.sub(r"\A\n*(?:- \[[^\]]+\]\(#[^)]*\)\n)*\n*", "", body)
    return f"{title}\n\n{contents(body)}\n\n{body}"


def rows_of(name: str) -> list[dict[str, str]]:
    """Rows of a table in this folder."""
    with (FOLDER / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
