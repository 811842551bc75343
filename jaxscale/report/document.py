"""Report of text, tables and figures, as a self-contained HTML file or as Markdown with separate images."""

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscale.base.files import check_folder, write_whole
from jaxscale.base.table import Table, TableColumn, make_table
from jaxscale.report.style import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE_SHEET = """
body { font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption { color: #555; font-size: .92rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: 1rem 0; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #e4e4e4; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
caption { text-align: left; color: #555; padding: .25rem .7rem; }
"""


@dataclass(frozen=True)
class Heading:
    """Heading of a section.

    Attributes:
        text: the heading.
    """

    text: str

    def html(self) -> str:
        """HTML of the heading."""
        return f"<h2>{html.escape(self.text)}</h2>"

    def markdown(self) -> str:
        """Markdown of the heading."""
        return f"## {self.text}"


@dataclass(frozen=True)
class Paragraph:
    """Plain text.

    Attributes:
        text: the text.
    """

    text: str

    def html(self) -> str:
        """HTML of the text."""
        return f"<p>{html.escape(self.text)}</p>"

    def markdown(self) -> str:
        """Markdown of the text."""
        return self.text


@dataclass(frozen=True)
class Picture:
    """Figure with a caption.

    Attributes:
        name: file name without suffix.
        caption: description.
        image: PNG content.
    """

    name: str
    caption: str
    image: bytes

    def html(self) -> str:
        """HTML of the figure with the embedded image."""
        # Embedded, so the HTML file stands alone.
        data = base64.b64encode(self.image).decode()
        caption = html.escape(self.caption)
        source = f"data:image/png;base64,{data}"
        return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'

    def markdown(self) -> str:
        """Markdown that points to the image file."""
        return f"![{self.caption}]({self.name}.png)\n\n{self.caption}"


class Report:
    """Report under construction, a sequence of blocks.

    Attributes:
        title: title of the document.
        blocks: content so far.
    """

    def __init__(self, title: str):
        """Args: title: title of the document."""
        self.title = title
        self.blocks: list[Heading | Paragraph | Table | Picture] = []

    def add(self, block: Heading | Paragraph | Table | Picture) -> None:
        """Add a block, such as a table."""
        self.blocks.append(block)

    def heading(self, text: str) -> None:
        """Start a section."""
        self.add(Heading(text))

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self.add(Paragraph(text))

    def sentences(self, lines: Iterable[str]) -> None:
        """Add a paragraph for each line, as a sentence: a capital at the start, a full stop at the end."""
        for line in lines:
            self.text(f"{line[0].upper()}{line[1:]}.")

    def table(self, columns: Sequence[TableColumn | str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table without a title; cells are converted to text."""
        self.add(make_table("", columns, rows))

    def figure(self, name: str, figure: "Figure", caption: str) -> None:
        """Add a figure, saved under the file name `name`."""
        self.add(Picture(name, caption, png(figure)))

    def to_html(self) -> str:
        """Report as a self-contained HTML document."""
        body = "\n".join(block.html() for block in self.blocks)
        title = html.escape(self.title)
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f"<style>{STYLE_SHEET}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )

    def to_markdown(self) -> str:
        """Report as Markdown, with images `<name>.png`."""
        return "\n\n".join([f"# {self.title}", *(block.markdown() for block in self.blocks)]) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Write `report.html`, `report.md` and one PNG per figure, each file atomically.

        Args:
            folder: target folder, created if missing.

        Raises:
            InputError: the folder cannot be created or written to.
        """
        folder = check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for block in self.blocks:
            if isinstance(block, Picture):
                write_whole(folder / f"{block.name}.png", block.image)
        write_whole(folder / "report.md", self.to_markdown())
        write_whole(folder / "report.html", self.to_html())
        return folder / "report.html"
