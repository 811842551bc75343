"""Cells of tables: columns, vocabularies and names, and conversion of texts to values, or to reasons of refusal."""

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxscale.base.documents import read_toml
from jaxscale.hardware.catalogue import ChipNames, Hardware, load_hardware
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import catalogue_model, model_fields

ModelLookup = Callable[[str], Mapping[str, Any] | None]

SHAPE = ("n_layers", "d_model", "n_heads")
"""Columns of the smallest description of a model; a catalogue name stands for all three."""


@dataclass(frozen=True)
class Names:
    """Valid names of chips and models for the cells of a table.

    Attributes:
        chips: catalogue ids of chips by name, aliases included.
        lookup: fields of a catalogue model by name, None for an unknown name.
        known_models: names suggested in the message about an unknown model.
    """

    chips: Mapping[str, str] = field(default_factory=dict)
    lookup: ModelLookup = catalogue_model
    known_models: Collection[str] = ()

    @classmethod
    def of(cls, hardware: Hardware | None = None) -> "Names":
        """Valid names from the catalogues of chips and models.

        Args:
            hardware: catalogue of chips; the shipped catalogue where None.
        """
        return cls((hardware or load_hardware()).names.ids, catalogue_model, model_fields())

    @functools.cached_property
    def _chip_names(self) -> ChipNames:
        return ChipNames(self.chips)

    def chip(self, text: str) -> tuple[str | None, str]:
        """Catalogue id of a chip and an empty text; None and a problem for an unknown or ambiguous name."""
        meant = self._chip_names.meant(text)
        if len(meant) == 1:
            return meant[0], ""
        return None, f"{self._chip_names.problem(text, meant)}, or a chip of your own by --hardware FILE.toml"

    def is_model(self, name: str | None) -> bool:
        """Whether the catalogue has a model of the name."""
        return bool(name) and self.lookup(name) is not None


_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,'’\u00a0\u202f]\d{3})+(\.\d+)?")


@cache
def vocabularies() -> Mapping[str, Any]:
    """Tables of `vocabularies.toml`: words of cells and the corresponding words of the model.

    Names of number formats come first, the narrowest format first, then the synonyms of the file.
    """
    tables = read_toml(Path(__file__).with_name("vocabularies.toml"))
    own_names = {name: name for name in reversed(PRECISIONS)}
    return {**tables, "precisions": {**own_names, **tables["precisions"]}}


def translate(vocabulary: str, word: str) -> str | None:
    """Word of the model for the word of a cell; None for an unknown word.

    Args:
        vocabulary: `precisions`, `number_formats`, `status`, or a choice of software such as `recompute`.
        word: the cell.

    Returns:
        A name of `PRECISIONS`, a number format, ok/oom, or a word of the plan; None for an unknown word.
    """
    known: Mapping[str, str] = vocabularies()[vocabulary]
    word = word.lower()
    return _format_in(word, known) if vocabulary == "precisions" else known.get(word)


def _format_in(word: str, known: Mapping[str, str]) -> str | None:
    """Number format in a word of which every part is a format or a use of formats."""
    usage = vocabularies()["precision_parts"]["words"]
    parts = [part for part in re.split(r"[-_ +/.,()]+", word) if part not in ("", *usage)]
    # Scaled formats have their own prefix: mxfp8, nvfp4.
    plain = [re.sub(r"^(mx|nv)(?=fp)|(?<=fp8|at8)(e4m3|e5m2)(fn)?$", "", part) for part in parts]
    if not plain or not all(part in known or part in vocabularies()["number_formats"] for part in plain):
        return None
    named = {known.get(part) or known[vocabularies()["number_formats"][part]] for part in plain}
    return next(meaning for meaning in known.values() if meaning in named)


@cache
def spellings() -> Mapping[str, Any]:
    """Words of schemas by column and spelling, from `spellings.toml`; `questions` are messages on ambiguous words."""
    return read_toml(Path(__file__).with_name("spellings.toml"))


_ENUMERATION = re.compile(r"(?:[A-Z][a-z]+){2,}\.")
"""Name of an enumeration before its member, as programs print it: `ShardingStrategy.FULL_SHARD`."""


def _key(text: str) -> str:
    """A word without case and separators."""
    return re.sub(r"[-_ ]+", "_", text.strip().lower()).strip("_")


