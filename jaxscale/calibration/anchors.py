"""Anchors of chips: the share of the peak that large matmuls reach on a chip, from timed kernels.

Software shares the kernels of a chip, so what these reach is known before any training run is measured. A chip without
timed kernels gets the anchor of one whose die it has, or the mean of its class at first sight. Values and sources:
`data/chip_anchors.toml`.
"""

import functools
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxscale.base.resources import data_path, read_toml
from jaxscale.calibration.coefficients import names
from jaxscale.calibration.levels import Levels

ANCHORED = "matmul_efficiency"
"""Coefficient that the anchors are values of."""


@functools.cache
def chip_anchors() -> Mapping[str, float]:
    """Matmul efficiency by catalogue id of the chip [1]."""
    return {chip: entry["matmul_efficiency"] for entry in _entries() for chip in entry["chips"]}


@functools.cache
def timed_chips() -> frozenset[str]:
    """Catalogue ids of chips some of whose kernels were timed."""
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
    r"""Shifts of the unconstrained coefficients by the anchors of chips: $\logit(a) - \logit(a_0)$ of matmuls, else 0.

    Args:
        levels: of the runs; one without a chip has no shift.
        fitted: chips without an anchor that a fit has effects of, which count from the reference.
        own: anchors of a file of the user, before those of the table, by chip [1].

    Returns:
        The shifts [1], [row, coefficient].
    """
    anchors, reference = {**chip_anchors(), **(own or {})}, _table()["reference"]
    usual, unseen = reference["matmul_efficiency"], reference["at_first_sight"]

    def anchor(chip: str) -> float:
        own_anchor = anchors.get(chip)
        return own_anchor if own_anchor is not None else usual if chip in fitted else unseen

    efficiency = levels.numbers(anchor, "gpu", of_none=usual)
    shifts = np.zeros((len(levels), len(names())))
    shifts[:, names().index(ANCHORED)] = _logit(efficiency) - _logit(usual)
    return shifts


def _logit(share: np.ndarray | float) -> np.ndarray:
    return np.asarray(np.log(share) - np.log1p(-np.asarray(share)))
