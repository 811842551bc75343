"""Shapes of the models of a table: entries of the catalogue, overridden by stated cells."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxscale.base.arrays import stated_or
from jaxscale.runs.defaults import EmptyCells
from jaxscale.runs.schema import MODEL_FIELDS, Runs
from jaxscale.tables.categorical import Categorical, compacted, together
from jaxscale.tables.cells import ModelLookup

PATTERN = 0.25
"""Share of the depth from which on dense layers are taken to alternate with mixtures, as in Llama 4 (1/2), and not to
stand before them, as in DeepSeek-V3 (3 of 61) [1]."""

# Layer counts of one kind, which follow the depth where a row has fewer layers than the catalogue model.
_LAYER_COUNTS = ("n_attention_layers", "n_mlp_layers", "n_ssm_layers")


@dataclass(frozen=True)
class Shapes:
    """Shapes of the models of a table as arguments of `Transformer`.

    Attributes:
        codes: index of the shape of each row [1], [row].
        arguments: arguments of the distinct shapes, nan for the default of `Transformer` [argument][shape].
    """

    codes: Int[np.ndarray, " row"]
    arguments: Mapping[str, np.ndarray]

    def column(self, name: str) -> np.ndarray:
        """Argument of each row, nan for the default of `Transformer` [row]."""
        return self.arguments[name][self.codes]

    def take(self, rows: np.ndarray) -> "Shapes":
        """Shapes of selected rows, by index or mask; unused shapes are dropped."""
        codes, present = compacted(self.codes[rows], len(self.arguments["n_layers"]))
        return Shapes(codes, {name: column[present] for name, column in self.arguments.items()})


def catalogue_entry(
    lookup: ModelLookup, model: str | None, d_model: float | None, n_heads: float | None
) -> Mapping[str, Any]:
    """Fields of a row's catalogue model.

    Args:
        lookup: fields of a catalogue model by name, None for an unknown name.
        model: name of the row's model.
        d_model: stated width [1].
        n_heads: stated query heads [1].

    Returns:
        The fields; none where stated width or heads contradict the catalogue model.
    """
    entry = (lookup(model) if model else None) or {}
    # A different width or head count is a different model under a known name.
    is_another = d_model not in (None, entry.get("d_model")) or n_heads not in (None, entry.get("n_heads"))
    return {} if is_another else entry


def shapes_of(runs: Runs, lookup: ModelLookup, empty: EmptyCells | None = None) -> Shapes:
    """Shapes of the rows of a table; equal rows are assembled once.

    Args:
        runs: the table.
        lookup: fields of a catalogue model by name, None for an unknown name.
        empty: meaning of empty cells; where None, empty cells are nan and the stated sequence length counts.

    Returns:
        The shapes; the sequence length is the mean length with padding, where the source states a mean.
    """
    columns = {name: runs.categories(name) for name in ("model", *MODEL_FIELDS, "seq_len") if name in runs.values}
    columns["model"] = runs.categories("model")
    if empty is not None:
        columns |= {f"usual {name}": empty.default(name) for name in _USUAL}
    distinct = together(*columns.values())
    values = {name: [row[place] for row in distinct.values] for place, name in enumerate(columns)}
    # Absent columns are nan.
    gaps = np.full(len(distinct.values), np.nan)
    stated = dict.fromkeys((*MODEL_FIELDS, "seq_len", *(f"usual {name}" for name in _USUAL)), gaps)
    stated |= {name: np.asarray(column, dtype=float) for name, column in values.items() if name != "model"}
    own = (values.get(name, [None] * len(gaps)) for name in ("d_model", "n_heads"))
    # Shapes that differ in their sequences alone are of the same few catalogue models.
    named = Categorical.of(zip(values["model"], *own, strict=True))
    entries = Categorical(named.codes, tuple(catalogue_entry(lookup, *row) for row in named.values))
    arguments = _rescaled(entries, stated["n_layers"])
    width, experts = arguments["d_ff"], arguments["n_experts"]
    # A width other than that of the catalogue's dense layers is the width of one expert.
    says_both = ~np.isnan(stated["d_ff_expert"])
    is_of_expert = ~np.isnan(stated["d_ff"]) & (experts > 1.0) & (stated["d_ff"] != width) & ~says_both
    arguments |= {name: stated_or(stated[name], arguments[name]) for name in MODEL_FIELDS}
    arguments["d_ff"] = np.where(is_of_expert, width, arguments["d_ff"])
    arguments["d_ff_expert"] = np.where(is_of_expert, stated["d_ff"], arguments["d_ff_expert"])
    arguments["vocab_size"] = stated_or(arguments["vocab_size"], stated["usual vocab_size"])
    share = stated_or(stated["trainable_share"], stated["usual trainable_share"])
    arguments["trainable_share"] = stated_or(share, arguments["trainable_share"])
    arguments["seq_len"] = stated_or(stated["usual mean_seq_len"], stated["seq_len"])
    return Shapes(distinct.codes, arguments)


_USUAL = ("vocab_size", "trainable_share", "mean_seq_len")
"""Arguments whose empty cells may have a meaning of their own."""


def _rescaled(entries: Categorical, n_layers: np.ndarray) -> dict[str, np.ndarray]:
    """Catalogue models at the depth of the rows: benchmarks run proxies with fewer layers on small clusters."""
    names = dict.fromkeys(MODEL_FIELDS)
    names |= dict.fromkeys(name for entry in entries.values for name in entry)
    fields = {name: entries.numbers(operator.methodcaller("get", name)) for name in names}
    depth = fields["n_layers"]
    # Depth of the row over depth of the catalogue.
    share = stated_or(n_layers / depth, np.ones(len(depth)))
    for name in _LAYER_COUNTS:
        if name in fields:
            fields[name] = fields[name] * share
    dense = fields["n_dense_layers"]
    # Leading dense layers stay, up to the depth of the row.
    first = np.where(np.isnan(n_layers), dense, np.minimum(dense, n_layers))
    # Alternating dense layers shrink with the depth.
    fields["n_dense_layers"] = np.where(dense >= PATTERN * depth, dense * share, first)
    return fields
