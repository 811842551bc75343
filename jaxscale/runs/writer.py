"""Write tables whole or not at all."""

import csv
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxscale.errors import InputError


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table in one piece: readers see the old file or the whole new one.

    Args:
        path: file to write; an existing one is replaced.
        columns: header.
        rows: cells of each row, in the order of `columns`; None is an empty cell.

    Raises:
        InputError: the folder is missing or may not be written to.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: folder {str(path.parent)!r} does not exist; expected an existing folder")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected the name of a file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); expected a folder open to writing") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)
        # mkstemp makes files private; a table gets the rights that open() would give it.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
