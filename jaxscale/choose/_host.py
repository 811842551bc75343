"""Concrete numbers on the host."""

from typing import Any


def number(leaf: Any) -> float:
    """A concrete leaf of a module as a Python number."""
    return float(leaf)
