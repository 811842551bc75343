r"""Exposed time of collectives: the time in excess of a share of the compute that can run beside the collectives.

With the time $t_\text{collectives}$ of the collectives of a pass and the share o of the compute time, the
exposed time is

$$ t = \max(0,\; t_\text{collectives} - o \, t_\text{compute}). $$

Reference: Wang et al. 2023, doi 10.1145/3567955.3567959, section 3 (collectives and the matmuls that depend on them).
"""

from typing import NamedTuple

from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, exposed


class Passes(NamedTuple):
    """Time of forward and backward pass of a microbatch, summed over all layers.

    Attributes:
        forward: time of the forward pass [s].
        backward: time of the backward pass, without recomputation [s].
    """

    forward: Array
    backward: Array


def not_hidden(collectives: Passes, compute: Passes, overlap: ArrayLike, temperature: Temperature = 0.0) -> Passes:
    """Exposed time of collectives, after overlap with compute.

    Args:
        collectives: time of each pass [s].
        compute: time of the compute that can run beside the collectives [s].
        overlap: o, share of the compute that hides collectives [1].
        temperature: smoothing [1].

    Returns:
        Times; zero where there are no collectives [s].
    """
    return Passes(
        exposed(collectives.forward, overlap * compute.forward, temperature),
        exposed(collectives.backward, overlap * compute.backward, temperature),
    )


def left_over(compute: Passes, collectives: Passes, shown: Passes) -> Passes:
    """Compute time that can hide further collectives, after a first group of collectives has been hidden.

    Args:
        compute: time of the compute that can run beside collectives [s].
        collectives: time of the first group of collectives [s].
        shown: exposed time of the first group of collectives [s].

    Returns:
        Times [s].
    """
    return Passes(
        compute.forward - (collectives.forward - shown.forward),
        compute.backward - (collectives.backward - shown.backward),
    )
