"""Conversion of the settings of a framework to cells of a runs table, and list of the settings without a rule."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jaxscale.base.documents import read_toml
from jaxscale.base.errors import InputError
from jaxscale.launch.options import OFF, option_key, option_table, programs
from jaxscale.launch.readers.megatron_rules import megatron_cells
from jaxscale.launch.readers.settings_text import FORM, OPEN, Cells, ReadSettings, Settings
from jaxscale.launch.readers.titan_rules import titan_cells
from jaxscale.launch.readers.trainer_rules import (
    automodel_cells,
    kempnerforge_cells,
    nanotron_cells,
    torchtune_cells,
    trainer_cells,
    verl_cells,
)
from jaxscale.launch.readers.xla_rules import levanter_cells, maxtext_cells, torchprime_cells
from jaxscale.runs.schema import BY_NAME
from jaxscale.tables.cells import Names, parse_cells

_TABLES = read_toml(Path(__file__).with_name("families.toml"))

FAMILIES: Mapping[str, Mapping[str, list[str]]] = _TABLES["families"]
"""Keys that only a family has, and its tables of options, by family."""

KNOWN: Mapping[str, list[str]] = _TABLES["known"]
"""Keys of number formats, of launchers and without effect, and tables without effect."""


def option_tables(family: str, kinds: tuple[str, ...] = ("tables", "further")) -> list[str]:
    """Names of the option tables of a family of frameworks."""
    return [name for kind in kinds for name in FAMILIES.get(family, {}).get(kind, ())]


def precision_cell(settings: Mapping[str, Any]) -> str | None:
    """Number format of a run, from settings; None if no setting states a number format."""
    # Frameworks nest the keys differently; the last word of a key is common to all.
    last = {key.rsplit(".", 1)[-1].rsplit("/", 1)[-1]: value for key, value in settings.items()}
    recipe = str(last.get("fp8_recipe") or "").lower()
    # Narrow formats first: `fp8: true` stands beside `precision: bf16-mixed`.
    if last.get("fp4") or last.get("fp4_format"):
        return "nvfp4"
    if last.get("fp8") or last.get("fp8_format") or (last.get("fp8.enabled")):
        return "mxfp8" if "mxfp8" in recipe else "fp8"
    words = [str(last.get(key) or "").lower() for key in ("converters", "quantization", *KNOWN["precision"])]
    if "quantize.linear.mx" in words[0] or "mxfp8" in words[0]:
        return "mxfp8"
    if any("fp8" in word or "float8" in word for word in words):
        return "mxfp8" if any("mxfp8" in word for word in words) else "fp8"
    if last.get("bf16") is True or any("bf16" in word or "bfloat16" in word for word in words):
        return "bf16"
    if settings.get("bf16.enabled") is True or settings.get("bfloat16_enabled") is True:
        return "bf16"
    # The name of a converter may contain "16"; only keys of precision decide here.
    if last.get("fp16") is True or settings.get("fp16.enabled") is True or any("16" in word for word in words[2:]):
        return "fp16"
    return None


@cache
def columns_by_key() -> Mapping[str, Mapping[str, str]]:
    """Column of the runs table by family and key, from the option tables and from `settings_columns.toml`."""
    found: dict[str, Mapping[str, str]] = {}
    for family, own in read_toml(Path(__file__).with_name("settings_columns.toml")).items():
        columns: dict[str, str] = {}
        for framework in option_tables(family, ("tables",)):
            for key, column in option_table(framework).columns().items():
                columns.setdefault(key.rsplit(".", 1)[-1], column)
        found[family] = {**columns, **own}
    return found


@cache
def words_of_switches(family: str) -> Mapping[str, tuple[str, str]]:
    """Column of the runs table and value of the column, by flag, for the flags of a family; number formats excluded."""
    found = {key.lower(): told for name in option_tables(family) for key, told in option_table(name).switches().items()}
    switches = {key: told for key, told in found.items() if not {*KNOWN["formats"], "enabled"} & {*key.split(".")[-2:]}}
    return {key: told for key, told in switches.items() if told[0] in BY_NAME and takes_word(*told)}


def takes_word(column: str, word: str) -> bool:
    """Whether a word is a valid value of a column of the runs table."""
    return not parse_cells(BY_NAME[column], [word], Names()).problems


@cache
def known_keys(family: str) -> Mapping[str, tuple[Any, ...]]:
    """Last components of the known keys of a family, each with the default values of options that set a column."""
    names = [name for name in option_tables(family) if name in programs()]
    found: dict[str, tuple[Any, ...]] = dict.fromkeys(map(option_key, columns_by_key().get(family, {})), ())
    for name in names:
        for key, option in option_table(name).options.items():
            last = key.lower().rsplit(".", 1)[-1]
            decides = re.match(r"\w+", option.column)
            # An option with the default value is no open question.
            found[last] = found.get(last, ()) + ((option.default,) if decides and decides[0] in BY_NAME else ())
    found |= dict.fromkeys(("program", "form", "open", "cfg/"), ())
    for name in ("precision", "launcher", "without_effect", "formats"):
        found |= dict.fromkeys(KNOWN[name], ())
    return found


def framework_family(settings: Settings) -> str | None:
    """Family of frameworks of a set of settings, by the keys; None for an unknown family."""
    # Options with an unknown value tell the program as well as options with a value.
    parts = {part for key in (*settings, *settings.get(OPEN, ())) for part in key.split(".")}
    counts = {family: sum(key in parts for key in of_family["keys"]) for family, of_family in FAMILIES.items()}
    program = str(settings.get("program") or "")
    if program:
        own = {"ms-swift megatron": "megatron", "verl": "verl", "torchtune": "torchtune"}
        return own.get(program, "deepspeed")
    # verl's files also hold keys of Megatron and FSDP, below `actor_rollout_ref`.
    if counts["verl"]:
        return "verl"
    best = max(counts, key=lambda family: counts[family])
    return best if counts[best] else None


def understood_cells(settings: Settings, family: str, is_complete: bool = False) -> tuple[Cells, tuple[str, ...]]:
    """Cells of the runs table from the settings of a family, and the keys without a rule.

    Args:
        settings: value by key.
        family: family of frameworks, from `FAMILIES`.
        is_complete: whether absent options have the program's defaults, as on a command line.

    Raises:
        InputError: a value of the wrong type; names the setting.
    """
    read = ReadSettings(settings, is_complete)
    cells: Cells = {}
    for name, column in columns_by_key().get(family, {}).items():
        value = read.value(name)
        # "auto" leaves the value to the program.
        if column not in cells and value not in (None, "", "auto"):
            cells[column] = _cell(value)
    try:
        ruled = _RULES[family](read, cells)
    except (ValueError, TypeError, ZeroDivisionError):
        raise InputError(
            f"{read.last} = {settings.get(read.last)!r} cannot be read; expected a value that {family} takes"
        ) from None
    # Rules see several settings at once and override plain copies.
    cells |= {name: value for name, value in ruled.items() if value is not None}
    for name, (column, word) in words_of_switches(family).items():
        if read.flag(name) and cells.get(column) in (None, "none"):
            cells[column] = word
    if precision := precision_cell(settings):
        cells["precision"] = precision
    unknown = [name for name in settings.get(OPEN, ()) if name not in (*KNOWN["without_effect"], *KNOWN["launcher"])]
    unread = (*unread_keys(settings, family, read), *unknown)
    # What a setting decides that nobody understands is not known, whatever the others say.
    keys = [key.rsplit(".", 1)[-1] for key in unread if key not in read.doubtful]
    undecided = {column for key in keys for column in decided_columns(family).get(key, ())}
    undecided |= {"n_gpus"} if {*settings.get(OPEN, ())} & {*KNOWN["launcher"]} else set()
    # Programs write -1 for "by default" or "the remaining devices".
    cells = {name: value for name, value in cells.items() if value not in (-1, "-1") and name not in undecided}
    if settings.get(FORM) == "options":
        untold = (name for name in UNSPLIT if name not in cells.keys() | ruled.keys() | undecided)
        cells |= dict.fromkeys(untold, 1)
    return cells, unread


UNSPLIT = ("vpp", "cp", "ep")
"""Degrees that are 1 where a command line has no option for them."""


@cache
def decided_columns(family: str) -> Mapping[str, frozenset[str]]:
    """Columns of the runs table set by a key, by the last component of the key."""
    found = {name: {column} for name, column in columns_by_key().get(family, {}).items()}
    for name in option_tables(family):
        for key, option in option_table(name).options.items():
            first = re.match(r"\w+", option.column)
            columns = {first[0]} & BY_NAME.keys() if first else set()
            found.setdefault(key.lower().rsplit(".", 1)[-1], set()).update(columns)
    return {name: frozenset(columns) for name, columns in found.items()}


def unread_keys(settings: Settings, family: str, read: ReadSettings) -> tuple[str, ...]:
    """Keys of settings without a rule and without an entry in the option tables of the family, in order.

    A key listed as setting a column is included, unless the value is off or the default.
    """
    known = known_keys(family)

    def is_read(key: str, value: Any) -> bool:
        *tables, last = key.split(".")
        if any(table in (*KNOWN["opaque"], *KNOWN["formats"]) for table in tables):
            return True
        # No defaults listed: the key decides no column, any value is harmless.
        return last in known and (not known[last] or value in OFF or value in known[last])

    return tuple(
        key
        for key, value in settings.items()
        if key in read.doubtful or key not in read.understood and not is_read(key, value)
    )


def _cell(value: Any) -> Any:
    """A value as a cell: lists joined by +."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else value


_RULES: Mapping[str, Callable[[ReadSettings, Cells], Cells]] = {
    "megatron": megatron_cells,
    "torchtitan": titan_cells,
    "maxtext": maxtext_cells,
    "nanotron": nanotron_cells,
    "deepspeed": trainer_cells,
    "automodel": automodel_cells,
    "kempnerforge": kempnerforge_cells,
    "levanter": levanter_cells,
    "torchprime": torchprime_cells,
    "torchtune": torchtune_cells,
    "verl": verl_cells,
}
