"""Names of chips and models in tables, resolved alike for all schemas."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.hardware.chip_names import ChipNames
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
