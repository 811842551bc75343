"""Options of a framework, from `data/frameworks`, and checks of launch settings by the framework's own rules."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
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
    """Option of a framework: name, type, default, choices and rules.

    Attributes:
        name: name of the option, in the spelling of the program.
        kind: type of the value, in the words of the source.
        default: default value.
        choices: allowed words; empty for free values.
        required: `yes`, `no`, `never`, or the name of a group with at least one required option.
        requires: expressions that must be true if the option is set.
        excludes: expressions that must be false if the option is set.
        column: column of the runs table set by the option, or a description of the effect.
    """

    name: str
    kind: str
    default: Any
    choices: tuple[str, ...]
    required: str
    requires: tuple[str, ...]
    excludes: tuple[str, ...]
    column: str


@dataclass(frozen=True)
class OptionTable:
    """Options of a release of a framework.

    Attributes:
        framework: name of the framework.
        release: release of the framework, with commit and date.
        options: options by `option_key`.
        derived: expressions for further names used in rules.
    """

    framework: str
    release: str
    options: Mapping[str, Option]
    derived: Mapping[str, str] = field(default_factory=dict)

    def switches(self) -> dict[str, tuple[str, str]]:
        """Column of the runs table and value of the column, by key, for flags that set a column to a single value."""
        flags = {key: SWITCH.match(option.column) for key, option in self.options.items() if FLAG.search(option.kind)}
        return {key: (match[1], match[2]) for key, match in flags.items() if match and match[2] not in NO_WORD}

    def columns(self) -> dict[str, str]:
        """Column of the runs table that takes the value of an option unchanged, by key."""
        found = {key: SETS.match(option.column) for key, option in self.options.items()}
        # A description of the effect, as `vpp = stages / pp`, is no plain copy into a column.
        return {key: match[1] for key, match in found.items() if match}


def option_key(name: str) -> str:
    """Name of an option in the spelling of rules: without leading dashes, with underscores for hyphens."""
    return name.lstrip("-").replace("-", "_") if name.startswith("--") else name


@cache
def programs() -> Mapping[str, Mapping[str, Any]]:
    """Release, commit, date, source and licence of the option table of each framework."""
    return read_toml(data_path("frameworks/programs.toml"))


@cache
def option_table(framework: str) -> OptionTable:
    """Table of the options of a framework.

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
    )


def plain_default(text: str) -> Any:
    """Default value from the text of a table: number, truth value, None, or word."""
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


TORCHRUN = (
    "nnodes",
    "nproc_per_node",
    "node_rank",
    "master_addr",
    "master_port",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
)
"""Options of the launcher, which no script takes."""

FACTS = ("model.n_heads", "model.n_kv_heads", "model.n_experts", "converter")
"""Facts about a model or its formats that a registry or code holds: rules read them, they are no options."""

# Values of an option not in use.
OFF = (None, False, "", ())

# Quoted words first: a literal is never taken for the name of an option.
_NAME = re.compile(r"'[^']*'|[A-Za-z_][\w.]*(?:\[\])?")
_WORDS = ("and", "or", "not", "in", "is", "if", "else", "for", "None", "True", "False", "axis")


