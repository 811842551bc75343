r"""Time of collectives on a hierarchy of network levels, by the alpha-beta model.

A group of n ranks, placed `stride` chips apart, has $r_k$ ranks at level k with $\prod_k r_k = n$. A ring of n ranks
has $n - 1$ hops, of which $(r_k - 1) \prod_{j>k} r_j$ cross level k. Every rank of a domain has a link outwards, so
that one ring per rank works in parallel and moves an equal share. Transfers are pipelined in chunks: the slowest level
alone sets the bandwidth (within a domain without a switch the bandwidth of the links between members),

$$ t = t_0 + \sum_k \alpha_k (r_k - 1) \prod_{j>k} r_j
   + \max_{k: r_k > 1} \frac{V}{\prod_{j<k} r_j} \frac{n - 1}{n W_k} $$

for an all-gather or a reduce-scatter of V bytes (gathered size). The sum of the levels in place of the maximum cannot
reach the bandwidth measured on 32 to 8,192 H100 (`fits/companion.md`). An all-reduce is a reduce-scatter and an
all-gather. Beyond a domain the all-reduce may use a double binary tree, whose depth replaces the hops of the ring.
References: Rabenseifner (2004); Sanders, Speck & Träff (2009), doi 10.1016/j.parco.2009.09.001; NCCL 2.4, `tuning.cc`,
ring latency = steps * hop latency, tree latency = 2 * log2(nodes) * hop latency.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import N_LEVELS
from jaxscale.base.smooth import Temperature, degree_within, larger, positive_part, several, smooth_max, smooth_min
from jaxscale.costs.machine import Link

Collective = Callable[..., Array]
"""Time of a collective from volume, ranks, stride, link and temperature: `gather_time`, `reduce_time`."""


NO_PEERS = 1e-9
"""Number of peers that keeps a ratio of peers finite [1]."""


def bandwidths_among(ranks: tuple[Array, ...], link: Link, temperature: Temperature) -> tuple[Array, ...]:
    """Bandwidth of a group of ranks at each network level [byte/s].

    Without a switch, n members of the group in a domain of c `peers` use the share (n - 1) / c of a chip's links.

    Args:
        ranks: ranks of the group at each level [1].
        link: the network.
        temperature: smoothing [1].

    Returns:
        Bandwidth at each level, without meaning at levels with one rank [byte/s].
    """
    others, spare = smooth_max(ranks[0] - 1.0, 1.0, temperature), link.peers - 1.0
    # Written as the idle share, which is exactly zero behind a switch for every smoothing of the maximum.
    idle = positive_part(1.0 - (others - 1.0) / larger(spare, NO_PEERS), temperature)
    return (link.bandwidth[0] * (1.0 - idle * spare / link.peers), *link.bandwidth[1:])


def ranks_per_level(n: ArrayLike, stride: ArrayLike, link: Link, temperature: Temperature) -> tuple[Array, ...]:
    """Number of ranks of a group at each network level, with product n [1].

    Args:
        n: ranks of the group [1].
        stride: chips between neighbouring ranks [1].
        link: the network.
        temperature: smoothing of the clipped counts; 0 for exact counts [1].

    Returns:
        Ranks at each level [1].
    """
    ranks = []
    remaining, span = jnp.asarray(n), stride
    for size in link.domain_size[:-1]:
        here = degree_within(size / span, remaining, temperature)
        ranks.append(here)
        remaining, span = remaining / here, span * here
    return (*ranks, remaining)


def launch_time(n: ArrayLike, link: Link) -> Array:
    """Launch time of a collective: 0 for a single rank, the full time from two ranks on, linear between [s]."""
    return link.launch * several(n)


TREE_HOP = 2.0
"""Latency of a tree hop over a ring hop in NCCL's low-latency protocols: 5.0 and 8.5 against 2.7 and 4.0 us (NCCL
`tuning.cc`, hwLat for the network, 2023) [1]."""


INSTANT = 1e-3
"""Fraction of a hop's latency that keeps a ratio of latencies finite [1]."""


