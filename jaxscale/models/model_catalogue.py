"""Catalogue of public models: shapes by name and alias, from `data/models.toml`."""

import functools
from collections.abc import Mapping
from typing import Any

from jaxscale.base.errors import similar
from jaxscale.base.resources import data_path, read_toml
from jaxscale.models.model_names import model_keys, variant_ending
from jaxscale.models.transformer import ARGUMENTS

WHAT_ELSE = "a TOML file with n_layers, d_model, n_heads and so on, or a config.json of Hugging Face"
"""What names a model that the catalogue lacks."""


@functools.cache
def model_entries() -> dict[str, dict[str, Any]]:
    """Entries of the catalogue by name, as in the file."""
    return read_toml(data_path("models.toml"))["models"]


@functools.cache
def _ids() -> dict[str, str]:
    """Catalogue ids by lower-case name and alias."""
    return {
        alias.lower(): name for name, entry in model_entries().items() for alias in (name, *entry.get("aliases", []))
    }


@functools.cache
def _ids_by_key() -> dict[str, str]:
    return {model_keys(name)[0]: own for name, own in _ids().items()}


def model_id(name: str) -> str | None:
    """Catalogue id of a model by a name in any common spelling; None for an unknown name."""
    if (own := _ids().get(name.strip().lower())) is not None:
        return own
    return next((_ids_by_key()[key] for key in model_keys(name) if key in _ids_by_key()), None)


@functools.cache
def _shapes() -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in entry.items() if key in ARGUMENTS}
        for name, entry in model_entries().items()
    }


@functools.cache
def model_fields() -> dict[str, dict[str, Any]]:
    """Shape fields of every catalogue model, by lower-case name and alias."""
    return {alias: _shapes()[name] for alias, name in _ids().items()}


def catalogue_model(name: str) -> Mapping[str, Any] | None:
    """Shape fields of a catalogue model by a name in any common spelling; None for an unknown name."""
    found = model_id(name)
    return None if found is None else _shapes()[found]


def variant_note(name: str | None) -> str:
    """Note on the features of a variant that its base model, which stands in for the variant, lacks; may be empty."""
    ending, found = variant_ending(name or ""), model_id(name or "")
    if not ending or found is None or ending in found.lower():
        return ""
    return (
        f"model {name} is taken as {found}: {ending} changes no shape; precision, weight_bytes and seq_len are stated"
    )


def unknown_model(name: str) -> str:
    """End of an error message for an unknown model: the nearest valid names."""
    like = similar(name, sorted(model_fields()), lambda other, part: part in other, most=3, likeness=0.75)
    close = f"did you mean {', '.join(like)}? Else give" if like else "`jaxscale model` lists the catalogue; else give"
    return f"is not in the catalogue; {close} {WHAT_ELSE}"
