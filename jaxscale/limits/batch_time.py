r"""Time of a batch on a plan: the data-movement model of Erdil and Schneider-Joseph, arXiv 2411.01137.

Groups are rows of arrays, in the order in which they fill a domain, the most talkative first: `TP_FF` (ranks along the
MLP width), `TP_WIDTH` (along the model width), `EP` (experts), `DP` (replicas), `PP` (stages).

$$ t_{mat} = \lVert t_{arith}, t_{mem}, t_{link}, t_{net} \rVert + t_{lat}, \quad
   t_{stage} = \lVert \tfrac{2 L}{PP} t_{mat}, t_{send} \rVert + t_{hop}, \quad
   t_{batch} = \lVert s\, t_{stage}, t_{grad} \rVert + t_{tree} $$

with $s$ the stage times that pass from the first microbatch's start to the last one's end.
"""

import abc
import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.smooth import p_norm, p_norm_smaller, smaller
from jaxscale.limits.frontier_scenario import FrontierScenario, FrontierWork

SHARPNESS = 16
"""Exponent q of the smooth minimum; at equality it is 4 % of the logarithm low [1]."""


class AbstractOverlap(eqx.Module):
    """Rules for the time of overlapping activities and for ranks of a group inside a scale-up domain."""

    @abc.abstractmethod
    def longest(self, times: Float[Array, " n"]) -> Array:
        """Time of activities that overlap [s]."""

    @abc.abstractmethod
    def smaller(self, first: Array, second: Array) -> Array:
        """Smaller of two logarithms of numbers of at least one; zero where one of them is [1]."""


class ExactOverlap(AbstractOverlap):
    """Overlapping activities take the longest time, and domains fill up exactly: for plans of whole degrees."""

    def longest(self, times: Float[Array, " n"]) -> Array:
        """Time of activities that overlap: the longest [s]."""
        return jnp.max(times)

    def smaller(self, first: Array, second: Array) -> Array:
        """Smaller of two logarithms, min(x, y) [1]."""
        return smaller(first, second)


class SmoothOverlap(AbstractOverlap):
    r"""Overlapping activities take the p-norm of their times, and domains fill up smoothly: for relaxed plans.

    Attributes:
        exponent: p of the norm $(\sum t^p)^{1/p}$, at least one [1].
    """

    exponent: Number = eqx.field(converter=as_float)

    def longest(self, times: Float[Array, " n"]) -> Array:
        """Time of activities that overlap: the p-norm of the times [s]."""
        return p_norm(times, self.exponent)

    def smaller(self, first: Array, second: Array) -> Array:
        r"""$(x^{-q} + y^{-q})^{-1/q}$: never above the smaller, never negative, zero where one of them is [1]."""
        return p_norm_smaller(first, second, SHARPNESS)


TP_FF, TP_WIDTH, EP, DP, PP = range(5)


class Degrees(NamedTuple):
    """Natural logarithms of the degrees of a plan, whole or not.

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
        inside: log number of ranks of the group inside one domain [1], [group].
        outside: log number of domains that the group spans [1], [group].
    """

    inside: Float[Array, " 5"]
    outside: Float[Array, " 5"]

    @property
    def inside_share(self) -> Array:
        """Share of the data or hops of a group on links inside a domain: 1 - 1/ranks [1], [group]."""
        # expm1 is exact for degrees near 1.
        return -jnp.expm1(-self.inside)

    @property
    def outside_share(self) -> Array:
        """Share of the data or hops of a group between domains: 1 - 1/domains [1], [group]."""
        return -jnp.expm1(-self.outside)


def place(degrees: Degrees, log_domain: Array, overlap: AbstractOverlap) -> Placement:
    """Fill a domain with the groups in their order.

    Args:
        log_domain: natural logarithm of the chips in a domain.
        overlap: sharp or soft edges.

    Returns:
        Ranks of each group inside and outside the domain.
    """
    # Ranks of the groups so far, cut off at the domain.
    filled = overlap.smaller(jnp.cumsum(degrees.groups), log_domain)
    inside = jnp.diff(filled, prepend=0.0)
    return Placement(inside, degrees.groups - inside)


