"""Pages of the documentation, and what they mention: files, public names, links, commands, blocks of code."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
FOLDERS = ("jaxscale", "data", "fits", "tests", "docs", "benchmarks", "notebooks", r"\.ci")


class Block(NamedTuple):
    """One fenced block of a page.

    Attributes:
        language: word after the fence, empty where there is none.
        role: text of the comment `<!-- example: ... -->` right above the block, empty where there is none.
        text: its lines.
    """

    language: str
    role: str
    text: str


def page_id(page: Path) -> str:
    """Path of a page from the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """Fenced blocks of a page, in order."""
    pattern = r"(?:^<!-- example: ([^\n]*?) -->\n+)?^```(\w*)\n(.*?)^```$"
    found = re.finditer(pattern, text, flags=re.MULTILINE | re.DOTALL)
    return [Block(match[2], match[1] or "", match[3]) for match in found]


def with_outputs(found: list[Block]) -> list[tuple[Block, str]]:
    """Blocks in order, each with the output that the page shows below it, empty where it shows none."""
    pairs = zip(found, [*found[1:], Block("", "", "")], strict=False)  # a page without blocks has no pairs
    return [(block, following.text if following.language == "text" else "") for block, following in pairs]


def without_blocks(text: str) -> str:
    """Prose of a page: what stands outside of fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def mentioned_paths(text: str) -> set[str]:
    """Paths in backticks that begin with a folder of the repository; `<name>` in them counts as a wildcard."""
    found = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./*<>-]*)`", without_blocks(text))
    return {re.sub(r"<\w+>", "*", path) for path in found}


def new_paths(text: str) -> set[str]:
    """Files that a page tells its reader to write."""
    return {block.role.split()[1] for block in blocks(text) if block.role.startswith("new ")}


def mentioned_names(text: str) -> set[str]:
    """Dotted public names `js.name`, in prose and in code."""
    return set(re.findall(r"(?<![\w.])js\.([A-Za-z]\w*(?:\.[A-Za-z]\w*)*)", text))


def mentioned_modules(text: str) -> set[str]:
    """Dotted names `jaxscale.module.name` in backticks."""
    return set(re.findall(r"`(jaxscale\.\w+(?:\.\w+)*)(?:\([^`]*\)[^`]*)?`", without_blocks(text)))


def mentioned_options(text: str, commands: Iterable[str]) -> set[str]:
    """Options `--name` in backticks, alone or behind one of the commands, in prose."""
    spans = re.findall(r"`([^`\n]+)`", without_blocks(text))
    ours = [span for span in spans if span.startswith("--") or span.split()[0] in ("jaxscale", *commands)]
    return {name for span in ours for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span)}


def links(text: str) -> set[str]:
    """Targets of the links and figures of a page that lie in the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_blocks(text))
    return {target for target in found if not re.match(r"[a-z]+:", target)}


def anchors(text: str) -> set[str]:
    """Link targets of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