def respelt(column: str, text: str) -> str:
    """Cell in the spelling of the schema; without the name of its enumeration where the spelling is unknown."""
    known = spellings().get(column)
    if not known:
        return text
    name = _ENUMERATION.match(text)
    member = text[name.end() :] if name else text
    return known.get(_key(member), member)


def question(column: str, text: str) -> str:
    """Message about an ambiguous word in a cell of a column; empty for a clear or unknown word."""
    return spellings()["questions"].get(column, {}).get(_key(text), "")


def without_separators(text: str) -> str:
    """A number without separators of thousands; a text without such separators unchanged."""
    return re.sub(r"[,'’\u00a0\u202f]", "", text) if _THOUSANDS.fullmatch(text) else text


Kind = Literal["integer", "number", "amount", "share", "flag", "word", "words", "name", "chip", "text"]
Value = float | bool | str

# Stricter than float(): no underscores, no digits of other scripts.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_NUMERIC = re.compile(r"[^0-9.eE+\-\n]")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
YES_OR_NO = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False, "yes": True, "no": False}
"""Words of a flag."""

_MAX_SHOWN = 60


@dataclass(frozen=True)
class Column:
    """Column of a table: name, type and range of its cells.

    Attributes:
        name: header of the column.
        kind: `integer` (8 or 8.0), `number` (> 0), `amount` (a number, or 0), `share` (a number from 0 to 1), `flag`
            (true or false), `word` (of a vocabulary, kept as written), `words` (several of a vocabulary, joined by +),
            `name` (a name or a word in any case), `chip` (name of a chip, resolved to the catalogue id) or `text`.
        meaning: meaning of a cell.
        unit: unit of a cell.
        default: meaning of an empty cell.
        required: whether a prediction needs a filled cell.
        minimum: least valid value of an integer or a number; None for 1, or for above 0.
        maximum: greatest valid value of an integer or a number.
        vocabulary: table of `vocabularies.toml` with the valid words, or with synonyms of names.
        words: meanings of the valid words of a name; empty where all names are valid.
    """

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    default: str = "unknown"
    required: bool = False
    minimum: int | None = None
    maximum: float = 1e8
    vocabulary: str = ""
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def least(self) -> int | None:
        """Least valid value; None for any value above 0."""
        return {"integer": 1, "share": 0, "amount": 0}.get(self.kind) if self.minimum is None else self.minimum

    @property
    def most(self) -> float:
        """Greatest valid value."""
        return 1.0 if self.kind == "share" else self.maximum

    @property
    def expected(self) -> str:
        """Description of valid cells, for messages."""
        if self.kind == "integer":
            upper = f" and <= {self.maximum:g}" if self.maximum < 100 else ""
            return f"a whole number >= {self.least}{upper}"
        return {
            "number": "a number > 0" if self.minimum is None else f"a number >= {self.minimum}",
            "amount": "a number >= 0",
            "share": "a number from 0 to 1",
            "flag": "true or false",
        }.get(self.kind, "text")


def show(text: str) -> str:
    """Cell as shown in a message: quoted, on a single line, shortened if very long."""
    return repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...")


class Parsed(NamedTuple):
    """Values of cells, and problems of bad cells.

    Attributes:
        values: value of each cell, None for an empty or bad cell.
        problems: problems of the bad cells, by position.
    """

    values: list[Value | None]
    problems: dict[int, str]


def parse_cells(column: Column, texts: Sequence[str], names: Names) -> Parsed:
    """Values of the texts in the cells of a column, and problems of bad cells.

    Args:
        column: description of valid cells.
        texts: cells without surrounding blanks.
        names: valid names of chips.
    """
    texts = [respelt(column.name, text) if text else text for text in texts]
    if column.kind in ("integer", "number", "amount", "share"):
        is_ratio = column.unit == "1" and column.kind != "integer"
        return _parse_numbers(column, list(map(_without_percent, texts)) if is_ratio else texts)
    if column.kind == "text":
        return Parsed([text or None for text in texts], {})
    several = partial(_parse_words, column)
    parse = {"chip": names.chip, "words": several}.get(column.kind, partial(_parse_word, column))
    parsed = [parse(text) if text else (None, "") for text in texts]
    problems = {place: problem for place, (_, problem) in enumerate(parsed) if problem}
    return Parsed([value for value, _ in parsed], problems)


