"""Anchors of chips: share of the peak flop rate in large matmuls, and memory of the driver beside a program.

All software on a chip calls the same kernels, so an anchor is known before any training run is measured. A chip without
timed kernels gets the anchor of a chip with the same die, or the mean of the chip's class. Values and sources:
`data/chip_anchors.toml`.
"""

import functools
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxscale.base.documents import data_path, read_toml
from jaxscale.calibration.coefficients import names
from jaxscale.calibration.levels import Levels

ANCHORED = "matmul_efficiency"
"""Coefficient of the achieved share of the peak, which every anchor states."""

HELD = "framework_bytes"
"""Coefficient of the memory of the driver, anchored where a chip reports memory that is free for programs."""


@functools.cache
def chip_anchors() -> Mapping[str, float]:
    """Matmul efficiency of each chip, by catalogue id [1]."""
    return {chip: entry[ANCHORED] for entry in _entries() for chip in entry["chips"]}


@functools.cache
def held_by_drivers() -> Mapping[str, float]:
    """Memory of the driver beside a program, on chips with an anchor of the memory, by catalogue id [byte]."""
    return {chip: entry[HELD] for entry in _entries() if HELD in entry for chip in entry["chips"]}


@functools.cache
def timed_chips() -> frozenset[str]:
    """Catalogue ids of chips with timed kernels."""
    return frozenset(chip for entry in _entries() if entry.get("timed", True) for chip in entry["chips"])


@functools.cache
def _table() -> Mapping[str, Any]:
    """Content of `data/chip_anchors.toml`."""
    return read_toml(data_path("chip_anchors.toml"))


def _entries() -> list[Mapping[str, Any]]:
    return _table()["anchors"]


def anchor_shifts(
    levels: Levels, fitted: Container[str] = (), own: Mapping[str, float] | None = None
) -> Float[np.ndarray, "row coefficient"]:
    r"""Anchor shifts of unconstrained coefficients: $\logit(a) - \logit(a_0)$ for the matmul efficiency.

    Also $\ln(b / b_0)$ for the memory of the driver; 0 for all further coefficients.

    Args:
        levels: levels of the runs; a run without a chip has no shift.
        fitted: chips with fitted effects; without an anchor, their effects count from the reference $a_0$.
        own: anchors of the user's hardware file by chip, which precede those of the table [1].

    Returns:
        The shifts [1], [row, coefficient].
    """
    anchors, reference = {**chip_anchors(), **(own or {})}, _table()["reference"]
    usual, unseen = reference[ANCHORED], reference["at_first_sight"]

    def anchor(chip: str) -> float:
        own_anchor = anchors.get(chip)
        return own_anchor if own_anchor is not None else usual if chip in fitted else unseen

    efficiency = levels.numbers(anchor, "gpu", of_none=usual)
    by_context = reference[HELD]
    held = levels.numbers(lambda chip: held_by_drivers().get(chip, by_context), "gpu", of_none=by_context)
    shifts = np.zeros((len(levels), len(names())))
    shifts[:, names().index(ANCHORED)] = _logit(efficiency) - _logit(usual)
    shifts[:, names().index(HELD)] = np.log(held / by_context)
    return shifts


def _logit(share: np.ndarray | float) -> np.ndarray:
    return np.asarray(np.log(share) - np.log1p(-np.asarray(share)))
