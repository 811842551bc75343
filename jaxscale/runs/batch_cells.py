"""Cells that state a batch in tokens: sequences by the length of each row."""

import re
from collections.abc import Mapping

import numpy as np

from jaxscale.tables.categorical import Categorical
from jaxscale.tables.cells import without_separators

_TOKENS = re.compile(r"(\d+(?:\.\d+)?) ?([kmgbt]?) ?(?:tok|toks|tokens?)", re.IGNORECASE)
# Decimal prefix first, then binary: 4M tokens is 4e6 or 4 x 2^20.
_PREFIXES = {"": (1.0, 1.0), "k": (1e3, 2.0**10), "m": (1e6, 2.0**20), "g": (1e9, 2.0**30), "b": (1e9, 2.0**30)}


def batches_in_sequences(
    texts: Categorical, parsed: Categorical, seq_len: Categorical | None, problems: Mapping[int, str]
) -> tuple[Categorical, dict[int, str]]:
    """Global batches in sequences, from cells in sequences or tokens.

    A batch in tokens stays open where the row lacks a sequence length.

    Args:
        texts: cells of the batch column.
        parsed: values by code of the cells, None where a cell holds no plain number.
        seq_len: S of each row, None for a table without it [token].
        problems: errors of cells, by code.

    Returns:
        B [sequence], and the remaining problems.
    """
    in_tokens = {code: texts.values[code].strip() for code in problems if _is_in_tokens(texts.values[code])}
    rows = np.flatnonzero(np.isin(texts.codes, list(in_tokens)))
    if not len(rows):
        return parsed, dict(problems)
    values, codes = list(parsed.values), parsed.codes.copy()
    places: dict[tuple[int, float | None], int] = {}
    for row in rows.tolist():
        code, length = int(texts.codes[row]), None if seq_len is None else seq_len[row]
        if (code, length) not in places:
            places[code, length] = len(values)
            values.append(None if length is None else sequences_in(in_tokens[code], length))
        codes[row] = places[code, length]
    return Categorical(codes, tuple(values)), {code: text for code, text in problems.items() if code not in in_tokens}


def _is_in_tokens(text: str) -> bool:
    """Whether a batch is stated in tokens, as `4M tokens`."""
    return _TOKENS.fullmatch(_in_words(text)) is not None


def sequences_in(text: str, seq_len: int | float) -> float | None:
    """Batch in sequences from a text in tokens, such as `4M tokens`, or in sequences [1].

    A prefix is a power of ten, or a power of two where this alone gives whole sequences; else the result is rounded.

    Args:
        text: a number with or without separators, alone or with `tokens`.
        seq_len: length of a sequence [token].

    Returns:
        Sequences; None for any different text.
    """
    match = _TOKENS.fullmatch(_in_words(text))
    if match is None:
        plain = without_separators(text.strip())
        return float(plain) if re.fullmatch(r"\d+(\.0*)?", plain) else None
    prefix = match[2].lower()
    if prefix not in _PREFIXES:
        return None
    decimal, binary = (float(match[1]) * scale / float(seq_len) for scale in _PREFIXES[prefix])
    # Whole sequences tell the meaning of the prefix.
    whole = next((count for count in (decimal, binary) if count >= 1.0 and count.is_integer()), None)
    return whole if whole is not None else max(1.0, float(round(decimal)))


def _in_words(text: str) -> str:
    """A text of words whose numbers have no separators of thousands."""
    return " ".join(without_separators(word) for word in text.strip().split())
