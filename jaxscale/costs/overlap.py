r"""Collectives of a pass hide behind a share of its matmuls.

What the collectives of a pass cost, $t_\text{collectives}$, hides behind a share o of the time of its matmuls,

$$ t = \max(0,\; t_\text{collectives} - o \, t_\text{matmul}). $$

The backward pass has the matmuls of two forward passes, or of one where weights are frozen.
Reference: Wang et al. 2023, doi 10.1145/3567955.3567959, section 3 (collectives and the matmuls that depend on them).
"""

from typing import NamedTuple

from jaxtyping import Array, ArrayLike

from jaxscale._types import exposed
from jaxscale.workload import Transformer


class Passes(NamedTuple):
    """Time of one microbatch, all layers, as if on one stage.

    Attributes:
        forward: of one forward pass [s].
        backward: of the backward pass, without any recomputation [s].
    """

    forward: Array
    backward: Array


def behind_matmuls(
    model: Transformer, collectives: Passes, matmul: ArrayLike, overlap: ArrayLike, temperature: float = 0.0
) -> Passes:
    """Collectives that matmuls do not hide.

    Args:
        model: whose weights may be frozen.
        collectives: time of each pass [s].
        matmul: time of the matmuls of one forward pass [s].
        overlap: o [1].
        temperature: smoothing [1].

    Returns:
        Times; zero where there are no collectives [s].
    """
    cover = overlap * matmul
    return Passes(
        exposed(collectives.forward, cover, temperature),
        exposed(collectives.backward, (1.0 + model.trainable_share) * cover, temperature),
    )
