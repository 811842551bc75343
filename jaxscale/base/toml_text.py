"""Nested tables as TOML text, numbers with six digits."""

import json
import re
from collections.abc import Mapping
from typing import Any


def toml_text(document: Mapping[str, Any], comment: str) -> str:
    """TOML text of nested tables.

    Args:
        document: numbers, texts, lists of texts, tables, and lists of tables; tables nested in a list stay on one line.
        comment: first line.

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
