r"""Collectives of a pass hide behind a share of the compute that can run beside them.

What the collectives of a pass cost, $t_\text{collectives}$, hides behind a share o of the time of that compute,

$$ t = \max(0,\; t_\text{collectives} - o \, t_\text{compute}). $$

Reference: Wang et al. 2023, doi 10.1145/3567955.3567959, section 3 (collectives and the matmuls that depend on them).
"""

from typing import NamedTuple

from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, exposed


class Passes(NamedTuple):
    """Time of one microbatch, all layers, as if on one stage.

    Attributes:
        forward: of one forward pass [s].
        backward: of the backward pass, without any recomputation [s].
    """

    forward: Array
    backward: Array


def not_hidden(collectives: Passes, compute: Passes, overlap: ArrayLike, temperature: Temperature = 0.0) -> Passes:
    """Collectives that compute does not hide.

    Args:
        collectives: time of each pass [s].
        compute: time of the compute that can run beside them [s].
        overlap: o [1].
        temperature: smoothing [1].

    Returns:
        Times; zero where there are no collectives [s].
    """
    return Passes(
        exposed(collectives.forward, overlap * compute.forward, temperature),
        exposed(collectives.backward, overlap * compute.backward, temperature),
    )


def left_over(compute: Passes, collectives: Passes, shown: Passes) -> Passes:
    """Compute that is free to hide further collectives: what hides others is taken.

    Args:
        compute: time of the compute that can run beside collectives [s].
        collectives: time of those that hide behind it first [s].
        shown: what compute does not hide of them [s].

    Returns:
        Times [s].
    """
    return Passes(
        compute.forward - (collectives.forward - shown.forward),
        compute.backward - (collectives.backward - shown.backward),
    )
