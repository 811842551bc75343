"""Shipped tables of losses by name: which rows of a file one law describes."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from jaxscale.base.errors import InputError, one_like
from jaxscale.base.resources import data_path, read_toml
from jaxscale.laws.losses.loss_reader import Losses, best_of, read_losses


@functools.cache
def _tables() -> dict[str, Any]:
    return read_toml(data_path("losses/tables.toml"))["tables"]


def loss_table_names(judged: bool = True) -> tuple[str, ...]:
    """Names of the tables whose files are here; tables that may not ship are read from the repository alone.

    Args:
        judged: leaves out tables that repeat runs of another one or need a term.
    """
    return tuple(
        name
        for name, entry in _tables().items()
        if data_path(entry["file"]).is_file() and (entry.get("judged", True) or not judged)
    )


def loss_table(name: str, count: str = "") -> Losses:
    """Table of losses by name, `js.laws.loss_table("gemstones")`.

    Args:
        name: of `data/losses/tables.toml`.
        count: of the parameters, that of the source's authors where empty.

    Raises:
        InputError: unknown name, or a table that may not ship outside the repository.
    """
    if name not in _tables():
        raise InputError(f"table of losses {name!r} is unknown; {one_like(name, loss_table_names(False))}")
    entry = _tables()[name]
    path = data_path(entry["file"])
    if not path.is_file():
        raise InputError(
            f"table of losses {name!r} may not be shipped; expected one of {', '.join(loss_table_names())}"
        )
    table = read_losses(path, count=count, where=entry.get("where"))
    for column, value in entry.get("leave_out", {}).items():
        table = table.where(**{column: lambda cell, value=value: cell != value})
    if entry.get("plain"):
        table = table.select(table.text("notes") == "")
    if entry.get("one_epoch"):
        table = table.select(table.number("epochs_unique_tokens") >= 0.999 * table.tokens)
    if "best_of" in entry:
        table = best_of(table, entry["best_of"])
    if "drop_largest" in entry:
        table = table.select(np.sort(np.argsort(table.loss, kind="stable")[: -entry["drop_largest"]]))
    return replace(table, label=name, family=entry["family"])


def train_below_params(name: str) -> float | None:
    """Parameters below which a table's runs are meant to predict the others, where its authors say so [1]."""
    return _tables()[name].get("train_below_params")
