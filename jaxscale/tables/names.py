"""Names of chips, models and frameworks in tables: one resolution for tables of every kind."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxscale.base.errors import one_like
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.models import catalogue_model, model_fields
from jaxscale.tables.cells import show
from jaxscale.tables.table import AbstractTable

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

    def is_model(self, name: str | None) -> bool:
        """Whether a name is that of a model of the catalogue."""
        return bool(name) and self.lookup(name) is not None


def unknown_models(table: AbstractTable, names: Names, judged: np.ndarray, hint: str = "") -> dict[int, list[str]]:
    """Rows without a shape whose model is unknown, so that there is nothing to read.

    Where the table has shape columns, an unknown model is a problem only if no row of the table has a shape.

    Args:
        table: with models and their shapes.
        names: that it may hold.
        judged: which rows are of models, and not bad for another reason [row].
        hint: at a shape column that is misspelt, for the message.

    Returns:
        Problems by row.
    """
    models = table.categories("model")
    is_known = models.matches(names.is_model)
    n_given = np.sum([~np.isnan(table.numbers(name)) for name in SHAPE], axis=0)
    is_known |= n_given == len(SHAPE)
    has_columns = all(name in table.columns for name in SHAPE)
    if has_columns and np.any(judged & is_known):
        return {}
    is_problem = judged & ~is_known & (((n_given == 0) & models.matches(bool)) if has_columns else True)
    told: dict[str, str] = {}
    for name in {models[row] or "" for row in np.flatnonzero(is_problem).tolist()}:
        known = one_like(name, names.known_models) if names.known_models else "expected a catalogue model"
        told[name] = f"column 'model' = {show(name)}: unknown model and no shape{hint}; {known}, or {', '.join(SHAPE)}"
    return {row: [told[models[row] or ""]] for row in np.flatnonzero(is_problem).tolist()}
