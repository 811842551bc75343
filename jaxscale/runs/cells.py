"""Cells of a column of a runs table: text to value, or the reason why not."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.errors import InputError, one_like
from jaxscale.hardware.chip_names import ChipNames
from jaxscale.runs.defaults import translate, words
from jaxscale.runs.schema import BY_NAME, Column, Value
from jaxscale.runs.words.spellings import question, respelt, without_separators

# Stricter than float(): no underscores, no digits of other scripts.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_NUMERIC = re.compile(r"[^0-9.eE+\-\n]")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
YES_OR_NO = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False, "yes": True, "no": False}
"""Words of a flag."""

_MAX_SHOWN = 60


def show(text: str) -> str:
    """A cell for a message: quoted, on one line, shortened if very long."""
    return repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...")


class Parsed(NamedTuple):
    """Values of cells.

    Attributes:
        values: value of each cell, None where it is empty or bad.
        problems: what is wrong with the bad ones, by their place.
    """

    values: list[Value | None]
    problems: dict[int, str]


def parse_cells(column: Column, texts: Sequence[str], known_gpus: Mapping[str, str]) -> Parsed:
    """Values of cells of one column.

    Args:
        column: what the cells should hold.
        texts: the cells, without surrounding blanks.
        known_gpus: catalogue ids of chips by name, aliases included.

    Returns:
        The values and the problems.
    """
    texts = [respelt(column.name, text) if text else text for text in texts]
    if column.kind in ("integer", "number", "amount", "share"):
        return _parse_numbers(column, texts)
    if column.kind == "text" and column.name != "gpu":
        return Parsed([text or None for text in texts], {})
    parse = _gpu_parser(known_gpus) if column.name == "gpu" else lambda text: _parse_word(column, text)
    parsed = [parse(text) if text else (None, "") for text in texts]
    problems = {place: problem for place, (_, problem) in enumerate(parsed) if problem}
    return Parsed([value for value, _ in parsed], problems)


def stated_values(option: str, texts: Mapping[str, str]) -> dict[str, Value]:
    """Values of columns that are stated one by one, as on a command line.

    Args:
        option: through which they are stated, for messages.
        texts: cells by column.

    Returns:
        Values by column.

    Raises:
        InputError: no such column, or a cell that it cannot hold; names the option.
    """
    values: dict[str, Value] = {}
    for name, text in texts.items():
        name = ALIASES.get(name, name)
        if name not in BY_NAME:
            raise InputError(f"{option} {name}: no such column; {one_like(name, BY_NAME)}")
        parsed = parse_cells(BY_NAME[name], [text], {})
        if parsed.problems:
            raise InputError(f"{option} {name} = {show(text)}: {parsed.problems[0]}")
        if (value := parsed.values[0]) is not None:
            values[name] = value
    return values


ALIASES = {"recompute": "activation_recompute"}
"""Columns by the names of the choices of a plan that they state."""


def _parse_word(column: Column, text: str) -> tuple[Value | None, str]:
    if column.kind == "flag":
        flag = YES_OR_NO.get(text.lower())
        return flag, "" if flag is not None else f"not a flag; expected {column.expected}"
    if column.kind == "word" and translate(column.vocabulary, text) is None:
        return None, question(column.name, text) or f"not known; expected one of {words(column.vocabulary)}"
    if column.kind == "name":
        name = text.lower()
        return (translate(column.vocabulary, name) or name) if column.vocabulary else name, ""
    return text, ""


def _parse_numbers(column: Column, texts: Sequence[str]) -> Parsed:
    values: list[Any] = _floats(texts)
    numbers = np.asarray(values, dtype=float)
    whole = column.kind == "integer"
    least = {"integer": column.minimum, "share": 0, "amount": 0}.get(column.kind)
    is_least = numbers > 0.0 if least is None else numbers >= least
    is_valid = is_least & (numbers <= column.maximum) & ((numbers == np.floor(numbers)) | (not whole))
    problems = {}
    for place in np.flatnonzero(~is_valid).tolist():
        if texts[place]:
            value, values[place] = values[place], None
            if value is None and (asked := question(column.name, texts[place])):
                problems[place] = asked
                continue
            problem = _not_a_number(texts[place]) if value is None else _range_problem(column, value)
            hint = ", or an empty cell where it is not known" if _NOT_FINITE.fullmatch(texts[place]) else ""
            problems[place] = f"{problem}; expected {column.expected}{hint}"
    return Parsed(values, problems)


def _floats(texts: Sequence[str]) -> list[float | None]:
    """Numbers of texts, None where a text is none."""
    # One scan of all texts is quicker than one of each: without other characters, float() is as strict as _NUMBER.
    if not _NOT_NUMERIC.search("\n".join(texts)):
        try:
            return [float(text) if text else None for text in texts]
        except ValueError:
            pass
    plain = map(without_separators, texts)
    return [float(text) if _NUMBER.fullmatch(text) else None for text in plain]


def _not_a_number(text: str) -> str:
    if not _NOT_FINITE.fullmatch(text):
        return "not a number"
    return "not a number (NaN)" if "nan" in text.lower() else "infinite"


def _range_problem(column: Column, value: float) -> str:
    whole = column.kind == "integer"
    if value < 0:
        return "negative"
    if value == 0 and column.kind not in ("share", "amount") and (column.minimum > 0 or not whole):
        return "zero"
    if value > column.maximum:
        return f"too large; must be at most {_plain(column.maximum)}" + (" (infinite)" if math.isinf(value) else "")
    return "not a whole number" if whole and value != int(value) else ""


def _plain(bound: float) -> str:
    """A bound as people write it: 3, 100, 1e8."""
    return f"{bound:g}" if bound < 1e5 else f"{bound:.0e}".replace("e+0", "e").replace("e+", "e")


def _gpu_parser(known: Mapping[str, str]) -> Callable[[str], tuple[str | None, str]]:
    """Parser of names of chips: catalogue id, None if none is meant, and the problem, empty if there is none."""
    names = ChipNames(known)

    def parse(text: str) -> tuple[str | None, str]:
        meant = names.meant(text)
        if len(meant) == 1:
            return meant[0], ""
        return None, f"{names.problem(text, meant)}, or a chip of your own by --hardware FILE.toml"

    return parse


def first_of(lines: Sequence[int | str], most: int) -> str:
    """Numbers of lines, or words, for a message, no more than so many."""
    return ", ".join([*map(str, lines[:most]), *(["..."] if len(lines) > most else [])])
