"""Options of a framework, from `data/frameworks`: name, type, default, choices, rules, and column of the runs table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, nearest
from jaxscale.tables.reader import csv_table

SETS = re.compile(r"(\w+) = (?:value|True)(?: \(.*\))?$")
"""Form of a cell that says that an option sets a column to its own value."""

SWITCH = re.compile(r"(\w+) = ([\w-]+)$")
"""Form of a cell that says that an option sets a column to a word."""

NO_WORD = ("value", "True", "False")
FLAG = re.compile(r"flag|bool")


@dataclass(frozen=True)
class Option:
    """Option of a framework.

    Attributes:
        name: as the program spells it.
        kind: type in the words of the source.
        default: value of an option that is not set.
        choices: allowed words, empty for free values.
        required: yes, no, never, or the name of a group of which a member is required.
        requires: expressions that must be true where the option is set.
        excludes: expressions that must be false where the option is set.
        column: column of the runs table, or a description of the option's effect.
        since: first sampled release with the option.
        until: last sampled release with the option, empty for the newest.
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
    """Options of a framework, by key.

    Attributes:
        framework: name of the framework.
        release: release that the table is of, with its commit and date.
        options: by `option_key`.
        derived: expressions behind names that rules use beside options.
    """

    framework: str
    release: str
    options: Mapping[str, Option]
    derived: Mapping[str, str] = field(default_factory=dict)

    def switches(self) -> dict[str, tuple[str, str]]:
        """Column of the runs table and its word by key, for flags that set a column to a single word."""
        flags = {key: SWITCH.match(option.column) for key, option in self.options.items() if FLAG.search(option.kind)}
        return {key: (match[1], match[2]) for key, match in flags.items() if match and match[2] not in NO_WORD}

    def columns(self) -> dict[str, str]:
        """Columns of the runs table that take the value of an option unchanged, by key."""
        found = {key: SETS.match(option.column) for key, option in self.options.items()}
        # A description of the effect, as `vpp = stages / pp`, is no plain copy into a column.
        return {key: match[1] for key, match in found.items() if match}


def option_key(name: str) -> str:
    """Name of an option as rules spell it: without leading dashes, hyphens as underscores."""
    return name.lstrip("-").replace("-", "_") if name.startswith("--") else name


@cache
def programs() -> Mapping[str, Mapping[str, Any]]:
    """Release, commit, date, source and licence of the option table of each framework."""
    return read_toml(data_path("frameworks/programs.toml"))


@cache
def option_table(framework: str) -> OptionTable:
    """Options of a framework.

    Raises:
        InputError: a framework without a table; lists the frameworks with a table.
    """
    if framework not in programs():
        raise InputError(f"framework = {framework!r} has no table of options; {nearest(framework, programs())}")
    facts = programs()[framework]
    header, records = csv_table(data_path(f"frameworks/{framework}.csv"))
    rows = (dict(zip(header, record, strict=True)) for _, record in records)
    options = {option_key(row["option"]): _option(row) for row in rows}
    # Releases of torchtitan share derived names, stated for a single release.
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
    # int before float: a default of 8 stays whole, as rules test the type.
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
