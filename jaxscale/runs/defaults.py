"""Access to `defaults.toml`: vocabularies of the word columns and defaults by framework and source."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load_defaults() -> Mapping[str, Any]:
    """The tables of `defaults.toml`."""
    return tomllib.loads(files("jaxscale.runs").joinpath("defaults.toml").read_text(encoding="utf-8"))


def translate(vocabulary: str, word: str) -> str | None:
    """The model's word for a word of a table, or None if the vocabulary lacks it.

    Args:
        vocabulary: `precisions`, `number_formats`, `recompute` or `status`.
        word: the cell.

    Returns:
        One of `PRECISIONS`, a number format, none/selective/full or ok/oom; None for a word of no vocabulary.
    """
    known: Mapping[str, str] = load_defaults()[vocabulary]
    word = word.lower()
    if vocabulary == "precisions":
        return next((meaning for token, meaning in known.items() if token in word), None)
    return known.get(word)


def words(vocabulary: str) -> str:
    """The valid words of a vocabulary, for messages."""
    return ", ".join(load_defaults()[vocabulary])


def default_for(name: str, framework: str | None, source: str | None) -> Any:
    """What an empty cell means: by source, else by framework, else for an unnamed framework.

    Args:
        name: a column, or one of the further keys that `defaults.toml` explains.
        framework: the row's framework.
        source: the row's source.

    Returns:
        The default, None where no table has one.
    """
    tables = load_defaults()
    candidates = (
        tables["sources"].get(source or "", {}),
        tables["frameworks"].get((framework or "").lower(), {}),
        tables["frameworks"]["default"],
    )
    return next((table[name] for table in candidates if name in table), None)


def is_fused(attention_kernel: str) -> bool:
    """Whether an attention kernel keeps its scores on the chip; all do but those that the table names."""
    return attention_kernel.lower() not in load_defaults()["kernels"]["materialised"]


def known_frameworks() -> tuple[str, ...]:
    """Frameworks with defaults of their own, in alphabetical order."""
    return tuple(sorted(name for name in load_defaults()["frameworks"] if name != "default"))


def fact_about(row: Mapping[str, Any], name: str) -> Any:
    """What its source says of a row beyond its cells, such as the interleaving of a published recipe.

    Args:
        row: cells by column.
        name: a column, `trainable_share`, `mean_seq_len`, `measured_parts`, or `apart`: what sets runs
            apart from the source's others.

    Returns:
        The value of the first fact whose conditions the row meets; None without one.
    """
    facts = load_defaults()["sources"].get(row.get("source", ""), {}).get("facts", [])
    return next((fact["set"][name] for fact in facts if name in fact["set"] and _meets(row, fact["when"])), None)


def _meets(row: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Whether cells equal the numbers of the conditions and match their words, which are regular expressions."""
    return all(
        re.fullmatch(wanted, row.get(column, "")) is not None if isinstance(wanted, str) else row.get(column) == wanted
        for column, wanted in conditions.items()
    )
