"""Optimizers: stored bytes of optimizer state per trained weight.

A 16-bit weight has a 32-bit master copy, 4 byte, beside the moments of the optimizer; a 32-bit weight needs no master
copy. Software that trains in pure 16 bits states fewer bytes by `Plan.optimizer_bytes`.
References: Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1 (Adam); Dettmers et al. 2022, arXiv 2110.02861 (8-bit
moments, with one 32-bit scale for each block of 2,048); Shazeer & Stern 2018, arXiv 1804.04235 (Adafactor: a row and a
column of factors for a matrix); Chen et al. 2023, arXiv 2302.06675 (Lion: one moment); Jordan et al. 2024, Muon: one
moment of matrices.
"""

from typing import NamedTuple

from jaxscale.base.errors import check_known
from jaxscale.hardware.formats import FORMATS, PRECISIONS

MASTER_BYTES = 4.0
"""Bytes of the 32-bit master copy of a 16-bit weight [byte]."""

MOMENT_BYTES = {"adamw": 8.0, "adamw-8bit": 2.0, "adafactor": 0.0, "lion": 4.0, "muon": 4.0, "sgd": 4.0}
"""Bytes of the moments per weight, by optimizer: two in 32 bits, two in 8 bits, a vanishing number, one (`sgd`:
momentum) [byte]."""


class StateBytes(NamedTuple):
    """Stored bytes per trained weight.

    Attributes:
        weight: bytes of the weight [byte].
        optimizer: bytes of moments and master copy [byte].
    """

    weight: float
    optimizer: float


def mixed_precision_bytes(precision: str, optimizer: str = "adamw") -> StateBytes:
    """Stored bytes per trained weight under mixed precision.

    Args:
        precision: format of the weight matmuls; an unknown format counts as 16 bits, callers check the name.
        optimizer: name from `MOMENT_BYTES`.

    Returns:
        Bytes of the weight and of the optimizer state.

    Raises:
        InputError: unknown optimizer; lists the valid names.
    """
    check_known("optimizer =", optimizer, MOMENT_BYTES)
    element = FORMATS[PRECISIONS.index(precision)].element_bytes if precision in PRECISIONS else 2.0
    # A 32-bit weight needs no master copy.
    return StateBytes(element, MOMENT_BYTES[optimizer] + MASTER_BYTES * (element < 4.0))
