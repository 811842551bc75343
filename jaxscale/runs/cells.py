"""One cell of a runs table: text to value, or the reason why not."""

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence

from jaxscale.runs.defaults import translate, words
from jaxscale.runs.schema import Column, Value

# Stricter than float(): no underscores, no digits of other scripts.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False, "yes": True, "no": False}
_MAX_SHOWN = 60
_MAX_NAMES = 30


def show(text: str) -> str:
    """A cell for a message: quoted, on one line, shortened if very long."""
    return repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...")


def parse_cell(column: Column, text: str) -> tuple[Value | None, str]:
    """Value of a cell that is not empty, and what is wrong with it.

    Args:
        column: what the cell should hold.
        text: the cell, without surrounding blanks.

    Returns:
        The value, None if the cell is bad; the problem, empty if there is none.
    """
    if column.kind in ("integer", "number"):
        return _parse_number(column, text)
    if column.kind == "flag":
        flag = _FLAGS.get(text.lower())
        return flag, "" if flag is not None else f"not a flag; expected {column.expected}"
    if column.kind == "word" and translate(column.vocabulary, text) is None:
        return None, f"not known; expected one of {words(column.vocabulary)}"
    if column.kind == "name":
        name = text.lower()
        return (translate(column.vocabulary, name) or name) if column.vocabulary else name, ""
    return text, ""


def _parse_number(column: Column, text: str) -> tuple[float | None, str]:
    if _NOT_FINITE.fullmatch(text):
        kind = "not a number (NaN)" if "nan" in text.lower() else "infinite"
        return None, f"{kind}; expected {column.expected}, or an empty cell where it is not known"
    if not _NUMBER.fullmatch(text):
        return None, f"not a number; expected {column.expected}"
    value = float(text)
    problem = _range_problem(column, value)
    return (None, f"{problem}; expected {column.expected}") if problem else (value, "")


def _range_problem(column: Column, value: float) -> str:
    whole = column.kind == "integer"
    if value < 0:
        return "negative"
    if value == 0 and (column.minimum > 0 or not whole):
        return "zero"
    if value > column.maximum:
        return f"too large; must be at most {_plain(column.maximum)}" + (" (infinite)" if math.isinf(value) else "")
    return "not a whole number" if whole and value != int(value) else ""


def _plain(bound: float) -> str:
    """A bound as people write it: 3, 100, 1e8."""
    return f"{bound:g}" if bound < 1e5 else f"{bound:.0e}".replace("e+0", "e").replace("e+", "e")


def parse_gpu(text: str, known: Mapping[str, str]) -> tuple[str | None, str]:
    """Catalogue id of a chip, and what is wrong with the name.

    Args:
        text: the cell.
        known: catalogue ids by name, aliases included.

    Returns:
        The id, None if it is unknown; the problem, empty if there is none.
    """
    name = text if text in known else next((name for name in known if name.lower() == text.lower()), None)
    if name is not None:
        return known[name], ""
    return None, f"not in the hardware catalogue; {suggest(text, known)}, or a chip of your own by --hardware FILE.toml"


def first_of(lines: Sequence[int | str], most: int) -> str:
    """Numbers of lines, or words, for a message, no more than so many."""
    return ", ".join([*map(str, lines[:most]), *(["..."] if len(lines) > most else [])])


def suggest(text: str, known: Collection[str]) -> str:
    """Close names, else all names, as the end of a message."""
    close = [name for name in sorted(known) if text.lower() in name.lower()][:5]
    close = close or difflib.get_close_matches(text.lower(), sorted(known), n=5, cutoff=0.5)
    if close:
        return f"expected one like {', '.join(close)}"
    others = ", ..." if len(known) > _MAX_NAMES else ""
    return f"expected one of {', '.join(sorted(known)[:_MAX_NAMES])}{others}"
