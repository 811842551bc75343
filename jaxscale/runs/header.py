"""The header of a runs table: is it comma-separated, are all required columns there, each once?"""

import difflib
from collections.abc import Sequence
from pathlib import Path

from jaxscale.errors import InputError
from jaxscale.runs.cells import show
from jaxscale.runs.schema import REQUIRED, SHAPE

_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
# What fills a required column that is absent.
_FILLED_BY = {**dict.fromkeys(SHAPE, "model"), "micro_batch_size": "n_microbatches"}


def check_header(path: Path, columns: Sequence[str]) -> None:
    """Refuse a header that is not one of a runs table.

    Args:
        path: file, for the message.
        columns: names in the header.

    Raises:
        InputError: wrong delimiter, a column twice, or a required column missing.
    """
    if len(columns) == 1:
        for mark, name in _DELIMITERS.items():
            if mark in columns[0]:
                raise InputError(f"{path}:1: the header is separated by {name}; expected commas")
    twice = [name for name in dict.fromkeys(columns) if columns.count(name) > 1]
    if twice:
        raise InputError(f"{path}:1: column {show(twice[0])} appears twice; expected each column once")
    missing = [name for name in REQUIRED if name not in columns and _FILLED_BY.get(name) not in columns]
    if missing:
        raise InputError(f"{path}:1: {_missing(missing, columns)}")


def _missing(missing: Sequence[str], columns: Sequence[str]) -> str:
    noun = "column" if len(missing) == 1 else "columns"
    hints = {name: close[0] for name in missing if (close := _close(name, columns))}
    hint = f" (is {show(hints[missing[0]])} meant?)" if missing[0] in hints else ""
    return f"missing {noun} {', '.join(map(repr, missing))}{hint}; expected at least {', '.join(REQUIRED)}"


def _close(name: str, columns: Sequence[str]) -> list[str]:
    """Columns that are not the schema's own and look like the missing one."""
    same = [column for column in columns if column.lower() == name]
    return same or difflib.get_close_matches(name, [c for c in columns if c not in REQUIRED], n=1, cutoff=0.8)
