"""Catalogue of public models: shapes by name and alias, from `data/models.toml`."""

import functools
from typing import Any

from jaxscale._resources import data_path, read_toml
from jaxscale.errors import InputError, nearest
from jaxscale.workload import ARGUMENTS, Transformer


@functools.cache
def model_fields() -> dict[str, dict[str, Any]]:
    """Shape fields of every catalogue model, by lower-case name and alias."""
    table = read_toml(data_path("models.toml"))["models"]
    fields: dict[str, dict[str, Any]] = {}
    for name, entry in table.items():
        shape = {key: value for key, value in entry.items() if key in ARGUMENTS}
        for alias in (name, *entry.get("aliases", [])):
            fields[alias.lower()] = shape
    return fields


def model(name: str, **changes: Any) -> Transformer:
    """A public model of the catalogue, `js.model("llama3-8b")`; `changes` replace single fields.

    Raises:
        InputError: unknown name.
    """
    fields = model_fields().get(name.lower())
    if fields is None:
        raise InputError(f"model {name!r} is not in the catalogue; {nearest(name.lower(), model_fields())}")
    return Transformer(**{**fields, **changes})
