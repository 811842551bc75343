"""Words of people and tools in the cells of a runs table, as the schema spells them; numbers with separators."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,'’\u00a0\u202f]\d{3})+(\.\d+)?")
_TOKENS = re.compile(r"(\d+(?:\.\d+)?) ?([kmgbt]?) ?(?:tok|toks|tokens?)", re.IGNORECASE)
_PREFIXES = {"": (1.0, 1.0), "k": (1e3, 2.0**10), "m": (1e6, 2.0**20), "g": (1e9, 2.0**30), "b": (1e9, 2.0**30)}


@cache
def spellings() -> Mapping[str, Any]:
    """Words of the schema by column and spelling, from `spellings.toml`; under `questions` what to ask about others."""
    return tomllib.loads(files("jaxscale.runs.words").joinpath("spellings.toml").read_text(encoding="utf-8"))


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


def is_in_tokens(text: str) -> bool:
    """Whether a batch is stated in tokens, as `4M tokens`."""
    return _TOKENS.fullmatch(without_separators_of_words(text)) is not None


def sequences_in(text: str, seq_len: int | float) -> float | None:
    """Sequences of a batch that is stated in tokens, as `4M tokens`, or in sequences [1].

    A prefix counts in powers of ten, or of two where only these give whole sequences, and else rounds.

    Args:
        text: a number with or without separators, alone or with `tokens`.
        seq_len: length of a sequence [token].

    Returns:
        Sequences; None where the text is no such number.
    """
    match = _TOKENS.fullmatch(without_separators_of_words(text))
    if match is None:
        plain = without_separators(text.strip())
        return float(plain) if re.fullmatch(r"\d+(\.0*)?", plain) else None
    prefix = match[2].lower()
    if prefix not in _PREFIXES:
        return None
    decimal, binary = (float(match[1]) * scale / float(seq_len) for scale in _PREFIXES[prefix])
    whole = next((count for count in (decimal, binary) if count >= 1.0 and count.is_integer()), None)
    return whole if whole is not None else max(1.0, float(round(decimal)))


def without_separators_of_words(text: str) -> str:
    """A text of words whose numbers have no separators of thousands."""
    return " ".join(without_separators(word) for word in text.strip().split())
