"""Number formats of weight matmuls: bytes per element, substitute format and efficiency.

`Chip.peak_flops` and `Plan.precision` follow the order of the table `FORMATS`. A chip without a stated peak for a
format (`peak_tflops_<name>` in the catalogue) multiplies in the format named by `without_units`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import PerPrecision


class NumberFormat(NamedTuple):
    """Number format of the weight matmuls, with bytes per element.

    Attributes:
        name: name of the format; `bf16` stands for all 16-bit formats.
        element_bytes: stored bytes of a weight or activation outside the matmuls [byte].
        gathered_bytes: bytes of an activation gathered as input of matmuls [byte].
        matmul_bytes: stored bytes of tensors read by matmuls only: frozen weights, and inputs saved for the gradients
            of weights [byte].
        wide: format of work in at least 16 bits: attention core, scans, logits head.
        without_units: substitute format on a chip without units for the format; empty if every chip has units.
        efficiency: name of the coefficient of the matmul efficiency relative to 16 bits; empty for none.
    """

    name: str
    element_bytes: float
    gathered_bytes: float
    matmul_bytes: float
    wide: str
    without_units: str = ""
    efficiency: str = ""


# Micikevicius et al. 2022, arXiv 2209.05433, section 4: 8-bit inputs of matmuls are cast from 16 bits, in which weights
# and activations are stored. NVIDIA A100 whitepaper, 2020: tf32 inputs are 32-bit numbers. Transformer Engine,
# userbuffers, 2025: 8-bit inputs are quantised before they are sent; blocks of 4-bit ones bring scales along.
FORMATS = (
    NumberFormat("fp32", 4.0, 4.0, 4.0, wide="fp32"),
    NumberFormat("tf32", 4.0, 4.0, 4.0, wide="tf32"),
    NumberFormat("bf16", 2.0, 2.0, 2.0, wide="bf16"),
    NumberFormat("fp8", 2.0, 1.0, 1.0, wide="bf16", without_units="bf16", efficiency="fp8_efficiency"),
    NumberFormat("fp4", 2.0, 1.0, 0.5, wide="bf16", without_units="fp8", efficiency="fp4_efficiency"),
)

PRECISIONS = tuple(entry.name for entry in FORMATS)
"""Names of the formats, in the order of `Chip.peak_flops` and `Plan.precision`."""


def mean_over_formats(shares: PerPrecision, number_of: Callable[[NumberFormat], float]) -> Array:
    """Mean of a number over the formats of the weight matmuls, weighted by the share of each format.

    Args:
        shares: share of the weight matmuls in each format [1], [..., format].
        number_of: function from a format to a number, in any unit.

    Returns:
        The mean, in the unit of `number_of`.
    """
    share = jnp.asarray(shares)
    return jnp.sum(share * jnp.asarray([number_of(entry) for entry in FORMATS], share.dtype), axis=-1)


def wide_shares(shares: PerPrecision) -> Array:
    """Share of each format in work of at least 16 bits, such as the attention core [1], [..., format].

    Args:
        shares: share of the weight matmuls in each format [1], [..., format].
    """
    share = jnp.asarray(shares)
    wide = np.asarray([PRECISIONS.index(entry.wide) for entry in FORMATS])
    return share @ jnp.eye(len(FORMATS), dtype=share.dtype)[wide]
