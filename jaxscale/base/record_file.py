"""Reading and writing of records (for example fits) as TOML files.

Numbers have six digits; files are written atomically and read once per process. A final table `end` marks a complete
file. A file states the type of record (`record`) and the version of the format (`format`). Files of release
0.1 state neither, and only a few have an end table.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jaxscale.base.documents import read_toml
from jaxscale.base.errors import InputError, unreadable
from jaxscale.base.files import write_whole


def toml_text(document: Mapping[str, Any], comment: str) -> str:
    """TOML text of nested tables below a comment.

    Args:
        document: numbers, texts, lists of texts, tables, and lists of tables; tables nested in a list stay on one line.
        comment: first line of the text, without the `#`.

    Returns:
        The text.
    """
    return "\n".join([f"# {comment}", *_table_lines(document, "")]) + "\n"


def _table_lines(table: Mapping[str, Any], within: str) -> list[str]:
    """Lines of a table: values, tables, lists of tables."""
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lists = {key: value for key, value in table.items() if _is_list_of_tables(value)}
    lines = [_line(key, value) for key, value in table.items() if key not in tables and key not in lists]
    for key in (key for key in table if key in tables or key in lists):
        place = f"{within}{_key(key)}"
        if key in lists:
            for entry in lists[key]:
                lines += ["", f"[[{place}]]", *(_line(name, value) for name, value in entry.items())]
            continue
        holds_tables_alone = bool(tables[key]) and all(isinstance(entry, Mapping) for entry in tables[key].values())
        lines += [] if holds_tables_alone else ["", f"[{place}]"]
        lines += _table_lines(tables[key], f"{place}.")
    return lines


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


def _line(key: str, value: Any) -> str:
    return f"{_key(key)} = {_value(value)}"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else _number(value)


def _quoted(text: str) -> str:
    # TOML reads JSON escapes, but forbids one further character, DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _number(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    text = f"{value:.6g}"
    text = repr(float(value)) if float(text) == 1.0 else text  # a fraction that is nearly one must not become it
    return text if any(mark in text for mark in ".en") else f"{text}.0"


Kept = TypeVar("Kept")

END = "end"
"""Last table of a complete file; a truncated file lacks the table."""

FORMAT = 2
"""Version of the file format; files of release 0.1 state no version [1]."""


@dataclass(frozen=True)
class RecordFile:
    """File format of a type of record.

    Attributes:
        what: name of the type of record, in files and messages.
        head: name of a table present in every file.
        made_by: description of the expected file and of the command for writing a file, for messages.
        comment: default first line of a file.
        ended: name of a table present only in files of release 0.1 with an end table.
        old_head: name of the table `head` in files of release 0.1, if different.
    """

    what: str
    head: str
    made_by: str
    comment: str
    ended: str = ""
    old_head: str = ""

    def write(self, path: str | Path, document: Mapping[str, Any], comment: str = "") -> None:
        """Write a record atomically as nested tables below a comment, by default `self.comment`.

        Raises:
            InputError: the folder is missing or not writable.
        """
        marked = {"record": self.what, "format": FORMAT, **document, END: {}}
        write_whole(path, toml_text(marked, comment or self.comment))

    def read(self, path: str | Path, parse: Callable[[Path, Mapping[str, Any]], Kept]) -> Kept:
        """Read a record from a file; an unchanged file is read once per process.

        Args:
            path: the file.
            parse: function from the path and the tables of the file to the record.

        Raises:
            InputError: the file is missing, truncated, of a later version, or of a different record.
        """
        path = Path(path)
        try:
            state = path.stat()
        except OSError as error:
            raise unreadable(path, error) from None
        return _read(self, path, path.absolute(), state.st_mtime_ns, state.st_size, parse)

    def checked(self, path: Path, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check that the tables of a file are a complete record of this format, and return them.

        Raises:
            InputError: a different record, a later version, or a truncated file.
        """
        what, rules = table.get("record", self.what), table.get("format", 1)
        if what != self.what:
            raise InputError(f"{path}: not a {self.what} but a {what}; expected {self.made_by}")
        if not isinstance(rules, int) or rules > FORMAT:
            raise InputError(f"{path}: format = {rules!r} is of a later version; expected at most {FORMAT}")
        if END not in table and ("format" in table or self.ended in table):
            raise InputError(
                f"{path}: cut or of another version; expected a whole {self.what}, up to its last table [{END}]"
            )
        if self.head not in table and self.old_head in table:
            table = {**table, self.head: table[self.old_head]}
        if not isinstance(table.get(self.head), Mapping):
            raise InputError(f"{path}: not a {self.what}; expected {self.made_by}, with tables [{self.head}]")
        return table

    def is_one(self, path: Path) -> bool:
        """Whether the text of a file has the marks of this type of record."""
        text = path.read_text(encoding="utf-8")
        return f'\nrecord = "{self.what}"\n' in text or ("\nrecord = " not in text and f"\n[{self.head}." in text)

    def parsed(self, path: Path, parse: Callable[[], Kept]) -> Kept:
        """Result of `parse`; a missing or malformed entry becomes a one-line error.

        Args:
            path: file, for the message.
            parse: function without arguments; returns the record.

        Raises:
            InputError: the record is incomplete or of a different version.
        """
        try:
            return parse()
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
            raise InputError(
                f"{path}: its record is cut or of another version ({reason}); expected a whole {self.what}"
            ) from None


@functools.lru_cache(maxsize=32)
def _read(
    kind: RecordFile,
    path: Path,
    absolute: Path,
    modified: int,
    size: int,
    parse: Callable[[Path, Mapping[str, Any]], Any],
) -> Any:
    """Record from a file, cached by modification time and size."""
    del absolute, modified, size
    table = kind.checked(path, read_toml(path))
    return kind.parsed(path, lambda: parse(path, table))