def complaints(
    framework: str, settings: Mapping[str, Any], n_chips: int, may_miss: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Errors that the checks of a program report for launch settings, one line per error, with the option first.

    Args:
        framework: framework with a table of options.
        settings: value by option, in the spelling of the program; `env.NAME` for environment variables.
        n_chips: chips of the run [1].
        may_miss: required options whose absence is no error.
    """
    table = option_table(framework)
    # Files write `--micro-batch-size`, rules write `micro_batch_size`.
    stated = {option_key(name): value for name, value in settings.items()}
    values = SettingValues(table, stated, n_chips)
    found = [text for text in _missing(table, stated) if text.split(":")[0] not in may_miss]
    for key, value in stated.items():
        # The environment and facts of a registry are read by rules and are no options.
        if key.startswith("env.") or key in FACTS:
            continue
        option = table.options.get(key)
        if option is None:
            found += _unknown(key, table)
            continue
        found += _bad_value(option, value)
        # `requires` and `excludes` bind options in use alone.
        if value not in OFF:
            found += _broken_rules(option, values)
    return tuple(found)


def _unknown(key: str, table: OptionTable) -> list[str]:
    """Error of a program for an unknown key; none where the program accepts unknown keys."""
    if key in TORCHRUN:
        return [f"{key}: is an option of torchrun, not of the script"]
    # argparse exits at an unknown option; dataclasses of trainers may take further keys.
    if "." not in key and programs()[table.framework]["unknown"].startswith("passed in silence"):
        return []
    return [f"{key}: {table.framework} {table.release} has no such option; {nearest(key, table.options)}"]


def _missing(table: OptionTable, stated: Mapping[str, Any]) -> list[str]:
    """Errors for required options that are not set, and for groups of options of which none is set."""
    groups: dict[str, list[Option]] = {}
    found = []
    for key, option in table.options.items():
        if option.required == "yes" and key not in stated:
            found.append(f"{key}: is required and not set")
        elif option.required == "never" and key in stated:
            found.append(f"{key}: is an old spelling that is refused")
        elif option.required.startswith("one of "):
            groups.setdefault(option.required, []).append(option)
    for options in groups.values():
        if not any(stated.get(option_key(option.name)) not in OFF for option in options):
            found.append(f"{option_key(options[0].name)}: one of {', '.join(o.name for o in options)} is required")
    return found


def _bad_value(option: Option, value: Any) -> list[str]:
    """Error for a value of the wrong type or outside the choices of its option."""
    key = option_key(option.name)
    # An option with several words is right if each word is a choice.
    words = [str(part) for part in value] if isinstance(value, list | tuple) else str(value).split()
    if option.choices and value not in OFF and not set(words) <= set(option.choices) | {"None", "null"}:
        return [f"{key}: {value!r} is none of its choices {', '.join(option.choices)}"]
    number: Any = value
    # In Python, True is an int.
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if option.kind == "int" and value is not None and not (is_number and float(number).is_integer()):
        return [f"{key}: {value!r} is no whole number"]
    if option.kind == "float" and value is not None and not is_number:
        return [f"{key}: {value!r} is no number"]
    if option.kind in ("flag", "bool") and not isinstance(value, bool):
        return [f"{key}: {value!r} is neither true nor false"]
    return []


def _broken_rules(option: Option, values: "SettingValues") -> list[str]:
    """Violated rules of an option that is set."""
    key = option_key(option.name)
    found = [f"{key}: requires {rule}" for rule in option.requires if not values.holds(rule)]
    return found + [f"{key}: excludes {rule}" for rule in option.excludes if values.holds(rule)]


class SettingValues:
    """Values of options in the evaluation of rules: stated value, else default, else derived expression."""

    def __init__(self, table: OptionTable, stated: Mapping[str, Any], n_chips: int):
        """Args: table: options of the framework; stated: value by key; n_chips: chips of the run [1]."""
        self.table, self.stated, self.n_chips = table, stated, n_chips

    def __getitem__(self, name: str) -> Any:
        """Value of an option or of a derived name; None if unknown."""
        if name == "n_chips":
            return self.n_chips
        if name in self.stated:
            return self.stated[name]
        if name in self.table.derived:
            return self.evaluated(self.table.derived[name])
        option = self.table.options.get(name)
        return option.default if option else None

    def holds(self, rule: str) -> bool:
        """Whether a rule holds; a rule with unset options counts as met."""
        try:
            return bool(self.evaluated(rule))
        except (TypeError, ZeroDivisionError):
            # Membership in an unset option is false for the program too; comparisons with None have no answer.
            return " in " not in rule

    def evaluated(self, rule: str) -> Any:
        """Value of an expression from the option tables."""
        functions = {**FUNCTIONS, "stated": self.stated.__contains__}
        # Expressions of the tables of the package alone, which no input reaches.
        return eval(_program(rule), {"__builtins__": {}, **functions}, {"v": self})  # noqa: S307


@cache
def _program(rule: str) -> CodeType:
    """Compiled expression, in which each name asks for the value of an option."""
    return compile(_NAME.sub(_asked, rule), rule, "eval")


def _asked(match: re.Match[str]) -> str:
    """Token of a rule: the name of an option becomes a lookup of the option's value; operators and literals stay."""
    word = match[0]
    return word if word.startswith("'") or word in (*_WORDS, *FUNCTIONS, "stated") else f"v[{word!r}]"


PATTERN_PART = re.compile(r"\[([\d,\s]+)\](?:\s*\*\s*(\d+))?")
PATTERN = re.compile(r"\(?\s*(\[[\d,\s]+\](\s*\*\s*\d+)?\s*\+?\s*)+\)?")


def pattern_of(value: Any) -> list[int] | None:
    """Entries of a pattern over layers, for example `([0]*3+[1]*58)`; None for a period instead of a pattern."""
    if isinstance(value, list | tuple):
        return [int(part) for part in value]
    text = str(value).strip()
    if not PATTERN.fullmatch(text):
        return None
    found: list[int] = []
    for entries, times in PATTERN_PART.findall(text):
        found += [int(part) for part in entries.split(",") if part.strip()] * int(times or 1)
    return found


def layers_of(value: Any) -> int:
    """Number of layers of a pattern; 0 for a period [1]."""
    return len(pattern_of(value) or ())


def stages_of(layout: Any) -> int:
    """Number of stages of a pipeline layout, for example `Et*3|(tt|)*29m|L` [1]."""
    return len(expanded_layout(str(layout)).split("|"))


def expanded_layout(layout: str) -> str:
    """Pipeline layout with repetitions written out: `ttt` for `t*3`."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda match: match[1] * int(match[2]), layout)
    return re.sub(r"(\w)\*(\d+)", lambda match: match[1] * int(match[2]), text)


def segments_of(pattern: Any) -> int:
    """Number of segments, separated by `|`, of the layer pattern of a hybrid model; 0 for a pattern without `|` [1]."""
    return str(pattern).split("/")[0].count("|") + 1 if "|" in str(pattern) else 0


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "product": math.prod,
    "layers": layers_of,
    "stages": stages_of,
    "segments": segments_of,
}
"""Functions of rules."""
