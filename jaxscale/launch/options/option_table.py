"""Options of a framework, from `data/frameworks`: name, type, default, choices, rules, and the column that it sets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jaxscale.base.errors import InputError, nearest
from jaxscale.base.resources import data_path, read_toml
from jaxscale.tables.reader import csv_table

SETS = re.compile(r"(\w+) = (?:value|True)(?: \(.*\))?$")
"""Form of a cell that says that an option sets a column to its own value."""


@dataclass(frozen=True)
class Option:
    """An option of a framework.

    Attributes:
        name: as the program spells it.
        kind: type in the words of the source.
        default: value where it is not set.
        choices: all allowed words, empty where any is.
        required: yes, no, never, or one of a group.
        requires: expressions that must be so where the option is set.
        excludes: expressions that must not be so there.
        column: what it sets in the runs table, in words.
        since: first of the sampled releases that has it.
        until: last one, empty where the newest has it.
    """

    name: str
    kind: str
    default: Any
    choices: tuple[str, ...]
    required: str
    requires: tuple[str, ...]
    excludes: tuple[str, ...]
    column: str
    since: str
    until: str


@dataclass(frozen=True)
class OptionTable:
    """All options of a framework, by key.

    Attributes:
        framework: name of the framework.
        release: release that the table is of, with its commit and date.
        options: by `option_key`.
        derived: names that rules use beside options, as expressions.
    """

    framework: str
    release: str
    options: Mapping[str, Option]
    derived: Mapping[str, str] = field(default_factory=dict)

    def columns(self) -> dict[str, str]:
        """Columns of the runs table that options set to their own value, by key."""
        found = {key: SETS.match(option.column) for key, option in self.options.items()}
        return {key: match[1] for key, match in found.items() if match}


def option_key(name: str) -> str:
    """Name of an option as rules spell it: without leading dashes, hyphens as underscores."""
    return name.lstrip("-").replace("-", "_") if name.startswith("--") else name


@cache
def programs() -> Mapping[str, Mapping[str, Any]]:
    """What is known of each framework with a table: release, commit, date, source, licence."""
    return read_toml(data_path("frameworks/programs.toml"))


@cache
def option_table(framework: str) -> OptionTable:
    """Options of a framework.

    Raises:
        InputError: a framework without a table; says which have one.
    """
    if framework not in programs():
        raise InputError(f"framework = {framework!r} has no table of options; {nearest(framework, programs())}")
    facts = programs()[framework]
    header, records = csv_table(data_path(f"frameworks/{framework}.csv"))
    rows = (dict(zip(header, record, strict=True)) for _, record in records)
    options = {option_key(row["option"]): _option(row) for row in rows}
    derived = programs()[facts.get("same_derived", framework)].get("derived", {})
    release = f"{facts['release']} ({facts['commit']}, {facts['date']})"
    return OptionTable(framework, release, options, derived)


def _option(row: Mapping[str, str]) -> Option:
    """An option from its row."""
    rules = {
        name: tuple(part.strip() for part in row[name].split(";") if part.strip()) for name in ("requires", "excludes")
    }
    return Option(
        row["option"],
        row["type"],
        plain_default(row["default"]),
        tuple(filter(None, row["choices"].split("|"))),
        row["required"],
        rules["requires"],
        rules["excludes"],
        row["column"],
        row["since"],
        row["until"],
    )


def plain_default(text: str) -> Any:
    """Value of a default: number, truth value, nothing, or a word."""
    words = {"True": True, "False": False, "None": None, "": None, "[]": ()}
    if text in words:
        return words[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
