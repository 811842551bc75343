"""Columns of a runs table, from `data/run_columns.toml`, the table in memory, and conversion of batches in tokens."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, one_like
from jaxscale.base.units import COUNTS
from jaxscale.models.model_domain import MODEL
from jaxscale.plans.plan import PLAN
from jaxscale.tables.categorical import Categorical
from jaxscale.tables.cells import SHAPE, Column, Names, Value, parse_cells, show, vocabularies, without_separators
from jaxscale.tables.schema import Headings, headings_in
from jaxscale.tables.table import AbstractTable

# Bounds that no machine comes near: a larger value is a slip, and is refused before anything is sized by it.
MAX_GPUS = 1e8
MAX_BATCH = 1e10

BATCH = "global_batch_size_seqs"
"""Column that may state tokens in place of sequences."""


def _kernels() -> dict[str, str]:
    """Attention kernels that a cell may name."""
    known = vocabularies()["kernels"]
    return {name: name for name in (*known["flash"], *known["materialised"])}


def _columns() -> Iterator[Column]:
    """Columns of `data/run_columns.toml`; numbers of a model or a plan have the bounds of their domain."""
    for name, entry in read_toml(data_path("run_columns.toml"))["columns"].items():
        stated = dict(entry)
        if domain := {"Transformer": MODEL, "Plan": PLAN}.get(stated.pop("within", "")):
            bound = domain.bounds[name]
            stated["maximum"] = bound.high
            if stated["kind"] == "integer":
                stated["minimum"] = 1 if bound.is_above else int(bound.low)
        if name == "attention_kernel":
            stated["words"] = _kernels()
        yield Column(name, **stated)


COLUMNS = tuple(_columns())
BY_NAME = {column.name: column for column in COLUMNS}
REQUIRED = tuple(column.name for column in COLUMNS if column.required)
# Everything that describes a model in a row; the sequence length belongs to the run, not to the model.
_NAMES = tuple(BY_NAME)
MODEL_FIELDS = _NAMES[_NAMES.index(SHAPE[0]) : _NAMES.index("seq_len")]

CARRIED = (
    "source_row", "step_time_s", "step_time_derived", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_mem_gb",
    "status", "notes",
)  # fmt: skip
"""Columns that are carried along: what was measured, and where a row comes from. No prediction depends on them."""


@functools.cache
def run_headings() -> Headings:
    """Alternative names of columns, and units, from `data/headings.toml`."""
    return headings_in(("names",), COLUMNS, in_tokens=(BATCH,))


def stated_values(option: str, texts: Mapping[str, str]) -> dict[str, Value]:
    """Values of columns from texts `NAME=VALUE`, as on a command line; names as in the heading of a table.

    Args:
        option: name of the option, for messages.
        texts: cells by column.

    Returns:
        Values by column.

    Raises:
        InputError: an unknown column, a column stated twice, or an invalid cell; names the option.
    """
    values: dict[str, Value] = {}
    for given, text in texts.items():
        name = run_headings().column(given, BY_NAME)
        if name is None:
            raise InputError(f"{option} {given}: no such column; {one_like(given, BY_NAME)}")
        if name in values:
            raise InputError(f"{option} {given} states {name} twice; expected it once")
        parsed = parse_cells(BY_NAME[name], [text], Names())
        if parsed.problems:
            raise InputError(f"{option} {name} = {show(text)}: {parsed.problems[0]}")
        if (value := parsed.values[0]) is not None:
            values[name] = value
    return values


@dataclass(frozen=True, repr=False)
class Runs(AbstractTable):
    """A table of runs, column by column; see `AbstractTable`."""

    shown = ("model", "workload", "framework", "gpu", "n_gpus", "dp", "tp", "pp", "micro_batch_size", "step_time_s")


_TOKENS = re.compile(r"(\d+(?:\.\d+)?) ?([kmgb]?) ?(?:tok|toks|tokens?)", re.IGNORECASE)


def batches_in_sequences(
    texts: Categorical, parsed: Categorical, seq_len: Categorical | None, problems: Mapping[int, str]
) -> tuple[Categorical, dict[int, str]]:
    """Global batches in sequences, from cells in sequences or tokens.

    A batch in tokens stays open where the row lacks a sequence length.

    Args:
        texts: cells of the batch column.
        parsed: values by code of the cells, None where a cell holds no plain number.
        seq_len: S of each row, None for a table without the column [token].
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

    A prefix is a power of ten, or a power of two where only the power of two gives whole sequences; else the result is
    rounded.

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
    # Decimal prefix first, then binary: 4M tokens is 4e6 or 4 x 2^20.
    decimal, binary = (float(match[1]) * scale / float(seq_len) for scale in COUNTS[match[2].lower()])
    # Whole sequences tell the meaning of the prefix.
    whole = next((count for count in (decimal, binary) if count >= 1.0 and count.is_integer()), None)
    return whole if whole is not None else max(1.0, float(round(decimal)))


def _in_words(text: str) -> str:
    """A text of words whose numbers have no separators of thousands."""
    return " ".join(without_separators(word) for word in text.strip().split())
