"""Names of chips and models in tables: one resolution for tables of every kind."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.hardware.chip_names import ChipNames
from jaxscale.models import catalogue_model, model_fields

ModelLookup = Callable[[str], Mapping[str, Any] | None]

SHAPE = ("n_layers", "d_model", "n_heads")
"""Columns of the least that describes a model; the name of a catalogue model fills them."""


@dataclass(frozen=True)
class Names:
    """Names that a table may hold.

    Attributes:
        chips: catalogue ids of chips by name, aliases included.
        lookup: fields of a catalogue model by name, None for an unknown name.
        known_models: names for the message about an unknown model.
    """

    chips: Mapping[str, str] = field(default_factory=dict)
    lookup: ModelLookup = catalogue_model
    known_models: Collection[str] = ()

    @classmethod
    def of(cls, hardware: Hardware | None = None) -> "Names":
        """Names of the catalogues.

        Args:
            hardware: chips that a table may name; the shipped catalogue where None.
        """
        return cls((hardware or load_hardware()).names.ids, catalogue_model, model_fields())

    @functools.cached_property
    def _chip_names(self) -> ChipNames:
        return ChipNames(self.chips)

    def chip(self, text: str) -> tuple[str | None, str]:
        """Catalogue id of a chip, None where a name means none or several, and the problem, empty if there is none."""
        meant = self._chip_names.meant(text)
        if len(meant) == 1:
            return meant[0], ""
        return None, f"{self._chip_names.problem(text, meant)}, or a chip of your own by --hardware FILE.toml"

    def is_model(self, name: str | None) -> bool:
        """Whether a name is that of a model of the catalogue."""
        return bool(name) and self.lookup(name) is not None
