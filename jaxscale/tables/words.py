"""Words of people and tools in cells: vocabularies, spellings, numbers with separators, names of chips and models."""

import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jaxscale.base.documents import read_toml
from jaxscale.hardware.catalogue import ChipNames, Hardware, load_hardware
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import catalogue_model, model_fields

ModelLookup = Callable[[str], Mapping[str, Any] | None]

SHAPE = ("n_layers", "d_model", "n_heads")
"""Columns of the smallest description of a model; a catalogue name stands for all three."""


@dataclass(frozen=True)
class Names:
    """Valid names of chips and models.

    Attributes:
        chips: catalogue ids of chips by name, aliases included.
        lookup: fields of a catalogue model by name, None for an unknown name.
        known_models: names offered in the message about an unknown model.
    """

    chips: Mapping[str, str] = field(default_factory=dict)
    lookup: ModelLookup = catalogue_model
    known_models: Collection[str] = ()

    @classmethod
    def of(cls, hardware: Hardware | None = None) -> "Names":
        """Names of the catalogues.

        Args:
            hardware: catalogue of chips; the shipped catalogue where None.
        """
        return cls((hardware or load_hardware()).names.ids, catalogue_model, model_fields())

    @functools.cached_property
    def _chip_names(self) -> ChipNames:
        return ChipNames(self.chips)

    def chip(self, text: str) -> tuple[str | None, str]:
        """Catalogue id of a chip and an empty problem; None and the problem for an unknown or ambiguous name."""
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
    """Tables of `vocabularies.toml`: words of cells and their meaning to the model.

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
    """Words of schemas by column and spelling, from `spellings.toml`; `questions` has the answers to unclear words."""
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
    """Message about a word too unclear for a cell of a column; empty for a clear or unknown word."""
    return spellings()["questions"].get(column, {}).get(_key(text), "")


def without_separators(text: str) -> str:
    """A number without separators of thousands; a text without such separators unchanged."""
    return re.sub(r"[,'’\u00a0\u202f]", "", text) if _THOUSANDS.fullmatch(text) else text