def tree_latencies(placement: Placement, scenario: FrontierScenario) -> Float[Array, " 5"]:
    """One hop for every doubling of a group: log2 of the ranks on each level times its latency [s], [group]."""
    hops = placement.inside * scenario.link_latency + placement.outside * scenario.network_latency
    # From natural logarithms to doublings.
    return hops / math.log(2.0)


def matmul_latency(tree: Float[Array, " 5"], scenario: FrontierScenario) -> Array:
    """Latency of a matrix and microbatch, forward and backward [s]."""
    # Two consecutive matmuls; the gradient of the weights waits for nobody.
    # All-reduces go up and down a tree, over t_m or t_f by turns; half an exchange there and back.
    return 2.0 * (scenario.kernel_latency + tree[TP_FF] + tree[TP_WIDTH] + tree[EP])


def stage_send_latency(degrees: Degrees, placement: Placement, scenario: FrontierScenario) -> Array:
    """Latency of the sends and receives of a microbatch between stages on one rank, 2 i hops [s]."""
    inside, outside = placement.inside_share[PP], placement.outside_share[PP]
    hop = inside * scenario.link_latency + outside * scenario.network_latency
    return 2.0 * jnp.exp(degrees.interleave) * hop


def gradient_latency(tree: Float[Array, " 5"]) -> Array:
    """Latency of the gradients' all-reduce, up and down the tree [s]."""
    return 2.0 * tree[DP]


N_MATMULS = 3.0
"""Matmuls of a weight matrix: forward, and backward for activations and for weights [1]."""


class Slice(NamedTuple):
    """Slice of a matrix and a microbatch on one chip, as natural logarithms.

    Attributes:
        tokens: token visits to the chip's experts, b k / EP [token].
        width: rows of the slice, w_m.
        ff: columns of the slice, w_f.
        experts: experts on the chip, E / EP.
        matrices: weight matrices on the chip, of each expert, 2 L / PP.
    """

    tokens: Array
    width: Array
    ff: Array
    experts: Array
    matrices: Array

    @property
    def weights(self) -> Array:
        """Weights of a layer's matrix on the chip, all its experts."""
        return self.experts + self.width + self.ff


def local_slice(degrees: Degrees, work: FrontierWork) -> Slice:
    """Slice of a matrix and a microbatch on one chip."""
    groups = degrees.groups
    return Slice(
        # ln(B k / (DP EP m))
        work.log_batch + work.log_active - groups[DP] - groups[EP] - degrees.n_microbatches,
        work.log_width - groups[TP_WIDTH],
        work.log_ff - groups[TP_FF],
        work.log_experts - groups[EP],
        # ln(2 L / PP): two matrices a layer.
        math.log(2.0) + work.log_layers - groups[PP],
    )


def arithmetic_time(local: Slice, scenario: FrontierScenario) -> Array:
    """Time of the arithmetic, 2 * 3 b w_m w_f / (u C) [s]."""
    rate = scenario.max_utilisation * scenario.peak_flops
    return 2.0 * N_MATMULS * jnp.exp(local.tokens + local.width + local.ff - jnp.log(rate))


def memory_time(local: Slice, scenario: FrontierScenario) -> Array:
    """Time to move weights and activations to and from DRAM, 3 p (w_m w_f + b w_m + b w_f) / W [s]."""
    words: Float[Array, " 3"] = jnp.stack([local.weights, local.tokens + local.width, local.tokens + local.ff])
    sizes = jnp.stack([scenario.weight_bytes, scenario.activation_bytes, scenario.activation_bytes])
    return N_MATMULS * jnp.sum(sizes * jnp.exp(words - jnp.log(scenario.memory_bandwidth)))