def _without_percent(text: str) -> str:
    """A ratio of 1 in place of `45 %`; any different text unchanged."""
    plain = text[:-1].strip() if text.endswith("%") else ""
    return f"{float(plain) / 100.0:.15g}" if _NUMBER.fullmatch(plain) else text


def _parse_word(column: Column, text: str) -> tuple[Value | None, str]:
    if column.kind == "flag":
        flag = YES_OR_NO.get(text.lower())
        return flag, "" if flag is not None else f"not a flag; expected {column.expected}"
    if column.kind == "word":
        if translate(column.vocabulary, text) is not None:
            return text, ""
        known = ", ".join(vocabularies()[column.vocabulary])
        return None, question(column.name, text) or f"not known; expected one of {known}"
    name = text.lower()
    if column.words:
        known = ", ".join(word for word, meaning in column.words.items() if word == meaning)
        return column.words.get(name), "" if name in column.words else f"not known; expected one of {known}"
    return (translate(column.vocabulary, name) or name) if column.vocabulary else name, ""


def _parse_words(column: Column, text: str) -> tuple[Value | None, str]:
    """Several words of a vocabulary, joined by + or by another separator."""
    words, parts = vocabularies()[column.vocabulary], parse_words(column.name, text)
    if unknown := [part for part in parts if part not in words]:
        asked = question(column.name, unknown[0])
        return None, asked or f"{unknown[0]!r} is not known; expected some of {', '.join(words)}, joined by +"
    if "none" in parts and len(set(parts)) > 1:
        return None, f"none beside {next(part for part in parts if part != 'none')!r}; expected one or the other"
    return "+".join(dict.fromkeys(parts)), ""


def parse_words(column: str, text: str) -> list[str]:
    """Words of a cell, separated by + or another separator, in the spelling of the schema."""
    written = [respelt(column, part.strip(" \t'\"[]")) for part in re.split(r"[+,;/]", text)]
    return [part for word in written for part in word.lower().split("+")]


def _parse_numbers(column: Column, texts: Sequence[str]) -> Parsed:
    values: list[Any] = _floats(texts)
    numbers = np.asarray(values, dtype=float)
    whole = column.kind == "integer"
    is_least = numbers > 0.0 if column.least is None else numbers >= column.least
    is_valid = is_least & (numbers <= column.most) & ((numbers == np.floor(numbers)) | (not whole))
    problems = {}
    for place in np.flatnonzero(~is_valid).tolist():
        if texts[place]:
            value, values[place] = values[place], None
            if value is None and (asked := question(column.name, texts[place])):
                problems[place] = asked
                continue
            problem = _not_a_number(texts[place]) if value is None else _range_problem(column, value)
            hint = ", or an empty cell where it is not known" if _NOT_FINITE.fullmatch(texts[place]) else ""
            problems[place] = f"{problem}; expected {column.expected}{hint}"
    return Parsed(values, problems)


def _floats(texts: Sequence[str]) -> list[float | None]:
    """Numbers of texts, None for a text without a number."""
    # One scan of all texts is quicker than one of each: without other characters, float() is as strict as _NUMBER.
    if not _NOT_NUMERIC.search("\n".join(texts)):
        try:
            return [float(text) if text else None for text in texts]
        except ValueError:
            pass
    plain = map(without_separators, texts)
    return [float(text) if _NUMBER.fullmatch(text) else None for text in plain]


def _not_a_number(text: str) -> str:
    if not _NOT_FINITE.fullmatch(text):
        return "not a number"
    return "not a number (NaN)" if "nan" in text.lower() else "infinite"


def _range_problem(column: Column, value: float) -> str:
    whole = column.kind == "integer"
    if value < 0:
        return "negative"
    if value == 0 and column.least != 0:
        return "zero"
    if not whole and column.least is not None and value < column.least:
        return "too small"
    if value > column.most:
        return f"too large; must be at most {_plain(column.most)}" + (" (infinite)" if math.isinf(value) else "")
    return "not a whole number" if whole and value != int(value) else ""


def _plain(bound: float) -> str:
    """A bound in the notation of people: 3, 100, 1e8."""
    return f"{bound:g}" if bound < 1e5 else f"{bound:.0e}".replace("e+0", "e").replace("e+", "e")


def first_of(lines: Sequence[int | str], most: int) -> str:
    """List of line numbers, or words, for a message, cut off after a given count."""
    return ", ".join([*map(str, lines[:most]), *(["..."] if len(lines) > most else [])])
