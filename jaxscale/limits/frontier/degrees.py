"""Parallel plan of the data-movement model, as logarithms, and the placement of its groups in the network.

Groups are rows of arrays, in the order in which they fill a domain, the most talkative first: `TP_FF` (ranks along the
MLP width), `TP_WIDTH` (along the model width), `EP` (experts), `DP` (replicas), `PP` (stages).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.limits.frontier.overlap_norm import AbstractOverlap

TP_FF, TP_WIDTH, EP, DP, PP = range(5)


class Degrees(NamedTuple):
    """Natural logarithms of a plan's degrees; whole numbers or anything between.

    Attributes:
        groups: ranks of each group [group].
        n_microbatches: microbatches of a replica, m [1].
        interleave: virtual stages of a rank, i [1].
    """

    groups: Float[Array, " 5"]
    n_microbatches: Float[Array, ""]
    interleave: Float[Array, ""]

    @property
    def chips(self) -> Array:
        """Natural logarithm of the number of chips."""
        return jnp.sum(self.groups)


class Placement(NamedTuple):
    """Natural logarithms of the ranks of each group.

    Attributes:
        inside: that share a domain [group].
        outside: domains that the group spans [group].
    """

    inside: Float[Array, " 5"]
    outside: Float[Array, " 5"]

    @property
    def inside_share(self) -> Array:
        """1 - 1/ranks inside a domain [group]."""
        return -jnp.expm1(-self.inside)

    @property
    def outside_share(self) -> Array:
        """1 - 1/domains [group]."""
        return -jnp.expm1(-self.outside)


def place(degrees: Degrees, log_domain: Array, overlap: AbstractOverlap) -> Placement:
    """Fill a domain with the groups in their order.

    Args:
        degrees: the plan.
        log_domain: natural logarithm of the chips in a domain.
        overlap: sharp or soft edges.

    Returns:
        What of each group is inside and what is outside.
    """
    filled = overlap.smaller(jnp.cumsum(degrees.groups), log_domain)
    inside = jnp.diff(filled, prepend=0.0)
    return Placement(inside, degrees.groups - inside)