def seconds_per_byte(n: ArrayLike, ranks: tuple[Array, ...], link: Link, temperature: Temperature) -> Array:
    """Time per gathered byte of a ring of n ranks, set by the slowest network level of the ring [s/byte]."""
    slowest, rings = 0.0, 1.0
    for rank, bandwidth in zip(ranks, bandwidths_among(ranks, link, temperature), strict=True):
        # A level with one rank has no traffic; between one and two ranks the traffic grows linearly.
        slowest = smooth_max(slowest, several(rank, temperature) / (rings * bandwidth), temperature)
        rings = rings * rank
    # (n - 1) / n of the gathered bytes.
    return (1.0 - 1.0 / jnp.asarray(n)) * slowest


def ring_latency(ranks: tuple[Array, ...], link: Link) -> Array:
    """Latency of a ring through all ranks of a group: sum over the hops inside and between domains [s]."""
    time, domains = 0.0, 1.0
    for rank, latency in zip(reversed(ranks), reversed(link.latency), strict=True):
        # alpha_k (r_k - 1) prod_{j>k} r_j
        time = time + latency * (rank - 1.0) * domains
        domains = domains * rank
    return jnp.asarray(time)


def tree_latency(ranks: tuple[Array, ...], link: Link, temperature: Temperature) -> Array:
    r"""Latency of a tree over the domains of a group, after a chain of hops through a domain [s].

    A tree of r domains has $\log_2(1 + r)$ levels, and a hop takes `TREE_HOP` times as long as in a ring.

    Args:
        ranks: ranks of the group at each level [1].
        link: the network.
        temperature: smoothing [1].

    Returns:
        Time [s]; the chain alone if a single domain holds all ranks.
    """
    time = link.latency[0] * (ranks[0] - 1.0)
    for rank, latency in zip(ranks[1:], link.latency[1:], strict=True):
        # log2(1 + r) levels of the tree.
        time = time + several(rank, temperature) * latency * TREE_HOP * jnp.log2(1.0 + rank)
    return time


def gather_time(
    volume: ArrayLike, n: ArrayLike, stride: ArrayLike, link: Link, temperature: Temperature = 0.0
) -> Array:
    """Time of a ring all-gather or reduce-scatter over the hierarchy of network levels.

    Args:
        volume: V, size of the gathered tensor [byte].
        n: ranks of the group [1].
        stride: chips between neighbouring ranks [1].
        link: the network.
        temperature: smoothing of the placement [1].

    Returns:
        Time [s]; zero for a single rank.
    """
    ranks = ranks_per_level(n, stride, link, temperature)
    moved = volume * seconds_per_byte(n, ranks, link, temperature)
    return jnp.asarray(launch_time(n, link) + ring_latency(ranks, link) + moved)


def reduce_time(
    volume: ArrayLike, n: ArrayLike, stride: ArrayLike, link: Link, temperature: Temperature = 0.0
) -> Array:
    """Time of an all-reduce over the hierarchy of network levels, along a ring or a tree.

    Ring and tree move every byte twice (reduction and broadcast) over the slowest level; the lower latency counts.

    Args:
        volume: V, size of the reduced tensor [byte].
        n: ranks of the group [1].
        stride: chips between neighbouring ranks [1].
        link: the network.
        temperature: smoothing of the placement and of the choice [1].

    Returns:
        Time [s]; zero for a single rank.
    """
    ranks = ranks_per_level(n, stride, link, temperature)
    ring, tree = ring_latency(ranks, link), tree_latency(ranks, link, temperature)
    # A ratio keeps the slope of the minimum where a group has one rank and neither ring nor tree takes time.
    instant = INSTANT * link.latency[0] + 1e-30  # the floor is for links without latency
    hops = ring * smooth_min(1.0, (tree + instant) / (ring + instant), temperature)
    moved = volume * seconds_per_byte(n, ranks, link, temperature)
    return jnp.asarray(2.0 * (launch_time(n, link) + hops + moved))


class Transfer(NamedTuple):
    """Volume of a collective and placement of its ranks.

    Attributes:
        volume: V, size of the gathered (`gather_time`) or reduced tensor (`reduce_time`) [byte].
        n: ranks of the group [1].
        stride: chips between neighbouring ranks [1].
    """

    volume: ArrayLike
    n: ArrayLike
    stride: ArrayLike


