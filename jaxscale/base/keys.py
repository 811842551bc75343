"""Checks of TOML files: known keys, numbers in a range."""

import math
from collections.abc import Collection
from typing import Any

from jaxscale.base.errors import InputError, nearest


def check_keys(where: str, table: Any, valid: Collection[str], what: str = "a known key") -> None:
    """Check that a table has known keys only.

    Args:
        where: file and path of the table in the file.
        table: value found in the file.
        valid: known keys.
        what: noun for a key, in the message.

    Raises:
        InputError: not a table, or an unknown key.
    """
    if not isinstance(table, dict):
        raise InputError(f"{where} = {table!r} is no table; expected one with {', '.join(valid)}")
    for key in table:
        if key not in valid:
            raise InputError(f"{where}: {key!r} is not {what}; {nearest(key, valid)}")


def number_of(
    where: str, value: Any, expected: str, low: float = 0.0, high: float = math.inf, *, is_above: bool = False
) -> float:
    """Number from a file, checked against a range.

    Args:
        where: file and key.
        value: value of the key, or a table with `value` and a source.
        expected: range in words.
        low: least valid number.
        high: greatest valid number.
        is_above: whether `low` is excluded.

    Raises:
        InputError: not a number, or out of range.
    """
    if isinstance(value, dict) and "value" in value:
        value = value["value"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where} = {value!r} is not a number; expected {expected}")
    if not low <= value <= high or (is_above and value == low):
        raise InputError(f"{where} = {value!r} is out of range; expected {expected}")
    return float(value)
