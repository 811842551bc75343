"""Words of people and tools in the cells of tables: vocabularies, other spellings, numbers with separators."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jaxscale.hardware.formats import PRECISIONS

_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,'’\u00a0\u202f]\d{3})+(\.\d+)?")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("jaxscale.tables").joinpath(name).read_text(encoding="utf-8"))


@cache
def vocabularies() -> Mapping[str, Any]:
    """The tables of `vocabularies.toml`: words of tables and what they mean to the model.

    Number formats come by their own names, the narrowest first, and then by the other names in the file.
    """
    tables = _read("vocabularies.toml")
    own_names = {name: name for name in reversed(PRECISIONS)}
    return {**tables, "precisions": {**own_names, **tables["precisions"]}}


def translate(vocabulary: str, word: str) -> str | None:
    """The model's word for a word of a table, or None if the vocabulary lacks it.

    Args:
        vocabulary: `precisions`, `number_formats`, `status`, or a choice of software such as `recompute`.
        word: the cell.

    Returns:
        One of `PRECISIONS`, a number format, ok/oom, or a word of the plan; None for a word of no vocabulary.
    """
    known: Mapping[str, str] = vocabularies()[vocabulary]
    word = word.lower()
    if vocabulary == "precisions":
        return next((meaning for token, meaning in known.items() if token in word), None)
    return known.get(word)


@cache
def spellings() -> Mapping[str, Any]:
    """Words of the schema by column and spelling, from `spellings.toml`; under `questions` what to ask about others."""
    return _read("spellings.toml")


def _key(text: str) -> str:
    """A word without case, separators and the name of its enumeration."""
    return re.sub(r"[-_ ]+", "_", text.strip().lower().rsplit(".", 1)[-1]).strip("_")


def respelt(column: str, text: str) -> str:
    """Cell as the schema spells it; as it is where no other spelling is known."""
    known = spellings().get(column)
    return known.get(_key(text), text) if known else text


def question(column: str, text: str) -> str:
    """What to ask about a word that means no cell of a column by itself; empty for any other word."""
    return spellings()["questions"].get(column, {}).get(_key(text), "")


def without_separators(text: str) -> str:
    """A number without the separators of its thousands; any other text as it is."""
    return re.sub(r"[,'’\u00a0\u202f]", "", text) if _THOUSANDS.fullmatch(text) else text