def times_of(
    collective: Collective, transfers: Mapping[str, Transfer], link: Link, temperature: Temperature = 0.0
) -> dict[str, Array]:
    """Times of several transfers by the same collective, in a single trace [s].

    Args:
        collective: `gather_time` or `reduce_time`.
        transfers: transfers by name.
        link: the network.
        temperature: smoothing [1].

    Returns:
        Time of each transfer, by name [s].
    """
    # One trace of the collective serves all transfers: a cost model with a trace per transfer would take half as long
    # again to compile.
    rows = list(transfers.values())
    columns = [jnp.stack(jnp.broadcast_arrays(*map(jnp.asarray, column))) for column in zip(*rows, strict=True)]
    times = jax.vmap(lambda volume, n, stride: collective(volume, n, stride, link, temperature))(*columns)
    return dict(zip(transfers, times, strict=True))


def dispatch_time(
    volume: ArrayLike,
    copies: ArrayLike,
    experts: ArrayLike,
    n: ArrayLike,
    stride: ArrayLike,
    link: Link,
    temperature: Temperature = 0.0,
) -> Array:
    r"""Time of the all-to-all of tokens to experts: each token goes to k of E experts, drawn at random.

    With the experts divided into G equal groups, none of the k copies goes to a given group with the probability
    $q(G) = (1 - E / (G (E - (k - 1) / 2)))^k$: draws are without replacement, and each draw uses the mean number of
    remaining experts, which equals the hypergeometric law to 0.6 % where a token has up to a quarter of the experts. A
    token crosses the network once for each domain with a chosen expert and is forwarded inside the domain: with
    $G_j = \prod_{i \ge j} r_i$, $t = \sum_j [\alpha_j (r_j - 1) + V G_j (1 - q(G_j)) (1 - 1/r_j) / W_j]$. With k = 1 on
    one level the time equals an all-to-all of V. Reference: DeepEP, github.com/deepseek-ai/DeepEP (2025-02), README.

    Args:
        volume: V, bytes of the tokens of one rank, each counted once [byte].
        copies: k, experts of a token [1].
        experts: E, no fewer than k [1].
        n: ranks of the group [1].
        stride: chips between neighbouring ranks [1].
        link: the network.
        temperature: smoothing of the placement [1].

    Returns:
        Time [s]; zero for a single rank.
    """
    time, places = launch_time(n, link), jnp.asarray(n)
    share = experts / (experts - 0.5 * jnp.subtract(copies, 1.0))
    ranks = ranks_per_level(n, stride, link, temperature)
    levels = zip(ranks, bandwidths_among(ranks, link, temperature), link.latency, strict=True)
    for rank, bandwidth, latency in levels:
        # q(G) = (1 - share / G)^k
        missed = jnp.power(larger(1.0 - share / places, 0.0), copies)
        # V G (1 - q(G)) (1 - 1 / r) [byte]
        carried = volume * places * (1.0 - missed) * (1.0 - 1.0 / rank)
        time = time + latency * (rank - 1.0) + carried / bandwidth
        places = places / rank
    return jnp.asarray(time)


def send_time(
    volume: ArrayLike, stride: ArrayLike, stages: ArrayLike, link: Link, temperature: Temperature = 0.0
) -> Array:
    """Time of a point-to-point send to the rank `stride` chips away, averaged over the hops of a chain of stages.

    $p s$ chips in domains of D have $p s / D - 1$ boundaries between domains, each crossed by the s hops of one pair of
    stages out of $p - 1$ pairs: the share $(p s / D - 1) / (p - 1)$ of the hops leaves a domain; none where one domain
    holds all stages. Without a switch a pair of chips has only the direct links.

    Args:
        volume: size of the message [byte].
        stride: s, chips between sender and receiver [1].
        stages: p, ranks of the chain [1].
        link: the network.
        temperature: smoothing of the placement [1].

    Returns:
        Time [s].
    """
    time = 0.0
    crossing = 1.0  # share of the hops that reach a level
    pairs = smooth_max(jnp.subtract(stages, 1.0), 1.0, temperature)
    bandwidth = (link.bandwidth[0] / link.peers, *link.bandwidth[1:])
    for level, size in enumerate(link.domain_size):
        # p s / D - 1 boundaries between domains.
        boundaries = positive_part(stages * stride / size - 1.0, temperature) if level < N_LEVELS - 1 else 0.0
        leaving = smooth_min(boundaries / pairs, 1.0, temperature)
        time = time + (crossing - leaving) * (link.latency[level] + volume / bandwidth[level])
        crossing = leaving
    return jnp.asarray(time)
