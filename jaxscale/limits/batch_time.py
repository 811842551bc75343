r"""Time of a batch on a plan: the data-movement model of Erdil and Schneider-Joseph, arXiv 2411.01137.

Groups of ranks are rows of arrays, in the order in which they fill a scale-up domain, the group with most traffic
first: `TP_FF` (ranks along the MLP width), `TP_WIDTH` (along the model width), `EP` (experts), `DP` (replicas), `PP`
(pipeline stages).

$$ t_{mat} = \lVert t_{arith}, t_{mem}, t_{link}, t_{net} \rVert + t_{lat}, \quad
   t_{stage} = \lVert \tfrac{2 L}{PP} t_{mat}, t_{send} \rVert + t_{hop}, \quad
   t_{batch} = \lVert s\, t_{stage}, t_{grad} \rVert + t_{tree} $$

with $s$ the stage times from the start of the first microbatch to the end of the last, and $\lVert \cdot \rVert$ the
time of overlapping activities: their maximum or their p-norm.
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
    """Rules for the time of overlapping activities and for the ranks of a group inside a scale-up domain."""

    @abc.abstractmethod
    def longest(self, times: Float[Array, " n"]) -> Array:
        """Time of overlapping activities, from the time of each [s]."""

    @abc.abstractmethod
    def smaller(self, first: Array, second: Array) -> Array:
        """Smaller of two logarithms of numbers of at least one, exactly or smoothly; zero if either is zero [1]."""


class ExactOverlap(AbstractOverlap):
    """Maximum of overlapping times and sharp filling of domains: for plans of whole degrees."""

    def longest(self, times: Float[Array, " n"]) -> Array:
        """Time of overlapping activities: the maximum of the times [s]."""
        return jnp.max(times)

    def smaller(self, first: Array, second: Array) -> Array:
        """Smaller of two logarithms, min(x, y) [1]."""
        return smaller(first, second)


class SmoothOverlap(AbstractOverlap):
    r"""p-norm of overlapping times and smooth filling of domains: for plans of real-valued degrees.

    Attributes:
        exponent: p of the norm $(\sum t^p)^{1/p}$, at least one [1].
    """

    exponent: Number = eqx.field(converter=as_float)

    def longest(self, times: Float[Array, " n"]) -> Array:
        """Time of overlapping activities: the p-norm of the times [s]."""
        return p_norm(times, self.exponent)

    def smaller(self, first: Array, second: Array) -> Array:
        r"""Smooth minimum of two logarithms, $(x^{-q} + y^{-q})^{-1/q}$, never above either; zero if one is zero."""
        return p_norm_smaller(first, second, SHARPNESS)


TP_FF, TP_WIDTH, EP, DP, PP = range(5)


class Degrees(NamedTuple):
    """Natural logarithms of the degrees of parallelism of a plan; degrees may be real-valued.

    Attributes:
        groups: log number of ranks of each group [1], [group].
        n_microbatches: log number of microbatches of a replica, ln m [1].
        interleave: log number of virtual stages of a rank, ln i [1].
    """

    groups: Float[Array, " 5"]
    n_microbatches: Float[Array, ""]
    interleave: Float[Array, ""]

    @property
    def chips(self) -> Array:
        """Natural logarithm of the number of chips [1]."""
        return jnp.sum(self.groups)


class Placement(NamedTuple):
    """Natural logarithms of the ranks of each group inside a scale-up domain and of the domains of each group.

    Attributes:
        inside: log number of ranks of the group inside one domain [1], [group].
        outside: log number of domains that the group spans [1], [group].
    """

    inside: Float[Array, " 5"]
    outside: Float[Array, " 5"]

    @property
    def inside_share(self) -> Array:
        """Share of the data or hops of a group on links inside a domain, 1 - 1/ranks [1], [group]."""
        # expm1 is exact for degrees near 1.
        return -jnp.expm1(-self.inside)

    @property
    def outside_share(self) -> Array:
        """Share of the data or hops of a group between domains, 1 - 1/domains [1], [group]."""
        return -jnp.expm1(-self.outside)


def place(degrees: Degrees, log_domain: Array, overlap: AbstractOverlap) -> Placement:
    """Placement of a plan's groups of ranks, which fill the scale-up domain in their order.

    Args:
        degrees: degrees of the plan.
        log_domain: natural logarithm of the chips in a domain [1].
        overlap: sharp or smooth filling of the domain.

    Returns:
        Logarithms of the ranks of each group inside a domain and of the domains of each group.
    """
    # Ranks of the groups so far, cut off at the domain.
    filled = overlap.smaller(jnp.cumsum(degrees.groups), log_domain)
    inside = jnp.diff(filled, prepend=0.0)
    return Placement(inside, degrees.groups - inside)


def tree_latencies(placement: Placement, scenario: FrontierScenario) -> Float[Array, " 5"]:
    """Latency of a tree over each group: log2 of ranks times hop latency, inside and between domains [s], [group]."""
    hops = placement.inside * scenario.link_latency + placement.outside * scenario.network_latency
    # From natural logarithms to doublings.
    return hops / math.log(2.0)


def matmul_latency(tree: Float[Array, " 5"], scenario: FrontierScenario) -> Array:
    """Latency of the matmuls of one matrix for one microbatch, forward and backward [s]."""
    # Two consecutive matmuls; the gradient of the weights waits for nobody.
    # All-reduces go up and down a tree, over t_m or t_f by turns; half an exchange there and back.
    return 2.0 * (scenario.kernel_latency + tree[TP_FF] + tree[TP_WIDTH] + tree[EP])


def stage_send_latency(degrees: Degrees, placement: Placement, scenario: FrontierScenario) -> Array:
    """Latency of the sends of a microbatch between the stages of one rank, 2 i hops for i virtual stages [s]."""
    inside, outside = placement.inside_share[PP], placement.outside_share[PP]
    hop = inside * scenario.link_latency + outside * scenario.network_latency
    return 2.0 * jnp.exp(degrees.interleave) * hop


def gradient_latency(tree: Float[Array, " 5"]) -> Array:
    """Latency of the all-reduce of gradients, up and down the tree of replicas [s]."""
    return 2.0 * tree[DP]


N_MATMULS = 3.0
"""Matmuls of a weight matrix: forward, and backward for activations and for weights [1]."""


class Slice(NamedTuple):
    """Size of the slice of a weight matrix and of a microbatch on one chip, as natural logarithms.

    Attributes:
        tokens: visits of tokens to the chip's experts, b k / EP [token].
        width: rows of the slice, w_m [1].
        ff: columns of the slice, w_f [1].
        experts: experts on the chip, E / EP [1].
        matrices: weight matrices on the chip per expert, 2 L / PP [1].
    """

    tokens: Array
    width: Array
    ff: Array
    experts: Array
    matrices: Array

    @property
    def weights(self) -> Array:
        """Natural logarithm of the weights of one matrix on the chip, over all experts of the chip [1]."""
        return self.experts + self.width + self.ff


def local_slice(degrees: Degrees, work: FrontierWork) -> Slice:
    """Size of the slice of a weight matrix and of a microbatch on one chip."""
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
    """Time of the arithmetic of one matrix and microbatch, 2 * 3 b w_m w_f / (u C) [s]."""
    rate = scenario.max_utilisation * scenario.peak_flops
    return 2.0 * N_MATMULS * jnp.exp(local.tokens + local.width + local.ff - jnp.log(rate))


def memory_time(local: Slice, scenario: FrontierScenario) -> Array:
    """Time to move weights and activations to and from DRAM, 3 (p_w e w_m w_f + p_a b (w_m + w_f)) / W [s].

    e is the number of experts on the chip.
    """
    words: Float[Array, " 3"] = jnp.stack([local.weights, local.tokens + local.width, local.tokens + local.ff])
    sizes = jnp.stack([scenario.weight_bytes, scenario.activation_bytes, scenario.activation_bytes])
    return N_MATMULS * jnp.sum(sizes * jnp.exp(words - jnp.log(scenario.memory_bandwidth)))


REDUCED = np.asarray([1.0, 1.0, 0.0, 1.0, 0.0])
"""Groups that all-reduce: both tensor-parallel groups and the data-parallel group [group]."""

EXCHANGED = np.asarray([0.0, 0.0, 1.0, 0.0, 0.0])
"""Groups that exchange all to all: the experts [group]."""


class TransferTimes(NamedTuple):
    """Time of each group's transfers inside a scale-up domain and between domains.

    Attributes:
        inside: time on links inside a domain [s], [group].
        outside: time on the network between domains [s], [group].
    """

    inside: Float[Array, " 5"]
    outside: Float[Array, " 5"]


def volumes(local: Slice, degrees: Degrees, scenario: FrontierScenario) -> Float[Array, " 5"]:
    r"""Natural logarithm of the data that each group transfers per chip [byte], [group].

    For one of a layer's two matrices and one microbatch, forward and backward, with p bytes per activation:

    * TP_FF and TP_WIDTH: partial sums, $p\,b\,w_m$ and $p\,b\,w_f$. A matrix has one of the two sums, so half of both
      counts for each matrix.
    * EP: dispatch and combine, $2 p\,b\,d / TP$.

    For one microbatch: PP, $2 i\,p\,b\,d / TP$. For one batch: DP, $p_g$ bytes for every weight on the chip.
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
    """Time of the transfers of `volumes` on links and network [s], [group].

    An all-reduce is hierarchical: twice all data inside a domain, then twice the share of one rank between domains. In
    an all-to-all exchange the data for ranks in other domains crosses the network. Sends between stages are averaged
    over the chain of stages.
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
    """Time of a batch and of its components.

    Attributes:
        busy: overlapping times of arithmetic, DRAM, links and network of one matrix and microbatch, forward and
            backward [s], [activity].
        matrix: time of one matrix and microbatch, with latency [s].
        stage: time of a microbatch on a stage [s].
        gradients: time of the transfers of gradients, which overlap with computation [s].
        total: time of the batch [s].
    """

    busy: Float[Array, " 4"]
    matrix: Array
    stage: Array
    gradients: Array
    total: Array


def pipeline_slots(degrees: Degrees, wait: Array, overlap: AbstractOverlap) -> Array:
    r"""Length of a batch in stage times, $m + (PP - 1) / i + w (PP - \min(m, PP)) (1 - 1/i)$ [1].

    The first two terms are the interleaved schedule with at least as many microbatches as stages (Narayanan et al.
    2021, arXiv 2104.04473, section 2.2). With fewer microbatches, each rank waits for the return of the first
    microbatch: the last term, with the scenario's `pipeline_wait` w.
    """
    n_microbatches, n_stages = jnp.exp(degrees.n_microbatches), jnp.exp(degrees.groups[PP])
    fewer = jnp.exp(overlap.smaller(degrees.n_microbatches, degrees.groups[PP]))
    part = jnp.exp(-degrees.interleave)
    # Without the last term a batch would end before a microbatch could pass all stages.
    return n_microbatches + (n_stages - 1.0) * part + wait * (n_stages - fewer) * (1.0 - part)


def batch_time(degrees: Degrees, work: FrontierWork, scenario: FrontierScenario, overlap: AbstractOverlap) -> BatchTime:
    """Time of a batch on a plan, with the times of its components [s].

    Args:
        degrees: degrees of the plan.
        work: model and batch.
        scenario: hardware and number formats.
        overlap: exact or smooth rules for overlapping times.
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
