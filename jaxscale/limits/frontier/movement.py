"""Data that parallelism moves over the network, and its transfer time on each level."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.limits.frontier.degrees import TP_FF, Degrees, Placement
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier.matrix_time import Slice

REDUCED = np.asarray([1.0, 1.0, 0.0, 1.0, 0.0])
"""Groups that all-reduce: both tensor-parallel ones and the data-parallel one [group]."""

EXCHANGED = np.asarray([0.0, 0.0, 1.0, 0.0, 0.0])
"""Groups that exchange all to all: the experts [group]."""


class TransferTimes(NamedTuple):
    """Time of each group's transfers on each level of the network.

    Attributes:
        inside: within the domain [s], [group].
        outside: between domains [s], [group].
    """

    inside: Float[Array, " 5"]
    outside: Float[Array, " 5"]


def volumes(local: Slice, degrees: Degrees, scenario: FrontierScenario) -> Float[Array, " 5"]:
    r"""Data that each group handles, natural logarithm [byte].

    For one of a layer's two matrices and one microbatch, forward and backward:

    * t_f, t_m: partial sums, $p\,b\,w_m$ and $p\,b\,w_f$: one of the two after each matrix, so half of both;
    * EP: dispatch and combine, $2 p\,b\,d / TP$.

    For a microbatch: PP, $2 i\,p\,b\,d / TP$. For a batch: DP, $p_g$ for every weight on the chip.
    """
    share = local.width - degrees.groups[TP_FF]  # of d on one rank
    log_two = jnp.log(2.0)
    word = jnp.log(scenario.activation_bytes) + local.tokens
    return jnp.stack(
        [
            word + local.width,
            word + local.ff,
            word + share + log_two,
            jnp.log(scenario.gradient_bytes) + local.matrices + local.weights,
            word + share + log_two + degrees.interleave - jnp.log(scenario.active_experts),
        ]
    )


def transfer_times(local: Slice, degrees: Degrees, placement: Placement, scenario: FrontierScenario) -> TransferTimes:
    """Time of the transfers of `volumes`.

    All-reduce, hierarchical: twice the whole inside a domain, what is left of it between domains. All-to-all: what has
    its end in another domain goes outside, the rest but for the own part inside. Sends between stages: averaged
    over the chain.
    """
    size = jnp.exp(volumes(local, degrees, scenario))
    factor = 1.0 + REDUCED
    # The data of an exchange that stays in the domain, and of a reduction that leaves it.
    stays = jnp.exp(-EXCHANGED * placement.outside)
    leaves = jnp.exp(-REDUCED * placement.inside)
    return TransferTimes(
        factor * size * stays * placement.inside_share / scenario.link_bandwidth,
        factor * size * leaves * placement.outside_share / scenario.network_bandwidth,
    )
