"""The header of a runs table: is it comma-separated, are all required columns there, each once?"""

from collections.abc import Collection, Sequence
from pathlib import Path

from jaxscale.base.errors import InputError, similar
from jaxscale.runs.cells import show
from jaxscale.runs.schema import BY_NAME, REQUIRED, SHAPE

# Columns that no prediction reads: nothing is lost where they are misspelt.
_SAYS_NOTHING = ("source_row", "notes", "model_file")
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
# What fills a required column that is absent.
_FILLED_BY: dict[str, set[str]] = dict.fromkeys(SHAPE, {"model", "model_file"})

OF_A_WORKLOAD = ("gpu", "n_gpus")
"""Columns that a table of traced workloads needs beside `workload`."""

COMPLETED = ("tp", "pp", "micro_batch_size", "global_batch_size_seqs")
"""Columns that a run needs and a table may lack: `predict` completes rows whose cells are empty."""

NEEDED = tuple(name for name in REQUIRED if name not in COMPLETED)
"""Columns that a table of models needs."""

_ALIKE, _WHOLE_WORD = 0.75, 4
"""Likeness of two names from which one may be meant by the other (`difflib`) [1], or letters of one inside it [1]."""


def canonical(name: str) -> str:
    """A name in a header as the schema spells it, whose case does not matter; as it is where the schema has none."""
    name = name.strip()
    return name.lower() if name.lower() in BY_NAME else name


def misspelt(columns: Sequence[str]) -> dict[str, str]:
    """Columns that are not read, but look like one that the table lacks, and which that is."""
    absent = [name for name in BY_NAME if name not in (*columns, *_SAYS_NOTHING)]
    unread = [name for name in columns if name not in BY_NAME and not name.startswith(("predicted_", "term_"))]
    close = {name: similar(name, absent, _holds, most=1, likeness=_ALIKE) for name in unread}
    return {name: alike[0] for name, alike in close.items() if alike}


def _holds(other: str, name: str) -> bool:
    return len(name) >= _WHOLE_WORD and name in other


def check_header(path: Path, columns: Sequence[str]) -> None:
    """Refuse a header that is not one of a runs table.

    Args:
        path: file, for the message.
        columns: names in the header.

    Raises:
        InputError: wrong delimiter, a column twice, or a required column missing.
    """
    check_names(path, columns)
    needed = OF_A_WORKLOAD if "workload" in columns else NEEDED
    missing = [name for name in needed if name not in columns and _FILLED_BY.get(name, set()).isdisjoint(columns)]
    if missing:
        raise InputError(f"{path}:1: {_missing(missing, columns)}")


def check_names(path: Path, columns: Sequence[str]) -> None:
    """Refuse a header of a table of any kind that is not separated by commas, or has a column twice.

    Args:
        path: file, for the message.
        columns: names in the header.

    Raises:
        InputError: wrong delimiter, or a column twice.
    """
    if len(columns) == 1:
        for mark, name in _DELIMITERS.items():
            if mark in columns[0]:
                raise InputError(f"{path}:1: the header is separated by {name}; expected commas")
    twice = [name for name in dict.fromkeys(columns) if columns.count(name) > 1]
    if twice:
        raise InputError(f"{path}:1: column {show(twice[0])} appears twice; expected each column once")


def _missing(missing: Sequence[str], columns: Sequence[str]) -> str:
    noun = "column" if len(missing) == 1 else "columns"
    names = f"{', '.join(map(repr, missing))}{hint_of_misspelt(missing, columns)}"
    return f"missing {noun} {names}; expected at least {', '.join(NEEDED)}"


def hint_of_misspelt(missing: Collection[str], columns: Sequence[str]) -> str:
    """The first column that looks like a missing one, as a question in a message; empty without one."""
    meant = ((column, name) for column, name in misspelt(columns).items() if name in missing)
    return next((f" (is {show(column)} meant for {name!r}?)" for column, name in meant), "")
