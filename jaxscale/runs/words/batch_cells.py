"""Cells that state a batch in tokens: sequences by the length of each row."""

from collections.abc import Mapping

import numpy as np

from jaxscale.runs.categorical import Categorical
from jaxscale.runs.words.spellings import is_in_tokens, sequences_in


def batches_in_sequences(
    texts: Categorical, parsed: Categorical, seq_len: Categorical | None, problems: Mapping[int, str]
) -> tuple[Categorical, dict[int, str]]:
    """Global batches in sequences where cells state them in tokens.

    A batch stays open where its row states no length of a sequence, without which nothing is predicted anyway.

    Args:
        texts: cells of the batch.
        parsed: their values, with the codes of the cells, None where a cell holds no plain number.
        seq_len: S of each row, None for a table without it [token].
        problems: what is wrong with cells, by code.

    Returns:
        B [sequence], and the problems that stay.
    """
    in_tokens = {code: texts.values[code].strip() for code in problems if is_in_tokens(texts.values[code])}
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
