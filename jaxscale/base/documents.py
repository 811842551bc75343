"""Parsing of TOML, JSON and YAML documents, with bounds on size, depth, number of values and magnitude of numbers.

`check_keys` and `number_of` check the keys of a parsed document and the ranges of its numbers.
Shipped files are inside an installed wheel, or in the repository of an editable install.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jaxscale.base.errors import InputError, nearest, unreadable

LARGEST = 32 * 2**20
"""Largest size of a document; larger files are not meant for this package [byte]."""

DEEPEST = 100
"""Largest depth of nested tables and lists [1]."""

MOST_VALUES = {"JSON": 2_000_000, "TOML": 500_000, "YAML": 100_000}
"""Largest number of values in a document, with values repeated by aliases counted each time [1]."""

GREATEST = 1e300
"""Largest magnitude of a number, beyond all quantities; larger numbers would overflow in arithmetic [1]."""


def parsed_toml(text: str) -> Any:
    """Content of a TOML text.

    Raises:
        ValueError: not TOML, or too deep, with too many values, or with too large a number.
    """
    # The parser takes time and memory quadratic in depth, so the depth of dotted keys is checked first.
    joined = re.sub(r"[ \t]*\.[ \t]*", ".", text)
    if any(word.count(".") > DEEPEST for word in re.split(r"[\s=,{}\[\]]+", joined)):
        raise ValueError(f"a key of more than {DEEPEST} tables")
    return _within_bounds(_parsed(tomllib.loads, text), MOST_VALUES["TOML"])


def parsed_json(text: str, *, finite: bool = False) -> Any:
    """Content of a JSON text.

    Args:
        text: the document.
        finite: whether infinite numbers, such as 1e400, are refused too.

    Raises:
        ValueError: not JSON, or too deep, with too many values, or with too large a number.
    """
    return _within_bounds(_parsed(json.loads, text), MOST_VALUES["JSON"], finite=finite)


PIECE = 2**20
"""Characters of a long document per read [1]."""

LONGEST_ELEMENT = 4 * 2**20
"""Largest number of characters of one element of a long list, and of the text before the list [1]."""


def json_elements(read: Callable[[int], str], key: str, most: int) -> Iterator[Any]:
    """Iterate over a list in a JSON document of any length; the list is the document or the value of a key.

    Args:
        read: function that reads up to the given number of characters; fewer at the end of the document.
        key: key of the list; the first occurrence counts.
        most: largest number of characters of the document [1].

    Raises:
        ValueError: no such list, an unterminated list, an element that is too long, too deep or not JSON, or too many
            characters.
    """
    decoder, left = json.JSONDecoder(), most
    buffer = read(PIECE)
    opened = re.compile(rf'\s*\[|.*?"{re.escape(key)}"\s*:\s*\[', re.DOTALL)
    while (begin := opened.match(buffer)) is None:
        more = read(PIECE)
        if not more or len(buffer) > LONGEST_ELEMENT:
            raise ValueError(f"no list {key!r}")
        buffer += more
    place, between = begin.end(), re.compile(r"[\s,]*")
    while True:
        place = _end_of(between, buffer, place)
        try:
            if buffer[place : place + 1] == "]":
                return
            element, place = decoder.raw_decode(buffer, place)
        except RecursionError:
            raise ValueError(f"tables or lists deeper than {DEEPEST}") from None
        except json.JSONDecodeError as error:
            more = read(PIECE)
            left -= len(more)
            if left < 0:
                raise ValueError(f"more than {most:,} letters") from None
            if not more or len(buffer) - place > LONGEST_ELEMENT:
                raise ValueError(error.msg if more else f"the list {key!r} does not end") from None
            buffer, place = buffer[place:] + more, 0
            continue
        yield element


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Position after a match of a pattern that matches everywhere."""
    found = pattern.match(text, place)
    return place if found is None else found.end()


def parsed_yaml(text: str) -> Any:
    """Content of a YAML text; tags construct no objects.

    Raises:
        ValueError: not YAML, or too deep, with too many values, or with too large a number.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML loader that reads tagged nodes as plain mappings and constructs no objects."""

    def untagged(loader: Any, suffix: str, node: Any) -> Any:
        return loader.construct_mapping(node) if isinstance(node, yaml.MappingNode) else None

    Loader.add_multi_constructor("", untagged)
    try:
        tree = _parsed(lambda text: yaml.load(text, Loader), text)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(str(error)) from None
    return _within_bounds(tree, MOST_VALUES["YAML"])


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    """Parsed text; a text too deep for the parser raises the parser's error."""
    try:
        return parse(text)
    except RecursionError:
        raise ValueError(f"tables or lists deeper than {DEEPEST}") from None


def _within_bounds(tree: Any, most: int, *, finite: bool = False) -> Any:
    """Check depth, number of values and magnitudes of a parsed document, and return the document."""
    waiting, n_values = [(tree, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        n_values += 1
        if depth > DEEPEST:
            raise ValueError(f"tables or lists deeper than {DEEPEST}")
        if n_values + len(waiting) > most:
            raise ValueError(f"more than {most} values")
        if isinstance(value, Mapping):
            waiting += [(one, depth + 1) for one in value.values()]
        elif isinstance(value, list):
            waiting += [(one, depth + 1) for one in value]
        elif isinstance(value, int | float) and abs(value) > GREATEST and (finite or abs(value) != math.inf):
            raise ValueError(f"a number beyond {GREATEST:g}")
    return tree


def read_text(path: Path, most: int = LARGEST, what: str = "a configuration") -> str:
    """Text of a file.

    Args:
        path: the file.
        most: largest size [byte].
        what: expected content, for messages.

    Raises:
        InputError: the file is missing, larger than `most`, or not UTF-8 text.
    """
    try:
        if path.stat().st_size > most:
            raise InputError(f"{path}: {path.stat().st_size / 1e6:.0f} MB is too large; expected {what}")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected {what}") from None
    except OSError as error:
        raise unreadable(path, error) from None


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


def _root(shipped: str, source: str) -> Path:
    inside = Path(str(resources.files("jaxscale"))) / shipped
    return inside if inside.is_dir() else Path(__file__).resolve().parents[2] / source


def data_path(name: str) -> Path:
    """Path of a file of the folder `data/`, in an installed wheel or in the repository."""
    return _root("_data", "data") / name


def fit_path(name: str) -> Path:
    """Path of a file of the folder `fits/results/`, in an installed wheel or in the repository."""
    return _root("_fits", "fits/results") / name


def run_tables() -> dict[str, Path]:
    """Paths of the tables of measured runs by name: the shipped tables in a wheel, all tables in the repository."""
    paths = [path for folder in ("runs", "restricted/runs") for path in data_path(folder).glob("*.csv")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        InputError: the file is missing, too large, not text, or not valid TOML of bounded depth and size; one line.
    """
    try:
        return parsed_toml(read_text(path, what="a TOML file"))
    except InputError:
        raise
    except ValueError as error:
        raise not_valid(path, "TOML", error) from None


def not_valid(path: Path, language: str, error: ValueError) -> InputError:
    """Refusal of a file that is no document of a language; a table is told which commands take it."""
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        takers = "`jaxscale predict` takes tables of runs, `serving predict` of serving, `law fit` of losses"
        return InputError(f"{path}: a table, where {language} is expected; {takers}")
    return InputError(f"{path}: not valid {language}: {error}")
