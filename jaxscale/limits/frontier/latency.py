"""Time that passes however little is moved or computed."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.limits.frontier.degrees import DP, EP, PP, TP_FF, TP_WIDTH, Degrees, Placement
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario


def tree_latencies(placement: Placement, scenario: FrontierScenario) -> Float[Array, " 5"]:
    """One hop for every doubling of a group: log2 of the ranks on each level times its latency [s], [group]."""
    hops = placement.inside * scenario.link_latency + placement.outside * scenario.network_latency
    return hops / math.log(2.0)


def matmul_latency(tree: Float[Array, " 5"], scenario: FrontierScenario) -> Array:
    """Latency of one matrix and microbatch, forward and backward [s].

    Two matmuls follow each other (the weights' gradient waits for nobody), each with an all-reduce, up and down the
    tree, over t_m or t_f by turns, and with experts half of an exchange there and back.
    """
    return 2.0 * (scenario.kernel_latency + tree[TP_FF] + tree[TP_WIDTH] + tree[EP])


def stage_send_latency(degrees: Degrees, placement: Placement, scenario: FrontierScenario) -> Array:
    """Latency of the sends and receives of one microbatch between stages on one rank, 2 i hops [s]."""
    inside, outside = placement.inside_share[PP], placement.outside_share[PP]
    hop = inside * scenario.link_latency + outside * scenario.network_latency
    return 2.0 * jnp.exp(degrees.interleave) * hop


def gradient_latency(tree: Float[Array, " 5"]) -> Array:
    """Latency of the gradients' all-reduce, up and down the tree [s]."""
    return 2.0 * tree[DP]