REDUCED = np.asarray([1.0, 1.0, 0.0, 1.0, 0.0])
"""Groups that all-reduce: both tensor-parallel groups and the data-parallel group [group]."""

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

    For one of a layer's two matrices and a microbatch, forward and backward:

    * t_f, t_m: partial sums, $p\,b\,w_m$ and $p\,b\,w_f$: one of the two after each matrix, so half of both;
    * EP: dispatch and combine, $2 p\,b\,d / TP$.

    For a microbatch: PP, $2 i\,p\,b\,d / TP$. For a batch: DP, $p_g$ for every weight on the chip.
    """
    share = local.width - degrees.groups[TP_FF]  # of d on one rank
    log_two = jnp.log(2.0)
    # ln(p b)
    word = jnp.log(scenario.activation_bytes) + local.tokens
    return jnp.stack(
        [
            word + local.width,
            word + local.ff,
            word + share + log_two,
            jnp.log(scenario.gradient_bytes) + local.matrices + local.weights,
            # `tokens` counts visits to experts, but a token is sent once.
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
    # An all-reduce moves the data twice.
    factor = 1.0 + REDUCED
    # The data of an exchange that stays in the domain, and of a reduction that leaves it.
    stays = jnp.exp(-EXCHANGED * placement.outside)
    leaves = jnp.exp(-REDUCED * placement.inside)
    return TransferTimes(
        factor * size * stays * placement.inside_share / scenario.link_bandwidth,
        factor * size * leaves * placement.outside_share / scenario.network_bandwidth,
    )


class BatchTime(NamedTuple):
    """Time of a batch and its parts.

    Attributes:
        busy: arithmetic, DRAM, links and network of one matrix and microbatch, forward and backward, which overlap
            [s], [activity].
        matrix: time of that matrix and microbatch, with latency [s].
        stage: of a microbatch on a stage [s].
        gradients: transfers of the gradients, which overlap with the rest [s].
        total: of the batch [s].
    """

    busy: Float[Array, " 4"]
    matrix: Array
    stage: Array
    gradients: Array
    total: Array


def pipeline_slots(degrees: Degrees, wait: Array, overlap: AbstractOverlap) -> Array:
    r"""Stage times in a batch, $m + (PP - 1) / i + w (PP - \min(m, PP)) (1 - 1/i)$.

    The first two terms are the interleaved schedule with at least as many microbatches as stages (Narayanan et al.
    2021, arXiv 2104.04473, section 2.2). With fewer, each rank waits for the first microbatch to come round: the
    last term.
    """
    n_microbatches, n_stages = jnp.exp(degrees.n_microbatches), jnp.exp(degrees.groups[PP])
    fewer = jnp.exp(overlap.smaller(degrees.n_microbatches, degrees.groups[PP]))
    part = jnp.exp(-degrees.interleave)
    # Without the last term a batch would end before a microbatch could pass all stages.
    return n_microbatches + (n_stages - 1.0) * part + wait * (n_stages - fewer) * (1.0 - part)


def batch_time(degrees: Degrees, work: FrontierWork, scenario: FrontierScenario, overlap: AbstractOverlap) -> BatchTime:
    """Time of a batch.

    Args:
        overlap: smooth or exact.
    """
    placement = place(degrees, jnp.log(scenario.domain_size), overlap)
    local = local_slice(degrees, work)
    link, network = transfer_times(local, degrees, placement, scenario)
    tree = tree_latencies(placement, scenario)
    busy = jnp.stack(
        [
            arithmetic_time(local, scenario),
            memory_time(local, scenario),
            # PP and DP overlap with the stage and the batch, below.
            link[TP_FF] + link[TP_WIDTH] + link[EP],
            network[TP_FF] + network[TP_WIDTH] + network[EP],
        ]
    )
    per_matrix = overlap.longest(busy) + matmul_latency(tree, scenario)
    compute = jnp.exp(local.matrices) * per_matrix
    hop = stage_send_latency(degrees, placement, scenario)
    stage = overlap.longest(jnp.stack([compute, link[PP], network[PP]])) + hop
    slots = pipeline_slots(degrees, scenario.pipeline_wait, overlap)
    total = overlap.longest(jnp.stack([slots * stage, link[DP], network[DP]])) + gradient_latency(tree)
    return BatchTime(busy, per_matrix, stage, link[DP] + network[DP], total)
